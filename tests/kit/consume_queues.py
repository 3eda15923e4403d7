"""Contract tests of consume queues. Subclasses in `tests/contract/test_consume_queues.py` test each
kind of queue."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tieredstore.contracts.dispatch_source import QueueKey
from tieredstore.contracts.message_store import BoundaryType
from tieredstore.errors import Corrupt
from tieredstore.local.queues.interface import (
    ConsumeQueueInterface,
    ConsumeQueueReader,
    ConsumeQueueStoreInterface,
    QueueUnits,
)
from tieredstore.local.queues.unit_search import offset_by_time
from tieredstore.message.consume_queue import make_units

KEY = QueueKey("T", 0)
COUNTS = [1, 9, 10, 11, 35]


def units_of(key: QueueKey, first: int, count: int, at: int = 0) -> QueueUnits:
    """Return units of 50-byte messages. Unit q has the log offset `at` + 100 * q and the store time
    10 * q ms."""
    offsets = np.arange(first, first + count, dtype=np.int64)
    units = make_units(at + offsets * 100, np.full(count, 50, dtype=np.int64), offsets)
    return QueueUnits(key, first, units, offsets * 10)


def end_of(offset: int) -> int:
    return offset * 100 + 50


def record_time(physical_offset: int) -> int:
    """Return the store time of the message at a commit log offset, for units of `units_of`."""
    return physical_offset // 10


def fill(store: ConsumeQueueStoreInterface, key: QueueKey, first: int, count: int) -> None:
    store.append([units_of(key, first, count)], end_of(first + count - 1))


def find_by_time(queue: ConsumeQueueReader, timestamp_ms: int, boundary: BoundaryType) -> int:
    return offset_by_time(
        lambda offset: queue.store_time(offset, record_time),
        queue.min_offset,
        queue.max_offset,
        timestamp_ms,
        boundary,
    )


def loaded(store: ConsumeQueueStoreInterface, key: QueueKey) -> ConsumeQueueInterface:
    queue = store.get(key)
    assert queue is not None
    return queue


def walk(queue: ConsumeQueueInterface) -> list[int]:
    """Return the tags codes of all units, read as a get reads them."""
    found: list[int] = []
    offset = queue.min_offset
    while offset < queue.max_offset:
        taken = queue.read_units(offset, 7).tolist()
        assert 1 <= len(taken) <= 7
        found += [tags_code for _, _, tags_code in taken]
        offset += len(taken)
    return found


class ConsumeQueueStoreContract:
    """Contract of consume queues. `open_store` opens and loads the queues in a folder, and may be
    called repeatedly."""

    opened: list[ConsumeQueueStoreInterface]

    @abstractmethod
    def open_store(self, root: Path) -> ConsumeQueueStoreInterface: ...

    @pytest.fixture
    def store(self, tmp_path: Path) -> Iterator[ConsumeQueueStoreInterface]:
        self.opened = [self.open_store(tmp_path)]
        yield self.opened[0]
        for store in self.opened:
            store.close()

    def reopen(
        self, store: ConsumeQueueStoreInterface, root: Path, min_physical_offset: int = 0
    ) -> ConsumeQueueStoreInterface:
        store.sync()
        store.close()
        again = self.open_store(root)
        self.opened.append(again)
        again.correct_min_offset(min_physical_offset)
        return again

    def test_a_new_store_has_no_queues(self, store: ConsumeQueueStoreInterface) -> None:
        assert [*store.list_queues()] == []
        assert [*store.find_queues_after(0)] == []
        assert store.get(KEY) is None
        assert store.find_last_message() is None
        assert store.max_physical_offset == store.dispatch_from == 0
        assert [*store.find_queue_ids("T")] == []
        store.drop_units_before(KEY, 9)
        assert [*store.list_queues()] == []
        assert store.delete_expired(1000) == 0
        store.truncate(0)

    def test_a_queue_without_units_is_empty_and_leaves_no_trace(
        self, store: ConsumeQueueStoreInterface, tmp_path: Path
    ) -> None:
        queue = store.get_or_create(KEY)
        assert store.get(KEY) is store.get_or_create(KEY) is queue
        assert (queue.topic, queue.queue_id) == KEY
        assert (queue.min_offset, queue.max_offset, queue.max_physical_offset) == (0, 0, 0)
        assert len(queue.read_units(0, 9)) == 0
        assert queue.unit(0) is None
        assert queue.store_time(0, record_time) == -1
        assert list(self.reopen(store, tmp_path).list_queues()) == []

    def test_light_queues_are_listed_and_counted_by_parent(
        self, store: ConsumeQueueStoreInterface, tmp_path: Path
    ) -> None:
        light = ["%LMQ%$P$a", "%LMQ%$P$b", "%LMQ%$P$long", "%LMQ%$PQ$a", "%LMQ%x", "%LMQ%$R"]
        others = ["&", "%LMQ", "longer than others", "~~~~~~~~~"]
        for number, topic in enumerate(["T", *light, *others]):
            fill(store, QueueKey(topic, 0), 0, number + 1)
        for again in (False, True):
            opened = self.reopen(store, tmp_path) if again else store
            listed = dict(opened.list_light_queues("%LMQ%"))
            assert listed == {"%LMQ%$P$a": 2, "%LMQ%$P$b": 3, "%LMQ%$P$long": 4} | {
                "%LMQ%$PQ$a": 5,
                "%LMQ%x": 6,
                "%LMQ%$R": 7,
            }
            plain = {key.topic for key in opened.list_topic_queues()}
            assert plain == {"T", *others}
            assert {key.topic for key in opened.list_queues()} == {*listed, *plain}
            order = [name for name, _ in opened.list_light_queues("%LMQ%$P$")]
            assert sorted(order) == light[:3]
            for number, name in enumerate(order):
                rest = [name for name, _ in opened.list_light_queues("%LMQ%$P$", name)]
                assert rest == order[number + 1 :]
            assert opened.count_light_queues("%LMQ%") == 6
            assert opened.count_light_queues("%LMQ%$P$") == 3
            for none in ("%LMQ%$Q$", "%LMQ%$R$"):
                assert opened.count_light_queues(none) == 0
        opened.drop_units_before(QueueKey("%LMQ%$P$b", 0), 3)
        opened.drop_units_before(QueueKey("%LMQ%$P$long", 0), 3)
        assert opened.count_light_queues("%LMQ%$P$") == 2
        for _ in range(2):  # the deleted one is made again
            fill(opened, QueueKey("%LMQ%$P$b", 0), 0, 1)
            assert opened.count_light_queues("%LMQ%$P$") == 3
            assert opened.count_light_queues("%LMQ%") == 6
            opened.drop_units_before(QueueKey("%LMQ%$P$b", 0), 1)
        opened.truncate(0)
        assert opened.count_light_queues("%LMQ%$P$") == len([*opened.list_light_queues("%LMQ%$P$")])

    @pytest.mark.parametrize("count", COUNTS)
    def test_what_was_put_is_there_also_after_reopening(
        self, store: ConsumeQueueStoreInterface, tmp_path: Path, count: int
    ) -> None:
        keys = [QueueKey("T", number) for number in range(3)]
        store.append([units_of(key, 0, count + key.queue_id) for key in keys], end_of(count + 1))
        for again in (False, True):
            opened = self.reopen(store, tmp_path) if again else store
            assert sorted(opened.list_queues()) == keys
            assert opened.max_physical_offset == opened.dispatch_from == end_of(count + 1)
            assert opened.find_last_message() == ((count + 1) * 100, 50)
            assert [(q.topic, q.queue_id) for q in opened.find_queues_after(end_of(count))] == [
                keys[2]
            ]
            for key in keys:
                queue = loaded(opened, key)
                end = count + queue.queue_id
                assert (queue.min_offset, queue.max_offset) == (0, end)
                assert queue.max_physical_offset == end_of(end - 1)
                assert walk(queue) == list(range(end))
                assert queue.unit(end - 1) == (100 * (end - 1), 50, end - 1)
                assert queue.unit(end) is queue.unit(-1) is None
                assert queue.path_of(0)

    def test_nothing_is_read_outside_of_the_queue(self, store: ConsumeQueueStoreInterface) -> None:
        fill(store, KEY, 0, 5)
        queue = loaded(store, KEY)
        for offset, count in ((-1, 3), (5, 1), (99, 9), (0, 0), (2, -1)):
            assert len(queue.read_units(offset, count)) == 0
        assert [unit[2] for unit in queue.read_units(3, 99).tolist()] == [3, 4]
        assert all(queue.roll_next_file(offset) > offset for offset in range(5))

    @pytest.mark.parametrize(
        "others",
        [
            [("T", 1), ("T", 2), ("T", 256)],
            [("T\x01", 0), ("T0", 0), ("S", 0), ("U", 0), ("TT", 0)],
            [("T\x01\x01\x01\x01\x01\x01", 0), ("%LMQ%T", 0), ("T\u00e9", 0)],
        ],
    )
    def test_reads_never_enter_a_queue_that_looks_alike(
        self, store: ConsumeQueueStoreInterface, tmp_path: Path, others: list[tuple[str, int]]
    ) -> None:
        keys = [KEY, *(QueueKey(*other) for other in others)]
        for number, key in enumerate(keys):
            store.append([units_of(key, number, 12 + number, at=10_000 * number)], 1)
        for again in (False, True):
            opened = self.reopen(store, tmp_path) if again else store
            assert sorted(opened.list_queues()) == sorted(keys)
            for number, key in enumerate(keys):
                queue = loaded(opened, key)
                assert (queue.min_offset, queue.max_offset) == (number, 12 + 2 * number)
                places: list[int] = []
                while number + len(places) < queue.max_offset:
                    taken = queue.read_units(number + len(places), 10_000)
                    places += taken["physical_offset"].tolist()
                assert places == [10_000 * number + 100 * q for q in range(number, 12 + 2 * number)]
                assert len(queue.read_units(queue.max_offset, 10)) == 0
                assert len(queue.read_units(queue.min_offset - 1, 10)) == 0

    def test_units_that_are_there_are_skipped(self, store: ConsumeQueueStoreInterface) -> None:
        fill(store, KEY, 0, 5)
        fill(store, KEY, 0, 5)
        queue = loaded(store, KEY)
        assert queue.max_offset == 5
        fill(store, KEY, 3, 9)
        assert (queue.max_offset, queue.max_physical_offset) == (12, end_of(11))
        assert walk(queue) == list(range(12))

    def test_a_round_may_have_a_queue_more_than_once(
        self, store: ConsumeQueueStoreInterface, tmp_path: Path
    ) -> None:
        other = QueueKey("U", 0)
        groups = [units_of(KEY, 0, 3), units_of(other, 0, 1), units_of(KEY, 3, 9)]
        store.append(groups, end_of(11))
        for again in (False, True):
            opened = self.reopen(store, tmp_path) if again else store
            assert walk(loaded(opened, KEY)) == list(range(12))
            assert walk(loaded(opened, other)) == [0]

    def test_units_that_would_lose_messages_are_refused(
        self, store: ConsumeQueueStoreInterface
    ) -> None:
        fill(store, KEY, 0, 5)
        with pytest.raises(Corrupt):  # a hole
            fill(store, KEY, 7, 1)
        with pytest.raises(Corrupt):  # another message at an offset that is taken
            store.append([units_of(KEY, 3, 1, at=9999)], 10_349)
        assert walk(loaded(store, KEY)) == list(range(5))

    @pytest.mark.parametrize("first", [1, 9, 10, 14])
    def test_a_queue_may_begin_anywhere(
        self, store: ConsumeQueueStoreInterface, tmp_path: Path, first: int
    ) -> None:
        fill(store, KEY, first, 13)
        for again in (False, True):
            queue = loaded(self.reopen(store, tmp_path) if again else store, KEY)
            assert (queue.min_offset, queue.max_offset) == (first, first + 13)
            assert walk(queue) == list(range(first, first + 13))

    def test_the_minimum_follows_the_log(self, store: ConsumeQueueStoreInterface) -> None:
        fill(store, KEY, 0, 40)
        queue = loaded(store, KEY)
        for physical, minimum in ((0, 0), (1, 1), (2000, 20), (2001, 21), (3900, 39), (9999, 40)):
            store.correct_min_offset(physical)
            assert queue.min_offset == minimum
            assert walk(queue) == list(range(minimum, 40))

    @pytest.mark.parametrize("physical", [0, 1, 999, 1000, 2550, 3900, 9999])
    def test_what_has_expired_is_deleted_and_the_queue_goes_on(
        self, store: ConsumeQueueStoreInterface, tmp_path: Path, physical: int
    ) -> None:
        short = QueueKey("T", 1)
        fill(store, KEY, 0, 40)
        fill(store, short, 0, 1)
        minimum = min(-(-physical // 100), 40)
        store.correct_min_offset(physical)
        store.delete_expired(physical)
        assert store.delete_expired(physical) == 0
        again = self.reopen(store, tmp_path, physical)
        assert sorted(again.list_queues()) == [KEY, short]
        assert walk(loaded(again, KEY)) == list(range(minimum, 40))
        assert loaded(again, short).max_offset == 1
        fill(again, KEY, 40, 3)
        assert walk(loaded(again, KEY)) == list(range(minimum, 43))

    def test_both_boundaries_of_a_search_by_time(
        self, store: ConsumeQueueStoreInterface, tmp_path: Path
    ) -> None:
        times = np.array([100, 100, 120, 150, 150, 150, 200], dtype=np.int64)
        places = make_units(times * 10, np.full(len(times), 5), np.arange(len(times)))
        store.append([QueueUnits(KEY, 5, places, times), units_of(QueueKey("T", 1), 0, 9)], 2005)
        for again in (False, True):
            queue = loaded(self.reopen(store, tmp_path) if again else store, KEY)
            assert {
                time: (
                    find_by_time(queue, time, BoundaryType.LOWER),
                    find_by_time(queue, time, BoundaryType.UPPER),
                )
                for time in (0, 99, 100, 101, 149, 150, 151, 199, 200, 201)
            } == {
                0: (5, 5),
                99: (5, 5),
                100: (5, 6),
                101: (7, 6),
                149: (8, 7),
                150: (8, 10),
                151: (11, 10),
                199: (11, 10),
                200: (11, 11),
                201: (12, 11),
            }

    @pytest.mark.parametrize("kept", [0, 1, 9, 10, 15, 34])
    def test_what_is_truncated_does_not_come_back(
        self, store: ConsumeQueueStoreInterface, tmp_path: Path, kept: int
    ) -> None:
        short = QueueKey("T", 1)
        fill(store, KEY, 0, 35)
        fill(store, short, 0, 1)
        end = end_of(kept - 1) if kept else 0
        store.truncate(end)
        again = store
        for number in (0, 1):
            again = self.reopen(store, tmp_path) if number else store
            assert again.max_physical_offset <= end
            assert again.dispatch_from <= end
            assert [*again.find_queues_after(end)] == []
            for key, expected in ((KEY, kept), (short, min(kept, 1))):
                queue = again.get_or_create(key)
                assert queue.max_offset == expected
                assert walk(queue) == list(range(expected))
        fill(again, KEY, kept, 2)
        assert walk(self.reopen(again, tmp_path).get_or_create(KEY)) == list(range(kept + 2))

    @pytest.mark.parametrize("first", [0, 3, 25, 40, 112])
    def test_a_queue_without_units_behind_an_offset_is_gone_and_goes_on_where_it_is_told(
        self, store: ConsumeQueueStoreInterface, tmp_path: Path, first: int
    ) -> None:
        others = [QueueKey("U", 0), QueueKey("TT", 0), QueueKey("S", 0)]
        for key in (KEY, QueueKey("T", 1), *others):
            fill(store, key, 5, 20)
        assert sorted(store.find_queue_ids("T")) == [KEY.queue_id, 1]
        store.drop_units_before(KEY, 25)
        assert store.get(KEY) is None
        opened = store
        for again in (False, True):
            opened = self.reopen(store, tmp_path) if again else store
            assert [*opened.find_queue_ids("T")] == [1]
        fill(opened, KEY, first, 3)
        for again in (False, True):
            opened = self.reopen(opened, tmp_path) if again else opened
            found = loaded(opened, KEY)
            assert (found.min_offset, found.max_offset) == (first, first + 3)
            assert walk(found) == [*range(first, first + 3)]
            for key in others:
                assert walk(opened.get_or_create(key)) == list(range(5, 25))

    @pytest.mark.parametrize("offset", [1, 9, 10, 17, 31, 34])
    def test_units_before_an_offset_are_dropped_and_those_behind_stay(
        self, store: ConsumeQueueStoreInterface, tmp_path: Path, offset: int
    ) -> None:
        fill(store, KEY, 0, 35)
        for _ in range(2):
            store.drop_units_before(KEY, offset)
        opened = store
        for again in (False, True):
            opened = self.reopen(store, tmp_path) if again else store
            found = loaded(opened, KEY)
            assert (found.min_offset, found.max_offset) == (offset, 35)
            assert walk(found) == [*range(offset, 35)]
            assert found.unit(offset - 1) is None
        opened.drop_units_before(KEY, offset - 1)
        fill(opened, KEY, 35, 2)
        assert walk(loaded(opened, KEY)) == [*range(offset, 37)]

    @pytest.mark.parametrize("first", [1, 9, 10, 14, 100])
    @pytest.mark.parametrize("count", [0, 35])
    def test_a_queue_is_made_to_begin_at_an_offset(
        self, store: ConsumeQueueStoreInterface, tmp_path: Path, first: int, count: int
    ) -> None:
        queue = store.get_or_create(KEY)
        if count:
            fill(store, KEY, 0, count)
        queue.initialize_with_offset(first)
        opened = store
        for again in (False, True):
            opened = self.reopen(store, tmp_path) if again else store
            opened.correct_min_offset(1)
            found = loaded(opened, KEY)
            assert (found.min_offset, found.max_offset) == (first, first)
            assert found.max_physical_offset == 0
            assert walk(found) == []
            assert len(found.read_units(first - 1, 9)) == 0
        fill(opened, KEY, first, 13)
        for again in (False, True):
            found = loaded(self.reopen(opened, tmp_path) if again else opened, KEY)
            assert (found.min_offset, found.max_offset) == (first, first + 13)
            assert walk(found) == list(range(first, first + 13))

    def test_a_queue_that_is_made_to_begin_at_zero_is_gone(
        self, store: ConsumeQueueStoreInterface, tmp_path: Path
    ) -> None:
        queue = store.get_or_create(KEY)
        fill(store, KEY, 5, 20)
        queue.initialize_with_offset(0)
        assert (queue.min_offset, queue.max_offset, queue.max_physical_offset) == (0, 0, 0)
        assert [*self.reopen(store, tmp_path).list_queues()] == []

    @pytest.mark.parametrize("physical", [0, 1, 900, 901, 1000, 1950, 3400, 3401, 99_999])
    def test_a_deletion_of_what_expired_corrects_the_minimum(
        self, store: ConsumeQueueStoreInterface, tmp_path: Path, physical: int
    ) -> None:
        late = QueueKey("T", 1)
        fill(store, KEY, 0, 35)
        fill(store, late, 15, 3)
        store.delete_expired(physical)
        for again in (False, True):
            opened = self.reopen(store, tmp_path, physical) if again else store
            for key, begin, end in ((KEY, 0, 35), (late, 15, 18)):
                minimum = min(max(-(-physical // 100), begin), end)
                queue = loaded(opened, key)
                assert (queue.min_offset, queue.max_offset) == (minimum, end)
                assert walk(queue) == list(range(minimum, end))

    @pytest.mark.parametrize("topic", ["", ".", "..", "a/b", "a\0b"])
    def test_a_topic_that_can_be_none_is_corrupt(
        self, store: ConsumeQueueStoreInterface, topic: str
    ) -> None:
        with pytest.raises(Corrupt):
            store.get_or_create(QueueKey(topic, 0))
