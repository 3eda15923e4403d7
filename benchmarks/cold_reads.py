"""Cold reads of a backend with latency: `python -m benchmarks.cold_reads [--latency-ms 30]`.

Each read of a Posix tier is delayed, as over a network. Sequential reads through the store API
alternate with raw reads of the same bytes (4 threads, 4 MiB each), and the result is the median of
the pairs. Then single reads are measured: the first message of an unread queue, a message whose
units are cached, and pulls at random offsets.
"""

from __future__ import annotations

import argparse
import gc
import random
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from benchmarks.delayed_reads import DelayedReads
from benchmarks.rows.tier import make_local, opened, read_queue
from benchmarks.workload import TOPIC, config, opened_tier
from tieredstore import registry
from tieredstore.config import StorageLevel
from tieredstore.contracts.dispatch_source import QueueKey
from tieredstore.contracts.segment import FileSegment, FileSegmentType
from tieredstore.contracts.wrapping import WrapperProvider, WrapperSegment
from tieredstore.local.message_store import DefaultMessageStore
from tieredstore.server_process import tune_server_process
from tieredstore.tier.store import TieredMessageStore

RAW_THREADS, RAW_BYTES = 4, 4 << 20
GROUP = "GID_cold"


class Counted(WrapperProvider):
    """Counter of the bytes read, by type."""

    def __init__(self, provider: WrapperProvider) -> None:
        super().__init__(provider)
        self.bytes = dict.fromkeys(FileSegmentType, 0)
        self.reads = dict.fromkeys(FileSegmentType, 0)
        self._lock = threading.Lock()

    def wrap_segment(self, segment: FileSegment) -> FileSegment:
        return _CountedSegment(segment, self)

    def add(self, kind: FileSegmentType, length: int) -> None:
        with self._lock:
            self.bytes[kind] += length
            self.reads[kind] += 1

    def reset(self) -> None:
        for kind in FileSegmentType:
            self.bytes[kind] = self.reads[kind] = 0


class _CountedSegment(WrapperSegment):
    def __init__(self, segment: FileSegment, counts: Counted) -> None:
        super().__init__(segment)
        self._counts = counts

    def read(self, position: int, length: int) -> memoryview:
        self._counts.add(self.id.type, length)
        return super().read(position, length)


@contextmanager
def slow_store(
    local: Path, tier: Path, latency_ms: float
) -> Iterator[tuple[TieredMessageStore, Counted]]:
    settings = config(tier, storage_level=StorageLevel.FORCE)
    provider = Counted(DelayedReads(registry.segment_provider(settings), latency_ms))
    with opened_tier(settings, DefaultMessageStore(config(local)), provider) as store:
        yield store, provider


def read_raw(store: TieredMessageStore) -> tuple[int, float]:
    """Read the commit log of queue 0 in 4 threads, 4 MiB at a time. Return bytes and seconds."""
    file = store.flat_files.get(TOPIC, 0)
    assert file is not None
    wanted = [
        (segment.file, position, min(RAW_BYTES, segment.commit_position - position))
        for segment in file.commit_log.segments
        for position in range(0, segment.commit_position, RAW_BYTES)
    ]
    with ThreadPoolExecutor(RAW_THREADS) as pool:
        started = time.perf_counter()
        sizes = list(pool.map(lambda one: len(one[0].read(one[1], one[2])), wanted))
        return sum(sizes), time.perf_counter() - started


def read_all(store: TieredMessageStore, pull: int) -> tuple[int, float]:
    """Read queue 0 from its start, in pulls. Return messages and seconds."""
    store.fetcher.cache.drop(QueueKey(TOPIC, 0))
    started = time.perf_counter()
    messages = read_queue(store, store.get_message, 0, pull)
    return messages, time.perf_counter() - started


def time_gets(store: TieredMessageStore, offsets: list[int], pull: int) -> list[float]:
    """Return the milliseconds of a get at each offset, each with an empty cache of the queue."""
    taken = []
    for offset in offsets:
        store.fetcher.cache.drop(QueueKey(TOPIC, 0))
        started = time.perf_counter()
        result = store.get_message(GROUP, TOPIC, 0, offset, pull)
        taken.append((time.perf_counter() - started) * 1000)
        assert result.messages[0].queue_offset == offset
    return taken


def time_next_gets(store: TieredMessageStore, offsets: list[int], pull: int) -> list[float]:
    """Return the milliseconds of a second get after a get at each offset. The first one has already
    read the units for both."""
    taken = []
    for offset in offsets:
        store.fetcher.cache.drop(QueueKey(TOPIC, 0))
        following = store.get_message(GROUP, TOPIC, 0, offset, pull).next_begin_offset
        started = time.perf_counter()
        store.get_message(GROUP, TOPIC, 0, following, pull)
        taken.append((time.perf_counter() - started) * 1000)
    return taken


def percentile(values: list[float], share: float) -> float:
    return sorted(values)[min(int(len(values) * share), len(values) - 1)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--latency-ms", type=float, default=30)
    parser.add_argument("--megabytes", type=int, default=600, help="of the queue (1e6 bytes)")
    parser.add_argument("--bodies", default="1024,4096", help="sizes, bytes")
    parser.add_argument("--pulls", default="32,1024", help="messages of a pull")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--gets", type=int, default=200)
    parser.add_argument("--folder", type=Path, help="work on this disk (default: the temporary)")
    given = parser.parse_args()
    tune_server_process()
    for body_bytes in map(int, given.bodies.split(",")):
        with tempfile.TemporaryDirectory(prefix="cold-reads-", dir=given.folder) as name:
            local, tier = Path(name, "local"), Path(name, "tier")
            count = given.megabytes * 1_000_000 // (body_bytes + 180)
            make_local(local, count, queues=1, body_bytes=body_bytes)
            with opened(local, tier, posix_fsync_enable=False) as store:
                store.dispatcher.scan(force=True)
            with slow_store(local, tier, given.latency_ms) as (store, provider):
                for pull in map(int, given.pulls.split(",")):
                    compare_sequential(store, provider, body_bytes, pull, given.pairs)
                compare_gets(store, body_bytes, given.gets)
    return 0


def compare_sequential(
    store: TieredMessageStore, provider: Counted, body_bytes: int, pull: int, pairs: int
) -> None:
    shares, rates, waste = [], [], 0.0
    for _ in range(pairs):
        gc.collect()
        size, raw_seconds = read_raw(store)
        provider.reset()
        count, seconds = read_all(store, pull)
        waste = (sum(provider.bytes.values()) - size) / size
        shares.append(raw_seconds / seconds)
        rates.append((size / raw_seconds / 1e6, size / seconds / 1e6, count / seconds))
    raw, ours, messages = (statistics.median(column) for column in zip(*rates, strict=True))
    reads = {kind.name: number for kind, number in provider.reads.items() if number}
    print(
        f"bodies of {body_bytes}, pulls of {pull}: {ours:.0f} MB/s ({messages / 1000:.0f} k msg/s) "
        f"of {raw:.0f} MB/s raw: {statistics.median(shares):.2f} "
        f"({min(shares):.2f}-{max(shares):.2f}), beyond the messages {waste:.1%}, reads {reads}",
        flush=True,
    )


def compare_gets(store: TieredMessageStore, body_bytes: int, gets: int) -> None:
    end = store.get_max_offset_in_queue(TOPIC, 0) - 2048
    source = random.Random(1)
    offsets = [source.randrange(end) for _ in range(gets)]
    for name, taken in (
        ("first get", time_gets(store, offsets, 32)),
        ("get behind it", time_next_gets(store, offsets, 32)),
    ):
        print(
            f"bodies of {body_bytes}, {name}: p50 {percentile(taken, 0.5):.1f} ms, "
            f"p99 {percentile(taken, 0.99):.1f} ms",
            flush=True,
        )


if __name__ == "__main__":
    sys.exit(main())
