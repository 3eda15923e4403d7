"""Eight threads upload many queues while maintenance runs. The object store fails often."""

from __future__ import annotations

import contextlib
import random
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.kit.memory_chunks import chunk_provider
from tests.kit.tier.flat import (
    T0,
    ListIndex,
    ListSource,
    TableMetadata,
    bodies,
    config,
    existing,
)
from tests.kit.tier.hostile import SIZE, Fate, HostileClient
from tests.kit.tier.writing import become_writer
from tieredstore.clock import ManualClock, SystemClock
from tieredstore.contracts.dispatch_source import QueueKey
from tieredstore.errors import TieredStoreError
from tieredstore.scan.findings import Finding
from tieredstore.scan.listing import load_catalogue
from tieredstore.scan.verify.verification import verify
from tieredstore.tier.flat.file_store import FlatFileStore
from tieredstore.tier.policy.topic_filter import TopicFilter
from tieredstore.tier.upload.dispatcher import MessageStoreDispatcher

FATES = [fate for fate in Fate if not fate.name.startswith("CRASH")]
KEYS = [QueueKey(f"Topic{letter}", number % 3) for number, letter in enumerate("ABCDEFGHIJKL")]
"""Queues whose names have equal length, so that all records have SIZE bytes."""
SETTINGS = config(
    commit_log_max_size_bytes=40 * SIZE,
    consume_queue_max_size_bytes=600,
    group_commit_count=16,
    group_commit_size_bytes=8 * SIZE + 1,
    dispatch_threads=8,
)
PLAIN: dict[str, Any] = {"group_bytes": 0}
GROUPED: dict[str, Any] = {
    "group_bytes": 1 << 20,
    "regroup_interval_ms": 0,
    "split_bytes": 40 * SIZE,
}
"""Settings with which maintenance constantly sorts group objects, and moves their bytes to the
queues' folders."""


class ChaoticClient(HostileClient):
    """A client whose requests fail at a given rate."""

    def __init__(self, seed: int) -> None:
        super().__init__(ManualClock(T0))
        self.random = random.Random(seed)
        self.share = 0.0

    def now_ms(self) -> int:
        return SystemClock().now_ms()

    def _fate(self) -> Fate:
        self.count += 1
        self.land(self.count)
        if self.is_calm or self.random.random() > self.share:
            return Fate.WELL
        return self.random.choice(FATES)


class Process:
    """A dispatcher over a chunk log whose maintenance runs in the background."""

    def __init__(
        self,
        client: ChaoticClient,
        metadata: TableMetadata,
        source: ListSource,
        settings: dict[str, Any],
    ) -> None:
        self.client = client
        self.chunks = chunk_provider(
            client,
            **settings,
            max_tries=3,
            preferred_batch_bytes=10 * SIZE,
            maintenance_threads=2,
            grace_ms=2_000,
        )
        self.store = FlatFileStore(SETTINGS, self.chunks, metadata, SystemClock())
        become_writer(self.store, take_over=True)
        self.store.load()
        self.dispatcher = MessageStoreDispatcher(
            SETTINGS, source, self.store, ListIndex(), TopicFilter(SETTINGS), SystemClock()
        )

    def upload(self) -> None:
        """Upload while maintenance runs. An error of the object store ends both."""

        def maintain() -> None:
            with contextlib.suppress(TieredStoreError):
                self.chunks.run_maintenance()

        with ThreadPoolExecutor(1) as pool, contextlib.suppress(TieredStoreError):
            maintenance = pool.submit(maintain)
            self.dispatcher.scan(force=True)
        maintenance.result()

    def end(self) -> None:
        """End the process without releasing the epoch, as a kill does."""
        self.client.is_calm = True
        self.chunks.close()
        self.client.is_calm = False


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("settings", [PLAIN, GROUPED], ids=["plain", "groups"])
def test_every_message_of_every_queue_is_in_the_tier_exactly_once(
    settings: dict[str, Any], seed: int
) -> None:
    client, metadata, source = ChaoticClient(seed), TableMetadata(), ListSource()
    counts = dict.fromkeys(KEYS, 0)
    process = Process(client, metadata, source, settings)
    for turn in range(12):
        client.share = client.random.choice([0, 0.05, 0.2])
        for key in KEYS:
            more = client.random.randrange(30)
            source.put(key, counts[key], more)
            counts[key] += more
        process.upload()
        if turn % 4 == 3:
            client.share = 0
            process.end()
            process = Process(client, metadata, source, settings)
    client.is_calm = True
    client.land(1 << 60)
    for _ in range(3):
        outcomes = process.dispatcher.scan(force=True)
    assert [outcome.error for outcome in outcomes if outcome.error is not None] == []
    process.end()
    client.is_calm = True
    process = Process(client, metadata, source, settings)
    for key, count in counts.items():
        texts = [f"{key.topic}-{key.queue_id}-{offset}-" for offset in range(count)]
        wanted = [(offset, text.encode().ljust(20, b"x")) for offset, text in enumerate(texts)]
        assert bodies(existing(process.store, key)) == wanted
    process.end()
    provider = chunk_provider(client)
    damage: list[Finding] = []
    report = verify(provider, load_catalogue(provider), damage.append)
    assert (report.messages, report.damage) == (sum(counts.values()), 0), damage
