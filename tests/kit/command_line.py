"""Runs the command line in this process, and returns what a shell would see."""

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
    """Result of a command."""

    code: int
    out: str
    err: str

    @property
    def rows(self) -> list[dict[str, Any]]:
        """Rows that the command printed with `--output ndjson`."""
        return [json.loads(line) for line in self.out.splitlines()]

    @property
    def record(self) -> Any:
        """Value that the command printed with `--output json`."""
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
    """Return the error line of a failed command. Check that stderr has no traceback and no other
    line, except a job's hint how to continue."""
    lines = [line for line in ran.err.splitlines() if " the same command continues: " not in line]
    assert len(lines) == 1, ran.err
    assert lines[0].startswith("tieredstore: error: ")
    assert "Traceback" not in ran.err
    assert ran.code != 0
    return lines[0]


def files_of(root: Path) -> dict[str, tuple[int, int, bytes]]:
    """Return every file with its size, modification time and contents."""
    return {
        str(path.relative_to(root)): (
            path.stat().st_size,
            path.stat().st_mtime_ns,
            path.read_bytes() if path.stat().st_size < 1 << 22 else b"",
        )
        for path in root.rglob("*")
        if path.is_file()
    }
