"""Run the parts of a long run in parallel, and summarise their results.

Usage: python scripts/parts.py [--at-once N] [--again] [--minutes N] [NAME]... <<'END'

Each line of the standard input is a part, `name: shell command`. All parts, or the named ones,
start in order, N at once. A failing part does not stop others. The output of a part is shown when
it has ended. The summary has a line per part: name, result, minutes, and the last line of its
output, or the line with pytest's counts. The exit code is 1 if a part failed. SIGTERM and SIGINT
end all parts, and their output so far is shown.

The environment variable PART has the name of the part. With --again, a failed part runs once more
after all others, with PART_AGAIN=1. If it passes then, the others have disturbed it, and its result
is `passed alone`.

With --minutes, parts that still run after this time are ended as by SIGTERM, and the run fails.
Otherwise a hanging test would hide the output of all parts.
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
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass
from typing import BinaryIO, Final

END_SECONDS = 20
"""Seconds that a part has to end after SIGINT. After that time it gets SIGKILL."""
_COUNTED: Final = re.compile(r"^\d+ \w+.* in \d+\.\d+s")
LAST_LINE_CHARS = 100


@dataclass(frozen=True, slots=True)
class Part:
    """One line of the input: a name, and the shell command that runs under this name."""

    name: str
    command: str


@dataclass(frozen=True, slots=True)
class Ended:
    """Result of a part: `passed`, `passed alone`, `failed (exit code)`, or `stopped`."""

    name: str
    result: str
    minutes: float
    last_line: str

    @property
    def is_good(self) -> bool:
        return self.result.startswith("passed")


def parse_parts(lines: Iterable[str]) -> list[Part]:
    """Return the parts. Empty lines and comments with # are skipped. Exits if a line is not a part,
    or if two parts have the same name."""
    parts: list[Part] = []
    for line in map(str.strip, lines):
        if not line or line.startswith("#"):
            continue
        name, colon, command = (text.strip() for text in line.partition(":"))
        if not (name and colon and command):
            raise SystemExit(f"parts: expected `name: command`, found {line!r}")
        if any(part.name == name for part in parts):
            raise SystemExit(f"parts: duplicate part {name}")
        parts.append(Part(name, command))
    return parts


def choose(parts: list[Part], names: list[str]) -> list[Part]:
    """Return the parts with the given names, or all parts if there are none. Exits for an unknown
    name."""
    known = [part.name for part in parts]
    for name in names:
        if name not in known:
            raise SystemExit(f"parts: expected one of {', '.join(known)}, found {name!r}")
    return [part for part in parts if not names or part.name in names]


class Parts:
    """Runner of parts."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._is_ending = False

    def run(self, part: Part, alone: bool = False) -> Ended:
        """Run a part to its end, then show its output."""
        begin = time.monotonic()
        with tempfile.TemporaryFile() as output:
            process = self._start(part, output, alone)
            code = process.wait() if process is not None else 0
            minutes = (time.monotonic() - begin) / 60
            with self._lock:
                self._running.pop(part.name, None)
                passed = "passed alone" if alone else "passed"
                result = f"failed ({code})" if code else passed
                ended = Ended(
                    part.name,
                    "stopped" if self._is_ending else result,
                    minutes,
                    _find_last_line(output),
                )
                _show(ended, output)
        return ended

    def _start(self, part: Part, output: BinaryIO, alone: bool) -> subprocess.Popen[bytes] | None:
        with self._lock:
            if self._is_ending:
                return None
            print(f"{part.name}: begins{' again' if alone else ''}", flush=True)
            self._running[part.name] = process = subprocess.Popen(
                ["bash", "-c", part.command],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env={**os.environ, "PART": part.name, "PART_AGAIN": "1" if alone else ""},
            )
            return process

    def end(self) -> None:
        """Interrupt the running parts, so that they can clean up, and start no others."""
        with self._lock:
            self._is_ending = True
            running = [*self._running.values()]
            print(f"parts: ending {', '.join(self._running) or 'none'}", flush=True)
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
    # A remaining thread may log after the counts of pytest.
    counted = [line for line in said if _COUNTED.search(line)]
    return next((line for line in reversed(counted or said) if line), "")[:LAST_LINE_CHARS]


def _show(ended: Ended, output: BinaryIO) -> None:
    print(f"\n######## {ended.name}: {ended.result}, {ended.minutes:.1f} minutes", flush=True)
    output.seek(0)
    for line in output:
        sys.stdout.buffer.write(line)
    sys.stdout.buffer.flush()


def run_parts(
    parts: list[Part], at_once: int, again: bool = False, minutes: float | None = None
) -> list[Ended]:
    """Run all parts in order, `at_once` in parallel. `again`: run failed parts again afterwards.
    `minutes`: end all parts after this time."""
    running = Parts()
    if minutes is not None:
        limit = threading.Timer(minutes * 60, running.end)
        limit.daemon = True
        limit.start()

    for number in (signal.SIGTERM, signal.SIGINT):
        # In a thread, since the main one may wait for something that `end` needs.
        signal.signal(number, lambda *_: threading.Thread(target=running.end).start())
    with ThreadPoolExecutor(at_once) as pool:
        futures = [pool.submit(running.run, part) for part in parts]
        # Python handles a signal only when the main thread runs. A wait without a timeout may begin
        # just after the signal, and the signal would have no effect.
        while wait(futures, timeout=1).not_done:
            pass
        ended = [future.result() for future in futures]
    return [
        running.run(part, alone=True) if again and one.result.startswith("failed") else one
        for part, one in zip(parts, ended, strict=True)
    ]


def summarize(ended: list[Ended]) -> str:
    """Return a summary with a line per part."""
    width = max(len(one.name) for one in ended)
    return "\n".join(
        f"{one.name:{width}}  {one.result:12}  {one.minutes:5.1f} min  {one.last_line}"
        for one in ended
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--at-once", type=int, default=1, metavar="N")
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--minutes", type=float, metavar="N")
    parser.add_argument("names", nargs="*", metavar="NAME")
    arguments = parser.parse_args()
    at_once: int = arguments.at_once
    parts = choose(parse_parts(sys.stdin), arguments.names)
    if not parts or at_once < 1:
        parser.error("expected a part at least, and one at once at least")
    begin = time.monotonic()
    ended = run_parts(parts, at_once, arguments.again, arguments.minutes)
    print(f"\n######## all, {(time.monotonic() - begin) / 60:.1f} minutes")
    print(summarize(ended))
    return int(not all(one.is_good for one in ended))


if __name__ == "__main__":
    sys.exit(main())
