"""Measure the cost and the throughput of a broker: ours, and Java's 5.5.0 with the same
broker.conf.

    python -m benchmarks.broker [--only ours|java] [--parts remoting,cold,latency,grpc]

- remoting: sends, batches and pulls over remoting, on an empty store without a tier.
- cold: a reader catches up from offset 0 of queues whose heads live only in a Posix tier.
- latency: sends at a fixed rate under ASYNC and SYNC flush, with and without such a reader.
- grpc: sends, and receives with acknowledgement, compared with Java's proxy in local mode.

Go programs generate the load, so that the load does not limit the rates. Server and load have a
core each (`taskset`). Needs `go`, `taskset`, and `java` and `mvn` for the peer. Prints one line per
row: messages/s, CPU µs of the server per message, latency of a request.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from benchmarks.broker.cold_store import (
    COLD_TOPIC,
    WARM_TOPIC,
    copy_cold_store,
    make_cold_store,
)
from benchmarks.broker.generator import GRPC, Generator, Row
from benchmarks.broker.servers import JAVA, OURS, Server, run_server

REMOTING_ROWS = {
    "send": ("--mode", "send"),
    "send, 1 in flight": ("--mode", "send", "--connections", 1, "--in-flight", 1),
    "batch of 32": ("--mode", "batch", "--in-flight", 8),
    "pull of 32": ("--mode", "pull"),
}
GRPC_ROWS = {
    "gRPC send": ("--mode", "send"),
    "gRPC send, 1 in flight": ("--mode", "send", "--connections", 1, "--in-flight", 1),
    "gRPC send of 32": ("--mode", "send", "--batch", 32, "--in-flight", 4),
    "gRPC receive of 32, ack": ("--mode", "receive", "--batch", 32, "--in-flight", 4),
}
LATENCY_RATE, LATENCY_ROUNDS = 1_000, 3
FILL = ("--mode", "batch", "--in-flight", 8, "--seconds", 60)

START_GROUP = ("--mode", "pull", "--commit", "--seconds", 0.2)
"""Arguments with which the load generator pulls for a short time. This creates the consumer group
that receives later, and commits its offsets, beginning with 0."""


@dataclass(frozen=True)
class Bench:
    """Common settings of all parts. `seconds`: duration of the measurement of a row.
    `warm_seconds`: warm-up of a server before its first row, because a JVM is slow at first.
    `messages`: messages in each topic of the cold store."""

    folder: Path
    seconds: float
    warm_seconds: float
    messages: int

    @cached_property
    def generator(self) -> Generator:
        return Generator(self.folder)

    @cached_property
    def cold_store(self) -> Path:
        """Folder of a store whose first messages are only in the tier. Each server gets a copy."""
        folder = self.folder / "made"
        folder.mkdir()
        make_cold_store(folder, self.generator, self.messages)
        return folder

    def make_folder(self, name: str) -> Path:
        folder = self.folder / name
        folder.mkdir()
        return folder

    def measure_remoting(self, who: str) -> Iterator[Row]:
        """Measure sends, batches and pulls, on one server."""
        with run_server(who, self.make_folder(f"remoting-{who}")) as server:
            self.generator.run("warm", server, "--seconds", self.warm_seconds)
            for name, options in REMOTING_ROWS.items():
                yield self.generator.run(name, server, *options, "--seconds", self.seconds)

    def measure_cold(self, who: str) -> Iterator[Row]:
        """Measure one catch-up read, after an unmeasured read of another topic."""
        folder = self.folder / f"cold-{who}"
        settings = copy_cold_store(self.cold_store, folder)
        with run_server(who, folder, settings) as server:
            once = ("--mode", "pull", "--once", "--topic")
            self.generator.run("warm", server, *once, WARM_TOPIC)
            yield self.generator.run("cold catch-up, pull of 32", server, *once, COLD_TOPIC)

    def measure_latency(self, who: str) -> Iterator[Row]:
        """Measure sends at a fixed rate, with and without a concurrent reader that catches up."""
        for flush in ("ASYNC_FLUSH", "SYNC_FLUSH"):
            folder = self.folder / f"latency-{who}-{flush}"
            settings = copy_cold_store(self.cold_store, folder)
            with run_server(who, folder, {**settings, "flushDiskType": flush}) as server:
                # Slowly, so that later uploads do not include these.
                warm = ("--rate", 2 * LATENCY_RATE, "--seconds", self.warm_seconds)
                self.generator.run("warm", server, *warm)
                send = ("--rate", LATENCY_RATE, "--seconds", self.seconds)
                reader = ("--read", COLD_TOPIC)
                yield self._run_rounds(f"send, {flush}", server, *send)
                yield self._run_rounds(f"send, {flush}, with a reader", server, *send, *reader)
            shutil.rmtree(folder)

    def _run_rounds(self, name: str, server: Server, *options: object) -> Row:
        """Run several rounds, and return the one with the median p99, because a single stall of the
        machine determines a round's p99."""
        rows = [self.generator.run(name, server, *options) for _ in range(LATENCY_ROUNDS)]
        return sorted(rows, key=lambda row: row.latency_us[1])[LATENCY_ROUNDS // 2]

    def measure_grpc(self, who: str) -> Iterator[Row]:
        """Measure sends and receives over gRPC. The received messages were sent over remoting."""
        with run_server(who, self.make_folder(f"grpc-{who}"), has_grpc=True) as server:
            self.generator.run("fill", server, *FILL, "--messages", self.messages)
            self.generator.run("group", server, *START_GROUP)
            for name, options in GRPC_ROWS.items():
                for seconds in (self.warm_seconds / 2, self.seconds):
                    row = self.generator.run(
                        name, server, *options, "--seconds", seconds, program=GRPC
                    )
                yield row


PARTS: dict[str, Callable[[Bench, str], Iterator[Row]]] = {
    "remoting": Bench.measure_remoting,
    "cold": Bench.measure_cold,
    "latency": Bench.measure_latency,
    "grpc": Bench.measure_grpc,
}


def main() -> None:
    """Run the parts and print the rows."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", choices=[OURS, JAVA])
    parser.add_argument("--parts", default=",".join(PARTS), help="names, joined by commas")
    parser.add_argument("--seconds", type=float, default=4)
    parser.add_argument("--warm-seconds", type=float, default=12)
    parser.add_argument("--messages", type=int, default=300_000)
    arguments = parser.parse_args()
    if shutil.which("taskset") is None:
        raise SystemExit("taskset is needed")
    with tempfile.TemporaryDirectory(prefix="broker-bench-") as folder:
        bench = Bench(Path(folder), arguments.seconds, arguments.warm_seconds, arguments.messages)
        for part in arguments.parts.split(","):
            for who in [arguments.only] if arguments.only else [OURS, JAVA]:
                for row in PARTS[part](bench, who):
                    print(row.write(), flush=True)


if __name__ == "__main__":
    main()
