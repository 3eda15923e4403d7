"""Measured servers: our broker, Java's broker 5.5.0, and Java's proxy in front of Java's broker.
All have the same broker.conf, and each has a core of its own."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.kit.java import JavaTools, free_ports

OURS, JAVA = "ours", "java"
SERVER_CORE, LOAD_CORE = "0", "1"
START_SECONDS = 60
_TIER = "org.apache.rocketmq.tieredstore"
TIER = {
    "messageStorePlugIn": f"{_TIER}.TieredMessageStore",
    "tieredMetadataServiceProvider": f"{_TIER}.metadata.DefaultMetadataStore",
    "tieredBackendServiceProvider": f"{_TIER}.provider.PosixFileSegment",
}
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Server:
    """A running server. `remoting`, `grpc`: `ip:port`. `grpc` is empty if the server does not serve
    gRPC."""

    who: str
    pid: int
    remoting: str
    grpc: str

    def cpu_seconds(self) -> float:
        """CPU seconds used by the server."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS


@contextmanager
def run_server(
    who: str, folder: Path, settings: Mapping[str, object] | None = None, *, has_grpc: bool = False
) -> Iterator[Server]:
    """Run a broker over `folder/store` during the block, and kill it at the end. `settings`: its
    broker.conf settings. `has_grpc`: also run Java's proxy, in the broker's process."""
    port, grpc_port = free_ports() + 5, free_ports()
    values = {
        "brokerClusterName": "c",
        "brokerName": "broker-a",
        "brokerIP1": "127.0.0.1",
        "listenPort": port,
        "grpcServerPort": grpc_port if who == OURS else None,
        "autoCreateMixedTopics": "true" if who == OURS else None,
        "metricsExporterType": "DISABLE",
        "storePathRootDir": folder / "store",
        "mappedFileSizeCommitLog": 256 << 20,
        "defaultTopicQueueNums": 4,
        "flushDiskType": "ASYNC_FLUSH",
        **(settings or {}),
    }
    conf = folder / "broker.conf"
    remoting, grpc = f"127.0.0.1:{port}", f"127.0.0.1:{grpc_port}"
    if who == OURS:
        write_keys(conf, values)
        command = [sys.executable, "-m", "tieredstore", "broker", "-c", str(conf)]
        with run_process(command, remoting, folder / "log") as pid:
            yield Server(who, pid, remoting, grpc)
        return
    tools = JavaTools.resolve()
    if isinstance(tools, str):
        raise SystemExit(tools)
    if not has_grpc:
        write_keys(conf, values)
        command = [
            *tools.command("org.apache.rocketmq.broker.BrokerStartup", folder),
            "-c",
            str(conf),
        ]
        with run_process(command, remoting, folder / "log") as pid:
            yield Server(who, pid, remoting, "")
        return
    with tools.name_server(folder) as namesrv:
        write_keys(conf, {**values, "namesrvAddr": namesrv})
        proxy = folder / "proxy.json"
        own = {"rocketMQClusterName": "c", "proxyMode": "LOCAL", "namesrvAddr": namesrv}
        ports = {"grpcServerPort": grpc_port, "remotingListenPort": free_ports()}
        proxy.write_text(json.dumps(own | ports))
        main = tools.command("org.apache.rocketmq.proxy.ProxyStartup", folder)
        command = [*main, "-n", namesrv, "-pm", "LOCAL", "-bc", str(conf), "-pc", str(proxy)]
        with run_process(command, grpc, folder / "log") as pid:
            yield Server(who, pid, remoting, grpc)


def write_keys(conf: Path, values: Mapping[str, object]) -> None:
    """Write a broker.conf. Settings with the value None are omitted."""
    lines = [f"{key}={value}\n" for key, value in values.items() if value is not None]
    conf.write_text("".join(lines))


@contextmanager
def run_process(command: Sequence[str], address: str, log: Path) -> Iterator[int]:
    """Run a program on the server's core during the block, which begins when the program listens at
    `address`. Yields the process id."""
    with log.open("w") as output:
        process = subprocess.Popen(
            ["taskset", "-c", SERVER_CORE, *command], stdout=output, stderr=output
        )
        try:
            wait_for_port(address, process, log)
            yield process.pid
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait()


def wait_for_port(address: str, process: subprocess.Popen[bytes], log: Path) -> None:
    """Wait until the port accepts connections."""
    host, _, port = address.partition(":")
    end = time.monotonic() + START_SECONDS
    while time.monotonic() < end and process.poll() is None:
        with socket.socket() as probe:
            is_connected = probe.connect_ex((host, int(port))) == 0
            if is_connected and probe.getsockname() != probe.getpeername():  # Not to itself.
                return
        time.sleep(0.1)
    raise SystemExit(f"no server listens at {address}:\n{log.read_text()[-2000:]}")
