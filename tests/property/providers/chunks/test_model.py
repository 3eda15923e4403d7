"""For any sequence of calls, a segment has the same content as a bytearray. Requests to its object
store fail in any way."""

from __future__ import annotations

from collections import deque

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.kit.memory_chunks import chunk_provider
from tests.kit.object_faults import FaultyObjectClient, ObjectFault
from tieredstore.clock import ManualClock
from tieredstore.contracts.objects import ClientLimits
from tieredstore.contracts.segment import FencedWrite, FileSegmentType, SegmentId, Written
from tieredstore.errors import Corrupt, Unavailable
from tieredstore.providers.chunks.provider import ChunkProvider
from tieredstore.providers.chunks.upkeep.policy import MergePolicy
from tieredstore.providers.memory.objects import MemoryObjectClient

HARMLESS = (ObjectFault.BUSY, ObjectFault.FAIL, ObjectFault.LOSE_REPLY, ObjectFault.SHORT, None)


class SegmentMachine(RuleBasedStateMachine):
    """A consume queue segment, compared with a bytearray. Consume queue segments are tested because
    their blocks are cached. `faults` has the planned faults of the next requests."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = ManualClock()
        self.faults: deque[ObjectFault | None] = deque()
        self.store = MemoryObjectClient()
        self.id = SegmentId("broker-a/TopicA/0", FileSegmentType.CONSUME_QUEUE, 0)
        self.model = bytearray()
        self.is_sealed = False
        self.lost_replies = 0
        self.start()

    def start(self) -> None:
        """Start a new process."""
        client = FaultyObjectClient(
            beside=self.store,
            now_ms=self.clock.now_ms,
            limits=ClientLimits(min_part_bytes=60),
            page_keys=3,
            fault_of=self.next_fault,
        )
        self.tier: ChunkProvider = chunk_provider(
            client,
            clock=self.clock,
            monotonic_ms=self.clock.now_ms,
            grace_ms=60_000,
            block_bytes=32,
            read_gap_bytes=16,
            read_part_bytes=25,
            write_cache_bytes=40,
            policy=MergePolicy(
                fan_in=3, target_bytes=100, part_bytes=60, free_bytes=20, settle_ms=0
            ),
        )
        self.faults.clear()
        self.tier.acquire_writer("broker-a", take_over=True)

    def next_fault(self, operation: str, key: str) -> ObjectFault | None:
        fault = self.faults.popleft() if self.faults else None
        self.lost_replies += fault is ObjectFault.LOSE_REPLY
        if fault is ObjectFault.BUSY and operation not in {"PUT", "COMPLETE_UPLOAD"}:
            return ObjectFault.FAIL
        return fault

    @rule(faults=st.lists(st.sampled_from(HARMLESS), min_size=1, max_size=12))
    def requests_will_fail(self, faults: list[ObjectFault | None]) -> None:
        self.faults.extend(faults)

    @rule(data=st.binary(min_size=1, max_size=90))
    @precondition(lambda self: not self.is_sealed)
    def append(self, data: bytes) -> None:
        segment = self.tier.open(self.id)
        position = len(self.model)
        try:
            result = segment.write(position, [data])
        except Unavailable:
            self.faults.clear()
            assert segment.size() == position, "surely nothing was written"
            return
        if isinstance(result, Written):
            assert result.size_bytes == position + len(data)
            self.model += data
            return
        assert not isinstance(result, FencedWrite), "there is no other writer"
        self.faults.clear()
        size = segment.size()
        if size > position:
            assert size == position + len(data)
            self.model += data

    @rule(data=st.binary(min_size=1, max_size=20), share=st.floats(0, 0.999))
    @precondition(lambda self: len(self.model) > 0)
    def write_where_something_is(self, data: bytes, share: float) -> None:
        position = int(share * len(self.model))
        try:
            result = self.tier.open(self.id).write(position, [data])
        except Unavailable:
            return
        if isinstance(result, Written):
            assert self.model[position : position + len(data)] == data

    @rule(start=st.integers(0, 300), length=st.integers(0, 120))
    def read(self, start: int, length: int) -> None:
        segment = self.tier.open(self.id)
        expected = bytes(self.model[start : start + length])
        at_hand = segment.read_nowait(start, length)
        assert at_hand is None or bytes(at_hand) == expected
        try:
            found = bytes(segment.read(start, length))
        except Unavailable:
            return
        except Corrupt:
            assert start + length > len(self.model)
            return
        assert found == expected

    @rule()
    def maintain(self) -> None:
        try:
            self.tier.run_maintenance()
        except Unavailable:
            return

    @rule(delta_ms=st.sampled_from([1_000, 15_000, 40_000, 90_000]))
    def time_passes(self, delta_ms: int) -> None:
        self.clock.advance(delta_ms)

    @rule()
    def seal(self) -> None:
        self.is_sealed = True
        try:
            self.tier.open(self.id).seal()
        except Unavailable:
            self.faults.clear()
            self.tier.open(self.id).seal()

    @rule()
    def delete(self) -> None:
        segment = self.tier.open(self.id)
        try:
            segment.delete()
        except Unavailable:
            self.faults.clear()
            segment.delete()
        self.model.clear()
        self.is_sealed = False

    @rule()
    def another_process_takes_over(self) -> None:
        self.start()

    @invariant()
    def another_process_reads_the_same(self) -> None:
        tier = chunk_provider(MemoryObjectClient(beside=self.store))
        listed = {listing.id: listing for listing in tier.list()}
        if self.model:
            assert listed[self.id].size_bytes == len(self.model)
            assert listed[self.id].sealed or not self.is_sealed
        segment = tier.open(self.id, listed.get(self.id))
        assert bytes(segment.read(0, len(self.model))) == self.model
        with pytest.raises(Corrupt):
            segment.read(0, len(self.model) + 1)
        assert self.tier is not None

    def teardown(self) -> None:
        self.faults.clear()
        self.tier.run_maintenance()
        self.clock.advance(86_400_000)
        self.tier.run_maintenance()
        there = [info for info in self.store.list("") if "/TopicA/" in info.key]
        keys = [info.key for info in there if not info.key.endswith("/t")]
        assert len(there) <= len(keys) + 1, "more than one tombstone for the same names"
        # A seal without an answer leaves its mark, which goes with the segment.
        marks = [info.key for info in there if info.key in keys and not info.size_bytes]
        limit = 1 + max(len(marks), 1) if self.is_sealed else 12
        assert len(keys) <= limit, keys
        assert len(marks) <= 1 + self.lost_replies, marks
        self.another_process_reads_the_same()
        assert self.store.open_uploads == []


SegmentMachine.TestCase.settings = settings(
    max_examples=60,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    database=None,
)
TestSegmentMachine = SegmentMachine.TestCase
