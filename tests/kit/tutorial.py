"""Run the blocks of a page from top to bottom, as a reader does, and compare what they print.

A block `sh` is typed into one shell. A block `python` is run by one Python session. A block `python
title="NAME"` is written to that file. A block `text` after such a block is its output: `…` stands
for any text within a line, and a line of `…` alone for any lines.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Final, NamedTuple

_BLOCK: Final = re.compile(
    r"^```(\w+)(?: title=\"([^\"]+)\")?\n(.*?)^```$", re.DOTALL | re.MULTILINE
)
_SESSION: Final = """
import contextlib, io, json, sys
names = {"__name__": "__main__"}
for line in sys.stdin:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(json.loads(line), "page", "exec"), names)
    sys.stdout.write(json.dumps(printed.getvalue()) + "\\n")
    sys.stdout.flush()
"""
_END: Final = "--- end of a block ---"


class Block(NamedTuple):
    """A block. `title` is the name of the file to write, or empty. `output` is the expected output,
    or None."""

    language: str
    title: str
    text: str
    output: str | None


def read_blocks(page: str) -> list[Block]:
    """Return the blocks of a page in order, each with its output."""
    blocks: list[Block] = []
    for language, title, text in _BLOCK.findall(page):
        if language == "text":
            blocks[-1] = blocks[-1]._replace(output=text)
        else:
            blocks.append(Block(language, title, text, None))
    return blocks


def matches(expected: str, found: str) -> bool:
    """Return whether an output matches the page, ignoring trailing spaces."""
    pattern = ""
    for line in expected.splitlines():
        if line.strip() == "…":
            pattern += r"(?:.*\n)*?"
        else:
            pattern += r".*?".join(map(re.escape, line.rstrip().split("…"))) + r"\n"
    lines = "".join(f"{line.rstrip()}\n" for line in found.splitlines())
    return re.fullmatch(pattern, lines) is not None


def run_page(
    page: str, folder: Path, env: Mapping[str, str], change: Callable[[str], str] = str
) -> int:
    """Run all blocks in a folder and return their number. `change` adapts a command of the page to
    the test. Raises AssertionError if a block fails or prints something else."""
    count = 0
    with (
        _talk(["bash"], folder, env) as shell,
        _talk([sys.executable, "-c", _SESSION], folder, env) as python,
    ):
        for block in read_blocks(page):
            if block.title:
                (folder / block.title).write_text(block.text)
                continue
            if block.language == "sh":
                found = _run_shell(shell, change(block.text))
            elif block.language == "python":
                line = python.ask(json.dumps(block.text) + "\n").readline()
                assert line, f"failed:\n{block.text}\n{_errors_of(folder)}"
                found = json.loads(line)
            else:
                continue
            count += 1
            if block.output is not None:
                assert matches(block.output, found), f"{block.text}\nprinted:\n{found}"
    return count


class _Talk(NamedTuple):
    given: IO[str]
    answers: IO[str]

    def ask(self, text: str) -> IO[str]:
        """Send text to the process. Return the stream with its answer."""
        self.given.write(text)
        self.given.flush()
        return self.answers


def _run_shell(shell: _Talk, commands: str) -> str:
    text = f"set -euo pipefail\n{commands}\nset +eu\necho; echo '{_END}'\n"
    lines: list[str] = []
    for line in shell.ask(text):
        if line.rstrip() == _END:
            return "".join(lines).removesuffix("\n")
        lines.append(line)
    raise AssertionError(f"failed:\n{commands}\nprinted:\n{''.join(lines)}")


def _errors_of(folder: Path) -> str:
    return (folder / "stderr.txt").read_text()[-3000:]


@contextmanager
def _talk(command: list[str], folder: Path, env: Mapping[str, str]) -> Iterator[_Talk]:
    with (folder / "stderr.txt").open("a") as errors:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=dict(env),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
        given, answers = process.stdin, process.stdout
        assert given is not None
        assert answers is not None
        try:
            yield _Talk(given, answers)
        finally:
            with suppress(BrokenPipeError):
                given.close()
            process.wait()
            answers.close()
