"""A reader's metadata follows a tier that grows, expires and is recreated."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.kit.growing_tier import BROKER, CLUSTER, GrowingTier
from tieredstore.config import StoreConfig
from tieredstore.contracts.dispatch_source import QueueKey
from tieredstore.contracts.segment import FileSegment, FileSegmentType, SegmentId, SegmentListing
from tieredstore.contracts.wrapping import WrapperProvider, WrapperSegment
from tieredstore.errors import Unavailable
from tieredstore.jobs.metadata.following import Changes, TierFollower
from tieredstore.metadata.json_store import DefaultMetadataStore
from tieredstore.scan.location import TierLocation, place_tier


class CountedProvider(WrapperProvider):
    """Provider that counts listings and reads. While `is_away` is set, reads fail."""

    lists = reads = 0
    is_away = False

    def list(self, prefix: str = "") -> Iterable[SegmentListing]:
        self.lists += 1
        return super().list(prefix)

    def wrap_segment(self, segment: FileSegment) -> FileSegment:
        return CountedSegment(segment, self)


class CountedSegment(WrapperSegment):
    def __init__(self, wrapped: FileSegment, provider: CountedProvider) -> None:
        super().__init__(wrapped)
        self._provider = provider

    def read(self, position: int, length: int) -> memoryview:
        self._provider.reads += 1
        if self._provider.is_away:
            raise Unavailable("away")
        return super().read(position, length)


class Reader:
    """A follower of a tier, with its metadata."""

    def __init__(self, tier: GrowingTier) -> None:
        self.provider = CountedProvider(tier.provider)
        self.state = tier.root / "reader"
        config = place_tier(
            StoreConfig(broker_name=BROKER, broker_cluster_name=CLUSTER), tier.url, state=None
        )
        (self.state / "config").mkdir(parents=True)
        self.follower = TierFollower.open(TierLocation(tier.url, config), self.state)

    def look(self) -> Changes:
        changes = self.follower.look(self.provider)
        self.follower._settle()
        return changes

    def metadata(self) -> DefaultMetadataStore:
        path = self.state / "config" / "tieredStoreMetadata.json"
        store = DefaultMetadataStore(path, BROKER, read_only=True)
        store.load()
        return store

    def size(self, topic: str, queue_id: int) -> int:
        """Return the number of bytes of units in the metadata."""
        path = f"{BROKER}/{topic}/{queue_id}"
        return sum(e.size for e in self.metadata().segments(path, FileSegmentType.CONSUME_QUEUE))


@pytest.fixture
def tier(tmp_path: Path) -> GrowingTier:
    tier = GrowingTier(tmp_path)
    for topic, queue_id in (("a", 0), ("a", 1), ("b", 0)):
        tier.append(topic, queue_id, 5)
    return tier


def test_a_tier_that_rests_costs_one_listing_a_look(tier: GrowingTier) -> None:
    reader = Reader(tier)
    before = reader.metadata().path.stat().st_mtime_ns
    for _ in range(3):
        assert reader.look().queues == []
    assert (reader.provider.lists, reader.provider.reads) == (3, 0)
    assert reader.metadata().path.stat().st_mtime_ns == before


def test_only_queues_that_have_changed_are_read(tier: GrowingTier) -> None:
    reader = Reader(tier)
    tier.append("a", 1, 3)
    assert reader.look().queues == [QueueKey("a", 1)]
    first = reader.provider.reads
    assert 0 < first < 12
    assert reader.size("a", 1) == 8 * 20
    assert reader.size("a", 0) == 5 * 20
    assert reader.look().queues == []
    assert reader.provider.reads == first


def test_segments_topics_and_queues_come_and_go(tier: GrowingTier) -> None:
    reader = Reader(tier)
    tier.roll("a", 0)
    tier.append("a", 0, 2)
    tier.append("c", 4, 1)
    assert reader.look().queues == [QueueKey("a", 0), QueueKey("c", 4)]
    assert reader.size("a", 0) == 7 * 20
    tier.expire("a", 0)
    tier.make_again("b")
    assert reader.look().queues == [QueueKey("a", 0), QueueKey("b", 0)]
    assert reader.size("a", 0) == 2 * 20
    assert {topic.topic for topic in reader.metadata().topics()} == {"a", "c"}
    tier.append("b", 0, 9)
    assert reader.look().queues == [QueueKey("b", 0)]
    assert reader.size("b", 0) == 9 * 20


def test_no_copies_of_the_metadata_pile_up(tier: GrowingTier) -> None:
    reader = Reader(tier)
    for _ in range(3):
        tier.append("a", 0, 1)
        reader.look()
    names = {path.name for path in (reader.state / "config").iterdir()}
    assert names == {"tieredStoreMetadata.json", "tieredStoreMetadata.json.bak"}


def test_what_a_failed_look_missed_the_next_one_finds(tier: GrowingTier) -> None:
    reader = Reader(tier)
    tier.append("a", 0, 1)
    reader.provider.is_away = True
    with pytest.raises(Unavailable):
        reader.look()
    reader.provider.is_away = False
    assert reader.look().queues == [QueueKey("a", 0)]
    assert reader.size("a", 0) == 6 * 20


def test_changes_are_told_until_a_store_has_taken_them_in(tier: GrowingTier) -> None:
    reader = Reader(tier)
    tier.append("a", 0, 1)
    assert reader.follower.look(reader.provider).queues == [QueueKey("a", 0)]
    tier.append("b", 0, 1)
    assert reader.look().queues == [QueueKey("a", 0), QueueKey("b", 0)]


def test_an_index_segment_that_comes_is_told(tier: GrowingTier) -> None:
    reader = Reader(tier)
    segment = tier.provider.open(SegmentId(f"{BROKER}/rmq_sys_INDEX/0", FileSegmentType.INDEX, 0))
    segment.write(0, [b"not whole"])
    changes = reader.look()
    assert (changes.queues, changes.has_index) == ([], True)
    assert not reader.look().has_index
