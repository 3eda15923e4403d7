"""One queue is compared with a list, for any mix of appends, failures, crashes, gaps and expiry."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from itertools import takewhile
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from tests.kit.memory_chunks import chunk_provider
from tests.kit.tier.flat import T0, TableMetadata, Tier, as_batch, read_messages, record
from tieredstore.contracts.message_store import BoundaryType
from tieredstore.contracts.segment import SegmentProvider
from tieredstore.errors import Unavailable
from tieredstore.providers.memory.provider import MemoryProvider
from tieredstore.providers.posix.provider import PosixProvider
from tieredstore.testing.faults import (
    Fault,
    Faults,
    FaultyMetadataStore,
    FaultyProvider,
    SimulatedCrash,
)
from tieredstore.tier.reading import run

STEP_MS = 10
FAILURES = [Fault.FAIL, Fault.LOSE_REPLY, Fault.TEAR]
CRASHES = [Fault.CRASH_BEFORE, Fault.CRASH_AFTER, Fault.CRASH_TORN]


class QueueMachine(RuleBasedStateMachine):
    """Flat files of one queue, compared with a list. `messages` has the appended messages that may
    exist, by queue offset. `sure` has the offsets of committed messages. `maximum` is the offset of
    the next append. `possible` is the end of the messages that a write without a reply may have
    stored."""

    def make_provider(self) -> SegmentProvider:
        raise NotImplementedError

    @initialize(first=st.sampled_from([0, 7]), log=st.sampled_from([150, 600, 5000]))
    def begin(self, first: int, log: int) -> None:
        self.provider = self.make_provider()
        self.tier = Tier(
            metadata=TableMetadata(),
            settings={
                "commit_log_max_size_bytes": log,
                "consume_queue_max_size_bytes": 100,
                "group_commit_size_bytes": 400,
                "max_group_commit_count": 9,
            },
        )
        self.table = self.tier.table
        self.messages: dict[int, bytes] = {}
        self.generation = 0
        self.sure: set[int] = set()
        self.expired_ms = 0
        self.maximum = self.possible = first
        self.first = first
        self.open()

    def open(self) -> None:
        self.faults = Faults()
        self.tier.provider = FaultyProvider(self.provider, self.faults)
        self.tier.metadata = FaultyMetadataStore(self.table, self.faults)
        self.file = self.tier.queue(self.first)

    def arm(self, fault: Fault | None, ahead: int) -> None:
        if fault is not None:
            self.faults._writes[len(self.faults.calls) + ahead] = fault

    def body(self, offset: int) -> bytes:
        return b"%d/%d" % (offset, self.generation) + b"." * (offset * 37 % 150)

    def guarded(self, action: Callable[[], object]) -> bool:
        """Call a function of the file. If the process crashes in it, reopen the file as the next
        process does."""
        try:
            action()
        except SimulatedCrash:
            self.generation += 1
            self.open()
            self.after_reopening()
        except Unavailable:
            return False
        return True

    def after_reopening(self) -> None:
        found = self.file.consume_queue_commit_offset
        assert max(self.sure, default=0) <= found <= max(self.maximum, self.possible)
        self.maximum = self.possible = found
        self.messages = {q: body for q, body in self.messages.items() if q < found}
        self.drop_holes()

    def drop_holes(self) -> None:
        """Remove the messages in a hole from the model. None of them may have been committed."""
        for begin, end in self.file.holes:
            for offset in range(begin, end):
                assert offset not in self.sure
                self.messages.pop(offset, None)

    def forget_expired(self) -> None:
        self.sure = {q for q in self.sure if T0 + q // 3 * STEP_MS >= self.expired_ms}

    def after_rollback(self) -> None:
        """Roll back, and continue after the stored messages. Messages that were rolled back may
        still appear."""
        self.file.rollback()
        assert self.file.consume_queue_commit_offset <= self.maximum
        self.possible = max(self.possible, self.maximum)
        self.maximum = self.file.consume_queue_max_offset
        # Stored messages that are not confirmed stay, for the next commit.
        committed = self.file.consume_queue_commit_offset
        assert self.maximum > committed if self.file.has_uncommitted else self.maximum == committed

    def push(self, count: int, pieces: int, fault: Fault | None, ahead: int, commit: bool) -> None:
        first = self.file.consume_queue_max_offset
        made = []
        for offset in range(first, first + count):
            self.messages[offset] = self.body(offset)
            made.append(
                record(
                    offset,
                    body=self.messages[offset],
                    timestamp_ms=T0 + offset // 3 * STEP_MS,
                )
            )
        self.maximum = max(self.maximum, first + count)
        self.arm(fault, ahead)

        def act() -> None:
            self.file.append_batch(*as_batch(made, pieces))
            if commit:
                assert self.file.commit()

        if not self.guarded(act):
            # The appends may have stopped half-way: the dispatcher starts over.
            self.after_rollback()

    @rule(count=st.integers(1, 25), pieces=st.integers(1, 4))
    def append(self, count: int, pieces: int) -> None:
        self.push(count, pieces, None, 0, commit=False)

    @rule(
        count=st.integers(1, 25),
        fault=st.sampled_from([None, *FAILURES, *CRASHES]),
        ahead=st.integers(1, 12),
    )
    def append_and_commit(self, count: int, fault: Fault | None, ahead: int) -> None:
        self.push(count, 1, fault, ahead, commit=True)

    @rule(fault=st.sampled_from([None, *FAILURES, *CRASHES]), ahead=st.integers(1, 4))
    def commit(self, fault: Fault | None, ahead: int) -> None:
        self.arm(fault, ahead)
        self.guarded(self.file.commit)

    @rule()
    def rollback(self) -> None:
        self.after_rollback()

    @rule()
    def reopen(self) -> None:
        self.generation += 1
        self.open()
        self.after_reopening()

    @precondition(lambda self: not self.file.has_uncommitted)
    @rule(by=st.integers(1, 9), fault=st.sampled_from([None, None, *CRASHES]))
    def leave_a_hole(self, by: int, fault: Fault | None) -> None:
        target = self.maximum + by
        self.arm(fault, 1)
        self.maximum = target
        while not self.guarded(lambda: self.file.skip_to(max(target, self.maximum))):
            pass
        self.maximum = self.possible = self.file.consume_queue_max_offset
        self.drop_holes()

    @rule(
        age=st.integers(-2, 40),
        fault=st.sampled_from([None, None, Fault.FAIL, *CRASHES]),
        ahead=st.integers(1, 8),
    )
    def expire(self, age: int, fault: Fault | None, ahead: int) -> None:
        bound = T0 + max(self.maximum - age, 0) // 3 * STEP_MS
        self.arm(fault, ahead)
        before = self.file.consume_queue_min_offset
        self.guarded(lambda: self.file.expire(bound))
        self.faults._writes.clear()
        now = self.file.consume_queue_min_offset
        assert now >= before
        lost = [q for q in self.sure if q < now]
        assert all(T0 + q // 3 * STEP_MS < bound for q in lost)
        self.messages = {q: body for q, body in self.messages.items() if q >= now}
        # What expired may go at any later time: a failure can have kept it.
        self.expired_ms = max(self.expired_ms, bound)
        self.forget_expired()

    @rule(at=st.integers(-3, 400), count=st.integers(1, 60))
    def read_anywhere(self, at: int, count: int) -> None:
        low, top = self.file.consume_queue_min_offset, self.file.consume_queue_commit_offset
        present = [q for q in sorted(self.messages) if low <= q < top]
        if at >= low:
            wanted = list(takewhile(set(present).__contains__, range(at, at + count)))
            found = read_messages(self.file, at, count)
            assert [message.queue_offset for message in found] == wanted
        following = [q for q in present if q >= at]
        valid = self.file.next_valid_offset(at)
        assert valid == (following[0] if following else top)

    @rule(step=st.integers(-1, 140), boundary=st.sampled_from(BoundaryType))
    def search_by_time(self, step: int, boundary: BoundaryType) -> None:
        wanted = T0 + step * STEP_MS
        low, top = self.file.consume_queue_min_offset, self.file.consume_queue_commit_offset
        present = [q for q in sorted(self.messages) if low <= q < top]
        if boundary is BoundaryType.LOWER:
            right = next((q for q in present if T0 + q // 3 * STEP_MS >= wanted), top)
        else:
            right = max((q for q in present if T0 + q // 3 * STEP_MS <= wanted), default=low)
        assert run(self.file.offset_by_time(wanted, boundary)) == right

    @invariant()
    def committed_messages_are_there_unchanged_and_nothing_else_is(self) -> None:
        if not hasattr(self, "file"):
            return
        low, top = self.file.consume_queue_min_offset, self.file.consume_queue_commit_offset
        assert top <= self.maximum
        offset, found = low, {}
        while offset < top:
            messages = read_messages(self.file, offset, 1000)
            for message in messages:
                found[message.queue_offset] = bytes(message.body)
            offset += len(messages)
            if offset < top:
                assert self.file.next_valid_offset(offset) > offset or messages
                offset = self.file.next_valid_offset(offset)
        assert found == {q: body for q, body in self.messages.items() if low <= q < top}
        assert self.sure <= found.keys()
        self.sure = set(found)
        self.forget_expired()

    @invariant()
    def the_metadata_announces_all_that_the_backend_holds(self) -> None:
        if hasattr(self, "file"):
            held = {item.id for item in self.provider.list("") if item.size_bytes}
            assert held <= set(self.table.segment_table)


class MemoryQueue(QueueMachine):
    def make_provider(self) -> SegmentProvider:
        return MemoryProvider()


class ChunkQueue(QueueMachine):
    def make_provider(self) -> SegmentProvider:
        return chunk_provider()


class PosixQueue(QueueMachine):
    folder: Path | None = None

    def make_provider(self) -> SegmentProvider:
        self.folder = Path(tempfile.mkdtemp())
        return PosixProvider(self.folder, "DefaultCluster", fsync=False)

    def teardown(self) -> None:
        if self.folder is not None:
            self.provider.close()
            shutil.rmtree(self.folder)


_limits = settings(
    max_examples=60,
    stateful_step_count=25,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
MemoryQueue.TestCase.settings = _limits
ChunkQueue.TestCase.settings = _limits
PosixQueue.TestCase.settings = settings(_limits, max_examples=20)
TestMemoryQueue = MemoryQueue.TestCase
TestChunkQueue = ChunkQueue.TestCase
TestPosixQueue = PosixQueue.TestCase
