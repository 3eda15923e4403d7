"""A process uploads to a tier, and ends before, within or after each of its changes. The next
process must repair the result. The scenario, over real files, dispatches, leaves a hole, rolls,
expires and continues. It is stopped at each of its points in turn. A second run must then have the
same result as an uninterrupted run."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from tests.kit.memory_chunks import chunk_provider
from tests.kit.tier.flat import (
    BROKER,
    T0,
    ListIndex,
    ListSource,
    TableMetadata,
    bodies,
    config,
    existing,
    record,
)
from tests.kit.tier.writing import become_writer
from tieredstore.clock import ManualClock
from tieredstore.contracts.dispatch_source import QueueKey
from tieredstore.metadata.json_store import DefaultMetadataStore
from tieredstore.providers.memory.provider import MemoryProvider
from tieredstore.providers.posix.provider import PosixProvider
from tieredstore.testing.faults import (
    CrashPoint,
    Faults,
    FaultyMetadataStore,
    FaultyProvider,
    SimulatedCrash,
    crash_points,
    run_until_crash,
)
from tieredstore.tier.expiry import TierExpiry
from tieredstore.tier.flat.file_store import FlatFileStore
from tieredstore.tier.policy.topic_filter import TopicFilter
from tieredstore.tier.upload.dispatcher import MessageStoreDispatcher

KEY = QueueKey("TopicA", 0)
SIZE = len(record(0)[0])
SETTINGS = {
    "commit_log_max_size_bytes": 3 * SIZE,
    "consume_queue_max_size_bytes": 80,
    "group_commit_count": 4,
    "group_commit_size_bytes": 2 * SIZE + 1,
    "dispatch_threads": 1,
    "file_reserved_time_hours": 1,
}


Process: TypeAlias = tuple[MessageStoreDispatcher, FlatFileStore, TierExpiry, ManualClock]


class World:
    """State that outlives a process: the backend, the metadata file, the local store and the
    index."""

    def __init__(self, folder: Path, kind: str) -> None:
        self.folder = folder
        self.kind = kind
        self.source = ListSource()
        self.index = ListIndex()
        self.kept = MemoryProvider() if kind == "memory" else chunk_provider()
        self.table = TableMetadata()
        self.step = 0
        (folder / "tier").mkdir(exist_ok=True)

    @contextlib.contextmanager
    def process(self, faults: Faults) -> Iterator[Process]:
        """Open a store and a dispatcher, as a new process does."""
        backend = (
            PosixProvider(self.folder / "tier", "DefaultCluster", fsync=False)
            if self.kind == "posix"
            else self.kept
        )
        clock = ManualClock(T0)
        raw: TableMetadata | DefaultMetadataStore = self.table
        if self.kind == "posix":
            raw = DefaultMetadataStore(self.folder / "tieredStoreMetadata.json", BROKER, clock)
        provider, metadata = FaultyProvider(backend, faults), FaultyMetadataStore(raw, faults)
        self.index.marks = dict(self.index.durable_marks)
        self.index.rows = [row for row in self.index.rows if self._is_durable(row)]
        settings = config(**SETTINGS)
        store = FlatFileStore(settings, provider, metadata, clock)
        try:
            writer = become_writer(store)
            store.load()
            dispatcher = MessageStoreDispatcher(
                settings, self.source, store, self.index, TopicFilter(settings), clock
            )
            yield dispatcher, store, TierExpiry(settings, store, clock), clock
            store.close()
            writer.release()
        finally:
            if not faults.crashed:
                raw.close()
            elif self.kind == "posix":
                backend.close()

    def _is_durable(self, row: tuple[int, int, str, int, int, int]) -> bool:
        return row[3] < self.index.durable_marks.get((row[0], row[1]), 0)


def steps(source: ListSource) -> list[tuple[int, Callable[[], None] | None, str]]:
    """Return the steps in order. Each has a time, an action on the local store, and an action on
    the tier."""

    def cleaned_too_early() -> None:
        # Local cleaning overtakes the upload: a gap. (This local store knows no guard.)
        source.put(KEY, 8, 9, keys=("k",))
        source.clean(KEY, 12)

    return [
        (60_000, lambda: source.put(KEY, 0, 8, keys=("k",)), "scan"),
        (60_000, cleaned_too_early, "scan"),
        (3_600_006, None, "expire"),
        (3_600_006, lambda: source.put(KEY, 17, 4, keys=("k",)), "scan"),
        (3_600_100, None, "expire"),  # everything
        (3_600_100, lambda: source.put(KEY, 21, 3, keys=("k",)), "scan"),
    ]


def scenario(world: World, faults: Faults) -> None:
    """Run all steps, starting with the step in which an earlier process ended."""
    with world.process(faults) as (dispatcher, _, expiry, clock):
        for time_ms, prepare, action in steps(world.source)[world.step :]:
            clock.advance_to(T0 + time_ms)
            if prepare is not None:
                prepare()
            if action == "scan":
                dispatcher.scan(force=True)
            else:
                expiry.run_once()
            world.step += 1
        world.index.checkpoint()


def end_state(world: World) -> dict[str, Any]:
    with world.process(Faults()) as (_, store, _, _):
        file = existing(store, KEY)
        return {
            "messages": bodies(file),
            "range": (file.consume_queue_min_offset, file.consume_queue_max_offset),
            "commit log": (file.commit_log_min_offset, file.commit_log_commit_offset),
            "entries": sum(1 for _ in store.metadata.segments()),
        }


def check_consistent(world: World) -> None:
    """Check immediately after the crash that the content is complete, in order, and equal to the
    source."""
    with world.process(Faults()) as (_, store, _, _):
        file = store.get(*KEY)
        if file is None or not file.is_initialised:
            return
        found = bodies(file)
        for offset, body in found:
            assert body == f"TopicA-0-{offset}-".encode().ljust(20, b"x")
        offsets = [offset for offset, _ in found]
        assert offsets == sorted(set(offsets))
        holes = {q for begin, end in file.holes for q in range(begin, end)}
        assert holes <= set(range(8, 12))
        wanted = range(file.consume_queue_min_offset, file.consume_queue_commit_offset)
        assert set(offsets) == set(wanted) - holes


@functools.cache
def points() -> list[CrashPoint]:
    """Return the crash points. They are the same for every backend, because `Faults` counts neither
    seals nor calls of the writer epoch."""
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        return crash_points(lambda faults: scenario(World(Path(folder), "memory"), faults))


@pytest.mark.parametrize("every", [3, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", ["posix", "memory", "chunks"])
def test_a_run_after_a_crash_anywhere_ends_like_an_uninterrupted_one(
    kind: str, every: int, tmp_path: Path
) -> None:
    undisturbed = tmp_path / "undisturbed"
    undisturbed.mkdir()
    world = World(undisturbed, kind)
    scenario(world, Faults())
    right = end_state(world)
    assert [offset for offset, _ in right["messages"]] == [21, 22, 23]
    checked = 0
    # All points in memory in the slow lane. On slower kinds, every second or fifth of them.
    step = every * {"memory": 1, "chunks": 2, "posix": 5}[kind]
    for number, point in enumerate(points()[::step]):
        folder = tmp_path / str(number)
        folder.mkdir()
        world = World(folder, kind)
        try:
            run_until_crash(functools.partial(scenario, world), point)
        except AssertionError:
            continue  # this backend writes fewer, larger pieces
        check_consistent(world)
        scenario(world, Faults())
        assert end_state(world) == right, point
        keys = {row[3] for row in world.index.rows}
        assert len(keys) >= 3, point
        checked += 1
    assert checked > 30 // every


@pytest.mark.parametrize("kind", ["posix", "chunks"])
def test_two_crashes_in_a_row_are_no_worse_than_one(kind: str, tmp_path: Path) -> None:
    world = World(tmp_path, kind)
    undisturbed = tmp_path / "undisturbed"
    undisturbed.mkdir()
    calm = World(undisturbed, kind)
    scenario(calm, Faults())
    chosen = points()[::7]
    for point in chosen:
        with contextlib.suppress(AssertionError, SimulatedCrash):
            run_until_crash(lambda faults: scenario(world, faults), point)
        check_consistent(world)
    scenario(world, Faults())
    assert end_state(world) == end_state(calm)
