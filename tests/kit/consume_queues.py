"""The contract of consume queues as tests: a kind of queues joins by a subclass in
`tests/contract/test_consume_queues.py`."""

from __future__ import annotations

from abc import abstractmethod
from pathlib import Path

import pytest

from tieredstore.contracts.dispatch_source import QueueKey
from tieredstore.errors import Corrupt
from tieredstore.local.queues.interface import ConsumeQueueInterface, ConsumeQueueStoreInterface
from tieredstore.message.consume_queue import pack_unit

KEY = QueueKey("T", 0)
COUNTS = [1, 9, 10, 11, 35]


def units(first: int, count: int) -> bytes:
    """Messages of 50 bytes every 100 bytes of the log: unit q at 100 * q."""
    return b"".join(pack_unit(q * 100, 50, q) for q in range(first, first + count))


def end_of(offset: int) -> int:
    return offset * 100 + 50


def fill(queue: ConsumeQueueInterface, first: int, count: int) -> None:
    queue.append(first, units(first, count), end_of(first + count - 1))


def walk(queue: ConsumeQueueInterface) -> list[int]:
    """The tags codes of all units, read as a get reads them."""
    found: list[int] = []
    offset = queue.min_offset
    while offset < queue.max_offset:
        taken = queue.read_units(offset, 7).tolist()
        assert 1 <= len(taken) <= 7
        found += [tags_code for _, _, tags_code in taken]
        offset += len(taken)
    return found


class ConsumeQueueStoreContract:
    """`open_store` opens (or opens again) the queues of a store in a folder, loaded."""

    @abstractmethod
    def open_store(self, root: Path) -> ConsumeQueueStoreInterface: ...

    @pytest.fixture
    def store(self, tmp_path: Path) -> ConsumeQueueStoreInterface:
        return self.open_store(tmp_path)

    def reopen(self, store: ConsumeQueueStoreInterface, root: Path) -> ConsumeQueueStoreInterface:
        store.sync()
        again = self.open_store(root)
        for queue in again:
            queue.correct_min_offset(0)
        return again

    def test_a_new_store_has_no_queues(self, store: ConsumeQueueStoreInterface) -> None:
        assert [*store.list_queues()] == []
        assert [*store] == []
        assert store.get(KEY) is None
        assert store.max_physical_offset == 0
        assert store.delete("T") == 0

    def test_a_queue_without_units_is_empty_and_leaves_no_trace(
        self, store: ConsumeQueueStoreInterface, tmp_path: Path
    ) -> None:
        queue = store.get_or_create(KEY)
        assert store.get(KEY) is store.get_or_create(KEY) is queue
        assert (queue.topic, queue.queue_id) == KEY
        assert (queue.min_offset, queue.max_offset, queue.max_physical_offset) == (0, 0, 0)
        assert len(queue.read_units(0, 9)) == 0
        assert queue.unit(0) is None
        assert list(self.reopen(store, tmp_path).list_queues()) == []

    @pytest.mark.parametrize("count", COUNTS)
    def test_what_was_put_is_there_also_after_reopening(
        self, store: ConsumeQueueStoreInterface, tmp_path: Path, count: int
    ) -> None:
        for number in range(3):
            fill(store.get_or_create(QueueKey("T", number)), 0, count + number)
        for opened in (store, self.reopen(store, tmp_path)):
            assert sorted(opened.list_queues()) == [QueueKey("T", number) for number in range(3)]
            assert opened.max_physical_offset == end_of(count + 1)
            for queue in opened:
                end = count + queue.queue_id
                assert (queue.min_offset, queue.max_offset) == (0, end)
                assert queue.max_physical_offset == end_of(end - 1)
                assert walk(queue) == list(range(end))
                assert queue.unit(end - 1) == (100 * (end - 1), 50, end - 1)
                assert queue.unit(end) is queue.unit(-1) is None
                assert queue.path_of(0)

    def test_nothing_is_read_outside_of_the_queue(self, store: ConsumeQueueStoreInterface) -> None:
        queue = store.get_or_create(KEY)
        fill(queue, 0, 5)
        for offset, count in ((-1, 3), (5, 1), (99, 9), (0, 0), (2, -1)):
            assert len(queue.read_units(offset, count)) == 0
        assert [unit[2] for unit in queue.read_units(3, 99).tolist()] == [3, 4]
        assert all(queue.roll_next_file(offset) > offset for offset in range(5))

    def test_units_that_are_there_are_skipped(self, store: ConsumeQueueStoreInterface) -> None:
        queue = store.get_or_create(KEY)
        fill(queue, 0, 5)
        fill(queue, 0, 5)
        assert queue.max_offset == 5
        fill(queue, 3, 9)
        assert (queue.max_offset, queue.max_physical_offset) == (12, end_of(11))
        assert walk(queue) == list(range(12))

    def test_units_that_would_lose_messages_are_refused(
        self, store: ConsumeQueueStoreInterface
    ) -> None:
        queue = store.get_or_create(KEY)
        fill(queue, 0, 5)
        with pytest.raises(Corrupt):  # a hole
            fill(queue, 7, 1)
        with pytest.raises(Corrupt):  # another message at an offset that is taken
            queue.append(3, pack_unit(9999, 50, 3), 10_049)
        assert walk(queue) == list(range(5))

    @pytest.mark.parametrize("first", [1, 9, 10, 14])
    def test_a_queue_may_begin_anywhere(
        self, store: ConsumeQueueStoreInterface, tmp_path: Path, first: int
    ) -> None:
        fill(store.get_or_create(KEY), first, 13)
        for opened in (store, self.reopen(store, tmp_path)):
            queue = opened.get(KEY)
            assert queue is not None
            assert (queue.min_offset, queue.max_offset) == (first, first + 13)
            assert walk(queue) == list(range(first, first + 13))

    def test_the_minimum_follows_the_log(self, store: ConsumeQueueStoreInterface) -> None:
        queue = store.get_or_create(KEY)
        fill(queue, 0, 40)
        for physical, minimum in ((0, 0), (1, 1), (2000, 20), (2001, 21), (3900, 39), (9999, 40)):
            queue.correct_min_offset(physical)
            assert queue.min_offset == minimum
            assert walk(queue) == list(range(minimum, 40))

    @pytest.mark.parametrize("kept", [0, 1, 9, 10, 15, 34])
    def test_what_is_truncated_does_not_come_back(
        self, store: ConsumeQueueStoreInterface, tmp_path: Path, kept: int
    ) -> None:
        short = QueueKey("T", 1)
        fill(store.get_or_create(KEY), 0, 35)
        fill(store.get_or_create(short), 0, 1)
        store.truncate(end_of(kept - 1) if kept else 0)
        again = self.reopen(store, tmp_path)
        for opened in (store, again):
            for key, expected in ((KEY, kept), (short, min(kept, 1))):
                queue = opened.get_or_create(key)
                assert queue.max_offset == expected
                assert walk(queue) == list(range(expected))
        fill(again.get_or_create(KEY), kept, 2)
        assert walk(self.reopen(again, tmp_path).get_or_create(KEY)) == list(range(kept + 2))

    def test_a_deleted_topic_begins_at_zero_again(
        self, store: ConsumeQueueStoreInterface, tmp_path: Path
    ) -> None:
        other = QueueKey("U", 0)
        for key in (KEY, QueueKey("T", 1), other):
            fill(store.get_or_create(key), 5, 20)
        assert store.delete("T") == 2
        assert store.get_or_create(KEY).max_offset == 0
        fill(store.get_or_create(KEY), 0, 3)
        for opened in (store, self.reopen(store, tmp_path)):
            found = {queue_key: walk(opened.get_or_create(queue_key)) for queue_key in (KEY, other)}
            assert found == {KEY: [0, 1, 2], other: list(range(5, 25))}

    @pytest.mark.parametrize("first", [1, 9, 10, 14, 100])
    @pytest.mark.parametrize("count", [0, 35])
    def test_a_queue_is_made_to_begin_at_an_offset(
        self, store: ConsumeQueueStoreInterface, tmp_path: Path, first: int, count: int
    ) -> None:
        queue = store.get_or_create(KEY)
        if count:
            fill(queue, 0, count)
        queue.initialize_with_offset(first)
        again = self.reopen(store, tmp_path)
        for opened in (store, again):
            found = opened.get(KEY)
            assert found is not None
            found.correct_min_offset(1)
            assert (found.min_offset, found.max_offset) == (first, first)
            assert found.max_physical_offset == 0
            assert walk(found) == []
            assert len(found.read_units(first - 1, 9)) == 0
        fill(again.get_or_create(KEY), first, 13)
        for opened in (again, self.reopen(again, tmp_path)):
            found = opened.get(KEY)
            assert found is not None
            assert (found.min_offset, found.max_offset) == (first, first + 13)
            assert walk(found) == list(range(first, first + 13))

    def test_a_queue_that_is_made_to_begin_at_zero_is_gone(
        self, store: ConsumeQueueStoreInterface, tmp_path: Path
    ) -> None:
        queue = store.get_or_create(KEY)
        fill(queue, 5, 20)
        queue.initialize_with_offset(0)
        assert (queue.min_offset, queue.max_offset, queue.max_physical_offset) == (0, 0, 0)
        assert [*self.reopen(store, tmp_path).list_queues()] == []

    @pytest.mark.parametrize("topic", ["", ".", "..", "a/b", "a\0b"])
    def test_a_topic_that_can_be_none_is_corrupt(
        self, store: ConsumeQueueStoreInterface, topic: str
    ) -> None:
        with pytest.raises(Corrupt):
            store.get_or_create(QueueKey(topic, 0))
