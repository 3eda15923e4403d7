"""Tests of writing messages and their units in one object: cost, replies and deletion."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from tests.kit.chunks import GRACE_MS, LOG, UNITS, Process, Store
from tests.kit.object_faults import ObjectFault
from tieredstore.contracts.segment import (
    Buffer,
    Companion,
    FileSegmentType,
    SegmentId,
    SegmentListing,
    UnknownWrite,
    WriteResult,
    Written,
)
from tieredstore.errors import Corrupt, Fenced, Invalid, Unavailable
from tieredstore.providers.chunks.upkeep.policy import MergePolicy

_SIXTEEN = MergePolicy(fan_in=16, target_bytes=8 << 20, part_bytes=5 << 20, free_bytes=64 << 10)
BUSY, FAIL, LOSE = ObjectFault.BUSY, ObjectFault.FAIL, ObjectFault.LOSE_REPLY


class Queue:
    """A queue whose `write` sends messages with their units, like a commit."""

    def __init__(self, process: Process, units: SegmentId = UNITS) -> None:
        self.process = process
        self.log = process.open(LOG)
        self.units = process.open(units)
        self.ends = [self.log.size(), self.units.size()]
        process.client.requests.clear()

    def try_write(self, messages: bytes, units: bytes) -> tuple[WriteResult, WriteResult | None]:
        companion = Companion(self.units, self.ends[1], [units])
        return self.log.write_with(self.ends[0], [messages], companion)

    def write(self, messages: bytes, units: bytes) -> None:
        ends = [self.ends[0] + len(messages), self.ends[1] + len(units)]
        assert self.try_write(messages, units) == (Written(ends[0]), Written(ends[1]))
        self.ends = ends

    def content(self) -> tuple[bytes, bytes]:
        return tuple(  # type: ignore[return-value]
            bytes(segment.read(0, segment.size())) for segment in (self.log, self.units)
        )


@pytest.fixture
def store() -> Store:
    return Store()


@pytest.fixture
def queue(store: Store) -> Queue:
    return Queue(store.process().take_over())


def kinds(store: Store, id: SegmentId = LOG) -> str:
    """Return the sorted first letters of the names of a segment's objects."""
    return "".join(sorted(name[0] for name in store.names(id)))


def read(store: Store) -> tuple[bytes, bytes]:
    """Return the bytes read by a process without cached state."""
    process = store.process()
    listed = {found.id: found for found in process.tier.list("broker-a")}
    found = []
    for name in (LOG, UNITS):
        segment = process.tier.open(name, listed.get(name))
        found.append(bytes(segment.read(0, segment.size())))
        assert bytes(process.content(name)) == found[-1], "the segment's own listing differs"
    return found[0], found[1]


class TestCost:
    def test_a_commit_is_one_request(self, store: Store, queue: Queue) -> None:
        queue.write(b"first", b"1")
        queue.process.operations()
        for _ in range(2):
            queue.write(b"message", b"22")
        assert queue.process.operations() == ["PUT", "PUT"]
        assert kinds(store) == "uuu"
        assert kinds(store, UNITS) == ""

    def test_a_queue_that_is_known_to_be_absent_is_not_listed(self, store: Store) -> None:
        writer = store.process().take_over()
        assert list(writer.tier.list("broker-a")) == []
        writer.operations()
        log, units = (writer.tier.open(name, SegmentListing(name, 0)) for name in (LOG, UNITS))
        assert log.write_with(0, [b"abc"], Companion(units, 0, [b"12"])) == (Written(3), Written(2))
        assert writer.operations() == ["PUT"]

    @pytest.mark.parametrize(("message_bytes", "asked"), [(100, 1), (70_000, 2)])
    def test_messages_of_units_that_were_read_are_there(
        self, store: Store, queue: Queue, message_bytes: int, asked: int
    ) -> None:
        """After a unit is read, reading its message needs no further request if their object is
        small. Of a large object, only the units are read."""
        messages = [bytes([number]) * message_bytes for number in range(3)]
        for number, message in enumerate(messages):
            queue.write(message, bytes([number]) * 20)
        reader = store.process()
        log, units = reader.open(LOG), reader.open(UNITS)
        assert (log.size(), units.size()) == (3 * message_bytes, 60)
        reader.operations()
        assert bytes(units.read(40, 20)) == b"\2" * 20
        assert bytes(log.read(2 * message_bytes, message_bytes)) == messages[2]
        assert reader.operations() == ["GET"] * asked

    def test_sixteen_commits_and_their_merges(self, store: Store) -> None:
        """Sixteen commits of messages and units need 18 requests, including merges. Two separate
        files would need 34."""
        queue = Queue(store.process(policy=_SIXTEEN).take_over())
        queue.write(b"message", b"22")
        queue.process.operations()
        for _ in range(15):
            queue.write(b"message", b"22")
        queue.process.tier.run_maintenance(sweep=False)
        store.clock.advance(GRACE_MS)
        queue.process.tier.run_maintenance(sweep=False)
        assert queue.process.operations() == ["PUT"] * (15 + 2) + ["HEAD", "DELETE"]
        assert (kinds(store), kinds(store, UNITS)) == ("m", "m")


class TestReading:
    def test_both_are_read_from_it(self, store: Store, queue: Queue) -> None:
        queue.write(b"first", b"1")
        queue.write(b"message", b"22")
        assert queue.content() == (b"firstmessage", b"122")
        assert read(store) == queue.content()
        assert queue.units.read_nowait(1, 2) is not None

    def test_a_listing_tells_both_sizes(self, store: Store, queue: Queue) -> None:
        queue.write(b"first", b"1")
        listed = {found.id: found.size_bytes for found in store.process().tier.list()}
        assert listed == {LOG: 5, UNITS: 1}

    def test_a_successor_goes_on_behind_both(self, store: Store, queue: Queue) -> None:
        queue.write(b"first", b"1")
        queue.write(b"message", b"22")
        other = Queue(store.process("other").take_over())
        assert other.ends == [12, 3]
        other.write(b"more", b"3")
        assert read(store) == (b"firstmessagemore", b"1223")
        third = Queue(store.process("third").take_over())
        assert third.content() == (b"firstmessagemore", b"1223")

    def test_units_of_a_rolled_consume_queue(self, store: Store, queue: Queue) -> None:
        queue.write(b"first", b"1")
        queue.units.seal()
        later = SegmentId(UNITS.path, UNITS.type, 1_000)
        next_queue = Queue(queue.process, later)
        next_queue.write(b"second", b"22")
        assert store.process().content(later) == b"22"
        assert read(store) == (b"firstsecond", b"1")


class TestWhenItTakesTwo:
    def test_without_an_epoch(self, store: Store) -> None:
        queue = Queue(store.process())
        assert queue.try_write(b"abc", b"12") == (Written(3), None)
        assert kinds(store) == "c"

    @pytest.mark.parametrize("behind", [0, 1])
    def test_with_a_file_that_ends_elsewhere(self, queue: Queue, behind: int) -> None:
        queue.write(b"first", b"1")
        if behind:
            queue.units.write(1, [b"x"])
            assert queue.try_write(b"abc", b"12") == (Written(8), None)
        else:
            queue.ends[0] = 0
            first, second = queue.try_write(b"abc", b"12")
            assert isinstance(first, UnknownWrite)
            assert second is None

    def test_without_units(self, queue: Queue) -> None:
        assert queue.try_write(b"abc", b"") == (Written(3), None)

    def test_with_a_sealed_consume_queue(self, store: Store, queue: Queue) -> None:
        queue.write(b"first", b"1")
        queue.units.seal()
        assert queue.try_write(b"abc", b"12") == (Written(8), None)

    def test_with_a_hole_in_the_units(self, store: Store, queue: Queue) -> None:
        queue.units.write(0, [b"a"])
        queue.units.write(1, [b"b"])
        lost = [info.key for info in store.first.list("") if "CONSUME_QUEUE" in info.key]
        store.first.delete(lost[:1])
        other = Queue(store.process("other").take_over())
        assert other.try_write(b"abc", b"12") == (Written(3), None)
        with pytest.raises(Corrupt):
            other.units.write(2, [b"12"])

    def test_segments_of_other_queues_do_not_go_together(self, queue: Queue) -> None:
        elsewhere = SegmentId("broker-a/TopicB/0", FileSegmentType.CONSUME_QUEUE, 0)
        other = queue.process.open(elsewhere)
        with pytest.raises(Invalid):
            queue.log.write_with(0, [b"abc"], Companion(other, 0, [b"1"]))
        with pytest.raises(Invalid):
            queue.units.write_with(0, [b"abc"], Companion(queue.log, 0, [b"1"]))


class TestAnswers:
    def test_a_lost_reply_is_found_out(self, store: Store, queue: Queue) -> None:
        queue.write(b"first", b"1")
        queue.process.fail_next(LOSE)
        queue.write(b"message", b"22")
        assert queue.process.operations()[-3:] == ["PUT", "PUT", "HEAD"]
        assert read(store) == (b"firstmessage", b"122")

    def test_a_request_that_was_refused_is_sent_again(self, queue: Queue) -> None:
        queue.write(b"first", b"1")
        queue.process.fail_next(BUSY, BUSY)
        queue.write(b"message", b"22")
        assert queue.process.operations()[-3:] == ["PUT"] * 3

    @pytest.mark.parametrize("again", [b"message", b"me", b"message and more"])
    def test_one_that_was_refused_for_good_leaves_its_life(
        self, store: Store, queue: Queue, again: bytes
    ) -> None:
        queue.write(b"first", b"1")
        queue.process.fail_next(BUSY, BUSY, BUSY, BUSY)
        with pytest.raises(Unavailable):
            queue.try_write(b"message", b"22")
        queue.write(again, b"22")
        assert len(store.generations()) == 2
        assert read(store) == (b"first" + again, b"122")

    @pytest.mark.parametrize("units", [b"22", b"2", b"2222"])
    def test_a_late_one_is_garbage_for_both_files(
        self, store: Store, queue: Queue, units: bytes
    ) -> None:
        queue.write(b"first", b"1")
        sent = _hold_writes(queue)
        first, second = queue.try_write(b"message", units)
        assert isinstance(first, UnknownWrite)
        assert isinstance(second, UnknownWrite)
        sent.stop()
        queue.write(b"other", b"33")
        sent.deliver(store)
        assert read(store) == (b"firstother", b"133")
        other = Queue(store.process("other").take_over())
        assert other.content() == (b"firstother", b"133")
        other.write(b"more", b"4")
        assert read(store) == (b"firstothermore", b"1334")

    def test_one_that_was_made_without_an_answer_is_found_by_both(
        self, store: Store, queue: Queue
    ) -> None:
        queue.write(b"first", b"1")
        sent = _hold_writes(queue)
        assert isinstance(queue.try_write(b"message", b"22")[0], UnknownWrite)
        sent.stop()
        sent.deliver(store)
        assert (queue.log.size(), queue.units.size()) == (12, 3)
        assert queue.content() == (b"firstmessage", b"122")

    def test_a_lost_right_is_told(self, store: Store, queue: Queue) -> None:
        queue.write(b"first", b"1")
        store.process("other").take_over()
        queue.process.fail_next(FAIL)
        queue.write(b"message", b"22")  # of no effect: no caller may count it
        with pytest.raises(Fenced):
            queue.process.tier._writers.get_held_epochs()["broker-a"].confirm()
        with pytest.raises(Fenced):
            queue.try_write(b"more", b"3")

    def test_an_interrupt_leaves_the_lives(self, store: Store, queue: Queue) -> None:
        queue.write(b"first", b"1")

        put = queue.process.client.put_if_absent

        def interrupt(*_: object) -> bool:
            raise KeyboardInterrupt

        queue.process.client.put_if_absent = interrupt  # type: ignore[assignment,method-assign]
        with pytest.raises(KeyboardInterrupt):
            queue.try_write(b"message", b"22")
        queue.process.client.put_if_absent = put  # type: ignore[method-assign]
        queue.write(b"other", b"33")
        assert len(store.generations()) == 2
        assert read(store) == (b"firstother", b"133")


class TestGarbage:
    def test_units_become_an_object_before_their_write_goes(
        self, store: Store, queue: Queue
    ) -> None:
        for number in range(4):
            queue.write(bytes([65 + number]) * 50, b"%d" % number)
        queue.process.tier.run_maintenance(sweep=False)
        assert kinds(store).count("u") == 4, "within the grace time they stay"
        store.clock.advance(GRACE_MS)
        queue.process.operations()
        queue.process.tier.run_maintenance(sweep=False)
        assert "u" not in kinds(store)
        assert queue.process.operations()[-2:] == ["HEAD", "DELETE"]
        assert kinds(store, UNITS) == "m"
        assert queue.content()[1] == b"0123"
        assert read(store) == queue.content()

    def test_units_that_no_merge_took_are_stored_then(self, store: Store, queue: Queue) -> None:
        """Units left behind by a merge are copied to a consume queue object before the old objects
        are deleted."""
        queue.write(b"a" * 90, b"1")
        queue.write(b"b" * 90, b"2")
        queue.process.tier.run_maintenance(sweep=False)
        assert kinds(store) == "muu"
        assert kinds(store, UNITS) == ""
        store.clock.advance(GRACE_MS)
        queue.process.tier.run_maintenance(sweep=False)
        assert (kinds(store), kinds(store, UNITS)) == ("m", "m")
        queue.write(b"c", b"3")
        assert read(store) == (b"a" * 90 + b"b" * 90 + b"c", b"123")

    def test_a_successor_does_so_with_what_it_inherits(self, store: Store, queue: Queue) -> None:
        queue.write(b"a" * 90, b"1")
        queue.write(b"b" * 90, b"2")
        queue.process.tier.run_maintenance(sweep=False)
        other = Queue(store.process("other").take_over())
        store.clock.advance(GRACE_MS)
        other.process.tier.run_maintenance()
        assert (kinds(store), kinds(store, UNITS)) == ("m", "m")
        assert read(store) == (b"a" * 90 + b"b" * 90, b"12")

    def test_the_units_of_a_sealed_commit_log_become_an_object(
        self, store: Store, queue: Queue
    ) -> None:
        queue.write(b"first", b"1")
        queue.log.seal()
        queue.process.tier.run_maintenance(sweep=False)
        store.clock.advance(GRACE_MS)
        queue.process.tier.run_maintenance(sweep=False)
        assert (kinds(store), kinds(store, UNITS)) == ("cs", "m")
        assert read(store) == (b"first", b"1")

    def test_a_sealed_consume_queue_becomes_one_object(self, store: Store, queue: Queue) -> None:
        queue.write(b"first", b"1")
        queue.write(b"second", b"2")
        queue.units.seal()
        queue.process.tier.run_maintenance(sweep=False)
        assert kinds(store, UNITS) == "cs"
        assert read(store) == (b"firstsecond", b"12")

    def test_a_former_write_that_comes_again_goes_again(self, store: Store, queue: Queue) -> None:
        queue.write(b"a" * 90, b"1")
        (late,) = [info.key for info in store.first.list("") if "/u." in info.key]
        queue.write(b"b" * 90, b"2")
        queue.process.tier.run_maintenance(sweep=False)
        store.clock.advance(GRACE_MS)
        queue.process.tier.run_maintenance(sweep=False)
        store.first.put_if_absent(late, [b"a" * 90, b"1"], {})
        assert read(store) == queue.content()
        store.clock.advance(GRACE_MS)
        queue.process.tier.run_maintenance()
        assert (kinds(store), kinds(store, UNITS)) == ("m", "m")


class TestDeletion:
    def test_a_commit_log_segment_leaves_its_units_behind(self, store: Store, queue: Queue) -> None:
        """The units of a deleted commit log segment remain, because the consume queue outlives
        it."""
        queue.write(b"first", b"1")
        queue.write(b"second", b"2")
        queue.log.seal()
        queue.log.delete()
        assert kinds(store) in {"t", "tt"}
        assert store.process().content(UNITS) == b"12"
        assert bytes(queue.units.read(0, 2)) == b"12"

    def test_a_consume_queue_segment_that_is_deleted_does_not_come_back(
        self, store: Store, queue: Queue
    ) -> None:
        queue.write(b"first", b"1")
        queue.units.delete()
        assert store.process().content(UNITS) == b""
        assert store.process().content(LOG) == b"first"
        again = queue.process.open(UNITS)
        assert again.write(0, [b"new"]) == Written(3)
        assert store.process().content(UNITS) == b"new"

    def test_nor_one_that_was_inherited(self, store: Store, queue: Queue) -> None:
        queue.write(b"first", b"1")
        other = Queue(store.process("other").take_over())
        other.units.delete()
        assert store.process().content(UNITS) == b""
        third = store.process("third").take_over()
        assert {found.id for found in third.tier.list("broker-a")} == {LOG}
        third.tier.run_maintenance()
        assert store.process().content(UNITS) == b""

    def test_a_queue_that_was_deleted_is_made_again(self, store: Store, queue: Queue) -> None:
        queue.write(b"first", b"1")
        queue.units.delete()
        queue.log.delete()
        again = Queue(queue.process)
        assert again.ends == [0, 0]
        again.write(b"new", b"9")
        assert read(store) == (b"new", b"9")
        other = Queue(store.process("other").take_over())
        assert other.content() == (b"new", b"9")
        other.process.tier.run_maintenance()
        assert read(store) == (b"new", b"9")

    def test_a_late_write_to_a_deleted_queue_is_garbage(self, store: Store, queue: Queue) -> None:
        queue.write(b"first", b"1")
        sent = _hold_writes(queue)
        queue.try_write(b"message", b"22")
        sent.stop()
        queue.units.delete()
        queue.log.delete()
        sent.deliver(store)
        assert read(store) == (b"", b"")
        again = Queue(queue.process)
        again.write(b"new", b"9")
        assert read(store) == (b"new", b"9")


class _Held:
    """Delays the writes of a queue: each write fails and is applied later."""

    def __init__(self, queue: Queue) -> None:
        self._client = queue.process.client
        self._put = self._client.put_if_absent
        self._sent: dict[str, bytes] = {}
        self._client.put_if_absent = self._hold  # type: ignore[method-assign]

    def _hold(self, key: str, buffers: Sequence[Buffer], metadata: object) -> bool:
        self._sent[key] = b"".join(buffers)
        raise Unavailable(f"injected: no answer to PUT {key}")

    def stop(self) -> None:
        self._client.put_if_absent = self._put  # type: ignore[method-assign]

    def deliver(self, store: Store) -> None:
        assert all("/u." in key for key in self._sent)
        for key, content in self._sent.items():
            assert store.first.put_if_absent(key, [content], {})


_hold_writes: Callable[[Queue], _Held] = _Held
