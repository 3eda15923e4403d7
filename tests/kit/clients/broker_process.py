"""Our broker as users run it, `tieredstore broker -c broker.conf`, in a process that tests can
kill."""

from __future__ import annotations

import json
import os
import random
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Self

from tests.kit.paths import ROOT

START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 30.0
PORTS = ("listenPort", "namesrvListenPort", "grpcServerPort", "metricsPromExporterPort")
SMALL = {
    "brokerName": "labBroker",
    "brokerIP1": "127.0.0.1",
    "bindAddress": "127.0.0.1",
    "mappedFileSizeCommitLog": str(4 << 20),
    "mappedFileSizeConsumeQueue": str(20 * 5000),
    "maxHashSlotNum": "5000",
    "maxIndexNum": "20000",
    "messageStorePlugIn": "org.apache.rocketmq.tieredstore.TieredMessageStore",
    "tieredBackendServiceProvider": "org.apache.rocketmq.tieredstore.provider.PosixFileSegment",
    "tieredStoreFileReservedTime": "72",
    "tieredStoreIndexFileMaxHashSlotNum": "5000",
    "tieredStoreIndexFileMaxIndexNum": "20000",
    "readAheadCacheSizeBytes": str(16 << 20),
    "autoCreateMixedTopics": "true",
    "grpcClientConsumerMinLongPollingTimeoutMillis": "0",
}
"""Configuration of a small store with a Posix tier. Its files are so small that they roll during a
test."""


class BrokerProcess:
    """A broker on `folder/store` and `folder/tier` that keeps its ports across restarts. `settings`
    are broker.conf entries that override SMALL. As a context manager, it starts the broker and
    finally kills it."""

    def __init__(self, folder: Path, settings: Mapping[str, str] | None = None) -> None:
        self.folder = folder
        (folder / "tier").mkdir(parents=True, exist_ok=True)
        self.ports = dict(zip(PORTS, _free_ports(len(PORTS)), strict=True))
        self._settings = {
            "storePathRootDir": str(folder / "store"),
            "tieredStoreFilePath": str(folder / "tier"),
            **SMALL,
            **{name: str(port) for name, port in self.ports.items()},
            **(settings or {}),
        }
        self.log_path = folder / "broker.log"
        self._process: subprocess.Popen[bytes] | None = None
        self.addresses: dict[str, str] = {}
        """Addresses from the first line of output. Keys are names such as `remoting`, `namesrv` and
        `grpc`, and each value is `host:port`."""

    @property
    def pid(self) -> int:
        """Process id."""
        assert self._process is not None, "it does not run"
        return self._process.pid

    @property
    def namesrv(self) -> str:
        """Address for remoting clients."""
        return self.addresses["namesrv"]

    @property
    def grpc(self) -> str:
        """Address for gRPC clients."""
        return self.addresses["grpc"]

    def start(self, **changed: str) -> None:
        """Start the broker and wait until it serves requests. `changed` settings also apply to
        later starts."""
        self.begin(**changed)
        self.addresses = json.loads(self._first_line())

    def begin(self, **changed: str) -> None:
        """Start the broker, without waiting until it serves requests."""
        assert self._process is None, "it runs"
        self._settings.update(changed)
        conf = self.folder / "broker.conf"
        conf.write_text("".join(f"{name}={value}\n" for name, value in self._settings.items()))
        command = [sys.executable, "-m", "tieredstore.cli.main", "broker", "-c", str(conf)]
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": str(ROOT)},  # configurations name test modules
            )

    def kill(self) -> None:
        """Kill the process with SIGKILL."""
        self.end(signal.SIGKILL)

    def stop(self) -> int:
        """Send SIGTERM and return the exit status."""
        return self.end(signal.SIGTERM)

    def log(self) -> str:
        """Return the end of the broker's log."""
        return self.log_path.read_text(errors="replace")[-4000:]

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.kill()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def _first_line(self) -> bytes:
        assert self._process is not None
        assert self._process.stdout is not None
        deadline = time.monotonic() + START_TIMEOUT_S
        line = b""
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            while not line.endswith(b"\n"):
                ready = selector.select(max(0.0, deadline - time.monotonic()))
                byte = os.read(self._process.stdout.fileno(), 1) if ready else b""
                assert byte, f"the broker did not start:\n{self.log()}"
                line += byte
        return line

    def end(self, number: int) -> int:
        """Send a signal, wait for the exit, and return the exit status. Return 0 if no process is
        running."""
        process, self._process = self._process, None
        if process is None:
            return 0
        process.send_signal(number)
        try:
            return process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise AssertionError(f"it did not stop:\n{self.log()}") from None
        finally:
            assert process.stdout is not None
            process.stdout.close()


def _free_ports(count: int) -> set[int]:
    """Return free ports outside the ephemeral range, so that no other program takes one while the
    broker is down."""
    lowest = 32_768
    with suppress(OSError):  # Linux says it
        lowest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    chance, found = random.SystemRandom(), set[int]()
    while len(found) < count:
        port = chance.randrange(10_000, max(lowest, 11_000))
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            found.add(port)
    return found
