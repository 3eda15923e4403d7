"""Measure what a broker takes over remoting: ours, and Java's 5.5.0 with the same broker.conf.

    python -m benchmarks.broker [--only ours|java] [--seconds 4] [--rows "send;…"]

The load is a Go program (`load/`), so that it is not the limit. Broker and load have a core each
(`taskset`). Needs `go`, `taskset`, and `java` and `mvn` for the peer. Prints a table: messages/s,
CPU µs of the broker per message, latency of a request.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.kit.java import JavaTools, free_ports

BROKER_CORE, LOAD_CORE = "0", "1"
START_SECONDS = 60
ROWS = {
    "send": ("--mode", "send"),
    "send, 1 in flight": ("--mode", "send", "--connections", "1", "--in-flight", "1"),
    "batch of 32": ("--mode", "batch", "--in-flight", "8"),
    "pull of 32": ("--mode", "pull"),
}
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Row:
    """What one row gave. latency_us: p50, p99, p99.9 of a request; busy: requests that were refused
    with SYSTEM_BUSY."""

    name: str
    rate: float
    cpu_us: float
    latency_us: tuple[float, float, float]
    busy: int


def build_load(folder: Path) -> Path:
    """Compile the load program."""
    source = Path(__file__).parent / "load"
    subprocess.run(["go", "build", "-o", str(folder / "load"), "."], cwd=source, check=True)
    return folder / "load"


def write_conf(folder: Path, port: int) -> Path:
    """Write the broker.conf that both brokers get."""
    conf = folder / "broker.conf"
    values = {
        "brokerClusterName": "c",
        "brokerName": "broker-a",
        "brokerIP1": "127.0.0.1",
        "listenPort": port,
        "grpcServerPort": 0,
        "metricsExporterType": "DISABLE",
        "storePathRootDir": folder / "store",
        "mappedFileSizeCommitLog": 256 << 20,
        "defaultTopicQueueNums": 4,
        "flushDiskType": "ASYNC_FLUSH",
    }
    conf.write_text("".join(f"{key}={value}\n" for key, value in values.items()))
    return conf


def command_of(who: str, conf: Path) -> list[str]:
    """The command that runs a broker."""
    if who == "ours":
        return [sys.executable, "-m", "tieredstore", "broker", "-c", str(conf)]
    tools = JavaTools.resolve()
    if isinstance(tools, str):
        raise SystemExit(tools)
    main = "org.apache.rocketmq.broker.BrokerStartup"
    return [*tools.command(main, conf.parent), "-c", str(conf)]


@contextmanager
def running(command: Sequence[str], port: int, log: Path) -> Iterator[int]:
    """A broker on its core, killed at the end; gives its process."""
    with log.open("w") as output:
        process = subprocess.Popen(
            ["taskset", "-c", BROKER_CORE, *command], stdout=output, stderr=output
        )
        try:
            wait_for_port(port, process, log)
            yield process.pid
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait()


def wait_for_port(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    """Return when somebody listens."""
    end = time.monotonic() + START_SECONDS
    while time.monotonic() < end and process.poll() is None:
        with socket.socket() as probe:
            is_connected = probe.connect_ex(("127.0.0.1", port)) == 0
            if is_connected and probe.getsockname() != probe.getpeername():  # not to itself
                return
        time.sleep(0.1)
    raise SystemExit(f"the broker does not listen:\n{log.read_text()[-2000:]}")


def cpu_seconds(pid: int) -> float:
    """What a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def run_row(load: Path, name: str, port: int, pid: int, seconds: float) -> Row:
    """Run one row against a broker."""
    command = [str(load), "--address", f"127.0.0.1:{port}", "--seconds", str(seconds), *ROWS[name]]
    before = cpu_seconds(pid)
    done = subprocess.run(
        ["taskset", "-c", LOAD_CORE, *command], capture_output=True, text=True, check=True
    )
    used = cpu_seconds(pid) - before
    found = json.loads(done.stdout)
    if found["failed"]:
        raise SystemExit(f"{name}: {found['failed']}")
    count = found["messages"]
    latency = (found["p50_us"], found["p99_us"], found["p999_us"])
    return Row(name, count / found["seconds"], used / max(count, 1) * 1e6, latency, found["busy"])


def measure(
    who: str, load: Path, rows: Sequence[str], seconds: float, warm_seconds: float
) -> list[Row]:
    """Run rows against one broker with an empty store, after sends that do not count: a JVM takes
    seconds until its rate is even."""
    with tempfile.TemporaryDirectory(prefix="broker-bench-") as folder:
        port = free_ports()
        conf = write_conf(Path(folder), port)
        log = Path(folder, "log")
        with running(command_of(who, conf), port, log) as pid:
            run_row(load, "send", port, pid, warm_seconds)
            found = [run_row(load, name, port, pid, seconds) for name in rows]
    return found


def main() -> None:
    """Run both and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=["ours", "java"])
    parser.add_argument("--seconds", type=float, default=4)
    parser.add_argument("--warm-seconds", type=float, default=12)
    parser.add_argument("--rows", default=";".join(ROWS), help="names, joined by ;")
    arguments = parser.parse_args()
    if shutil.which("taskset") is None:
        raise SystemExit("taskset is needed")
    with tempfile.TemporaryDirectory(prefix="broker-load-") as folder:
        load = build_load(Path(folder))
        for who in [arguments.only] if arguments.only else ["ours", "java"]:
            rows = arguments.rows.split(";")
            for row in measure(who, load, rows, arguments.seconds, arguments.warm_seconds):
                p50, p99, p999 = row.latency_us
                print(
                    f"{who:5} {row.name:18} {row.rate:>10,.0f} msg/s {row.cpu_us:>8.1f} µs CPU"
                    f"   p50 {p50:>7,.0f} p99 {p99:>8,.0f} p99.9 {p999:>8,.0f} µs"
                    f"{f'   {row.busy} busy' * bool(row.busy)}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
