"""Benchmark rows of the key index: puts of many keys, compaction and upload of a full file."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from benchmarks.model import Figure, Pass, Row, Workbench
from benchmarks.workload import TOPIC, config, keys_without_order
from tests.kit.tier.index import put_keys
from tieredstore import registry
from tieredstore.clock import SYSTEM_CLOCK
from tieredstore.tier.index.service import IndexStoreService

BATCH = 4096
MADE_AHEAD = 1 << 20


@contextmanager
def _service(folder: Path, slots: int, items: int) -> Iterator[IndexStoreService]:
    settings = config(
        folder, index_file_max_hash_slot_num=slots, index_file_max_index_num=items + 2
    )
    Path(settings.store_path_root_dir, "config").mkdir(parents=True, exist_ok=True)
    metadata = registry.metadata_store(settings)
    metadata.load()
    provider = registry.segment_provider(settings)
    service = IndexStoreService(
        settings, provider, metadata, Path(settings.store_path_root_dir), SYSTEM_CLOCK
    )
    service.recover()
    try:
        yield service
    finally:
        service.stop(force=False)
        provider.close()
        metadata.close()


def _fill(service: IndexStoreService, items: int) -> float:
    """Put `items` keys in batches. The keys are created before the measurement."""
    sizes = np.full(BATCH, 1000, dtype=np.int32)
    base_ms = SYSTEM_CLOCK.now_ms()
    seconds = 0.0
    for first in range(0, items, MADE_AHEAD):
        made = keys_without_order(first, min(MADE_AHEAD, items - first))
        started = time.perf_counter()
        for start in range(0, len(made), BATCH):
            keys = made[start : start + BATCH]
            numbers = np.arange(first + start, first + start + len(keys), dtype=np.int64)
            times = base_ms + numbers // 1000
            put_keys(service, 1, TOPIC, 0, keys, numbers * 1000, sizes[: len(keys)], times)
        seconds += time.perf_counter() - started
    return seconds


@contextmanager
def put(bench: Workbench) -> Iterator[Callable[[], Pass]]:
    items = bench.sizes.index_keys

    def run() -> Pass:
        with _service(bench.folder, items // 4, items) as service:
            seconds = _fill(service, items)
        shutil.rmtree(bench.folder)
        return {"count": items, "seconds": seconds}

    yield run


@contextmanager
def compact(bench: Workbench) -> Iterator[Callable[[], Pass]]:
    items, slots = bench.sizes.compaction_items, bench.sizes.compaction_slots
    made, work = bench.folder / "made", bench.folder / "work"
    with _service(made, slots, items) as service:
        _fill(service, items)

    def run() -> Pass:
        shutil.rmtree(work, ignore_errors=True)
        shutil.copytree(made, work)
        with _service(work, slots, items) as service:
            started = time.perf_counter()
            uploaded = service.seal_and_upload(force=True)
            seconds = time.perf_counter() - started
        assert uploaded == 1, f"{uploaded} files were uploaded"
        size = sum(path.stat().st_size for path in (work / "tiered").rglob("INDEX/[!.]*"))
        assert size == 28 + slots * 8 + items * 28, f"{size} bytes in the tier"
        shutil.rmtree(work)
        return {"count": items, "seconds": seconds, "bytes": size}

    yield run
    shutil.rmtree(bench.folder)


ROWS = (
    Row(
        name="index-put",
        what="keys without locality into one new index file, slots = items / 4",
        face=f"IndexStoreService, {BATCH} keys a call (Java: IndexStoreFile.putKey, one)",
        durability="page cache",
        ours=put,
        figures=(Figure("put", "keys/s", floor=1e6, ratio=1.0),),
        java=lambda sizes: {
            "row": "index-put",
            "items": sizes.index_keys,
            "slots": sizes.index_keys // 4,
        },
    ),
    Row(
        name="index-compact",
        what="compact and upload a full index file of keys without locality",
        face="IndexStoreService.seal_and_upload (Java: doCompactThenUploadFile)",
        durability="fsync",
        ours=compact,
        figures=(Figure("compaction and upload", "s", ceiling=15.0, ratio=1.0),),
        java=lambda sizes: {
            "row": "index-compact",
            "items": sizes.compaction_items,
            "slots": sizes.compaction_slots,
        },
        warm_up=1,
        java_warm_up=1,
    ),
)
