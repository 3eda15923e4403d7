"""Runs work in forked processes that a test may kill.

`Driver` starts a work module, which calls `serve(run)` and forks for each request, so that modules
are imported only once. The lines of the protocol are: a request (JSON), the process id of the fork,
`go`, and the fork's exit status.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.kit.paths import ROOT


class Driver:
    """Starts a module (`python -m`), and runs requests one by one in forks of its process."""

    def __init__(self, module: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=ROOT,
            text=True,
        )

    def run(
        self, request: dict[str, Any], on_start: Callable[[int], None] = lambda _pid: None
    ) -> int:
        """Run one request, with paths as strings. Return the exit status, 0 for completed work.
        `on_start` gets the process id before the work begins."""
        self._send(json.dumps(request, default=_path_text))
        on_start(int(self._receive()))
        self._send("go")
        return int(self._receive())

    def close(self) -> None:
        self._process.communicate()

    def _send(self, line: str) -> None:
        assert self._process.stdin is not None
        print(line, file=self._process.stdin, flush=True)

    def _receive(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline()


def _path_text(value: object) -> str:
    assert isinstance(value, Path)
    return str(value)


def serve(run: Callable[[dict[str, Any]], None]) -> None:
    """Serve requests from stdin, each in a fork."""
    for line in sys.stdin:
        print(_fork(run, json.loads(line)), flush=True)


def _fork(run: Callable[[dict[str, Any]], None], request: dict[str, Any]) -> int:
    pid = os.fork()
    if pid:
        print(pid, flush=True)
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    status = 1
    try:
        sys.stdin.readline()  # the parent has our number now
        run(request)
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)
