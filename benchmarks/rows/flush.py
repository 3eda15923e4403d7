"""Benchmark rows of SYNC_FLUSH, in which a put counts once it is on disk."""

from __future__ import annotations

import asyncio
import os
import shutil
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from benchmarks.model import BODY_BYTES, Figure, Pass, Row, Workbench
from benchmarks.workload import RING, body, config, ring
from tieredstore.contracts.durability import PutMessageStatus
from tieredstore.local.message_store import DefaultMessageStore

TASKS, THREADS = 1024, 32
SYNC_PROBES = 200
_OK = PutMessageStatus.PUT_OK
_RING = ring(body(BODY_BYTES))

Producers = Callable[[DefaultMessageStore, int], int]
"""Function that puts about the given number of messages, and waits for each put. Returns the number
of messages put."""


def _put_by_tasks(store: DefaultMessageStore, count: int) -> int:
    each = max(count // TASKS, 1)

    async def produce(first: int) -> None:
        for number in range(first, first + each):
            result = await store.put_message_async(_RING[number & (RING - 1)])
            assert result.status is _OK

    async def produce_all() -> None:
        await asyncio.gather(*[produce(task * each) for task in range(TASKS)])

    asyncio.run(produce_all())
    return each * TASKS


def _put_by_threads(store: DefaultMessageStore, count: int) -> int:
    each = max(count // 5 // THREADS, 1)
    failed: list[object] = []

    def produce(first: int) -> None:
        for number in range(first, first + each):
            status = store.put_message(_RING[number & (RING - 1)]).durable.result()
            if status is not _OK:
                failed.append(status)

    threads = [threading.Thread(target=produce, args=(it * each,)) for it in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed, failed[:3]
    return each * THREADS


def _measure_sync(bench: Workbench) -> float:
    """Return the median seconds of an fdatasync of a page on the measured disk."""
    fd = os.open(bench.folder / "probe", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        seconds = []
        for _ in range(SYNC_PROBES):
            os.pwrite(fd, bytes(4096), 0)
            started = time.perf_counter()
            os.fdatasync(fd)
            seconds.append(time.perf_counter() - started)
        return statistics.median(seconds)
    finally:
        os.close(fd)


def _by(producers: Producers) -> Callable[[Workbench], Iterator[Callable[[], Pass]]]:
    def measure(bench: Workbench) -> Iterator[Callable[[], Pass]]:
        def run() -> Pass:
            shutil.rmtree(bench.folder, ignore_errors=True)
            store = DefaultMessageStore(config(bench.folder, flush_disk_type="SYNC_FLUSH"))
            store.load()
            store.start()
            try:
                started = time.perf_counter()
                count = producers(store, bench.sizes.put_messages)
                seconds = time.perf_counter() - started
                assert store.commit_log.flushed_offset == store.commit_log.max_offset
            finally:
                store.shutdown()
            sync_us = _measure_sync(bench) * 1e6
            shutil.rmtree(bench.folder)
            return {"count": count, "seconds": seconds, "sync_us": sync_us}

        yield run

    return measure


_DURABILITY = "SYNC_FLUSH (on disk)"
_SYNC = Figure("an fdatasync, median", "µs", key="sync_us")
_NO_PEER = "no pass"

ROWS = (
    Row(
        name="put-sync-tasks",
        what=f"{TASKS} asyncio producers, each waits for its message. Wanted where a sync takes "
        "0.2 ms at most",
        face="DefaultMessageStore.put_message_async",
        durability=_DURABILITY,
        ours=contextmanager(_by(_put_by_tasks)),
        figures=(Figure("durable", "msg/s", floor=60e3), _SYNC),
        no_peer=_NO_PEER,
    ),
    Row(
        name="put-sync-threads",
        what=f"{THREADS} threads, each waits for its message. Wanted as above",
        face="DefaultMessageStore.put_message and PutMessageResult.durable",
        durability=_DURABILITY,
        ours=contextmanager(_by(_put_by_threads)),
        figures=(Figure("durable", "msg/s", floor=15e3), _SYNC),
        no_peer=_NO_PEER,
    ),
)
