"""`rebuild index` creates each item once, even if it is interrupted."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.kit.jobs.index import (
    MAX_ITEMS,
    SLOTS,
    World,
    check_index,
    expected_items,
    items_of,
)
from tests.kit.tier_builder import (
    BROKER,
    START_MS,
    BuiltTier,
    flip,
    small_tier,
)
from tieredstore.contracts.metadata_store import TopicMetadata
from tieredstore.contracts.segment import FileSegmentType, SegmentId
from tieredstore.errors import Fenced, Invalid
from tieredstore.jobs.index import rebuild
from tieredstore.jobs.index.rebuild import run_rebuild_index
from tieredstore.jobs.metadata.job import run_rebuild_metadata
from tieredstore.jobs.options import RebuildIndexOptions
from tieredstore.jobs.run import JobRun
from tieredstore.local.recovery.store_lock import StoreLock
from tieredstore.message.index.tiered import infer_slots, unpack_header
from tieredstore.scan.findings import Finding
from tieredstore.scan.listing import load_catalogue
from tieredstore.scan.location import TierLocation, locate
from tieredstore.scan.verify.verification import verify
from tieredstore.testing.faults import Fault, Faults, crash_points, run_until_crash

EVERY = [7, pytest.param(1, marks=pytest.mark.slow)]
REPLACE = RebuildIndexOptions(force=True)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> BuiltTier:
    return small_tier(tmp_path_factory.mktemp("built") / "tier")


@pytest.fixture
def world(built: BuiltTier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    return World(built, tmp_path / "world", monkeypatch)


def plain(run: JobRun, source: TierLocation) -> dict[str, Any]:
    return run_rebuild_index(run, source)


def forced(run: JobRun, source: TierLocation) -> dict[str, Any]:
    return run_rebuild_index(run, source, REPLACE)


@pytest.mark.parametrize("kind", ["posix", "chunks"])
@pytest.mark.parametrize("from_state", [False, True])
def test_a_tier_that_lost_its_index_gets_it_back(
    kind: str, from_state: bool, built: BuiltTier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(built, tmp_path / "world", monkeypatch, kind)
    world.remove_index(from_state=from_state)
    report = world.run(plain)
    check_index(world, built)
    assert report["items"] == 44
    assert report["messages"] == 22
    assert report["removed_files"] == 0
    assert [file["items"] for file in report["files"]] == [16, 16, 12]
    assert world.leftovers() == []


def test_files_are_what_brokers_with_the_same_configuration_write(
    world: World, built: BuiltTier
) -> None:
    world.run(forced)
    end_ms = 0
    begins: list[int] = []
    for base, data in world.index().items():
        header = unpack_header(data)
        assert infer_slots(len(data), header.items) == SLOTS
        assert header.items < MAX_ITEMS
        assert header.end_timestamp_ms >= end_ms
        assert base == world.entries()[len(begins)][0]
        end_ms = header.end_timestamp_ms
        begins.append(header.begin_timestamp_ms)
    assert begins == sorted(set(begins))
    # The index that is replaced has a name, too, and it is another.
    assert begins[0] == START_MS
    assert sum(map(len, world.index().values())) + min(world.index()) == (
        world.entries()[-1][0] + world.entries()[-1][1]
    )


def test_an_index_that_is_there_is_replaced_only_if_asked(world: World, built: BuiltTier) -> None:
    before = world.index()
    with pytest.raises(Invalid, match=r"has 1 index files .* --force"):
        world.run(plain)
    assert world.index() == before
    report = world.run(forced)
    assert report["removed_files"] == 1
    assert not before.keys() & world.index().keys()
    check_index(world, built)
    with pytest.raises(Invalid, match="has 3 index files"):
        world.run(plain)
    again = world.run(forced)
    assert again["removed_files"] == 3
    check_index(world, built)


def test_a_damaged_index_is_replaced(world: World, built: BuiltTier) -> None:
    segment = SegmentId(f"{BROKER}/rmq_sys_INDEX/0", FileSegmentType.INDEX, 0)
    path = next((world.root / "tier").rglob(f"{segment.path}/INDEX/[!.]*"))
    flip(path, 0)
    flip(path, 26)
    assert world.findings()
    world.run(forced)
    check_index(world, built)


@pytest.mark.parametrize("first", ["later", "earlier"])
def test_a_window_adds_files_and_all_stay_by_time(
    first: str, world: World, built: BuiltTier
) -> None:
    world.remove_index()
    middle_ms = START_MS + 15_000

    def later(run: JobRun, source: TierLocation) -> dict[str, Any]:
        return run_rebuild_index(run, source, RebuildIndexOptions(since=middle_ms))

    def earlier(run: JobRun, source: TierLocation) -> dict[str, Any]:
        return run_rebuild_index(run, source, RebuildIndexOptions(until=middle_ms))

    jobs = [later, earlier] if first == "later" else [earlier, later]
    world.run(jobs[0])
    bounds = {"since_ms": middle_ms} if first == "later" else {"until_ms": middle_ms}
    assert world.items() == expected_items(built, **bounds)
    before = world.index()
    report = world.run(jobs[1])
    after = world.index()
    if first == "later":
        # Those that were there went behind, byte for byte.
        assert not after.keys() & before.keys()
        assert list(after.values())[-len(before) :] == list(before.values())
        assert report["removed_files"] == len(before)
    else:
        assert after.items() > before.items()
        assert report["removed_files"] == 0
    begins = [begin for _, _, begin, _ in world.entries()]
    assert begins == sorted(begins)
    check_index(world, built)


@pytest.mark.parametrize("stage", ["as it is", "without index"])
def test_without_state_topics_have_the_ids_that_the_index_tells(
    stage: str, world: World, built: BuiltTier
) -> None:
    if stage == "without index":
        world.remove_index()
    world.run(forced, source=world.stateless)
    assert sum(map(items_of, world.index().values()), Counter()) == expected_items(built)
    assert world.findings(with_state=False) == []


def test_metadata_made_afterwards_has_the_ids_of_an_index_made_without_it(
    world: World, built: BuiltTier, tmp_path: Path
) -> None:
    world.remove_index()
    world.run(plain, source=world.stateless)

    def metadata(run: JobRun, source: TierLocation) -> dict[str, Any]:
        return run_rebuild_metadata(run, source, tmp_path / "made")

    assert world.run(metadata, source=world.stateless)["findings"] == []
    made = locate(world.source.url, broker=BROKER, state=tmp_path / "made")
    store = made.metadata()
    assert store is not None
    found: list[Finding] = []
    provider = world.provider()
    catalogue = load_catalogue(provider, store, broker=BROKER)
    assert verify(provider, catalogue, found.append).index_items == 44
    assert found == []
    with pytest.raises(Invalid, match="has 3 index files"):
        world.run(plain, source=made)


def test_a_staging_place_is_made_where_it_is_missing_and_left_empty(world: World) -> None:
    place = world.root / "not" / "there"

    def staged(run: JobRun, source: TierLocation, url: str = place.as_uri()) -> dict[str, Any]:
        # No message is so old.
        return run_rebuild_index(run, source, RebuildIndexOptions(until=5, staging=url))

    assert world.run(staged)["files"] == []
    assert not [path for path in place.rglob("*") if path.is_file()]
    with pytest.raises(Invalid, match="is the tier itself"):
        world.run(lambda run, source: staged(run, source, f"{source.url}/"))


def test_added_files_have_the_slots_of_those_that_are_there(world: World) -> None:
    other = locate(world.source.url, broker=BROKER, state=world.root / "state")

    def window(run: JobRun, source: TierLocation) -> dict[str, Any]:
        return run_rebuild_index(run, source, RebuildIndexOptions(since=0))

    with pytest.raises(Invalid, match=r"have 8 slots, .* is 5000000: .* --config"):
        world.run(window, source=other)


def test_a_store_that_is_in_use_is_not_written(world: World) -> None:
    lock = StoreLock(world.root / "state")
    lock.acquire()
    with pytest.raises(Fenced, match="a broker runs on it"):
        world.run(forced)
    lock.release()
    world.run(forced)


def test_a_window_is_no_replacement(world: World) -> None:
    def both(run: JobRun, source: TierLocation) -> dict[str, Any]:
        return run_rebuild_index(run, source, RebuildIndexOptions(since=0, force=True))

    with pytest.raises(Invalid, match="loses the others' keys"):
        world.run(both)


def test_a_broker_that_runs_is_not_disturbed(world: World) -> None:
    provider = world.provider()
    epoch = provider.acquire_writer(BROKER)
    before = world.index()
    with pytest.raises(Fenced):
        world.run(forced)
    assert world.index() == before
    epoch.release()
    world.run(forced)


def test_a_message_that_cannot_be_read_is_left_out_and_told(world: World, built: BuiltTier) -> None:
    bad = built.stored["orders", 1][2]
    log = next((world.root / "tier").rglob(f"{BROKER}/orders/1/COMMIT_LOG/[!.]*"))
    flip(log, bad.offset + 4)
    report = world.run(forced)
    assert report["left_out"] == 1
    assert "orders/1" in report["findings"][0]
    lost = {item for item in expected_items(built) if item[2:4] == (1, bad.offset)}
    assert expected_items(built) - world.items() == Counter(dict.fromkeys(lost, 1))
    assert len(lost) == 2


def test_messages_are_counted_as_left_out_and_not_what_was_found_of_them(
    world: World, built: BuiltTier
) -> None:
    folder = world.root / "tier"
    expected = world.run(forced)["messages"]
    # Five messages in one segment that is gone: one finding.
    sorted(folder.rglob(f"{BROKER}/orders/0/COMMIT_LOG/[!.]*"), key=lambda path: path.name[-20:])[
        1
    ].unlink()
    # One message of which both size and magic are wrong: two findings.
    bad = built.stored["orders", 1][2]
    log = next(folder.rglob(f"{BROKER}/orders/1/COMMIT_LOG/[!.]*"))
    for at in (3, 4):
        flip(log, bad.offset + at)
    report = world.run(forced)
    assert report["left_out"] == 6
    assert report["messages"] == expected - 6


@pytest.mark.parametrize("every", EVERY)
@pytest.mark.parametrize("kind", ["posix", "chunks"])
@pytest.mark.parametrize("job", [plain, forced])
def test_ended_at_any_of_its_effects_it_goes_on(
    job: Any,
    kind: str,
    every: int,
    built: BuiltTier,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def new(name: str) -> World:
        monkeypatch.undo()
        world = World(built, tmp_path / name, monkeypatch, kind)
        if job is plain:
            world.remove_index()
        return world

    world = new("whole")
    world.run(job)
    whole = world.index(), world.entries()
    points = crash_points(lambda faults: new("points").run(job, faults))
    assert len(points) > 40
    for number, point in enumerate(points[::every]):
        world = new(str(number))
        before = world.items()
        run_until_crash(lambda faults, world=world: world.run(job, faults), point)  # type: ignore[misc]
        served = world.items()
        assert not before - served or not expected_items(built) - served, str(point)
        world.run(job)
        assert (world.index(), world.entries()) == whole, str(point)
        assert world.findings() == [], str(point)
        assert world.leftovers() == [], str(point)


@pytest.mark.parametrize("fault", [Fault.LOSE_REPLY, Fault.TEAR, Fault.FAIL])
def test_a_write_of_unknown_outcome_is_no_damage(
    fault: Fault, built: BuiltTier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = crash_points(
        lambda faults: World(built, tmp_path / "points", monkeypatch).run(forced, faults)
    )
    writes = sorted({point.number for point in calls if point.call.startswith("write ")})
    for number in writes:
        monkeypatch.undo()
        world = World(built, tmp_path / f"{number}", monkeypatch)
        try:
            world.run(forced, Faults({number: fault}))
        except Exception:
            world.run(forced)
        check_index(world, built)


def test_staged_rows_that_are_gone_are_named(world: World) -> None:
    points = crash_points(lambda faults: world.run(forced, faults))
    commit = next(p for p in points if f"write {BROKER}" in p.call)
    run_until_crash(lambda faults: world.run(forced, faults), commit)
    for path in (world.root / "work").rglob("*/INDEX/[!.]*"):
        path.unlink()
    with pytest.raises(Invalid, match="Remove the job's journal"):
        world.run(forced)


def test_a_run_does_not_go_on_where_a_topic_has_another_id_by_now(world: World) -> None:
    """A rebuild of the index does not continue if a topic's id has changed, because keys with the
    old id could not be found."""
    points = crash_points(lambda faults: world.run(forced, faults))
    commit = next(p for p in points if f"write {BROKER}" in p.call)
    run_until_crash(lambda faults: world.run(forced, faults), commit)
    before = world.items()
    metadata = world.writable_metadata()
    metadata.update_topic(TopicMetadata(77, "orders"))
    metadata.close()
    with pytest.raises(Invalid, match="orders: another topic id"):
        world.run(forced)
    assert world.items() == before


def test_two_attempts_at_one_task_at_once_do_not_meet(world: World, built: BuiltTier) -> None:
    class Twice:
        description = "each task twice at once"

        def run(self, work: Any, tasks: Any, on_done: Any) -> None:
            for index, task in enumerate(tasks):
                with ThreadPoolExecutor(2) as pool:
                    found = [pool.submit(work, task) for _ in range(2)]
                on_done(index, found[index % 2].result())

    def twice(run: JobRun, source: TierLocation) -> dict[str, Any]:
        run.runner = Twice()
        return run_rebuild_index(run, source, REPLACE)

    world.run(twice)
    check_index(world, built)
    assert world.leftovers() == []


def test_processes_make_the_same_files(
    world: World, built: BuiltTier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    other = World(built, tmp_path / "other", monkeypatch)
    other.run(forced)
    ours = other.index()
    monkeypatch.undo()  # the other processes know no patches
    monkeypatch.setattr(rebuild, "TASK_BYTES", 1000)
    world.run(forced, workers=2)
    assert world.index() == ours
