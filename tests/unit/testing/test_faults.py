"""Tests of provider wrappers that inject faults, and of simulated crashes."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.kit.memory_chunks import chunk_provider
from tieredstore.clock import ManualClock
from tieredstore.contracts.metadata_store import FileSegmentMetadata, MetadataStore
from tieredstore.contracts.segment import (
    FencedWrite,
    FileSegment,
    FileSegmentType,
    SegmentId,
    SegmentProvider,
    UnknownWrite,
    WriteResult,
    Written,
)
from tieredstore.errors import Unavailable
from tieredstore.metadata.json_store import DefaultMetadataStore
from tieredstore.providers.memory.provider import MemoryProvider
from tieredstore.testing.faults import (
    Fault,
    Faults,
    FaultyMetadataStore,
    FaultyProvider,
    SimulatedCrash,
    crash_points,
    run_until_crash,
)

ID = SegmentId("broker-a/T/0", FileSegmentType.COMMIT_LOG, 0)


def write(fault: Fault, provider: SegmentProvider) -> WriteResult:
    faulty = FaultyProvider(provider, Faults({2: fault}))
    segment = faulty.open(ID)
    assert segment.write(0, [b"0123"]) == Written(4)
    return segment.write(4, [b"ab", b"cdef"])


@pytest.mark.parametrize("make", [MemoryProvider, chunk_provider])
class TestWrites:
    def found(self, provider: SegmentProvider) -> bytes:
        segment = provider.open(ID)
        return bytes(segment.read(0, segment.size()))

    def test_a_lost_reply_leaves_all(self, make: Callable[[], SegmentProvider]) -> None:
        provider = make()
        assert isinstance(write(Fault.LOSE_REPLY, provider), UnknownWrite)
        assert self.found(provider) == b"0123abcdef"

    def test_a_torn_write_leaves_half_where_writes_can_tear(
        self, make: Callable[[], SegmentProvider]
    ) -> None:
        provider = make()
        assert isinstance(write(Fault.TEAR, provider), UnknownWrite)
        torn = provider.capabilities.rewritable
        assert self.found(provider) == (b"0123abc" if torn else b"0123abcdef")

    def test_a_failed_write_leaves_nothing(self, make: Callable[[], SegmentProvider]) -> None:
        provider = make()
        with pytest.raises(Unavailable, match="injected"):
            write(Fault.FAIL, provider)
        assert self.found(provider) == b"0123"

    def test_a_fenced_write_leaves_nothing(self, make: Callable[[], SegmentProvider]) -> None:
        provider = make()
        assert write(Fault.FENCE, provider) == FencedWrite(4, "injected writer")
        assert self.found(provider) == b"0123"

    @pytest.mark.parametrize("fault", [Fault.CRASH_BEFORE, Fault.CRASH_TORN, Fault.CRASH_AFTER])
    def test_a_crash_leaves_nothing_half_or_all(
        self, make: Callable[[], SegmentProvider], fault: Fault
    ) -> None:
        provider = make()
        with pytest.raises(SimulatedCrash):
            write(fault, provider)
        half = b"abc" if provider.capabilities.rewritable else b""
        left = {Fault.CRASH_BEFORE: b"", Fault.CRASH_TORN: half, Fault.CRASH_AFTER: b"abcdef"}
        assert self.found(provider) == b"0123" + left[fault]


class TestProcess:
    def test_a_dead_process_does_nothing_more_and_gives_back_its_epoch(self) -> None:
        provider = MemoryProvider()
        faults = Faults({1: Fault.CRASH_BEFORE})
        faulty = FaultyProvider(provider, faults)
        faulty.acquire_writer("broker-a")
        segment = faulty.open(ID)
        for call in (
            lambda: segment.write(0, [b"x"]),
            lambda: segment.write(0, [b"x"]),
            lambda: segment.read(0, 1),
            segment.delete,
            segment.size,
            faulty.list,
        ):
            with pytest.raises(SimulatedCrash):
                call()
        assert faults.crashed
        assert provider.open(ID).size() == 0
        provider.acquire_writer("broker-a").release()

    def test_reads_fail_by_their_own_count(self) -> None:
        provider = MemoryProvider()
        provider.open(ID).write(0, [b"abc"])
        segment = FaultyProvider(provider, Faults(reads={2: Fault.FAIL})).open(ID)
        assert segment.size() == 3
        with pytest.raises(Unavailable):
            segment.read(0, 3)
        assert bytes(segment.read(0, 3)) == b"abc"

    def test_the_wrappers_are_what_they_wrap(self, tmp_path: Path) -> None:
        faults = Faults()
        provider = FaultyProvider(MemoryProvider(), faults)
        store = FaultyMetadataStore(
            DefaultMetadataStore(tmp_path / "m", "b", ManualClock()), faults
        )
        assert isinstance(provider, SegmentProvider)
        assert isinstance(provider.open(ID), FileSegment)
        assert isinstance(store, MetadataStore)


class TestCrashPoints:
    def open(self, folder: Path, faults: Faults) -> FaultyMetadataStore:
        store = DefaultMetadataStore(folder / "metadata.json", "broker-a", ManualClock())
        store.load()
        return FaultyMetadataStore(store, faults)

    def scenario(self, folder: Path, provider: SegmentProvider, faults: Faults) -> None:
        store = self.open(folder, faults)
        with store.batch():
            store.add_topic("T")
            store.put_segment(FileSegmentMetadata(ID.path, ID.type, ID.base_offset))
        FaultyProvider(provider, faults).open(ID).write(0, [b"abcd"])

    def test_effects_of_provider_and_metadata_are_counted_together(self, tmp_path: Path) -> None:
        points = crash_points(lambda faults: self.scenario(tmp_path, MemoryProvider(), faults))
        assert [f"{point.fault.name} {point.call}" for point in points] == [
            f"{kind} {call}"
            for call in (
                "metadata add_topic T",
                "metadata put_segment broker-a/T/0/COMMIT_LOG@0",
                "metadata batch",
            )
            for kind in ("CRASH_BEFORE", "CRASH_AFTER")
        ] + [
            f"{kind} write broker-a/T/0/COMMIT_LOG@0"
            for kind in ("CRASH_BEFORE", "CRASH_TORN", "CRASH_AFTER")
        ]

    def test_what_is_announced_comes_before_its_bytes_at_each_point(self, tmp_path: Path) -> None:
        points = crash_points(
            lambda faults: self.scenario(tmp_path / "count", MemoryProvider(), faults)
        )
        left = []
        for number, point in enumerate(points):
            folder, provider = tmp_path / str(number), MemoryProvider()
            faults = run_until_crash(functools.partial(self.scenario, folder, provider), point)
            assert len(faults.calls) == point.number
            known = self.open(folder, Faults()).segment(ID) is not None
            size = provider.open(ID).size()
            assert known or not size
            left.append((known, size))
        # a batch is on disk when it ends, and a write is torn in the middle
        assert left == [(False, 0)] * 5 + [(True, 0)] * 2 + [(True, 2), (True, 4)]

    def test_a_scenario_that_ends_early_is_an_error(self) -> None:
        points = crash_points(lambda faults: faults.change("once", lambda: None))
        with pytest.raises(AssertionError, match="crash before call 1: once"):
            run_until_crash(lambda faults: None, points[0])
