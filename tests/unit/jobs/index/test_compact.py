"""`compact index` creates fewer files with the same keys, even if it is interrupted."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.kit.jobs.index import MAX_ITEMS, Item, World, check_index, expected_items
from tests.kit.tier.index import put_keys
from tests.kit.tier_builder import BROKER, CLUSTER, START_MS, BuiltTier, flip, small_tier
from tieredstore.clock import ManualClock
from tieredstore.contracts.segment import FileSegmentType
from tieredstore.errors import Corrupt, Fenced, Invalid
from tieredstore.jobs.index import rebuild
from tieredstore.jobs.index.compact import run_compact_index
from tieredstore.jobs.index.rebuild import run_rebuild_index
from tieredstore.jobs.options import RebuildIndexOptions
from tieredstore.jobs.run import JobRun
from tieredstore.message.index.tiered import unpack_header
from tieredstore.providers.posix.provider import PosixProvider
from tieredstore.scan.location import TierLocation, locate
from tieredstore.testing.faults import crash_points, run_until_crash
from tieredstore.tier.index import IndexStoreService

STEP_MS = 3_000
"""Time in ms between two index files. Each file has two messages with four keys, which fill a
quarter of the file."""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> BuiltTier:
    return small_tier(tmp_path_factory.mktemp("built") / "tier")


def compact(run: JobRun, source: TierLocation) -> dict[str, Any]:
    return run_compact_index(run, source)


def make_small_files(world: World) -> None:
    """Create one index file for every two of 22 messages, as a frequently restarted broker does."""
    world.remove_index(from_state=True)
    for step in range(11):
        since_ms = START_MS + step * STEP_MS

        def window(run: JobRun, source: TierLocation, since_ms: int = since_ms) -> dict[str, Any]:
            options = RebuildIndexOptions(since=since_ms, until=since_ms + STEP_MS)
            return run_rebuild_index(run, source, options)

        world.run(window)


@pytest.fixture(scope="module")
def many(built: BuiltTier, tmp_path_factory: pytest.TempPathFactory) -> BuiltTier:
    """A tier with many small index files."""
    with pytest.MonkeyPatch.context() as patch:
        world = World(built, tmp_path_factory.mktemp("many") / "world", patch)
        make_small_files(world)
    provider = PosixProvider(world.root / "tier", CLUSTER, fsync=False)
    return BuiltTier(world.root, provider, built.metadata, built.stored)


@pytest.fixture
def world(many: BuiltTier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    return World(many, tmp_path / "world", monkeypatch)


def test_small_files_become_full_ones(world: World, built: BuiltTier) -> None:
    assert len(world.index()) == 11
    report = world.run(compact)
    counts = [unpack_header(data).items for data in world.index().values()]
    assert counts == [16, 16, 12]
    assert report["merged_files"] == report["removed_files"] == 11
    assert report["items"] == 44
    check_index(world, built)
    assert world.leftovers() == []


def test_there_is_nothing_to_do_twice(world: World) -> None:
    world.run(compact)
    before = world.index()
    report = world.run(compact)
    assert report["merged_files"] == report["removed_files"] == 0
    assert report["kept_files"] == 3
    assert world.index() == before


def test_full_files_are_kept_as_they_are(
    built: BuiltTier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(built, tmp_path / "world", monkeypatch)
    world.remove_index(from_state=True)
    windows = [(0, 2), (2, 4), (4, 10), (10, 12), (12, 14), (14, 22)]
    for first, last in windows:

        def window(run: JobRun, source: TierLocation, a: int = first, b: int = last) -> Any:
            return run_rebuild_index(
                run,
                source,
                RebuildIndexOptions(since=START_MS + a * 1500, until=START_MS + b * 1500),
            )

        world.run(window)
    before = list(world.index().values())
    report = world.run(compact)
    after = list(world.index().values())
    assert [unpack_header(data).items for data in after] == [8, 12, 8, 16]
    assert after[1] == before[2]
    assert after[3] == before[5]
    assert (report["merged_files"], report["kept_files"]) == (4, 2)
    check_index(world, built)


def test_full_files_that_are_not_by_time_are_put_in_order(
    built: BuiltTier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(built, tmp_path / "world", monkeypatch)
    world.remove_index(from_state=True)
    with monkeypatch.context() as patch:
        patch.setattr(rebuild, "_in_order", lambda _tier, _pinned, made: (made, False))
        for first, last in [(16, 22), (0, 8), (8, 16)]:

            def window(run: JobRun, source: TierLocation, a: int = first, b: int = last) -> Any:
                return run_rebuild_index(
                    run,
                    source,
                    RebuildIndexOptions(since=START_MS + a * 1500, until=START_MS + b * 1500),
                )

            world.run(window)
    before = list(world.index().values())
    report = world.run(compact)
    assert report["kept_files"] == 3
    assert list(world.index().values()) == [before[1], before[2], before[0]]
    check_index(world, built)


def test_items_of_messages_that_are_gone_are_left_behind(world: World, built: BuiltTier) -> None:
    first = built.stored["orders", 0][:5]
    # The first segments have five messages.
    path, metadata = f"{BROKER}/orders/0", world.writable_metadata()
    for kind in (FileSegmentType.COMMIT_LOG, FileSegmentType.CONSUME_QUEUE):
        entry = next(metadata.segments(path, kind))
        world.provider().open(entry.id).delete()
        metadata.delete_segment(entry.id)
    metadata.close()
    report = world.run(compact)
    assert report["dangling"] == 10
    gone = {item.offset for item in first}
    left = Counter(
        {i: n for i, n in expected_items(built).items() if not (i[1:3] == (0, 0) and i[3] in gone)}
    )
    assert world.items() == left
    assert world.findings() == []


def test_a_damaged_file_is_named_and_nothing_changes(world: World) -> None:
    before = world.index()
    path = min(
        (world.root / "tier").rglob(f"{BROKER}/rmq_sys_INDEX/0/INDEX/[!.]*"),
        key=lambda p: p.name[-20:],
    )
    flip(path, 27)
    with pytest.raises(Corrupt, match="rebuild index --force"):
        world.run(compact)
    flip(path, 27)
    assert world.index() == before


def test_another_number_of_slots_is_most_likely_a_forgotten_configuration(world: World) -> None:
    other = locate(world.source.url, broker=BROKER, state=world.root / "state")
    with pytest.raises(Invalid, match="--config"):
        world.run(compact, source=other)


def test_it_needs_the_state(world: World) -> None:
    with pytest.raises(Invalid, match="state directory"):
        world.run(compact, source=world.stateless)


def test_a_broker_that_runs_is_not_disturbed(world: World) -> None:
    epoch = world.provider().acquire_writer(BROKER)
    with pytest.raises(Fenced):
        world.run(compact)
    epoch.release()


def test_what_a_crashed_broker_left_goes_into_the_tier(
    built: BuiltTier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(built, tmp_path / "world", monkeypatch)
    world.remove_index(from_state=True)
    metadata = world._metadata(world.source.config)
    metadata.load()
    service = IndexStoreService(
        world.source.config, world.provider(), metadata, world.root / "state", ManualClock(START_MS)
    )
    service.recover()
    for (topic, queue_id), stored in built.stored.items():
        for item in stored:
            entry = metadata.topic(topic)
            assert entry is not None
            keys = [str(item.message.uniq_key), *item.message.keys]
            put_keys(
                service,
                entry.topic_id,
                topic,
                queue_id,
                keys,
                np.full(len(keys), item.offset, np.int64),
                np.full(len(keys), len(item.record), np.int32),
                np.full(len(keys), item.store_timestamp_ms, np.int64),
            )
    service.checkpoint()
    metadata.close()
    files = [p for p in (world.root / "state" / "tiered_index_file").iterdir() if p.name.isdigit()]
    assert len(files) == -(-44 // (MAX_ITEMS - 1))
    report = world.run(compact)
    assert report["uploaded_files"] == 3
    assert not [p for p in files if p.exists()]
    check_index(world, built)


@pytest.mark.parametrize("every", [29, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", ["posix", "chunks"])
def test_ended_at_any_of_its_effects_it_goes_on(
    kind: str, every: int, many: BuiltTier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def new(name: str) -> World:
        monkeypatch.undo()
        return World(many, tmp_path / name, monkeypatch, kind)

    world = new("whole")
    world.run(compact)
    whole = world.index(), world.entries()
    points = crash_points(lambda faults: new("points").run(compact, faults))
    assert len(points) > 40
    for number, point in enumerate(points[::every]):
        world = new(str(number))
        run_until_crash(lambda faults, world=world: world.run(compact, faults), point)  # type: ignore[misc]
        missing: Counter[Item] = expected_items(many) - world.items()
        assert not missing, str(point)
        world.run(compact)
        assert (world.index(), world.entries()) == whole, str(point)
        assert world.findings() == [], str(point)
        assert world.leftovers() == [], str(point)
