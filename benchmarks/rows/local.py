"""Benchmark rows of the local store: puts, and their dispatch ("reput")."""

from __future__ import annotations

import mmap
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

from benchmarks.model import BODY_BYTES, QUEUES, Figure, Pass, Row, Sizes, Workbench
from benchmarks.workload import RING, TOPIC, body, config, message, ring
from tieredstore.contracts.durability import PutMessageStatus
from tieredstore.local.message_store import DefaultMessageStore
from tieredstore.local.put.rows import HELP_ROWS
from tieredstore.message.core import IS_COMPILED
from tieredstore.message.encoding import Message

POLL_S = 0.0002
BATCH = 64

LARGE_BODY_BYTES = 10 << 10
WARM: dict[str, Any] = {
    "warm_mapped_file_enable": True,
    "mapped_file_size_commit_log_bytes": 512 << 20,
}
POOL: dict[str, Any] = {"transient_store_pool_enable": True}
LARGE_SHARE = 5
"""Passes with large bodies put a fraction of the usual messages: their number is divided by this
value."""
WANTED = (
    {"live": 1.2, "batch": 2.0, "made": 1.0}
    if IS_COMPILED
    else {"live": 0.7, "batch": 0.9, "made": 0.45}
)
"""Minimum ratios to Java for puts with their dispatch, with and without the compiled core."""

_BODY = body(BODY_BYTES)
_RING = ring(_BODY)
_LARGE_RING = ring(body(LARGE_BODY_BYTES))
_BATCHES = [
    [message(number % QUEUES, _BODY, number * BATCH + one) for one in range(BATCH)]
    for number in range(RING // BATCH)
]


@contextmanager
def _store(bench: Workbench, **changes: Any) -> Iterator[DefaultMessageStore]:
    """Open a new store during the block, with log files as large as Java's."""
    shutil.rmtree(bench.folder, ignore_errors=True)
    store = DefaultMessageStore(config(bench.folder, **changes))
    store.load()
    store.start()
    try:
        yield store
    finally:
        store.shutdown()
        shutil.rmtree(bench.folder)


def _wait_dispatched(store: DefaultMessageStore) -> None:
    while store._reput.offset < store._commit_log.max_offset:
        time.sleep(POLL_S)


def _check(store: DefaultMessageStore, count: int) -> None:
    stored = sum(store.get_max_offset_in_queue(TOPIC, queue_id) for queue_id in range(QUEUES))
    assert stored == count, f"stored {stored} of {count}"


Producer = Callable[[DefaultMessageStore, int, int], None]
"""Function that puts the messages [first, stop) of a pass."""


def _put_again(store: DefaultMessageStore, refused: Message) -> None:
    """Retry a put that was rejected because the disk cannot keep up, as a client does."""
    while not (result := store.put_message(refused)).ok:
        assert result.status is PutMessageStatus.OS_PAGE_CACHE_BUSY, result.reason
        time.sleep(0.01)


def _singles(store: DefaultMessageStore, first: int, stop: int) -> None:
    put_message, ready = store.put_message, _RING
    for number in range(first, stop):
        if not put_message(ready[number & (RING - 1)]).ok:
            _put_again(store, ready[number & (RING - 1)])


def _large(store: DefaultMessageStore, first: int, stop: int) -> None:
    put_message, ready = store.put_message, _LARGE_RING
    for number in range(first, stop):
        if not put_message(ready[number & (RING - 1)]).ok:
            _put_again(store, ready[number & (RING - 1)])


def _made(store: DefaultMessageStore, first: int, stop: int) -> None:
    put_message, create, data = store.put_message, Message.create, _BODY
    for number in range(first, stop):
        made = create(
            TOPIC,
            data,
            queue_id=number % QUEUES,
            tags="TagA",
            keys=(f"key-{number}",),
            properties={"UNIQ_KEY": f"7F000001{number:024X}", "WAIT": "true"},
        )
        if not put_message(made).ok:
            _put_again(store, made)


def _batches(store: DefaultMessageStore, first: int, stop: int) -> None:
    ready = _BATCHES
    for number in range(first // BATCH, stop // BATCH):
        assert store.put_messages(ready[number % len(ready)]).ok


@contextmanager
def live(
    bench: Workbench,
    *,
    producer: Producer,
    share: int = 1,
    ready: Mapping[str, Any] | None = None,
) -> Iterator[Callable[[], Pass]]:
    """Put with concurrent dispatch, as in a broker. `share`: divisor of the usual number of
    messages. `ready`: additional settings of the store. With them, one message is put before the
    measurement, so that the first log file or buffer exists."""
    count = bench.sizes.put_messages // share // BATCH * BATCH

    def run() -> Pass:
        with _store(bench, **ready or {}) as store:
            if ready:
                assert store.put_message(_RING[0]).ok
            started = time.perf_counter()
            producer(store, 0, count)
            returned = time.perf_counter()
            _wait_dispatched(store)
            dispatched = time.perf_counter()
            _check(store, count + bool(ready))
        return {
            "count": count,
            "seconds": dispatched - started,
            "seconds_put": returned - started,
        }

    yield run


@contextmanager
def apart(
    bench: Workbench, *, producer: Producer = _singles, from_log: bool = False
) -> Iterator[Callable[[], Pass]]:
    """Measure puts and dispatch separately. Instead of the dispatch thread, this thread runs its
    passes."""
    count = bench.sizes.put_messages // BATCH * BATCH
    chunk = count if from_log else HELP_ROWS

    def run() -> Pass:
        seconds = seconds_put = 0.0
        with _store(bench) as store:
            store._reput.stop()
            if from_log:
                store._appender.drop_rows()
            for first in range(0, count, chunk):
                started = time.perf_counter()
                producer(store, first, min(first + chunk, count))
                returned = time.perf_counter()
                while store._reput.run_pass():
                    pass
                seconds += time.perf_counter() - returned
                seconds_put += returned - started
            _check(store, count)
        return {"count": count, "seconds": seconds, "seconds_put": seconds_put}

    yield run


RAW_BYTES = LARGE_BODY_BYTES + 200


@contextmanager
def raw_copies(bench: Workbench) -> Iterator[Callable[[], Pass]]:
    """Measure the machine's limit by copying records of the given size into a new mapped file."""
    count = bench.sizes.put_messages // LARGE_SHARE
    record = body(RAW_BYTES)

    def run() -> Pass:
        bench.folder.mkdir(parents=True, exist_ok=True)
        path = bench.folder / "raw"
        with path.open("w+b") as file:
            file.truncate(count * RAW_BYTES)
            with mmap.mmap(file.fileno(), count * RAW_BYTES) as view:
                started = time.perf_counter()
                for start in range(0, count * RAW_BYTES, RAW_BYTES):
                    view[start : start + RAW_BYTES] = record
                seconds = time.perf_counter() - started
        path.unlink()
        return {"count": count, "seconds": seconds}

    yield run


def _java_put(**more: Any) -> Callable[[Sizes], dict[str, Any]]:
    return lambda sizes: {
        "row": "put",
        "messages": sizes.put_messages,
        "body": BODY_BYTES,
        "queues": QUEUES,
        **more,
    }


FRESH_MIB = 768
LARGE_FRESH_MIB = 3_072
FLUSH = "ASYNC_FLUSH (page cache)"
PUT = "DefaultMessageStore.put_message"
PUTS = "DefaultMessageStore.put_messages"
DISPATCHED = "dispatched and indexed"
APART = "dispatch held meanwhile on both sides"

LARGE_FIGURES = (
    Figure(
        "put returned (2 GB/s are 195 k)",
        "msg/s",
        key="seconds_put",
        floor=2e9 / LARGE_BODY_BYTES,
    ),
    Figure(DISPATCHED, "msg/s"),
)

ROWS = (
    Row(
        name="put",
        what="one message a call, messages ready, 4 queues, one producer",
        face=f"{PUT}, {APART}",
        durability=FLUSH,
        ours=apart,
        figures=(Figure("put", "msg/s", key="seconds_put", floor=300e3),),
        java=_java_put(row="reput"),
        fresh_mib=FRESH_MIB,
        java_warm_up=6,
    ),
    Row(
        name="put-live",
        what="the same with the dispatch running after it",
        face=PUT,
        durability=FLUSH,
        ours=partial(live, producer=_singles),
        figures=(
            Figure("put returned", "msg/s", key="seconds_put"),
            Figure(DISPATCHED, "msg/s", ratio=WANTED["live"]),
        ),
        java=_java_put(build=False),
        fresh_mib=FRESH_MIB,
        java_warm_up=6,
    ),
    Row(
        name="put-made",
        what="the same, each message made inside the clock (the work of `puthot`)",
        face=f"Message.create and {PUT}",
        durability=FLUSH,
        ours=partial(live, producer=_made),
        figures=(
            Figure("put returned", "msg/s", key="seconds_put"),
            Figure(DISPATCHED, "msg/s", ratio=WANTED["made"]),
        ),
        java=_java_put(build=True),
        fresh_mib=FRESH_MIB,
        java_warm_up=3,
    ),
    Row(
        name="put-large",
        what="bodies of 10 KiB, the dispatch running behind",
        face=PUT,
        durability=FLUSH,
        ours=partial(live, producer=_large, share=LARGE_SHARE),
        figures=LARGE_FIGURES,
        java=lambda sizes: {
            **_java_put(build=False)(sizes),
            "messages": sizes.put_messages // LARGE_SHARE,
            "body": LARGE_BODY_BYTES,
        },
        fresh_mib=LARGE_FRESH_MIB,
    ),
    Row(
        name="put-warm",
        what="the same with log files warmed before (warmMapedFileEnable)",
        face=PUT,
        durability=FLUSH,
        ours=partial(live, producer=_large, share=LARGE_SHARE, ready=WARM),
        figures=LARGE_FIGURES,
        no_peer="no pass",
        fresh_mib=LARGE_FRESH_MIB,
    ),
    Row(
        name="put-pool",
        what="the same into the transient store pool (transientStorePoolEnable)",
        face=PUT,
        durability=f"{FLUSH}, once the pool is committed to it",
        ours=partial(live, producer=_large, share=LARGE_SHARE, ready=POOL),
        figures=LARGE_FIGURES,
        no_peer="no pass",
        fresh_mib=LARGE_FRESH_MIB,
    ),
    Row(
        name="put-raw",
        what="records of that size copied into a new mapped file, the bound of the row above",
        face="mmap",
        durability="page cache",
        ours=raw_copies,
        figures=(Figure("copied", "msg/s"),),
        no_peer="a bound, not a store",
        fresh_mib=LARGE_FRESH_MIB,
    ),
    Row(
        name="put-batch",
        what=f"{BATCH} messages a call, ready (Java: encoded as a client sends them)",
        face=f"{PUTS}, {APART}",
        durability=FLUSH,
        ours=partial(apart, producer=_batches),
        figures=(Figure("put", "msg/s", key="seconds_put", floor=500e3),),
        java=_java_put(row="reput", batch=BATCH),
        fresh_mib=FRESH_MIB,
    ),
    Row(
        name="put-batch-live",
        what="the same with the dispatch running after it",
        face=PUTS,
        durability=FLUSH,
        ours=partial(live, producer=_batches),
        figures=(
            Figure("put returned", "msg/s", key="seconds_put"),
            Figure(DISPATCHED, "msg/s", ratio=WANTED["batch"]),
        ),
        java=_java_put(batch=BATCH),
        fresh_mib=FRESH_MIB,
    ),
    Row(
        name="reput",
        what="consume queue units and index entries (UNIQ_KEY, KEYS, tags), rows from memory",
        face=f"Reput.run_pass, {HELP_ROWS} rows (Java: ReputMessageService.doReput)",
        durability="page cache",
        ours=apart,
        figures=(Figure("dispatched", "msg/s", floor=1.5e6 if IS_COMPILED else 1e6, ratio=1.0),),
        java=_java_put(row="reput"),
        fresh_mib=FRESH_MIB,
    ),
    Row(
        name="reput-log",
        what="the same when rows were dropped: the log itself is read",
        face="Reput.run_pass (Java: ReputMessageService.doReput)",
        durability="page cache",
        ours=partial(apart, from_log=True),
        figures=(Figure("dispatched", "msg/s", ratio=1.0),),
        java=_java_put(row="reput"),
        fresh_mib=FRESH_MIB,
    ),
)
