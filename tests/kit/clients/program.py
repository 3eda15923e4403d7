"""A client program in a process of its own, controlled by requests on its standard input.

A request is a JSON object on one line, `{"verb": NAME, …}`. The program answers with one line:
`{"ok": VALUE}`, or `{"error": TEXT, "type": CLASS, "code": NUMBER}` for an error of the client
library. `code` is the broker's response code, if the error has one. All assertions are in Python,
so many tests can share one JVM.
"""

from __future__ import annotations

import json
import os
import queue
import shutil
import signal
import subprocess
import tempfile
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

CALL_TIMEOUT_S = 60.0
STARTUP_TIMEOUT_S = 60.0


class ClientFailed(Exception):
    """The client library raised an error. `type` is the simple name of its class, `code` the
    broker's response code."""

    def __init__(self, text: str, type_name: str = "", code: int | None = None) -> None:
        super().__init__(f"{type_name}({code}): {text}")
        self.text = text
        self.type = type_name
        self.code = code


@dataclass(frozen=True, slots=True)
class Program:
    """Command that starts a client program. `command`: program and its first arguments.
    `environment`: additional environment variables. Each process gets its own HOME, because several
    clients write logs there."""

    command: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)

    def start(self, *arguments: str, options: tuple[str, ...] = ()) -> ClientProcess:
        """Start the client program. Return a context manager that stops it. `options` precede the
        other arguments, such as `-Dname=value` for a JVM."""
        command = [self.command[0], *options, *self.command[1:], *arguments]
        return ClientProcess(command, self.environment)


class ClientProcess:
    """A running client program."""

    def __init__(self, command: list[str], environment: Mapping[str, str]) -> None:
        self.home = Path(tempfile.mkdtemp(prefix="client-"))
        self._log = (self.home / "stderr.log").open("wb")
        if Path(command[0]).name == "java":
            command = [command[0], f"-Duser.home={self.home}", *command[1:]]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env={**os.environ, **environment, "HOME": str(self.home)},
            cwd=self.home,
            text=True,
            start_new_session=True,
        )
        self._answers: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        try:
            self._wait_for_ready()
        except BaseException:
            self.close()
            raise

    def call(self, verb: str, *, timeout_s: float = CALL_TIMEOUT_S, **fields: Any) -> Any:
        """Send a request and return the answer. Raises ClientFailed for an error of the client.
        Raises AssertionError if the program died or did not answer in time."""
        self.ask(verb, **fields)
        return self.answer(timeout_s=timeout_s)

    def ask(self, verb: str, **fields: Any) -> None:
        """Send a request without waiting for its answer. Call `answer` before the next request."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"verb": verb, **fields}) + "\n")
        self._process.stdin.flush()

    def answer(self, *, timeout_s: float = CALL_TIMEOUT_S) -> Any:
        """Return the answer to the last request."""
        found = json.loads(self._line(timeout_s))
        if "error" in found:
            raise ClientFailed(found["error"], found.get("type", ""), found.get("code"))
        return found["ok"]

    def kill(self) -> None:
        """Kill the process without a shutdown. Later calls fail."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def log(self) -> str:
        """Return the end of the program's standard error."""
        self._log.flush()
        return (self.home / "stderr.log").read_text(errors="replace")[-4000:]

    def close(self) -> None:
        """Stop the process group and delete its files."""
        self.kill()
        self._reader.join()
        for stream in (self._process.stdin, self._process.stdout, self._log):
            with suppress(BrokenPipeError):
                if stream is not None:
                    stream.close()
        shutil.rmtree(self.home, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _wait_for_ready(self) -> None:
        line = self._line(STARTUP_TIMEOUT_S)
        assert json.loads(line) == {"ok": "ready"}, f"{line}\n{self.log()}"

    def _line(self, timeout_s: float) -> str:
        try:
            line = self._answers.get(timeout=timeout_s)
        except queue.Empty:
            raise AssertionError(f"no answer within {timeout_s} s:\n{self.log()}") from None
        assert line, f"the client program ended:\n{self.log()}"
        return line

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._answers.put(line)
        self._answers.put("")
