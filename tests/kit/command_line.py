"""Runs the command line in this process, as a shell would see it."""

from __future__ import annotations

import io
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

from tieredstore.cli.main import run


@dataclass
class Ran:
    """What one command line did."""

    code: int
    out: str
    err: str

    @property
    def rows(self) -> list[dict[str, Any]]:
        """Lines of `--output ndjson`."""
        return [json.loads(line) for line in self.out.splitlines()]

    @property
    def record(self) -> Any:
        """The value of `--output json`."""
        return json.loads(self.out)


def tieredstore(*arguments: object) -> Ran:
    """Run `tieredstore ARGUMENTS`."""
    out, err = io.BytesIO(), io.BytesIO()
    stdout = io.TextIOWrapper(out, encoding="utf-8", write_through=True)
    stderr = io.TextIOWrapper(err, encoding="utf-8", write_through=True)
    with mock.patch.object(sys, "stdout", stdout), mock.patch.object(sys, "stderr", stderr):
        code = run([str(argument) for argument in arguments])
        stdout.flush()
    return Ran(code, out.getvalue().decode(), err.getvalue().decode())


def one_line(ran: Ran) -> str:
    """The single line that a failing command leaves on stderr, and nothing like a traceback. A job
    that has done steps says in front of it how to go on."""
    lines = [line for line in ran.err.splitlines() if " with which the same command " not in line]
    assert len(lines) == 1, ran.err
    assert lines[0].startswith("tieredstore: error: ")
    assert "Traceback" not in ran.err
    assert ran.code != 0
    return lines[0]


def files_of(root: Path) -> dict[str, tuple[int, int, bytes]]:
    """Every file with its size, modification time and contents."""
    return {
        str(path.relative_to(root)): (
            path.stat().st_size,
            path.stat().st_mtime_ns,
            path.read_bytes() if path.stat().st_size < 1 << 22 else b"",
        )
        for path in root.rglob("*")
        if path.is_file()
    }
