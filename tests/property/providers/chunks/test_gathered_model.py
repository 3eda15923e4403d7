"""Several queues are committed in any sequence, together or separately, on a store whose requests
fail in any way. All confirmed bytes can be read, and only bytes that were written are read."""

from __future__ import annotations

from collections import deque

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tests.kit.gathered import BROKER, queue_ids
from tests.kit.memory_chunks import chunk_provider
from tests.kit.object_faults import FaultyObjectClient, ObjectFault
from tieredstore.clock import ManualClock
from tieredstore.contracts.objects import ClientLimits
from tieredstore.contracts.segment import Companion, SegmentId, UnknownWrite, Written
from tieredstore.errors import Unavailable
from tieredstore.providers.chunks.upkeep.policy import MergePolicy
from tieredstore.providers.memory.objects import MemoryObjectClient

HARMLESS = (ObjectFault.BUSY, ObjectFault.FAIL, ObjectFault.LOSE_REPLY, ObjectFault.SHORT, None)
TOPICS = ("A", "B", "C")
topics = st.sampled_from(TOPICS)
REGROUP_MS = 60_000
GRACE_MS = 90_000


class GatheringMachine(RuleBasedStateMachine):
    """Writer of several queues, compared with a model. `sure` has the confirmed bytes of each
    segment, `taken` the written bytes. `faults` has the planned faults of the next requests."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = ManualClock()
        self.faults: deque[ObjectFault | None] = deque()
        self.store = MemoryObjectClient()
        ids = [id for topic in TOPICS for id in queue_ids(topic)]  # noqa: A001
        self.sure: dict[SegmentId, bytes] = dict.fromkeys(ids, b"")
        self.taken = dict(self.sure)
        self.start(100)

    def start(self, group_bytes: int) -> None:
        """Start a new process."""
        client = FaultyObjectClient(
            beside=self.store,
            now_ms=self.clock.now_ms,
            limits=ClientLimits(min_part_bytes=60),
            page_keys=3,
            fault_of=self.next_fault,
        )
        self.tier = chunk_provider(
            client,
            clock=self.clock,
            monotonic_ms=self.clock.now_ms,
            grace_ms=GRACE_MS,
            write_cache_bytes=40,
            group_bytes=group_bytes,
            regroup_interval_ms=REGROUP_MS,
            regrouped_bytes=60,
            split_bytes=80,
            split_age_ms=10 * REGROUP_MS,
            policy=MergePolicy(
                fan_in=3, target_bytes=100, part_bytes=60, free_bytes=20, settle_ms=0
            ),
        )
        self.faults.clear()
        self.epoch = self.tier.acquire_writer(BROKER, take_over=True)
        listed = {found.id: found for found in self.tier.list(BROKER)}
        for name in self.taken:
            segment = self.tier.open(name, listed.get(name))
            self.taken[name] = bytes(segment.read(0, segment.size()))
        self.epoch.confirm()
        assert all(self.taken[name].startswith(sure) for name, sure in self.sure.items())
        self.sure = dict(self.taken)

    def next_fault(self, operation: str, key: str) -> ObjectFault | None:
        fault = self.faults.popleft() if self.faults else None
        if fault is ObjectFault.BUSY and operation not in {"PUT", "COMPLETE_UPLOAD"}:
            return ObjectFault.FAIL
        return fault

    @rule(faults=st.lists(st.sampled_from(HARMLESS), min_size=1, max_size=12))
    def requests_will_fail(self, faults: list[ObjectFault | None]) -> None:
        self.faults.extend(faults)

    @rule(
        chosen=st.lists(topics, min_size=1, max_size=4),
        text=st.binary(min_size=1, max_size=30),
        units=st.binary(min_size=1, max_size=3),
    )
    def commit(self, chosen: list[str], text: bytes, units: bytes) -> None:
        for topic in chosen:
            log, queue = queue_ids(topic)
            ends = [len(self.taken[log]), len(self.taken[queue])]
            place = Companion(self.tier.open(queue), ends[1], [units], may_wait=True)
            try:
                result, other = self.tier.open(log).write_with(ends[0], [text], place)
            except Unavailable:
                continue  # surely not written
            if isinstance(result, UnknownWrite) or isinstance(other, UnknownWrite):
                self.find_out()
                return
            assert isinstance(result, Written)
            self.taken[log] += text
            if other is not None:
                assert isinstance(other, Written)
                self.taken[queue] += units
        self.confirm()

    @rule()
    def confirm(self) -> None:
        try:
            self.epoch.confirm()
        except Unavailable:
            return
        self.sure = dict(self.taken)

    @rule(topic=topics, text=st.binary(min_size=1, max_size=90))
    def write_by_itself(self, topic: str, text: bytes) -> None:
        log, _ = queue_ids(topic)
        try:
            result = self.tier.open(log).write(len(self.taken[log]), [text])
        except Unavailable:
            return
        if not isinstance(result, Written):
            self.find_out()
            return
        self.taken[log] += text

    def find_out(self) -> None:
        """Find out whether a write without a reply was stored. Wait until the store answers
        again."""
        self.faults.clear()
        self.epoch.confirm()
        for name, before in self.taken.items():
            segment = self.tier.open(name)
            found = bytes(segment.read(0, segment.size()))
            assert found.startswith(before)
            self.taken[name] = found
        self.sure = dict(self.taken)

    @rule(delta_ms=st.sampled_from([1_000, REGROUP_MS, 2 * REGROUP_MS, 11 * REGROUP_MS]))
    def maintain(self, delta_ms: int) -> None:
        self.clock.advance(delta_ms)
        try:
            self.tier.run_maintenance(sweep=False)
        except Unavailable:
            return

    @rule()
    def sweep(self) -> None:
        try:
            self.tier.run_maintenance()
        except Unavailable:
            return

    @rule(topic=topics)
    def delete(self, topic: str) -> None:
        for name in queue_ids(topic)[::-1]:
            segment = self.tier.open(name)
            try:
                segment.delete()
            except Unavailable:
                self.faults.clear()
                segment.delete()
            self.sure[name] = self.taken[name] = b""

    @rule(group_bytes=st.sampled_from([0, 40, 100]), is_clean=st.booleans())
    def another_process_takes_over(self, group_bytes: int, is_clean: bool) -> None:
        if is_clean:
            self.faults.clear()
            self.epoch.release()
        self.start(group_bytes)

    @invariant()
    def a_reader_gets_what_was_confirmed(self) -> None:
        tier = chunk_provider(MemoryObjectClient(beside=self.store))
        listed = {listing.id: listing for listing in tier.list(BROKER)}
        for name, sure in self.sure.items():
            segment = tier.open(name, listed.get(name))
            found = bytes(segment.read(0, segment.size()))
            assert found.startswith(sure)
            assert self.taken[name].startswith(found)
            by_listing = listed[name].size_bytes if name in listed else 0
            assert by_listing == len(found)

    def teardown(self) -> None:
        self.faults.clear()
        for _ in range(4):
            self.clock.advance(11 * REGROUP_MS)
            self.tier.run_maintenance()
        self.a_reader_gets_what_was_confirmed()
        # Groups of topics that were deleted before the key was switched off are not looked up.
        if self.tier._views.has_groups(BROKER):
            assert [info.key for info in self.store.list("") if "/.groups/" in info.key] == []
        assert self.store.open_uploads == []


GatheringMachine.TestCase.settings = settings(
    max_examples=40,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    database=None,
)
TestGatheringMachine = GatheringMachine.TestCase


def test_what_was_moved_out_of_a_group_counts_before_it() -> None:
    """If the same bytes are in a segment's own folder and in a group object that is not deleted
    yet, those in the folder are used. Otherwise the objects in the folder would count as garbage.
    """
    machine = GatheringMachine()
    machine.commit(chosen=["A"], text=b"x", units=b"y")
    machine.maintain(delta_ms=REGROUP_MS)
    machine.another_process_takes_over(group_bytes=100, is_clean=False)
    machine.teardown()
