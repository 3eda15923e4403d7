"""Benchmark rows of a local store's recovery: the check, and the time until the store is usable."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from benchmarks.model import QUEUES, Figure, Pass, Row, Workbench
from benchmarks.workload import TOPIC, body, config, message
from tieredstore.local.message_store import DefaultMessageStore
from tieredstore.local.recovery.checkpoint import Checkpoint, write_checkpoint
from tieredstore.local.recovery.planning import plan_recovery

SMALL_BODY_BYTES = 100


@contextmanager
def killed(bench: Workbench) -> Iterator[Callable[[], Pass]]:
    """Measure the recovery of a store that was never flushed, which checks and dispatches all its
    messages again."""
    count = bench.sizes.put_messages
    settings = config(bench.folder)
    data = body(SMALL_BODY_BYTES)
    ready = [message(number % QUEUES, data, number) for number in range(4096)]
    shutil.rmtree(bench.folder, ignore_errors=True)
    store = DefaultMessageStore(settings)
    store.load()
    store.start()
    for number in range(count):
        assert store.put_message(ready[number & 4095]).ok
    store.shutdown()

    def run() -> Pass:
        (store.root / "abort").touch()
        write_checkpoint(store.root, Checkpoint())
        started = time.perf_counter()
        plan = plan_recovery(store.root, settings)
        planned = time.perf_counter()
        assert plan.records == count
        opened = DefaultMessageStore(settings)
        opened.load()
        opened.start()
        seconds = time.perf_counter() - planned
        stored = sum(opened.get_max_offset_in_queue(TOPIC, number) for number in range(QUEUES))
        assert stored == count
        opened.shutdown()
        return {"count": count, "seconds": planned - started, "seconds_opened": seconds}

    yield run
    shutil.rmtree(bench.folder)


ROWS = (
    Row(
        name="recover",
        what=f"a killed store, bodies of {SMALL_BODY_BYTES} bytes, without any flush",
        face="plan_recovery, DefaultMessageStore.load and start",
        durability="files in the page cache",
        ours=killed,
        figures=(
            Figure("checked, with CRCs", "msg/s", floor=1e6),
            Figure("open, queues and index built", "msg/s", key="seconds_opened"),
        ),
    ),
)
