"""A small tier, on Posix or in a chunk log, and index jobs with faults."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.kit.tier.wrappers import KeptProvider
from tests.kit.tier_builder import BROKER, BuiltTier
from tieredstore import registry
from tieredstore.clock import Clock
from tieredstore.config import StoreConfig
from tieredstore.contracts.metadata_store import MetadataStore
from tieredstore.contracts.segment import FileSegmentType, SegmentProvider
from tieredstore.jobs.journal import Journal
from tieredstore.jobs.run import JobRun
from tieredstore.jobs.runner import LocalRunner
from tieredstore.message.hashes import tiered_key_hash
from tieredstore.message.index.tiered import COMPACTED_ITEM_DTYPE, compacted_size, unpack_header
from tieredstore.providers.chunks.provider import ChunkProvider
from tieredstore.providers.memory.objects import MemoryObjectClient
from tieredstore.scan.findings import Finding
from tieredstore.scan.keys.search import find_by_key
from tieredstore.scan.listing import load_catalogue
from tieredstore.scan.location import TierLocation, locate
from tieredstore.scan.verify.verification import verify
from tieredstore.testing.faults import Faults, FaultyMetadataStore, FaultyProvider

SLOTS, MAX_ITEMS = 8, 17
INDEX = f"{BROKER}/rmq_sys_INDEX/0"
Job = Callable[[JobRun, TierLocation], dict[str, Any]]
Item = tuple[int, int, int, int, int]
"""An item of an index: hash, topic id, queue id, offset and size."""


class World:
    """State that survives a process: the tier, the state directory and the work folder."""

    def __init__(
        self, built: BuiltTier, root: Path, patch: pytest.MonkeyPatch, kind: str = "posix"
    ) -> None:
        self.root = root
        shutil.copytree(built.root / "tier", root / "tier")
        shutil.copytree(built.root / "state", root / "state")
        self.source = locate(
            f"file://{root / 'tier'}",
            broker=BROKER,
            state=root / "state",
            properties={
                "tieredStoreIndexFileMaxHashSlotNum": str(SLOTS),
                "tieredStoreIndexFileMaxIndexNum": str(MAX_ITEMS),
                "tieredStorePosixFsyncEnable": "false",
            },
        )
        self.stateless = TierLocation(self.source.url, self.source.config, BROKER)
        self._objects: SegmentProvider | None = None
        if kind == "chunks":
            self._objects = ChunkProvider(MemoryObjectClient())
            _copy(built.provider, self._objects)
            # The copy is a tier of its own, which the state does not know.
            for memory in (root / "state" / "config").glob("tieredstoreTier.json*"):
                memory.unlink()
        self._faults = Faults()
        self._provider, self._metadata = registry.segment_provider, registry.metadata_store
        patch.setattr(registry, "segment_provider", self._make_provider)
        patch.setattr(registry, "metadata_store", self._make_metadata)

    def _make_provider(self, config: StoreConfig) -> SegmentProvider:
        is_tier = config.tier_file_path == self.source.config.tier_file_path
        if is_tier and self._objects is not None:
            return FaultyProvider(KeptProvider(self._objects), self._faults)
        return FaultyProvider(self._provider(config), self._faults)

    def _make_metadata(
        self, config: StoreConfig, *clock: Clock, read_only: bool = False
    ) -> MetadataStore:
        store = self._metadata(config, *clock, read_only=read_only)
        return store if read_only else FaultyMetadataStore(store, self._faults)

    def run(
        self,
        job: Job,
        faults: Faults | None = None,
        *,
        workers: int = 1,
        source: TierLocation | None = None,
    ) -> dict[str, Any]:
        """Run a job in one simulated process, resuming the work of the previous one."""
        self._faults = Faults() if faults is None else faults
        with Journal(self.root / "work" / "job.jsonl", {"job": "test"}) as journal:
            report = job(JobRun("test", LocalRunner(workers), journal), source or self.source)
            journal.finish()
        return report

    def provider(self) -> SegmentProvider:
        self._faults = Faults()
        return self.source.connect()

    def writable_metadata(self) -> MetadataStore:
        found: MetadataStore = self._metadata(self.source.config)
        found.load()
        return found

    def metadata(self) -> MetadataStore:
        found = self.source.metadata()
        assert found is not None
        found.load()
        return found

    def remove_index(self, *, from_state: bool = False) -> None:
        """Delete the index segments from the tier. With `from_state`, also delete their entries in
        the metadata."""
        provider = self.provider()
        for listing in list(provider.list(INDEX)):
            provider.open(listing.id, listing).delete()
        if from_state:
            metadata = self.writable_metadata()
            for entry in list(metadata.segments(INDEX, FileSegmentType.INDEX)):
                metadata.delete_segment(entry.id)
            metadata.close()

    def index(self) -> dict[int, bytes]:
        """Return the bytes of the index segments by base offset."""
        provider = self.provider()
        return {
            listing.id.base_offset: bytes(provider.open(listing.id).read(0, listing.size_bytes))
            for listing in sorted(provider.list(INDEX), key=lambda item: item.id.base_offset)
            if listing.size_bytes
        }

    def entries(self) -> list[tuple[int, int, int, int]]:
        """Return the index segments of the metadata: base offset, size, begin and end time."""
        return [
            (entry.base_offset, entry.size, entry.begin_timestamp_ms, entry.end_timestamp_ms)
            for entry in self.metadata().segments(INDEX, FileSegmentType.INDEX)
        ]

    def items(self) -> Counter[Item]:
        """Return the items of the index segments whose size is in the metadata."""
        sizes = {base: size for base, size, _, _ in self.entries()}
        whole = [data for base, data in self.index().items() if sizes.get(base)]
        return sum(map(items_of, whole), Counter())

    def findings(self, *, with_state: bool = True) -> list[Finding]:
        found: list[Finding] = []
        provider = self.provider()
        metadata = self.metadata() if with_state else None
        verify(provider, load_catalogue(provider, metadata, broker=BROKER), found.append)
        return found

    def leftovers(self) -> list[str]:
        """Return the files that remain in the work folder."""
        folder = self.root / "work"
        return [str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()]


def _copy(source: SegmentProvider, target: SegmentProvider) -> None:
    for listing in source.list():
        data = source.open(listing.id).read(0, listing.size_bytes)
        target.open(listing.id).write(0, [data])


def items_of(index: bytes) -> Counter[Item]:
    """Return the items of one compacted file."""
    header = unpack_header(index)
    slots = (len(index) - compacted_size(0, header.items)) // 8
    items = np.frombuffer(index, COMPACTED_ITEM_DTYPE, offset=compacted_size(slots, 0))
    return Counter(row[:5] for row in items.tolist())


def expected_items(
    built: BuiltTier, *, since_ms: int = 0, until_ms: int = 1 << 62
) -> Counter[Item]:
    """Return the items that the index must have, from a loop over the messages."""
    items: Counter[Item] = Counter()
    for (topic, queue_id), stored in built.stored.items():
        entry = built.metadata.topic(topic)
        assert entry is not None
        for item in stored:
            if since_ms <= item.store_timestamp_ms < until_ms:
                for key in {item.message.uniq_key, *item.message.keys} - {None}:
                    where = (entry.topic_id, queue_id, item.offset, len(item.record))
                    items[tiered_key_hash(topic, str(key)), *where] += 1
    return items


def check_index(world: World, built: BuiltTier) -> None:
    """Check that the index is correct and listed in the metadata, and that it finds every key."""
    assert world.items() == expected_items(built)
    assert world.findings() == []
    assert world.findings(with_state=False) == []
    provider = world.provider()
    catalogue = load_catalogue(provider, world.metadata())
    for (topic, queue_id), stored in built.stored.items():
        for item in stored:
            [hit] = find_by_key(provider, catalogue, catalogue.queues, topic, item.message.keys[0])
            place = hit.message.queue_id, hit.message.queue_offset
            assert place == (queue_id, item.queue_offset)
