"""Contract tests for metadata stores. Subclass them in the tests of a store:

    class TestMyStore(MetadataStoreContract):
        @pytest.fixture
        def store(self, tmp_path):
            store = MyStore(tmp_path)
            store.load()
            yield store

        def reopen(self, store):
            again = MyStore(store.path)
            again.load()
            return again

`reopen` must not use any state of `store`, whose process counts as killed. Requires pytest.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from tieredstore.contracts.metadata_store import (
    NEVER_WRITTEN_MS,
    FileSegmentMetadata,
    MetadataStore,
)
from tieredstore.contracts.segment import FileSegmentType, SegmentId
from tieredstore.errors import Invalid

COMMIT_LOG = FileSegmentType.COMMIT_LOG
CONSUME_QUEUE = FileSegmentType.CONSUME_QUEUE


def new_segment(
    path: str = "broker-a/T/0", type: FileSegmentType = COMMIT_LOG, base_offset: int = 0
) -> FileSegmentMetadata:
    return FileSegmentMetadata(path, type, base_offset, create_timestamp_ms=1_700_000_000_000)


class MetadataStoreContract:
    """Contract tests for `tieredstore.contracts.metadata_store`."""

    @pytest.fixture
    def store(self) -> MetadataStore:
        """Return an empty, loaded store."""
        raise NotImplementedError

    def reopen(self, store: object) -> MetadataStore:
        """Return the store, loaded, as a new process would find it after the old process was
        killed."""
        raise NotImplementedError

    def test_it_is_a_metadata_store(self, store: MetadataStore) -> None:
        assert isinstance(store, MetadataStore)

    def test_an_empty_store_knows_nothing(self, store: MetadataStore) -> None:
        assert store.topics() == []
        assert store.topic("T") is None
        assert store.queues("T") == []
        assert store.queue("T", 0) is None
        assert list(store.segments()) == []
        assert store.segment(SegmentId("b/T/0", COMMIT_LOG, 0)) is None

    # Topics

    def test_topic_ids_count_from_zero_and_are_never_given_twice(
        self, store: MetadataStore
    ) -> None:
        assert [store.add_topic(f"T{n}").topic_id for n in range(3)] == [0, 1, 2]
        store.delete_topic("T2")
        assert store.add_topic("T2").topic_id == 3
        store.delete_topic("T2")
        again = self.reopen(store)
        assert again.add_topic("T4").topic_id == 4

    def test_adding_a_topic_again_changes_nothing(self, store: MetadataStore) -> None:
        first = store.add_topic("T", 48)
        assert first.reserve_time_hours == 48
        assert store.add_topic("T", 72) == first
        assert self.reopen(store).add_topic("T") == first

    def test_a_topic_is_updated_when_it_is_known(self, store: MetadataStore) -> None:
        topic = store.add_topic("T")
        store.update_topic(replace(topic, reserve_time_hours=24, status=1))
        found = self.reopen(store).topic("T")
        assert found is not None
        assert (found.reserve_time_hours, found.status, found.topic_id) == (24, 1, topic.topic_id)
        store.update_topic(replace(topic, topic="unknown"))
        assert store.topic("unknown") is None

    def test_w03_a_retention_is_given_to_the_topic_that_was_meant(
        self, store: MetadataStore
    ) -> None:
        topic = store.add_topic("T")
        assert store.set_reserve_time(topic, 24)
        assert self.reopen(store).topic("T") == store.topic("T")
        store.delete_topic("T")
        assert not store.set_reserve_time(topic, 48)
        assert store.topic("T") is None
        again = store.add_topic("T")
        assert again.topic_id != topic.topic_id
        assert not store.set_reserve_time(topic, 48)
        assert self.reopen(store).topic("T") == again

    def test_deleting_a_topic_drops_its_queues_and_keeps_segments(
        self, store: MetadataStore
    ) -> None:
        for topic in ("T", "other"):
            store.add_topic(topic)
            store.add_queue(topic, 0)
        store.put_segment(new_segment())
        store.delete_topic("T")
        store.delete_topic("T")
        for found in (store, self.reopen(store)):
            assert [topic.topic for topic in found.topics()] == ["other"]
            assert found.queues("T") == []
            assert len(found.queues("other")) == 1
            assert found.segment(new_segment().id) is not None

    # Queues

    def test_queues_belong_to_their_topic(self, store: MetadataStore) -> None:
        for queue_id in (3, 0, 65_535):
            queue = store.add_queue("T", queue_id)
            assert (queue.topic, queue.queue_id) == ("T", queue_id)
            assert (queue.min_offset, queue.max_offset) == (-1, -1)
        assert store.add_queue("T", 3) == store.queue("T", 3)
        again = self.reopen(store)
        assert sorted(queue.queue_id for queue in again.queues("T")) == [0, 3, 65_535]
        assert again.queue("T", 3) == store.queue("T", 3)
        assert again.queue("T", 1) is None

    def test_queues_are_updated_and_deleted(self, store: MetadataStore) -> None:
        queue = store.add_queue("T", 0)
        store.update_queue(replace(queue, min_offset=5, max_offset=9))
        store.update_queue(replace(queue, topic="unknown"))
        store.flush()
        found = self.reopen(store).queue("T", 0)
        assert found is not None
        assert (found.min_offset, found.max_offset) == (5, 9)
        assert store.queues("unknown") == []
        store.delete_queue("T", 0)
        store.delete_queue("T", 0)
        store.delete_queue("unknown", 0)
        assert self.reopen(store).queue("T", 0) is None

    # Segments

    def test_a_new_segment_is_there_after_a_kill(self, store: MetadataStore) -> None:
        segment = new_segment()
        store.put_segment(segment)
        assert self.reopen(store).segment(segment.id) == segment
        assert segment.begin_timestamp_ms == NEVER_WRITTEN_MS

    def test_a_segment_without_a_create_time_gets_one(self, store: MetadataStore) -> None:
        store.put_segment(replace(new_segment(), create_timestamp_ms=0))
        found = store.segment(new_segment().id)
        assert found is not None
        assert found.create_timestamp_ms > 0

    def test_sizes_and_times_are_there_after_a_flush(self, store: MetadataStore) -> None:
        segment = new_segment()
        store.put_segment(segment)
        for size in (10, 20, 30):
            segment.size = size
            segment.begin_timestamp_ms, segment.end_timestamp_ms = 1_000, 1_000 + size
            store.put_segment(segment)
            assert store.segment(segment.id) == segment
        store.flush()
        assert self.reopen(store).segment(segment.id) == segment

    def test_an_update_keeps_the_create_time(self, store: MetadataStore) -> None:
        store.put_segment(new_segment())
        changed = replace(new_segment(), create_timestamp_ms=1, size=7, status=1)
        store.put_segment(changed)
        found = self.reopen(store).segment(changed.id)
        assert found == replace(changed, create_timestamp_ms=new_segment().create_timestamp_ms)

    def test_a_roll_stores_the_final_size_of_the_former_segment(self, store: MetadataStore) -> None:
        first = new_segment()
        store.put_segment(first)
        first.size = 1 << 30
        store.put_segment(first)
        store.put_segment(new_segment(base_offset=1 << 30))
        found = self.reopen(store).segment(first.id)
        assert found is not None
        assert found.size == 1 << 30

    def test_segments_come_by_path_type_and_ascending_base_offset(
        self, store: MetadataStore
    ) -> None:
        bases = [1 << 40, 0, 270, 1 << 31, 30]
        with store.batch():
            for base in bases:
                store.put_segment(new_segment(base_offset=base))
                store.put_segment(new_segment("broker-a/T/1", CONSUME_QUEUE, base))
        for found in (store, self.reopen(store)):
            assert [s.base_offset for s in found.segments("broker-a/T/0")] == sorted(bases)
            assert [s.base_offset for s in found.segments(type=CONSUME_QUEUE)] == sorted(bases)
            assert list(found.segments("broker-a/T/0", CONSUME_QUEUE)) == []
            assert list(found.segments("broker-a/T")) == []
            assert len(list(found.segments())) == 10

    def test_a_deleted_segment_stays_deleted(self, store: MetadataStore) -> None:
        store.put_segment(new_segment())
        store.put_segment(new_segment(base_offset=5))
        store.delete_segment(new_segment().id)
        store.delete_segment(new_segment().id)
        for found in (store, self.reopen(store)):
            assert [s.base_offset for s in found.segments()] == [5]

    def test_impossible_segments_are_refused(self, store: MetadataStore) -> None:
        for segment in (
            replace(new_segment(), size=-1),
            new_segment(base_offset=-1),
            new_segment(""),
        ):
            with pytest.raises(Invalid):
                store.put_segment(segment)
        assert list(self.reopen(store).segments()) == []

    # Values

    def test_what_is_returned_is_a_copy(self, store: MetadataStore) -> None:
        topic, queue, segment = store.add_topic("T"), store.add_queue("T", 0), new_segment()
        store.put_segment(segment)
        before = replace(topic), replace(queue), replace(segment)
        topic.status = queue.max_offset = segment.size = 99
        store.topics()[0].status = store.queues("T")[0].max_offset = 98
        next(store.segments()).size = 98
        assert (store.topic("T"), store.queue("T", 0), store.segment(segment.id)) == before

    @pytest.mark.parametrize("topic", ["%RETRY%g", 'quote"d', "back\\slash", "тема", "a b", "0"])
    def test_names_survive(self, store: MetadataStore, topic: str) -> None:
        store.add_topic(topic)
        store.add_queue(topic, 0)
        again = self.reopen(store)
        assert again.topic(topic) == store.topic(topic)
        assert again.queue(topic, 0) == store.queue(topic, 0)

    def test_names_that_cannot_be_stored_are_refused(self, store: MetadataStore) -> None:
        for name in ("", "\ud800"):
            with pytest.raises(Invalid):
                store.add_topic(name)
            with pytest.raises(Invalid):
                store.add_queue(name, 0)
        with pytest.raises(Invalid):
            store.add_queue("T", -1)

    # Batches and threads

    def test_a_batch_is_on_disk_when_its_outermost_block_ends(self, store: MetadataStore) -> None:
        with store.batch():
            store.add_topic("T")
            with store.batch():
                store.add_queue("T", 0)
            store.put_segment(new_segment())
        again = self.reopen(store)
        assert again.topic("T") is not None
        assert again.queue("T", 0) is not None
        assert again.segment(new_segment().id) is not None

    def test_a_batch_that_fails_leaves_the_store_usable(self, store: MetadataStore) -> None:
        def fail() -> None:
            with store.batch():
                store.add_topic("T")
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            fail()
        store.add_topic("U")
        again = self.reopen(store)
        assert again.topics() == store.topics()

    def test_threads_get_distinct_topic_ids_and_lose_nothing(self, store: MetadataStore) -> None:
        def work(number: int) -> int:
            topic = store.add_topic(f"T{number}")
            store.add_queue(topic.topic, 0)
            segment = new_segment(f"broker-a/T{number}/0")
            store.put_segment(segment)
            for size in range(1, 20):
                segment.size = size
                store.put_segment(segment)
            return topic.topic_id

        with ThreadPoolExecutor(8) as pool:
            ids = list(pool.map(work, range(24)))
        assert sorted(ids) == list(range(24))
        store.flush()
        again = self.reopen(store)
        assert sorted(s.size for s in again.segments()) == [19] * 24
        assert {topic.topic_id for topic in again.topics()} == set(ids)

    # The end

    def test_closing_writes_everything(self, store: MetadataStore) -> None:
        segment = new_segment()
        store.put_segment(segment)
        segment.size = 123
        store.put_segment(segment)
        store.close()
        assert self.reopen(store).segment(segment.id) == segment

    def test_a_destroyed_store_is_empty_on_disk_too(self, store: MetadataStore) -> None:
        store.add_topic("T")
        store.add_queue("T", 0)
        store.put_segment(new_segment())
        store.destroy()
        for found in (store, self.reopen(store)):
            assert (found.topics(), found.queues("T"), list(found.segments())) == ([], [], [])
