"""A copy is killed before, within or after one of its changes. The copied part is intact, and the
next run ends like an uninterrupted copy."""

from __future__ import annotations

from pathlib import Path
from typing import TypeAlias

import pytest

from tests.kit.jobs.copy import (
    PIECE_BYTES,
    Entries,
    contents,
    copy,
    entries,
    posix,
    state,
    tables,
)
from tests.kit.tier.wrappers import AppendOnlyProvider
from tests.kit.tier_builder import BROKER, BuiltTier, TierBuilder, message, small_tier
from tieredstore.clock import ManualClock
from tieredstore.contracts.metadata_store import MetadataStore
from tieredstore.contracts.segment import SegmentId, SegmentProvider
from tieredstore.jobs.copying.job import copy_tier
from tieredstore.jobs.copying.target import CopyTarget
from tieredstore.jobs.options import CopyOptions
from tieredstore.providers.chunks.provider import ChunkProvider
from tieredstore.providers.memory.objects import MemoryObjectClient
from tieredstore.scan.findings import Finding, Severity
from tieredstore.scan.listing import load_catalogue
from tieredstore.scan.verify.verification import verify
from tieredstore.testing.faults import (
    CrashPoint,
    Fault,
    Faults,
    FaultyMetadataStore,
    FaultyProvider,
    crash_points,
    run_until_crash,
)

KINDS = ["posix", "append-only", "chunks"]
EVERY = [10, pytest.param(1, marks=pytest.mark.slow)]
"""Stride of the tested crash points. The daily run tests every tenth point, the slow run all of
them."""
OF_A_PART = {"bytes-unnamed", "metadata-size", "unit-torn", "index-header"}
"""Kinds of findings that `verify` may report for a partial copy. A copy writes commit log bytes
before their units, and sizes in the metadata last. A torn write may end within a unit, and a
partial index file cannot be read."""
Tier: TypeAlias = tuple[
    dict[SegmentId, bytes], Entries, list[tuple[str, int, list[int]]], list[Finding]
]


class World:
    """State that outlives a process: the backend and the state directory of the target."""

    def __init__(self, root: Path, kind: str) -> None:
        root.mkdir(parents=True)
        self.root = root
        self.provider: SegmentProvider
        match kind:
            case "posix":
                self.provider = posix(root)
            case "append-only":
                self.provider = AppendOnlyProvider()
            case _:
                self.provider = ChunkProvider(MemoryObjectClient())

    def run(self, source: BuiltTier, faults: Faults, *, replace: bool = False) -> None:
        """Run the copy in one process with one worker, so that its effects happen in a fixed
        order."""
        provider = FaultyProvider(self.provider, faults)
        metadata = FaultyMetadataStore(state(self.root), faults)
        known = state(source.root, read_only=True)
        target = CopyTarget(provider, metadata, BROKER, ManualClock())
        report = copy_tier(
            source.provider,
            known,
            target,
            BROKER,
            CopyOptions(workers=1, replace=replace),
            piece_bytes=PIECE_BYTES,
        )
        for _, error in report.failed:
            raise error
        metadata.close()

    def close(self) -> None:
        """Wait for the background work of the backend to end."""
        self.provider.close()

    def findings(self, metadata: MetadataStore | None) -> list[Finding]:
        found: list[Finding] = []
        verify(self.provider, load_catalogue(self.provider, metadata), found.append)
        return found

    def tier(self) -> Tier:
        metadata = state(self.root, read_only=True)
        found = self.findings(metadata)
        return contents(self.provider), entries(metadata), tables(metadata), found

    def check_part(self, point: CrashPoint) -> None:
        """Check that the metadata lists every existing segment, and that every listed segment
        exists."""
        metadata = state(self.root, read_only=True)
        metadata.load()
        known = {entry.id for entry in metadata.segments()}
        assert contents(self.provider).keys() <= known, point
        for found in self.findings(metadata):
            assert found.kind in OF_A_PART, (str(point), found)
            if found.severity is Severity.DAMAGE and found.kind == "index-header":
                assert found.segment is not None
                entry = metadata.segment(found.segment)
                assert entry is not None
                assert entry.size == 0, (str(point), found)
            elif found.severity is Severity.DAMAGE:
                assert point.fault is Fault.CRASH_TORN, (str(point), found)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> BuiltTier:
    return small_tier(tmp_path_factory.mktemp("source") / "tier")


@pytest.mark.parametrize("every", EVERY)
@pytest.mark.parametrize("kind", KINDS)
def test_h02_ended_at_any_of_its_effects_a_copy_goes_on(
    kind: str, every: int, source: BuiltTier, tmp_path: Path
) -> None:
    plain = World(tmp_path / "plain", kind)
    plain.run(source, Faults())
    whole = plain.tier()
    assert whole[3] == []
    points = crash_points(lambda faults: World(tmp_path / "points", kind).run(source, faults))
    assert len(points) > 100
    for number, point in enumerate(points[::every]):
        world = World(tmp_path / str(number), kind)
        run_until_crash(lambda faults, world=world: world.run(source, faults), point)  # type: ignore[misc]
        world.check_part(point)
        world.run(source, Faults())
        assert world.tier() == whole, str(point)
        world.close()


@pytest.mark.parametrize("every", EVERY)
@pytest.mark.parametrize("kind", KINDS)
def test_ended_at_any_effect_of_a_later_run_a_copy_goes_on(
    kind: str, every: int, tmp_path: Path
) -> None:
    """A copy that is killed at any step of a later run can be continued. The first run copied a
    part of a source. Since then, the source has got new segments, and its last segment has
    grown."""
    young, old = growing(tmp_path / "young", 7), growing(tmp_path / "old", 18)

    def world(name: str) -> World:
        made = World(tmp_path / name, kind)
        made.run(young, Faults())
        return made

    plain = world("plain")
    plain.run(old, Faults())
    whole = plain.tier()
    assert whole[3] == []
    assert whole[0] == contents(old.provider)
    points = crash_points(lambda faults: world("points").run(old, faults))
    for number, point in enumerate(points[::every]):
        ended = world(str(number))
        run_until_crash(lambda faults, ended=ended: ended.run(old, faults), point)  # type: ignore[misc]
        ended.check_part(point)
        ended.run(old, Faults())
        assert ended.tier() == whole, str(point)
        ended.close()


@pytest.mark.parametrize("every", EVERY)
@pytest.mark.parametrize("kind", KINDS)
def test_h02_ended_at_any_effect_of_a_replacement_it_goes_on(
    kind: str, every: int, tmp_path: Path
) -> None:
    """A copy that replaces the target's content can be continued after a kill at any step. At first
    the target has different messages for the queue, and the copy deletes them."""
    other, right = growing(tmp_path / "other", 7, first=100), growing(tmp_path / "right", 9)

    def world(name: str) -> World:
        made = World(tmp_path / name, kind)
        made.run(other, Faults())
        return made

    plain = world("plain")
    plain.run(right, Faults(), replace=True)
    whole = plain.tier()
    assert whole[3] == []
    assert whole[0] == contents(right.provider)
    points = crash_points(lambda faults: world("points").run(right, faults, replace=True))
    assert any(point.call.startswith("delete ") for point in points)
    for number, point in enumerate(points[::every]):
        ended = world(str(number))
        run_until_crash(
            lambda faults, ended=ended: ended.run(right, faults, replace=True),  # type: ignore[misc]
            point,
        )
        ended.run(right, Faults(), replace=True)
        assert ended.tier() == whole, str(point)
        ended.close()


def growing(root: Path, count: int, first: int = 0) -> BuiltTier:
    """Return a source with `count` messages of one queue, starting at the offset `first`. Each
    value of `first` gives different messages."""
    builder = TierBuilder(root)
    builder.queue("orders", 0, [message("orders", 0, first + n) for n in range(count)])
    builder.built.metadata.flush()
    return builder.built


@pytest.mark.parametrize("fault", [Fault.LOSE_REPLY, Fault.TEAR])
@pytest.mark.parametrize("kind", KINDS)
def test_o01_a_write_without_a_known_outcome_is_looked_at_and_never_doubled(
    kind: str, fault: Fault, source: BuiltTier, tmp_path: Path
) -> None:
    plain = World(tmp_path / "plain", kind)
    faults = Faults()
    plain.run(source, faults)
    whole = plain.tier()
    writes = [at for at, call in enumerate(faults.calls, 1) if call.startswith("write ")]
    for at in writes:
        world = World(tmp_path / str(at), kind)
        world.run(source, Faults({at: fault}))
        assert world.tier() == whole


def test_a_source_that_fails_to_be_read_fails_one_queue_and_keeps_the_index_back(
    source: BuiltTier, tmp_path: Path
) -> None:
    world = World(tmp_path / "target", "posix")
    broken = FaultyProvider(source.provider, _Broken("orders/0/COMMIT_LOG@0"))
    target = CopyTarget(world.provider, state(world.root), BROKER, ManualClock())
    report = copy_tier(broken, state(source.root, read_only=True), target, BROKER, CopyOptions())
    assert [path for path, _ in report.failed] == [f"{BROKER}/orders/0"]
    assert report.index_left_out == "not all queues could be copied"
    paths = {found.path for found in contents(world.provider)}
    assert paths == {f"{BROKER}/orders/1", f"{BROKER}/over6/0"}
    target.metadata.close()

    copy(source.provider, state(source.root, read_only=True), world.provider, state(world.root))

    assert contents(world.provider) == contents(source.provider)


class _Broken(Faults):
    """Provider for which all reads of one segment fail."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self._name = name

    def read_fault(self, call: str) -> None:
        if call == f"read {BROKER}/{self._name}":
            from tieredstore.errors import Unavailable

            raise Unavailable(f"injected: {call}")
