"""Runs a command in a terminal of a given width."""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios
from collections.abc import Mapping

from tests.kit.paths import ROOT


def run_in_terminal(
    *arguments: str, columns: int, environment: Mapping[str, str] | None = None
) -> str:
    """Run the command line in a terminal of `columns` columns, and return its standard output."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    plain = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
    process = subprocess.Popen(
        [sys.executable, "-m", "tieredstore", *arguments],
        stdin=subprocess.DEVNULL,
        stdout=theirs,
        stderr=subprocess.DEVNULL,
        cwd=ROOT,
        env={**plain, "TERM": "xterm", **(environment or {})},
    )
    os.close(theirs)
    shown = bytearray()
    with open(ours, "rb", buffering=0) as terminal:
        while True:
            try:
                part = terminal.read(65_536)
            except OSError:  # the other end is closed
                break
            if not part:
                break
            shown += part
    process.wait()
    return shown.decode().replace("\r\n", "\n")
