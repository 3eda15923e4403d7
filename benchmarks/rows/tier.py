"""Benchmark rows of the tier: upload, reads, time search, opening a tier of many queues."""

from __future__ import annotations

import random
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.model import BODY_BYTES, QUEUES, Figure, Pass, Row, Sizes, Workbench
from benchmarks.workload import TOPIC, body, config, message, opened_tier
from tieredstore.config import StorageLevel
from tieredstore.contracts.dispatch_source import QueueKey
from tieredstore.contracts.message_store import BoundaryType, GetMessageResult, GetMessageStatus
from tieredstore.local.message_store import DefaultMessageStore
from tieredstore.message.record import StoredMessage
from tieredstore.tier.fetch.block_reading import read_block
from tieredstore.tier.reading import run as read
from tieredstore.tier.store import TieredMessageStore

MESSAGES_A_QUEUE = 10
SMALL_FILES = {
    "mapped_file_size_commit_log_bytes": 64 << 20,
    "mapped_file_size_consume_queue_bytes": 20_000,
}


def make_local(
    folder: Path,
    count: int,
    *,
    queues: int = QUEUES,
    body_bytes: int = BODY_BYTES,
    **changes: object,
) -> None:
    """Create a local store with `count` messages, round robin over the queues."""
    store = DefaultMessageStore(config(folder, **changes))
    store.load()
    store.start()
    data = body(body_bytes)
    for number in range(count):
        assert store.put_message(message(number % queues, data, number)).ok
    store.shutdown()


@contextmanager
def opened(local: Path, tier: Path, **changes: Any) -> Iterator[TieredMessageStore]:
    """Open the tiered store over a local store. The tier and its state are in `tier`."""
    settings = config(tier, storage_level=StorageLevel.FORCE, **changes)
    Path(settings.store_path_root_dir, "config").mkdir(parents=True, exist_ok=True)
    local_only = {name: value for name, value in changes.items() if name in SMALL_FILES}
    with opened_tier(settings, DefaultMessageStore(config(local, **local_only))) as store:
        yield store


@contextmanager
def upload(bench: Workbench, *, fsync: bool, index: bool = False) -> Iterator[Callable[[], Pass]]:
    count = bench.sizes.messages
    local, tier = bench.folder / "local", bench.folder / "tier"
    make_local(local, count)

    def run() -> Pass:
        shutil.rmtree(tier, ignore_errors=True)
        with opened(local, tier, posix_fsync_enable=fsync, message_index_enable=index) as store:
            started = time.perf_counter()
            outcomes = store.dispatcher.scan(force=True)
            seconds = time.perf_counter() - started
        uploaded = sum(outcome.messages for outcome in outcomes)
        assert uploaded == count, f"uploaded {uploaded} of {count}: {outcomes}"
        size = sum(outcome.size_bytes for outcome in outcomes)
        clock = "seconds_with_index" if index else "seconds"
        return {"count": count, clock: seconds, "bytes": size}

    yield run
    shutil.rmtree(bench.folder)


@contextmanager
def uploaded(bench: Workbench) -> Iterator[TieredMessageStore]:
    """Open a tier with all messages, which all rows that read share."""
    folder = bench.folder.parent / "read"
    local, tier = folder / "local", folder / "tier"
    if not tier.exists():
        make_local(local, bench.sizes.messages)
        with opened(local, tier, posix_fsync_enable=False) as store:
            store.dispatcher.scan(force=True)
    with opened(local, tier) as store:
        yield store


def forget(store: TieredMessageStore, topic: str = TOPIC) -> None:
    """Empty the read-ahead cache of a store."""
    for queue_id in range(QUEUES):
        store.fetcher.cache.drop(QueueKey(topic, queue_id))


def check(messages: Sequence[StoredMessage], offset: int) -> None:
    """Check that a read returned consecutive messages from `offset`, like Java's side
    (Peer.checked)."""
    assert messages[0].queue_offset == offset
    assert messages[-1].queue_offset == offset + len(messages) - 1


@contextmanager
def read_blocks(bench: Workbench, *, pull: int) -> Iterator[Callable[[], Pass]]:
    with uploaded(bench) as store:
        limit_bytes = config(bench.folder).read_ahead_message_size_threshold_bytes

        def run() -> Pass:
            forget(store)
            count = 0
            started = time.perf_counter()
            for queue_id in range(QUEUES):
                file = store.flat_files.get(TOPIC, queue_id)
                assert file is not None
                offset, end = 0, file.consume_queue_commit_offset
                while offset < end:
                    block = read(read_block(file, offset, min(pull, end - offset), limit_bytes))
                    check(block.messages, offset)
                    offset += len(block.messages)
                count += offset
            seconds = time.perf_counter() - started
            assert count == bench.sizes.messages
            return {"count": count, "seconds": seconds}

        yield run


def read_queue(
    store: TieredMessageStore, get: Callable[..., GetMessageResult], queue_id: int, pull: int
) -> int:
    """Read a queue from its start, in pulls. Return the number of messages."""
    offset, end = 0, store.get_max_offset_in_queue(TOPIC, queue_id)
    while offset < end:
        result = get("GID_bench", TOPIC, queue_id, offset, pull)
        assert result.status is GetMessageStatus.FOUND, result.status
        check(result.messages, offset)
        offset = result.next_begin_offset
    return offset


@contextmanager
def read_sequential(bench: Workbench, *, pull: int, face: str) -> Iterator[Callable[[], Pass]]:
    with uploaded(bench) as store:
        get = store.get_message if face == "store" else store.fetcher.get_message

        def run() -> Pass:
            forget(store)
            count = 0
            started = time.perf_counter()
            for queue_id in range(QUEUES):
                count += read_queue(store, get, queue_id, pull)
            seconds = time.perf_counter() - started
            assert count == bench.sizes.messages
            return {"count": count, "seconds": seconds}

        yield run


def percentiles(nanoseconds: list[int]) -> Pass:
    ordered = sorted(nanoseconds)
    return {
        "count": len(ordered),
        "seconds": sum(ordered) / 1e9,
        "p50_us": ordered[len(ordered) // 2] / 1e3,
        "p99_us": ordered[len(ordered) * 99 // 100] / 1e3,
    }


@contextmanager
def read_random(bench: Workbench) -> Iterator[Callable[[], Pass]]:
    with uploaded(bench) as store:
        ends = [store.get_max_offset_in_queue(TOPIC, queue_id) for queue_id in range(QUEUES)]
        source = random.Random(1)

        def run() -> Pass:
            taken: list[int] = []
            for _ in range(bench.sizes.reads):
                queue_id = source.randrange(QUEUES)
                offset = source.randrange(ends[queue_id])
                forget(store)
                started = time.perf_counter_ns()
                result = store.fetcher.get_message("GID_bench", TOPIC, queue_id, offset, 1)
                taken.append(time.perf_counter_ns() - started)
                assert result.messages[0].queue_offset == offset
            return percentiles(taken)

        yield run


@contextmanager
def query_key(bench: Workbench) -> Iterator[Callable[[], Pass]]:
    with uploaded(bench) as store:
        source = random.Random(1)

        def run() -> Pass:
            taken: list[int] = []
            for _ in range(bench.sizes.lookups):
                key = f"key-{source.randrange(bench.sizes.messages)}"
                started = time.perf_counter_ns()
                found = store.fetcher.query_message(TOPIC, key, 32, 0, 1 << 62)
                taken.append(time.perf_counter_ns() - started)
                assert [message.keys for message in found] == [[key]]
            return percentiles(taken)

        yield run


@contextmanager
def offset_by_time(bench: Workbench) -> Iterator[Callable[[], Pass]]:
    with uploaded(bench) as store:
        source = random.Random(1)
        fetcher = store.fetcher
        times = []
        for queue_id in range(QUEUES):
            last = store.get_max_offset_in_queue(TOPIC, queue_id) - 1
            times.append(
                (
                    fetcher.store_timestamp(TOPIC, queue_id, 0),
                    fetcher.store_timestamp(TOPIC, queue_id, last),
                )
            )

        def run() -> Pass:
            taken: list[int] = []
            for _ in range(bench.sizes.lookups):
                queue_id = source.randrange(QUEUES)
                time_ms = source.randint(*times[queue_id])
                started = time.perf_counter_ns()
                offset = fetcher.offset_by_time(TOPIC, queue_id, time_ms, BoundaryType.LOWER)
                taken.append(time.perf_counter_ns() - started)
                assert offset >= 0
            return percentiles(taken)

        yield run


def _fill_queues(local: Path, queues: int) -> None:
    store = DefaultMessageStore(config(local, **SMALL_FILES))
    store.load()
    store.start()
    data = body(BODY_BYTES)
    for number in range(MESSAGES_A_QUEUE * queues):
        queue = number % queues
        one = message(queue // 100, data, number)
        one.topic = f"openTopic{queue % 100}"
        assert store.put_message(one).ok
    store.shutdown()


@contextmanager
def open_local(bench: Workbench) -> Iterator[Callable[[], Pass]]:
    """Open a local store with many queues and without a tier, for comparison with `open_many`."""
    queues = bench.sizes.queues_to_open
    _fill_queues(bench.folder, queues)

    def run() -> Pass:
        started = time.perf_counter()
        store = DefaultMessageStore(config(bench.folder, **SMALL_FILES))
        store.load()
        store.start()
        seconds = time.perf_counter() - started
        found = sum(1 for _ in store._queues.list_queues())
        store.shutdown()
        assert found == queues, f"{found} queues of {queues}"
        return {"count": queues, "seconds": seconds}

    yield run
    shutil.rmtree(bench.folder)


@contextmanager
def open_many(bench: Workbench) -> Iterator[Callable[[], Pass]]:
    queues = bench.sizes.queues_to_open
    local, tier = bench.folder / "local", bench.folder / "tier"
    _fill_queues(local, queues)
    with opened(local, tier, posix_fsync_enable=False, **SMALL_FILES) as first:
        outcomes = first.dispatcher.scan(force=True)
    assert sum(outcome.messages for outcome in outcomes) == MESSAGES_A_QUEUE * queues

    def run() -> Pass:
        started = time.perf_counter()
        with opened(local, tier, **SMALL_FILES) as tiered:
            tiered.start()
            seconds = time.perf_counter() - started
            found = sum(1 for _ in tiered.flat_files.files())
        assert found == queues, f"{found} queues of {queues}"
        return {"count": queues, "seconds": seconds}

    yield run
    shutil.rmtree(bench.folder)


def _reading(row: str, **more: Any) -> Callable[[Sizes], dict[str, Any]]:
    def request(sizes: Sizes) -> dict[str, Any]:
        wanted = {"messages": sizes.messages, "queues": QUEUES, "body": BODY_BYTES, **more}
        for name, value in (("reads", sizes.reads), ("lookups", sizes.lookups)):
            wanted.setdefault(name, value)
        return {"row": row, "seed": 1, **wanted}

    return request


SCAN = "MessageStoreDispatcher.scan (Java: dispatcher thread woken)"
CACHED = "caches empty, files in the page cache"

ROWS = (
    Row(
        name="upload-fsync",
        what="commit logs and consume queues of 4 queues to a Posix tier, without keys",
        face=SCAN,
        durability="fsync of each commit",
        ours=partial(upload, fsync=True),
        figures=(
            Figure("messages", "msg/s", ratio=2.0),
            Figure("commit log bytes", "B/s", per_byte=True),
        ),
        java=_reading("upload", index=False),
    ),
    Row(
        name="upload-fsync-keys",
        what="the same with both keys of each message in the index of the tier",
        face=f"{SCAN}, until the index has all keys",
        durability="fsync of each commit, index in the page cache",
        ours=partial(upload, fsync=True, index=True),
        figures=(Figure("messages", "msg/s", key="seconds_with_index", ratio=1.0),),
        java=_reading("upload", index=True),
    ),
    Row(
        name="upload",
        what="commit logs and consume queues of 4 queues to a Posix tier, without keys",
        face="MessageStoreDispatcher.scan",
        durability="page cache",
        ours=partial(upload, fsync=False),
        figures=(
            Figure("messages", "msg/s"),
            Figure("commit log bytes", "B/s", per_byte=True, floor=1e9),
        ),
        no_peer="Java always syncs",
    ),
    Row(
        name="read-block",
        what="cold sequential read as message objects, a block a call",
        face="read_block (Java: getMessageFromTieredStoreAsync)",
        durability=CACHED,
        pull="4096",
        ours=partial(read_blocks, pull=4096),
        figures=(Figure("read", "msg/s", floor=1e6, ratio=1.0),),
        java=_reading("read-block", pull=4096),
    ),
    Row(
        name="read-fetcher",
        what="cold sequential read through the fetcher and its cache",
        face="MessageStoreFetcher.get_message",
        durability=CACHED,
        pull="32",
        ours=partial(read_sequential, pull=32, face="fetcher"),
        figures=(Figure("read", "msg/s", ratio=1.0),),
        java=_reading("read-fetcher", pull=32),
    ),
    Row(
        name="read-store",
        what="cold sequential read through the whole store API",
        face="TieredMessageStore.get_message, FORCE",
        durability=CACHED,
        pull="32",
        ours=partial(read_sequential, pull=32, face="store"),
        figures=(Figure("read", "msg/s", floor=150e3, ratio=2.0),),
        java=_reading("read-store", pull=32),
    ),
    Row(
        name="read-store-1024",
        what="the same in large pulls, which end at 256 KiB on both sides",
        face="TieredMessageStore.get_message, FORCE",
        durability=CACHED,
        pull="1024",
        ours=partial(read_sequential, pull=1024, face="store"),
        figures=(Figure("read", "msg/s", ratio=5.0),),
        java=_reading("read-store", pull=1024),
    ),
    Row(
        name="read-random",
        what="one message at a random offset (both sides fetch 32)",
        face="MessageStoreFetcher.get_message",
        durability=CACHED,
        pull="1",
        ours=read_random,
        figures=(
            Figure("reads", "reads/s", ratio=1.0),
            Figure("median", "µs", key="p50_us", ratio=1.0),
            Figure("99th percentile", "µs", key="p99_us"),
        ),
        java=_reading("read-random"),
    ),
    Row(
        name="query-key",
        what="one message by its key, asked of the tier alone. Its index was uploaded at a stop",
        face="MessageStoreFetcher.query_message",
        durability="files in the page cache",
        ours=query_key,
        figures=(
            Figure("queries", "queries/s", ratio=1.0),
            Figure("median", "µs", key="p50_us", ratio=1.0),
            Figure("99th percentile", "µs", key="p99_us"),
        ),
        java=_reading("query-key"),
    ),
    Row(
        name="offset-by-time",
        what="first message at or after a random time",
        face="MessageStoreFetcher.offset_by_time",
        durability=CACHED,
        ours=offset_by_time,
        figures=(
            Figure("look-ups", "look-ups/s", ratio=1.0),
            Figure("median", "µs", key="p50_us"),
        ),
        java=_reading("offset-by-time"),
    ),
    Row(
        name="open-local",
        what="the local store alone: load and start with 1,000 queues of 10 messages each",
        face="DefaultMessageStore.load and start",
        durability="files in the page cache",
        ours=open_local,
        figures=(Figure("open", "s", ratio=1.0),),
        java=lambda sizes: {
            "row": "open",
            "queues": sizes.queues_to_open,
            "body": BODY_BYTES,
            "local": True,
        },
    ),
    Row(
        name="open",
        what="load and start of a tiered store of 1,000 queues with 10 messages each",
        face="TieredMessageStore.load and start, local store included",
        durability="files in the page cache",
        ours=open_many,
        figures=(Figure("open", "s", ratio=1.0),),
        java=lambda sizes: {"row": "open", "queues": sizes.queues_to_open, "body": BODY_BYTES},
    ),
)
