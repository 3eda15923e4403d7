"""Cost of planning over an object store: `python -m benchmarks.plan_s3 [--queues N,…]`.

Tiers of many topics, each with one queue of a few messages, are planned over a client in memory. It
takes 25 ms for each request and each page of a listing, and answers 32 requests at a time, the
default of an S3 tier. Seconds are the time to the first row, or to the end of the plan without
rows. Memory is the peak growth of the process.
"""

from __future__ import annotations

import argparse
import gc
import os
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

from benchmarks.small_queues import BROKER, START_MS, write_queue
from tests.kit.memory_chunks import chunk_provider
from tieredstore.cli.output.queues import queue_rows
from tieredstore.config import StoreConfig
from tieredstore.contracts.objects import ClientLimits
from tieredstore.contracts.segment import SegmentProvider
from tieredstore.jobs.exporting.plan import make_plan
from tieredstore.jobs.exporting.request import ExportRequest, Format
from tieredstore.jobs.exporting.state import TargetState
from tieredstore.providers.memory.objects import MemoryObjectClient
from tieredstore.scan.findings import raise_on_damage
from tieredstore.scan.listing import load_catalogue
from tieredstore.scan.location import TierLocation
from tieredstore.scan.verify.verification import verify
from tieredstore.table import Tier

WANTED_SECONDS = 180
"""Maximum time to the first row of a scan or a Spark read over 100,000 queues."""
MESSAGES = 2
CONNECTIONS = 32


class SlowClient(MemoryObjectClient):
    """Client that delays and counts each request."""

    def __init__(self, beside: MemoryObjectClient, seconds: float) -> None:
        super().__init__(beside=beside, limits=ClientLimits(concurrent_requests=CONNECTIONS))
        self.requests: Counter[str] = Counter()
        self._seconds = seconds
        self._gate = threading.BoundedSemaphore(CONNECTIONS)

    def request(self, operation: str, key: str) -> None:
        del key
        with self._gate:
            self.requests[operation] += 1
            time.sleep(self._seconds)


@dataclass(frozen=True)
class SlowLocation(TierLocation):
    """Location of a tier that is accessed through the slow client."""

    client: SlowClient | None = None

    group_bytes: int = 0

    @classmethod
    def beside(cls, store: MemoryObjectClient, ms: float, group_bytes: int = 0) -> SlowLocation:
        """Return the location of the tier in `store`, with `ms` milliseconds per request."""
        client = SlowClient(store, ms / 1000)
        return cls("s3://bucket", StoreConfig(), client=client, group_bytes=group_bytes)

    def connect(self) -> SegmentProvider:
        return chunk_provider(self.client, group_bytes=self.group_bytes)


@dataclass(frozen=True, slots=True)
class Cost:
    """Cost of one operation. `grown_bytes`: peak of memory. `kept_bytes`: memory at the end."""

    seconds: float
    cpu_seconds: float
    lists: int
    others: int
    grown_bytes: int
    kept_bytes: int


def make(queues: int, writes: int = 1) -> MemoryObjectClient:
    """Create a tier with `queues` queues, each file in `writes` separate writes."""
    store = MemoryObjectClient()
    provider = chunk_provider(store, write_cache_bytes=0)
    epoch = provider.acquire_writer(BROKER)
    for number in range(queues):
        write_queue(provider, f"topic-{number:06d}", max(MESSAGES, writes), writes=writes)
    epoch.release()
    provider.close()
    return store


def scan_first_row(location: SlowLocation) -> None:
    batches = Tier(location).scan(columns=["queue_offset", "body"]).batches()
    next(batches)
    batches.close()


def scan_first_row_of_times(location: SlowLocation) -> None:
    batches = Tier(location).scan(columns=["body"], since=START_MS + 1).batches()
    next(batches)
    batches.close()


def plan_scan(location: SlowLocation) -> None:
    Tier(location).scan(columns=["body"], since=START_MS + 1).plan()


def plan_spark_batch(location: SlowLocation) -> None:
    from tieredstore.spark.batch import TieredBatchReader
    from tieredstore.spark.options import parse_options
    from tieredstore.spark.schema import Shape, spark_schema

    with _spark_reads(location):
        options = parse_options({"path": "s3://bucket", "subscribePattern": ".*"})
        shape = Shape.of(spark_schema(("queue_offset", "body")), None)
        assert TieredBatchReader(options, shape).partitions()


def plan_spark_stream(location: SlowLocation) -> None:
    """Plan a stream: its start, the end of its first batch, and the tasks of this batch."""
    from tieredstore.spark.options import parse_options
    from tieredstore.spark.schema import Shape, spark_schema
    from tieredstore.spark.stream.reader import TieredStreamReader

    given = {"path": "s3://bucket", "subscribePattern": ".*", "startingOffsets": "earliest"}
    with _spark_reads(location):
        shape = Shape.of(spark_schema(("queue_offset", "body")), None)
        reader = TieredStreamReader(parse_options(given), shape)
        start = reader.initialOffset()
        assert reader.partitions(start, reader.latestOffset(start, None))
        reader.stop()


@contextmanager
def _spark_reads(location: TierLocation) -> Iterator[None]:
    from tieredstore.spark.options import SourceOptions

    with mock.patch.object(SourceOptions, "tier", return_value=location):
        yield


def plan_export(location: SlowLocation) -> None:
    provider = location.connect()
    request = ExportRequest(Format.PARQUET, f"file://{tempfile.gettempdir()}/none")
    assert make_plan(provider, load_catalogue(provider), request, TargetState()).tasks
    provider.close()


def list_queues(location: SlowLocation) -> None:
    provider = location.connect()
    for _ in queue_rows(provider, list(load_catalogue(provider).queues)):
        pass
    provider.close()


def verify_tier(location: SlowLocation) -> None:
    provider = location.connect()
    verify(provider, load_catalogue(provider), raise_on_damage)
    provider.close()


OPERATIONS: dict[str, Callable[[SlowLocation], None]] = {
    "scan, first row": scan_first_row,
    "scan since a time, first row": scan_first_row_of_times,
    "`scan.plan()` since a time": plan_scan,
    "Spark batch, all partitions": plan_spark_batch,
    "Spark stream, first batch": plan_spark_stream,
    "export, the plan": plan_export,
    "`ls`, all rows": list_queues,
    "verify, whole": verify_tier,
}


def measure(location: SlowLocation, work: Callable[[SlowLocation], None]) -> Cost:
    client = location.client
    assert client is not None
    client.requests.clear()
    before = _reset_peak()
    started, cpu_started = time.monotonic(), time.process_time()
    work(location)
    seconds = time.monotonic() - started
    cpu_seconds = time.process_time() - cpu_started
    grown = _memory("VmHWM") - before
    gc.collect()
    kept = _memory("VmRSS") - before
    lists = client.requests["LIST"]
    return Cost(
        seconds, cpu_seconds, lists, client.requests.total() - lists, max(grown, 0), max(kept, 0)
    )


def _reset_peak() -> int:
    """Reset the memory peak, and return the bytes in use."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:  # On another system the peak is that of the whole run.
        return 0
    return _memory("VmRSS")


def _memory(name: str) -> int:
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return 0
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(f"{name}:"))


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.plan_s3", description=__doc__)
    parser.add_argument("--queues", default="1000,10000,100000", metavar="N,…")
    parser.add_argument("--ms", type=float, default=25, help="of a request")
    parser.add_argument("--only", default="", help="operations whose name has this")
    given = parser.parse_args()
    print(f"load {os.getloadavg()[0]:.1f}, {given.ms:g} ms a request, {CONNECTIONS} at once")
    print("| what | queues | LISTs | reads a queue | seconds | of the processor | MB |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for queues in map(int, given.queues.split(",")):
        store = make(queues)
        for name, work in OPERATIONS.items():
            if given.only not in name:
                continue
            cost = measure(SlowLocation.beside(store, given.ms), work)
            print(
                f"| {name} | {queues:,} | {cost.lists} | {cost.others / queues:.2f} "
                f"| {cost.seconds:.1f} | {cost.cpu_seconds:.1f} | {cost.grown_bytes / 1e6:.0f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
