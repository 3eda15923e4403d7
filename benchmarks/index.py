"""The key index: batch puts with hashing, filling and compacting a file, queries.

Each function runs once and returns its figures; sizes are Java's defaults unless given.
"""

from __future__ import annotations

import random
import tempfile
import time
from pathlib import Path

import numpy as np

from tieredstore.clock import SystemClock
from tieredstore.config import StoreConfig
from tieredstore.metadata.json_store import JsonMetadataStore
from tieredstore.providers.posix import PosixProvider
from tieredstore.tier.index import IndexStoreService
from tieredstore.tier.index.compaction import compact_file
from tieredstore.tier.index.local_file import IndexRows, LocalIndexFile
from tieredstore.tier.index.matching import Wanted
from tieredstore.tier.reading import run

SLOTS = 5_000_000
MAX_ITEMS = 20_000_000
BATCH = 4096


def _service(root: Path, slots: int, max_items: int) -> IndexStoreService:
    config = StoreConfig(
        broker_name="bench",
        index_file_max_hash_slot_num=slots,
        index_file_max_index_num=max_items,
    )
    (root / "config").mkdir(parents=True)
    clock = SystemClock()
    metadata = JsonMetadataStore(root / "config" / "tieredStoreMetadata.json", "bench", clock)
    metadata.load()
    provider = PosixProvider(root / "tier", "bench", fsync=False)
    service = IndexStoreService(config, provider, metadata, root, clock)
    service.recover()
    return service


def put_keys(keys: int = 2_000_000, batch: int = BATCH) -> dict[str, float]:
    """Batches of one topic, 32-character keys (as UNIQ_KEY), hashing included."""
    with tempfile.TemporaryDirectory() as folder:
        service = _service(Path(folder), SLOTS, MAX_ITEMS)
        source = random.Random(1)
        batches = [
            [f"{source.getrandbits(128):032X}" for _ in range(batch)]
            for _ in range(max(keys // batch, 1))
        ]
        sizes = np.full(batch, 1024, dtype=np.int32)
        offsets = np.arange(batch, dtype=np.int64) * 1024
        times = np.full(batch, 1_700_000_000_000, dtype=np.int64)
        service.put_keys(0, "TopicTest", 0, batches[0], offsets, sizes, times)
        started = time.perf_counter()
        for number, texts in enumerate(batches[1:], 1):
            moved = offsets + number * batch * 1024
            service.put_keys(0, "TopicTest", 0, texts, moved, sizes, times)
        seconds = time.perf_counter() - started
        service.stop(force=False)
    return {"keys_per_s": (len(batches) - 1) * batch / seconds}


def fill_compact_query(
    slots: int = SLOTS, max_items: int = MAX_ITEMS, queries: int = 2000
) -> dict[str, float]:
    """One full file of random hashes: fill, compact, query before and after the upload."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        service = _service(root, slots, max_items)
        begin_ms = 1_700_000_000_000
        file = LocalIndexFile.create(root / str(begin_ms), begin_ms, slots, max_items)
        hashes = np.random.default_rng(1).integers(0, 2**31, max_items - 1, dtype=np.int32)
        offsets = np.arange(max_items - 1, dtype=np.int64) * 1024
        batch = 1 << 16
        started = time.perf_counter()
        for start in range(0, max_items - 1, batch):
            part = hashes[start : start + batch]
            rows = IndexRows(
                part,
                offsets[start : start + batch],
                np.full(len(part), 1024, dtype=np.int32),
                np.full(len(part), begin_ms, dtype=np.int64),
            )
            file.put(0, 0, rows)
        filled = time.perf_counter()
        compacted = compact_file(file, root / "compacting")
        done = time.perf_counter()
        figures = {"fill_s": filled - started, "compact_s": done - filled}
        asked = np.random.default_rng(2).choice(hashes, queries).tolist()
        wanted = [Wanted((key_hash,), 32, 0, 1 << 61) for key_hash in asked]
        figures["query_local_us"] = _median_us([lambda w=w: file.find(w) for w in wanted])
        started = time.perf_counter()
        uploaded = service.segments.upload(compacted)
        figures["upload_s"] = time.perf_counter() - started
        figures["query_uploaded_us"] = _median_us(
            [lambda w=w: run(uploaded.find(w)) for w in wanted]
        )
        file.destroy()
        service.stop(force=False)
    return figures


def _median_us(calls: list) -> float:
    times = []
    for call in calls:
        started = time.perf_counter_ns()
        assert call()
        times.append(time.perf_counter_ns() - started)
    return sorted(times)[len(times) // 2] / 1000


if __name__ == "__main__":
    print(put_keys())
    print(fill_compact_query())
