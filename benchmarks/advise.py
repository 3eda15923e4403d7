"""Compare the predictions of `tieredstore advise` with the store itself. Write the table of
docs/adr/0016-measurements.md.

    python -m benchmarks.advise [--write]

Uploads run over a simulated clock, as in `benchmarks.cost`. Reads run in real time over the
resulting objects, with each GET delayed by 30 ms. Takes about a minute on an idle machine. On a
busy machine, reads take longer than predicted.
"""

from __future__ import annotations

import argparse
import math
import random
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import cast

import numpy as np

from benchmarks.cost.__main__ import DOCS, replace_part
from benchmarks.cost.simulation import (
    HOUR_MS,
    Load,
    MeteredMemoryClient,
    Outcome,
    Process,
    Scheme,
    simulate,
)
from benchmarks.traced_store import TracedLoad, TracedRun
from tieredstore.clock import SYSTEM_CLOCK
from tieredstore.config import StoreConfig
from tieredstore.contracts.dispatch_source import QueueKey
from tieredstore.contracts.message_store import GetRequest
from tieredstore.contracts.request_model import Requests
from tieredstore.jobs.advising.queue_uploads import QueueUploads, model_uploads
from tieredstore.jobs.advising.replay import ColdReader, ReadFigures, model_reads
from tieredstore.jobs.advising.timeline import Backend
from tieredstore.jobs.advising.upload_costs import Counted, count_shared
from tieredstore.jobs.advising.workload import Arrivals
from tieredstore.metrics import Metrics
from tieredstore.providers.chunks.modelling.queue import ChunkRequestModel
from tieredstore.providers.chunks.provider import ChunkProvider
from tieredstore.providers.chunks.settings import ChunkSettings
from tieredstore.tier.fetch.fetcher import MessageStoreFetcher
from tieredstore.tier.flat.file_store import FlatFileStore
from tieredstore.tier.store import AHEAD_THREADS, READ_THREADS

PAGE = DOCS / "adr" / "0016-measurements.md"
LATENCY_MS = 30.0
CACHE_BYTES = 256 << 20
LONG_MS = LATENCY_MS / 2
"""Duration of a get (ms) above which the benchmark assumes that the get waited for the backend.
Gets below this duration may have been delayed by other work of the machine instead."""
MEMORY_BYTES_PER_S = 2e9
"""Throughput of an object store in memory, bytes per second."""
TOPIC = "Simulated"
_BEGIN_MS = 1_700_000_000_000


# Uploads


UPLOADS: Sequence[tuple[str, Load, Scheme]] = (
    ("4 queues, a message in 5 s", Load(4, 4, 1024, 5_000, 12 * HOUR_MS), Scheme("600 s")),
    (
        "the same, at most 40 s late",
        Load(4, 4, 1024, 5_000, 4 * HOUR_MS),
        Scheme("30 s", keys={"adaptive_commit_max_interval_ms": 0}),
    ),
    ("a queue of 1 MiB/s", Load(1, 1, 1024, 1, HOUR_MS // 6), Scheme("600 s")),
    (
        "2 queues, segments of 20 MB",
        Load(2, 2, 1024, 20, HOUR_MS // 2),
        Scheme("600 s", keys={"commit_log_max_size_bytes": 20_000_000}),
    ),
    (
        "3 queues in group objects, a message a second",
        Load(3, 3, 1024, 1_000, 8 * HOUR_MS),
        Scheme("groups", group_bytes=16 << 20),
    ),
)


def steady_arrivals(
    begin_ms: float, interval_ms: float, record_bytes: float, end_ms: float
) -> Arrivals:
    """Return the arrivals of a queue that gets a message at `begin_ms` and one each interval."""
    count = (end_ms - begin_ms) / interval_ms + 1
    times = np.array([begin_ms - interval_ms, end_ms])
    return Arrivals(times, np.array([0.0, count]), record_bytes)


def predict_uploads(scheme: Scheme, load: Load) -> tuple[Requests, list[QueueUploads]]:
    """Predict the requests of all queues of a load together, and the uploads of each queue."""
    model = ChunkRequestModel(ChunkSettings(group_bytes=scheme.group_bytes))
    config = StoreConfig(**scheme.keys)  # type: ignore[arg-type]
    scans = range(_BEGIN_MS, _BEGIN_MS + load.duration_ms, scheme.scan_ms)
    queues = []
    for number in range(load.queues):
        begin_ms = _BEGIN_MS + int(load.interval_ms * number / load.queues)
        arrivals = steady_arrivals(
            begin_ms, load.interval_ms, load.record_bytes, _BEGIN_MS + load.duration_ms
        )
        stored = model.make_queue(1 / load.stands_for)
        queues.append(model_uploads(arrivals, config, model.capabilities, stored, scans))
    requests = count_shared([Counted(queue) for queue in queues], model, scans)
    for queue in queues:
        requests.update(queue.requests)
    return requests, queues


def count_after_start(outcome: Outcome) -> int:
    """Count the requests of a simulation, without those of the start and of maintenance sweeps."""
    return sum(
        count
        for (operation, kind), count in outcome.requests.items()
        if kind != "OTHER" and (kind != "EPOCH" or operation == "HeadObject")
    )


# Reads


@dataclass(frozen=True, slots=True)
class Reads:
    """Concurrent readers of all queues of a load. `runs`: returns the consecutive reads of a queue
    with the given number of messages, as (first offset, number of messages)."""

    name: str
    load: Load
    runs: Callable[[int], list[tuple[int, int]]]
    pull: int = 32


def read_all(messages: int) -> list[tuple[int, int]]:
    """Return the reads of a whole queue, as one pair of first offset and number of messages."""
    return [(0, messages)]


def jump(messages: int, *, times: int = 60) -> list[tuple[int, int]]:
    """Return reads of one message each, at random offsets of the queue."""
    places = random.Random(1)
    return [(places.randrange(messages), 1) for _ in range(times)]


def catch_up(messages: int, *, times: int = 6, count: int = 10_000) -> list[tuple[int, int]]:
    """Return reads of `count` consecutive messages each, as pairs of first offset and number of
    messages. They are spread over the queue."""
    return [(first, count) for first, _ in jump(messages - count, times=times)]


READS: Sequence[Reads] = (
    Reads("a queue, at once", Load(1, 1, 1024, 100, 2 * HOUR_MS), read_all),
    Reads("2 queues, at once", Load(2, 2, 1024, 100, HOUR_MS), read_all),
    Reads("10,000 messages, from anywhere", Load(1, 1, 1024, 50, 2 * HOUR_MS), catch_up),
    Reads("the same, 2 queues", Load(2, 2, 1024, 50, 2 * HOUR_MS), catch_up),
    Reads("single messages, anywhere", Load(1, 1, 1024, 100, 2 * HOUR_MS), jump, pull=1),
    Reads("gets of 512 messages", Load(1, 1, 1024, 50, 2 * HOUR_MS), catch_up, 512),
)


class DelayedClient(MeteredMemoryClient):
    """Client whose GETs take `latency_ms` longer. `took_ms`: real times of the GETs, including
    other work of the machine."""

    latency_ms = 0.0

    def __init__(self, now_ms: Callable[[], int]) -> None:
        super().__init__(now_ms)
        self.took_ms: list[float] = []

    def get_range(self, key: str, position: int, length: int) -> bytes | None:
        begin = time.perf_counter()
        if self.latency_ms:
            time.sleep(self.latency_ms / 1000)
        found = super().get_range(key, position, length)
        if self.latency_ms:
            self.took_ms.append((time.perf_counter() - begin) * 1000)
        return found

    @property
    def get_count(self) -> int:
        return self.meter.usage().requests_by_operation.get("GetObject", 0)


class MeasuredBackend(Backend):
    """Modelled backend whose requests take the measured times, in the same order."""

    def __init__(self, took_ms: Sequence[float], bytes_per_s: float) -> None:
        super().__init__(bytes_per_s=bytes_per_s)
        self._took_ms = cycle(took_ms)

    def draw_ms(self) -> float:
        return next(self._took_ms)


@dataclass(frozen=True, slots=True)
class Read:
    """Outcome of reading the store. `took_ms`: time of each GET."""

    requests: int
    times_ms: list[float]
    took_ms: list[float]
    messages: int


@contextmanager
def open_written(load: Load, folder: Path) -> Iterator[tuple[DelayedClient, FlatFileStore]]:
    """Upload a load, then open the tier as a new process with empty memory."""
    process = Process(Scheme("written"), load, folder, DelayedClient)
    try:
        process.run(20_000, load.duration_ms)
        client = cast("DelayedClient", process.client)
        provider = ChunkProvider(client, settings=ChunkSettings(maintenance_threads=0))
        config = StoreConfig(broker_name="broker-a", message_index_enable=False)
        store = FlatFileStore(config, provider, process.metadata, SYSTEM_CLOCK)
        store.load()
        yield client, store
    finally:
        process.close()


def read_store(
    reads: Reads, client: DelayedClient, store: FlatFileStore, latency_ms: float = LATENCY_MS
) -> Read:
    """Run the readers, each in its own thread."""
    config = StoreConfig(broker_name="broker-a", read_ahead_cache_size_bytes=CACHE_BYTES)
    before, times_ms = client.get_count, []
    client.latency_ms = latency_ms
    messages = 0
    with ThreadPoolExecutor(READ_THREADS) as pool, ThreadPoolExecutor(AHEAD_THREADS) as ahead:
        fetcher = MessageStoreFetcher(
            config, store, None, None, None, SYSTEM_CLOCK, Metrics(), pool, ahead,  # type: ignore[arg-type]
        )  # fmt: skip

        lock = threading.Lock()

        def read(number: int) -> None:
            nonlocal messages
            file = store.get(TOPIC, number)
            assert file is not None
            for first, count in reads.runs(file.consume_queue_commit_offset):
                offset = first
                while offset < first + count:
                    begin = time.perf_counter()
                    asked = min(reads.pull, first + count - offset)
                    found = fetcher.get(GetRequest(TOPIC, number, offset, asked))
                    times_ms.append((time.perf_counter() - begin) * 1000)
                    if found.next_begin_offset <= offset:
                        raise SystemExit(f"{reads.name}: {found.status.name} at {offset}")
                    offset = found.next_begin_offset
                with lock:
                    messages += offset - first

        threads = [threading.Thread(target=read, args=(n,)) for n in range(reads.load.queues)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    client.latency_ms = 0.0
    return Read(client.get_count - before, times_ms, client.took_ms, messages)


def measure_pace(reads: Reads, client: DelayedClient, store: FlatFileStore) -> float:
    """Measure each reader's messages per second without delayed GETs, as the highest possible
    rate."""
    begin = time.perf_counter()
    read = read_store(reads, client, store, 0.0)
    seconds = time.perf_counter() - begin
    return read.messages / seconds / reads.load.queues


def predict_reads(
    reads: Reads, took_ms: Sequence[float] = (LATENCY_MS,), messages_per_s: float = float("inf")
) -> ReadFigures:
    """Predict the reads of `read_store`. `took_ms`: time of each GET. `messages_per_s`: maximum
    rate of each reader. Both were measured in the same run."""
    model = ChunkRequestModel()
    _, queues = predict_uploads(Scheme("written"), reads.load)
    readers = []
    for number, queue in enumerate(queues):
        queue.written.reopen()
        readers.append(
            ColdReader(
                QueueKey(TOPIC, number),
                reads.runs(queue.messages),
                reads.load.record_bytes,
                reads.pull,
                messages_per_s,
                queue.written,
                int(queue.log_bytes),
                messages=queue.messages,
            )
        )
    backend = MeasuredBackend(took_ms, MEMORY_BYTES_PER_S)
    return model_reads(readers, StoreConfig(), model, backend, CACHE_BYTES)


# The table

_HEAD = (
    "| what | requests, predicted | of the store | | p50 of gets that wait, predicted "
    "| of the store | | p99, predicted | of the store |"
)


def table() -> str:
    rows = [
        _HEAD,
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for name, load, scheme in UPLOADS:
        with tempfile.TemporaryDirectory() as folder:
            real = count_after_start(simulate(scheme, load, Path(folder)))
        predicted = sum(predict_uploads(scheme, load)[0].values())
        rows.append(f"| uploads: {name} | {predicted:,} | {real:,} | {_off(predicted, real)} |"
                    " | | | | |")  # fmt: skip
    for reads in READS:
        with (
            tempfile.TemporaryDirectory() as folder,
            open_written(reads.load, Path(folder)) as (client, store),
        ):
            read = read_store(reads, client, store)
            pace = measure_pace(reads, client, store)
        figures = predict_reads(reads, read.took_ms, pace)
        predicted = sum(figures.requests.values())
        rows.append(
            _make_read_row(
                f"reads: {reads.name}", predicted, read.requests, figures.times_ms, read.times_ms
            )
        )
    rows += _list_trace_rows()
    return "\n".join(rows)


TRACES: Sequence[tuple[str, TracedLoad]] = (
    ("4 queues for 6 hours", TracedLoad(4, 1024, 6 * HOUR_MS)),
    ("2 queues, with bursts", TracedLoad(2, 4096, 4 * HOUR_MS, (1, 3))),
)


def _list_trace_rows() -> Iterator[str]:
    """Yield the table rows about traces, which compare a store that recorded a trace with the
    prediction from it."""
    for name, load in TRACES:
        with tempfile.TemporaryDirectory() as folder:
            run = TracedRun(load, Path(folder), DelayedClient)
            try:
                run.live()
                uploads = sum(run.count().values())
                client = cast("DelayedClient", run.client)
                run.restart()
                before = client.get_count
                client.latency_ms = LATENCY_MS
                times_ms = run.read_all()
                client.latency_ms = 0.0
                read = client.get_count - before
                found = run.predict(MeasuredBackend(client.took_ms, MEMORY_BYTES_PER_S))
            finally:
                run.close()
        yield (
            f"| trace: {name}, uploads | {found.uploads:,} | {uploads:,} | "
            f"{_off(found.uploads, uploads)} | | | | | |"
        )
        mine = [time.time_ms for time in found.times_ms]
        yield _make_read_row(f"trace: {name}, read at the end", found.reads, read, mine, times_ms)


def _make_read_row(
    name: str, predicted: int, real: int, mine: Sequence[float], times_ms: Sequence[float]
) -> str:
    waits = [time_ms for time_ms in times_ms if time_ms > LONG_MS]
    my_waits = [time_ms for time_ms in mine if time_ms > LONG_MS]
    p50s = find_percentile(my_waits, 0.5) or 0.0, find_percentile(waits, 0.5) or 0.0
    p99s = find_percentile(my_waits, 0.99) or 0.0, find_percentile(waits, 0.99) or 0.0
    return (
        f"| {name} | {predicted:,} | {real:,} | {_off(predicted, real)} | {p50s[0]:.1f} ms | "
        f"{p50s[1]:.1f} ms | {_off(*p50s)} | {p99s[0]:.1f} ms | {p99s[1]:.1f} ms |"
    )


def find_percentile(values: Sequence[float], share: float) -> float | None:
    """Return the smallest value that is at least as large as the given share of all values, or None
    without values."""
    return sorted(values)[max(math.ceil(len(values) * share) - 1, 0)] if values else None


def _off(predicted: float, real: float) -> str:
    return f"{100 * (predicted / real - 1):+.1f} %" if real else "–"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.advise", description=__doc__)
    parser.add_argument(
        "--write", action="store_true", help="write the table into docs/adr/0016-measurements.md"
    )
    is_written = parser.parse_args().write
    found = table()
    print(found)
    if is_written:
        PAGE.write_text(replace_part(PAGE.read_text(), "compared", found))


if __name__ == "__main__":
    main()
