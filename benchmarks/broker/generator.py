"""Load generators: two Go programs, one for remoting (`load/`), one for gRPC (`grpc_load/`)."""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path

from benchmarks.broker.servers import LOAD_CORE, Server

REMOTING, GRPC = "load", "grpc_load"


@dataclass(frozen=True, slots=True)
class Row:
    """Result of one row. `cpu_us`: CPU time of the server per message. `latency_us`: p50, p99,
    p99.9 of a request. `busy`: requests that were rejected with SYSTEM_BUSY. `read_rate`:
    messages/s of a concurrent reader."""

    who: str
    name: str
    rate: float
    cpu_us: float
    latency_us: tuple[float, float, float]
    busy: int = 0
    read_rate: float = 0

    def write(self) -> str:
        """Return the row as a line of the table."""
        p50, p99, p999 = self.latency_us
        line = (
            f"{self.who:5} {self.name:32} {self.rate:>9,.0f} msg/s {self.cpu_us:>8.1f} µs CPU"
            f"   p50 {p50:>7,.0f} p99 {p99:>8,.0f} p99.9 {p999:>8,.0f} µs"
        )
        line += f"   {self.busy} busy" * bool(self.busy)
        return line + f"   {self.read_rate:,.0f} msg/s read" * bool(self.read_rate)


class Generator:
    """Runs the load programs on their own core. `folder`: folder of the compiled programs."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        for name in (REMOTING, GRPC):
            source = Path(__file__).parent / name
            command = ["go", "build", "-o", str(folder / name), "."]
            subprocess.run(command, cwd=source, check=True)

    def run(self, name: str, server: Server, *options: object, program: str = REMOTING) -> Row:
        """Run one row against a server. Raises SystemExit for rejected requests."""
        address = server.remoting if program == REMOTING else server.grpc
        command = [self._folder / program, "--address", address, *options]
        before = server.cpu_seconds()
        done = subprocess.run(
            ["taskset", "-c", LOAD_CORE, *map(str, command)],
            capture_output=True,
            text=True,
            check=False,
        )
        used = server.cpu_seconds() - before
        found = json.loads(done.stdout or "{}")
        if done.returncode or found["failed"]:
            why = found.get("failed", done.stderr)
            raise SystemExit(f"{server.who}, {name}: {why}")
        count, seconds = found["messages"], found["seconds"]
        return Row(
            server.who,
            name,
            count / seconds,
            used / max(count, 1) * 1e6,
            (found["p50_us"], found["p99_us"], found["p999_us"]),
            found.get("busy", 0),
            found.get("read", 0) / seconds,
        )
