"""A process ends at any point while it empties or deletes a queue."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.kit.memory_chunks import chunk_provider
from tests.kit.tier.flat import BROKER, KEY, Tier, bodies, commit_log_id, config, existing, fill
from tests.kit.tier.flat import consume_queue_id as queue_id_of
from tests.kit.tier.writing import become_writer
from tieredstore.contracts.metadata_store import FileSegmentMetadata
from tieredstore.contracts.segment import SegmentId
from tieredstore.providers.memory.provider import MemoryProvider
from tieredstore.providers.posix.provider import PosixProvider
from tieredstore.testing.faults import (
    Faults,
    FaultyMetadataStore,
    FaultyProvider,
    crash_points,
    run_until_crash,
)
from tieredstore.tier.flat.file_store import FlatFileStore

SETTINGS: dict[str, object] = {
    "commit_log_max_size_bytes": 500,
    "consume_queue_max_size_bytes": 80,
}
COUNT = 8
BEHIND = 3
"""Offset at which the emptied queue begins again."""


class World:
    """A queue of several segments, its tier, its metadata and its store."""

    def __init__(self, kind: str, folder: Path) -> None:
        if kind == "posix":
            (folder / "tier").mkdir(parents=True)
            provider = PosixProvider(folder / "tier", "DefaultCluster", fsync=False)
            self.tier = Tier(provider, settings=SETTINGS)
        else:
            kept = MemoryProvider() if kind == "memory" else chunk_provider()
            self.tier = Tier(kept, settings=SETTINGS)
        with self.process(Faults()) as store:
            file = store.get_or_create(*KEY)
            file.init_offset(0)
            fill(file, 0, COUNT)

    @contextlib.contextmanager
    def process(self, faults: Faults) -> Iterator[FlatFileStore]:
        provider = FaultyProvider(self.tier.provider, faults)
        metadata = FaultyMetadataStore(self.tier.metadata, faults)
        store = FlatFileStore(config(**SETTINGS), provider, metadata, self.tier.clock)
        writer = become_writer(store)
        store.load()
        yield store
        store.close()
        writer.release()

    def break_queue(self) -> None:
        """Damage a queue: it cannot be opened, and the metadata lacks some of its segments."""
        bad = queue_id_of(7)
        entry = FileSegmentMetadata(bad.path, bad.type, bad.base_offset, size=20)
        self.tier.metadata.put_segment(entry)
        with self.process(Faults()) as store:
            stray = store.provider.open(commit_log_id(1 << 20))
            stray.write(0, [b"stray"])
            stray.close()


def begin_anew(store: FlatFileStore) -> None:
    store.begin_anew(*KEY, BEHIND)


def destroy(store: FlatFileStore) -> None:
    store.destroy(*KEY)


def run(world: World, faults: Faults, action: Callable[[FlatFileStore], None]) -> None:
    with world.process(faults) as store:
        action(store)


def left_over(world: World) -> list[SegmentId]:
    """Return the segments that should be deleted, but still exist in the tier or in its
    metadata."""
    marked = [entry.id for entry in world.tier.metadata.segments() if entry.status]
    return marked + [item.id for item in world.tier.provider.list(BROKER) if item.size_bytes]


@pytest.mark.parametrize("kind", ["posix", "memory", "chunks"])
def test_a_queue_that_begins_anew_has_its_newest_messages_or_none_after_a_crash(
    kind: str, tmp_path: Path
) -> None:
    points = crash_points(lambda faults: run(World("memory", tmp_path), faults, begin_anew))
    assert len(points) > 10
    seen = set()
    for number, point in enumerate(points):
        world = World(kind, tmp_path / str(number))
        run_until_crash(partial(run, world, action=begin_anew), point)
        with world.process(Faults()) as store:
            file = existing(store)
            found = [offset for offset, _ in bodies(file)]
            seen.add((len(found), file.consume_queue_max_offset))
            assert found == list(range(COUNT))[COUNT - len(found) :]
            file.begin_anew(BEHIND)
            fill(file, BEHIND, 2)
        with world.process(Faults()) as store:
            assert [offset for offset, _ in bodies(existing(store))] == [BEHIND, BEHIND + 1]
            assert {entry.status for entry in store.metadata.segments()} == {0}
    assert seen >= {(COUNT, COUNT), (0, COUNT), (0, BEHIND)}
    assert {end for _, end in seen} == {COUNT, BEHIND}


@pytest.mark.parametrize("kind", ["posix", "chunks"])
def test_a_broken_queue_begins_anew_whenever_that_is_cut_off(kind: str, tmp_path: Path) -> None:
    def make(kind: str, folder: Path) -> World:
        world = World(kind, folder)
        world.break_queue()
        return world

    points = crash_points(lambda faults: run(make("memory", tmp_path), faults, begin_anew))
    assert len(points) > 10
    for number, point in enumerate(points[::2]):
        world = make(kind, tmp_path / str(number))
        run_until_crash(partial(run, world, action=begin_anew), point)
        with world.process(Faults()) as store:
            file = store.begin_anew(*KEY, BEHIND)
            assert file.commit_log_max_offset > 1 << 20
            fill(file, BEHIND, 2)
        with world.process(Faults()) as store:
            assert [offset for offset, _ in bodies(existing(store))] == [BEHIND, BEHIND + 1]
            assert store.broken_queues == {}
            assert {entry.status for entry in store.metadata.segments()} == {0}


@pytest.mark.parametrize("kind", ["posix", "memory", "chunks"])
@pytest.mark.parametrize("is_broken", [False, True])
def test_a_deletion_that_was_cut_off_is_finished_by_the_next_one(
    kind: str, is_broken: bool, tmp_path: Path
) -> None:
    def make(kind: str, folder: Path) -> World:
        world = World(kind, folder)
        if is_broken:
            world.break_queue()
        return world

    points = crash_points(lambda faults: run(make("memory", tmp_path), faults, destroy))
    assert len(points) > 5
    for number, point in enumerate(points):
        world = make(kind, tmp_path / str(number))
        run_until_crash(partial(run, world, action=destroy), point)
        run(world, Faults(), destroy)
        assert left_over(world) == []
        assert world.tier.metadata.queue(*KEY) is None
