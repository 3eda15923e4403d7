"""Tests of the requests that opening a tier's queues needs."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path

import msgspec

from tests.kit.counted_requests import CountedTier
from tests.kit.growing_tier import BROKER, START_MS
from tieredstore.config import StoreConfig
from tieredstore.tier.flat.file_store import FlatFileStore

QUEUES, WIDTH = 60, 24


def test_queues_are_opened_together_from_one_listing_with_one_read_each(tmp_path: Path) -> None:
    tier = CountedTier(tmp_path, concurrent_requests=WIDTH)
    for queue_id in range(QUEUES):
        tier.written.append("orders", queue_id, 4)
    metadata = tier.written.metadata
    for entry in list(metadata.segments()):
        end_ms = START_MS + 3_000
        known = replace(entry, begin_timestamp_ms=START_MS, end_timestamp_ms=end_ms)
        metadata.put_segment(known)
    config = msgspec.structs.replace(StoreConfig(), broker_name=BROKER)
    files = FlatFileStore(config, tier.location.connect(), metadata)
    tier.client.together = threading.Barrier(WIDTH, timeout=30)  # breaks unless so many come
    files.load()
    assert len(list(files.files())) == QUEUES
    assert not files.broken_queues
    assert tier.reads == QUEUES  # the last unit, whose message ends at the end of the log
    assert tier.client.requests["LIST"] == 3  # one between two for the epoch manifest
    files.close()
