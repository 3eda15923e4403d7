"""Run the parts of a long run side by side, and sum up what came of them.

Usage: python scripts/parts.py [--at-once N] [NAME]... <<'END'

Each line of the standard input is a part, `name: command of the shell`. All of them, or those that
are named, begin in their order, N at once; one that fails stops no other. What a part printed is
shown when it has ended; at the end of all there is a line a part: what, result, minutes, and the
last line that it printed, or that in which pytest counts. The exit code is 1 when one failed.
SIGTERM and SIGINT end all; what they printed until then is shown.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import BinaryIO, Final

END_SECONDS = 20
"""How long a part may take to end after SIGINT, before SIGKILL."""
_COUNTED: Final = re.compile(r"^\d+ \w+.* in \d+\.\d+s")
LAST_LINE_CHARS = 100


@dataclass(frozen=True, slots=True)
class Part:
    """One line of the input."""

    name: str
    command: str


@dataclass(frozen=True, slots=True)
class Ended:
    """What came of a part. result: `passed`, `failed (exit code)`, or `stopped`."""

    name: str
    result: str
    minutes: float
    last_line: str


def parse_parts(lines: Iterable[str]) -> list[Part]:
    """Return the parts; empty lines and those that begin with # are none. Exits when a line is no
    part, or a name stands there twice."""
    parts: list[Part] = []
    for line in map(str.strip, lines):
        if not line or line.startswith("#"):
            continue
        name, colon, command = (text.strip() for text in line.partition(":"))
        if not (name and colon and command):
            raise SystemExit(f"parts: expected `name: command`, found {line!r}")
        if any(part.name == name for part in parts):
            raise SystemExit(f"parts: {name} stands there twice")
        parts.append(Part(name, command))
    return parts


def choose(parts: list[Part], names: list[str]) -> list[Part]:
    """Return the parts of these names, all without any. Exits when there is none of a name."""
    known = [part.name for part in parts]
    for name in names:
        if name not in known:
            raise SystemExit(f"parts: expected one of {', '.join(known)}, found {name!r}")
    return [part for part in parts if not names or part.name in names]


class Parts:
    """Runs parts, and can end all that run."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._is_ending = False

    def run(self, part: Part) -> Ended:
        """Run a part to its end, then show what it printed."""
        begin = time.monotonic()
        with tempfile.TemporaryFile() as output:
            process = self._start(part, output)
            code = process.wait() if process is not None else 0
            minutes = (time.monotonic() - begin) / 60
            with self._lock:
                self._running.pop(part.name, None)
                result = f"failed ({code})" if code else "passed"
                ended = Ended(
                    part.name,
                    "stopped" if self._is_ending else result,
                    minutes,
                    _find_last_line(output),
                )
                _show(ended, output)
        return ended

    def _start(self, part: Part, output: BinaryIO) -> subprocess.Popen[bytes] | None:
        with self._lock:
            if self._is_ending:
                return None
            print(f"{part.name}: begins", flush=True)
            self._running[part.name] = process = subprocess.Popen(
                ["bash", "-c", part.command],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            return process

    def end(self) -> None:
        """Interrupt what runs, so that it can tidy up, and begin nothing more."""
        with self._lock:
            self._is_ending = True
            running = [*self._running.values()]
        for process in running:
            _signal(process, signal.SIGINT)
        deadline = time.monotonic() + END_SECONDS
        for process in running:
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                _signal(process, signal.SIGKILL)


def _signal(process: subprocess.Popen[bytes], number: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, number)


def _find_last_line(output: BinaryIO) -> str:
    size = output.seek(0, os.SEEK_END)
    output.seek(max(0, size - 4096))
    lines = output.read().decode(errors="replace").split("\n")
    said = [line.strip("= \r") for line in lines]
    # Behind what pytest counted, a thread that is left may log.
    counted = [line for line in said if _COUNTED.search(line)]
    return next((line for line in reversed(counted or said) if line), "")[:LAST_LINE_CHARS]


def _show(ended: Ended, output: BinaryIO) -> None:
    print(f"\n######## {ended.name}: {ended.result}, {ended.minutes:.1f} minutes", flush=True)
    output.seek(0)
    for line in output:
        sys.stdout.buffer.write(line)
    sys.stdout.buffer.flush()


def run_parts(parts: list[Part], at_once: int) -> list[Ended]:
    """Run all, in their order, some at once; return what came of each."""
    running = Parts()

    for number in (signal.SIGTERM, signal.SIGINT):
        # In a thread: the main one may wait for something that `end` needs.
        signal.signal(number, lambda *_: threading.Thread(target=running.end).start())
    with ThreadPoolExecutor(at_once) as pool:
        return list(pool.map(running.run, parts))


def summarize(ended: list[Ended]) -> str:
    """Return a line a part."""
    width = max(len(one.name) for one in ended)
    return "\n".join(
        f"{one.name:{width}}  {one.result:10}  {one.minutes:5.1f} min  {one.last_line}"
        for one in ended
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--at-once", type=int, default=1, metavar="N")
    parser.add_argument("names", nargs="*", metavar="NAME")
    arguments = parser.parse_args()
    at_once: int = arguments.at_once
    parts = choose(parse_parts(sys.stdin), arguments.names)
    if not parts or at_once < 1:
        parser.error("expected a part at least, and one at once at least")
    begin = time.monotonic()
    ended = run_parts(parts, at_once)
    print(f"\n######## all, {(time.monotonic() - begin) / 60:.1f} minutes")
    print(summarize(ended))
    return int(any(one.result != "passed" for one in ended))


if __name__ == "__main__":
    sys.exit(main())
