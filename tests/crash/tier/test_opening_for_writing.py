"""A process opens a tier for writing, takes its locks, and ends before its first write. The
metadata is unchanged."""

from __future__ import annotations

import functools
import itertools
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.kit.tier.flat import BROKER, T0, config
from tieredstore.clock import ManualClock
from tieredstore.contracts.metadata_store import STATUS_DELETED, FileSegmentMetadata
from tieredstore.contracts.segment import FileSegmentType, SegmentId, WriterEpoch, Written
from tieredstore.contracts.tier_identity import EpochRecord
from tieredstore.errors import Unavailable
from tieredstore.metadata.json_store import DefaultMetadataStore
from tieredstore.providers.posix.provider import PosixProvider
from tieredstore.testing.faults import (
    CrashPoint,
    Fault,
    Faults,
    FaultyMetadataStore,
    FaultyProvider,
    crash_points,
    run_until_crash,
)
from tieredstore.tier.flat.file_store import FlatFileStore
from tieredstore.tier.writing import TierWriter

EPOCH, LOAD = "acquire_writer", "metadata load"
LIVE = FileSegmentMetadata(f"{BROKER}/T/0", FileSegmentType.COMMIT_LOG, 0)
DOOMED = FileSegmentMetadata(f"{BROKER}/T/0", FileSegmentType.COMMIT_LOG, 100)


class Provider(FaultyProvider):
    """Provider whose acquisition of the epoch can also fail."""

    def acquire_writer(
        self, broker_name: str, *, take_over: bool = False, record: EpochRecord | None = None
    ) -> WriterEpoch:
        acquire = super().acquire_writer
        return self._faults.change(
            EPOCH, lambda: acquire(broker_name, take_over=take_over, record=record)
        )


class Metadata(FaultyMetadataStore):
    """Metadata store that can end the process at a chosen call, including `load`."""

    def load(self) -> None:
        self._faults.change(LOAD, super().load)


class World:
    """A tier with a live segment, and a segment whose deletion was registered. The journal of its
    metadata is newer than the main file, or the main file is damaged."""

    def __init__(self, root: Path, *, is_main_bad: bool = False) -> None:
        self.root = root
        self.state = root / "state"
        provider = PosixProvider(root / "tier", "cluster-a", fsync=False)
        with TierWriter.acquire(provider, self.metadata(), BROKER, self.state) as writer:
            writer.metadata.add_topic("T")
            for segment in (LIVE, DOOMED):
                writer.metadata.put_segment(segment)
                assert provider.open(segment.id).write(0, [b"x" * 100]) == Written(100)
            doomed = DOOMED.copy()
            doomed.status = STATUS_DELETED
            writer.metadata.put_segment(doomed)
            writer.metadata.add_queue("T", 0)  # the entries above are in the backup, too
        metadata = self.metadata()
        metadata.load()
        grown = LIVE.copy()
        grown.size = 100
        metadata.put_segment(grown)
        metadata.close()
        if is_main_bad:
            (self.state / "config" / "tieredStoreMetadata.json").write_bytes(b"{torn")
        provider.close()

    def metadata(self) -> DefaultMetadataStore:
        path = self.state / "config" / "tieredStoreMetadata.json"
        return DefaultMetadataStore(path, BROKER, ManualClock(T0))

    def files(self) -> dict[str, bytes]:
        """Return the metadata files and their content."""
        found = (self.state / "config").glob("tieredStoreMetadata.json*")
        return {path.name: path.read_bytes() for path in found}

    def known(self) -> list[SegmentId]:
        metadata = self.metadata()
        metadata.load()
        return [entry.id for entry in metadata.segments()]


def open_for_writing(world: World, faults: Faults) -> None:
    with ExitStack() as stack:
        backend = PosixProvider(world.root / "tier", "cluster-a", fsync=False)
        stack.callback(backend.close)
        provider, raw = Provider(backend, faults), world.metadata()
        stack.callback(raw.close)
        metadata = Metadata(raw, faults)
        writer = stack.enter_context(TierWriter.acquire(provider, metadata, BROKER, world.state))
        store = FlatFileStore(config(), provider, metadata, ManualClock(T0))
        stack.callback(store.close)
        store.become_writer(writer)
        store.load()
        store.record_recovered()


def points(root: Path, *, is_main_bad: bool) -> list[CrashPoint]:
    world = World(root / "calm", is_main_bad=is_main_bad)
    return crash_points(lambda faults: open_for_writing(world, faults))


def is_before_change(point: CrashPoint, points: list[CrashPoint]) -> bool:
    """Return whether a call happens before the first change of the metadata."""
    changes = (p for p in points if p.call.startswith("metadata") and p.call != LOAD)
    first = next(changes)
    return point.number < first.number or point == first


@pytest.mark.parametrize("is_main_bad", [False, True])
def test_a_crash_before_the_first_write_leaves_the_metadata_as_it_was(
    tmp_path: Path, *, is_main_bad: bool
) -> None:
    numbers = itertools.count()
    found = points(tmp_path, is_main_bad=is_main_bad)
    names = [point.call for point in found]
    assert names.index(EPOCH) < names.index(LOAD) < names.index(f"delete {DOOMED.id}")
    for point in found:
        world = World(tmp_path / str(next(numbers)), is_main_bad=is_main_bad)
        before = world.files()
        run_until_crash(functools.partial(open_for_writing, world), point)
        assert not is_before_change(point, found) or world.files() == before, point
        open_for_writing(world, Faults())
        assert world.known() == [LIVE.id], point
        assert PosixProvider(world.root / "tier", "cluster-a").open(DOOMED.id).size() == 0


@pytest.mark.parametrize("is_main_bad", [False, True])
@pytest.mark.parametrize("call", [EPOCH, LOAD])
def test_an_error_before_the_first_write_leaves_the_metadata_as_it_was(
    tmp_path: Path, call: str, *, is_main_bad: bool
) -> None:
    found = points(tmp_path, is_main_bad=is_main_bad)
    [number] = {point.number for point in found if point.call == call}
    world = World(tmp_path / "world", is_main_bad=is_main_bad)
    before = world.files()
    with pytest.raises(Unavailable, match=call):
        open_for_writing(world, Faults({number: Fault.FAIL}))
    assert world.files() == before
    open_for_writing(world, Faults())
    assert world.known() == [LIVE.id]
