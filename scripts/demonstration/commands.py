"""Commands of the demo. They are shown as a person types them, then run."""

from __future__ import annotations

import contextlib
import io
import os
import shlex
import shutil
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import orjson

from scripts.demonstration.arguments import ROOT

Row = dict[str, Any]


def shorten_path(path: Path) -> str:
    """Return a path as a person would type it: relative, unless it is outside of the current
    folder."""
    near = os.path.relpath(path)
    return str(path) if near.startswith(os.pardir) else near


def show_command(*words: object) -> None:
    """Print a command, over several lines if it is longer than one."""
    width = shutil.get_terminal_size().columns - 2
    lines = ["$"]
    for part in _join_values([shlex.quote(_word(word)) for word in words]):
        if len(lines[-1]) + 1 + len(part) > width and lines[-1] != "$":
            lines[-1] += " \\"
            lines.append("   ")
        lines[-1] += f" {part}"
    print("\n" + "\n".join(lines), flush=True)


def _join_values(texts: list[str]) -> list[str]:
    """Join options and their values, so that they stay on one line."""
    parts: list[str] = []
    for text in texts:
        if parts and parts[-1].startswith("-") and " " not in parts[-1] and text[0] != "-":
            parts[-1] += f" {text}"
        else:
            parts.append(text)
    return parts


def tieredstore(*words: object) -> None:
    """Show and run a command of this clone. A failure ends the demo. The command runs in this
    process, because the start of another takes longer than the command."""
    show_command(ROOT / "scripts" / "tieredstore", *words)
    _run(words)


def ask(*words: object) -> list[Row]:
    """Run a command without showing it, and return its output."""
    out = io.BytesIO()
    with contextlib.redirect_stdout(io.TextIOWrapper(out, write_through=True)) as text:
        _run((*words, "--output", "ndjson"))
        text.flush()
        return [orjson.loads(line) for line in out.getvalue().splitlines()]


def _run(words: Iterable[object]) -> None:
    # Not earlier, since the import takes longer than the start of Spark's process.
    from tieredstore.cli.main import run

    code = run([_word(word) for word in words])
    if code:
        sys.exit(code)


def _word(word: object) -> str:
    return shorten_path(word) if isinstance(word, Path) else str(word)
