"""`tieredstore broker` in a process of its own, that a test ends as it likes."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Self

import orjson

from tests.kit.paths import ROOT
from tieredstore.broker.development import development_properties

_PORTS = ("listenPort", "grpcServerPort", "metricsPromExporterPort", "namesrvListenPort")


class BrokerProcess:
    """A broker over a folder, on the same ports in each of its lives."""

    def __init__(self, folder: Path, **keys: str) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "tier").mkdir(exist_ok=True)
        ports = dict(zip(_PORTS, map(str, free_ports(len(_PORTS))), strict=True))
        properties = development_properties(folder) | ports | keys
        self.conf = folder / "broker.conf"
        self.conf.write_text("".join(f"{key}={value}\n" for key, value in properties.items()))
        self.log = folder / "broker.log"
        self.addresses: dict[str, str] = {}
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._process is not None:
            self.kill()

    def start(self) -> None:
        """Start, and return once it serves."""
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tieredstore", "broker", "-c", self.conf],
                stdout=subprocess.PIPE,
                stderr=log,
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
            )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, self.log.read_text()
        self.addresses = orjson.loads(line)

    def kill(self) -> None:
        """End it as kill -9 does."""
        self.end(signal.SIGKILL)

    def end(self, number: int) -> int:
        """Send a signal, and wait for the end; returns the exit code."""
        process, self._process = self._process, None
        assert process is not None
        process.send_signal(number)
        code = process.wait(120)
        assert process.stdout is not None
        process.stdout.close()
        return code


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on now, each another one."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports
