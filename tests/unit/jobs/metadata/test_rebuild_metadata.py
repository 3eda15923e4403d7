"""Tests of `rebuild metadata` on tiers written by the engine, some of them damaged."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kit.jobs.rebuild_metadata import BROKER, CLUSTER, World, facts_of, kinds, rebuilt
from tests.kit.tier.flat import T0, batch, fill
from tests.kit.tier_builder import small_tier
from tieredstore.contracts.segment import FileSegmentType
from tieredstore.message.consume_queue import UNIT_SIZE
from tieredstore.providers.naming import cluster_directory_name, segment_file_name

COMMIT_LOG, CONSUME_QUEUE = FileSegmentType.COMMIT_LOG, FileSegmentType.CONSUME_QUEUE
PATH = f"{BROKER}/TopicA/0"
KINDS = ("posix", "chunks")


@pytest.fixture(params=KINDS)
def world(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    return World(tmp_path, monkeypatch, request.param)


@pytest.fixture
def posix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    return World(tmp_path, monkeypatch)


def write(
    world: World, topic: str = "TopicA", queue_id: int = 0, *, first: int = 0, count: int = 40
) -> None:
    with world.opened(world.lost, writing=True) as store:
        file = store.get_or_create(topic, queue_id)
        file.init_offset(first)
        for start in range(first, first + count, 8):
            fill(file, start, min(8, first + count - start), topic=topic, queue_id=queue_id)


def test_a_tier_of_the_engine_gets_the_metadata_that_it_had(world: World) -> None:
    write(world)
    write(world, "TopicA", 3, first=1000, count=7)
    write(world, "%RETRY%group", 0, count=1)
    write(world, "T" * 200, 12, count=9)  # stored with V2 of the record

    report = world.rebuild()

    assert kinds(report) == [("note", "topic-id-assigned")] * 3
    assert report["messages"] == 57
    lost, made = facts_of(world.lost), facts_of(world.made)
    assert len(lost["segments"]) > 10
    assert made["segments"] == lost["segments"]
    ids = {"%RETRY%group": 0, "TopicA": 1, "T" * 200: 2}  # without an index, by name
    assert {t: v[0] for t, v in made["topics"].items()} == {t: n for n, t in enumerate(sorted(ids))}
    assert {t: v[1:] for t, v in made["topics"].items()} == {
        t: v[1:] for t, v in lost["topics"].items()
    }
    before, after = world.views()
    assert after == before


def test_the_engine_goes_on_where_the_tier_ends(world: World) -> None:
    write(world)
    world.rebuild()
    with world.opened(world.made, writing=True) as store:
        file = store.get_or_create("TopicA", 0)
        assert file.consume_queue_commit_offset == 40
        fill(file, 40, 30)
    view = world.view(world.made)[PATH]
    assert [offset for offset, _ in view["messages"]] == list(range(70))
    world.rebuild(world.root / "again")
    assert facts_of(world.root / "again") == facts_of(world.made)


def test_a_hole_stays_one(world: World) -> None:
    write(world, count=10)
    with world.opened(world.lost, writing=True) as store:
        file = store.get_or_create("TopicA", 0)
        file.skip_to(25)
        fill(file, 25, 10)
    report = world.rebuild()
    assert ("note", "queue-hole") in kinds(report)
    before, after = world.views()
    assert after == before
    assert after[PATH]["holes"] == [(10, 25)]


def test_expired_segments_leave_a_first_offset_that_is_not_zero(world: World) -> None:
    write(world)
    with world.opened(world.lost, writing=True) as store:
        store.get_or_create("TopicA", 0).expire(T0 + 25)
    world.rebuild()
    before, after = world.views()
    assert after[PATH]["offsets"] == before[PATH]["offsets"]
    assert after[PATH]["offsets"][0] > 0
    assert after[PATH]["messages"] == before[PATH]["messages"]


def test_empty_files_where_everything_expired_go_on_counting(posix: World) -> None:
    """The offsets of a queue continue after an empty file that Java left when all messages had
    expired."""
    write(posix)
    with posix.opened(posix.lost, writing=True) as store:
        file = store.get_or_create("TopicA", 0)
        end = file.commit_log.commit_offset
        file.expire(posix.clock.now_ms())
    folder = posix.root / "tier" / cluster_directory_name(CLUSTER) / PATH
    (folder / "CONSUME_QUEUE" / segment_file_name(40 * UNIT_SIZE)).touch()
    (folder / "COMMIT_LOG" / segment_file_name(end)).touch()
    report = posix.rebuild()
    before, after = posix.views()
    assert after == before
    assert after[PATH]["offsets"] == (40, 40)
    assert kinds(report) == [("note", "topic-id-assigned")]


def test_units_whose_commit_log_is_gone_do_not_come_to_name_new_messages(world: World) -> None:
    """Units whose commit log is lost never point to later messages."""
    write(world)
    with world.opened(world.lost, writing=True) as store:
        for segment in store.get_or_create("TopicA", 0).commit_log.segments:
            segment.file.delete()
    report = world.rebuild()
    assert ("note", "messages-gone") in kinds(report)
    with world.opened(world.made, writing=True) as store:
        file = store.get_or_create("TopicA", 0)
        assert file.consume_queue_commit_offset == 40
        fill(file, 40, 5)
    assert [offset for offset, _ in world.view(world.made)[PATH]["messages"]] == [
        40,
        41,
        42,
        43,
        44,
    ]


# Torn tails


@pytest.mark.parametrize("count", [40, 30, 8])
@pytest.mark.parametrize(
    ("type", "change_bytes"),
    [
        (COMMIT_LOG, 1),
        (COMMIT_LOG, 500),
        (COMMIT_LOG, -1),
        (COMMIT_LOG, -300),
        (CONSUME_QUEUE, 7),
        (CONSUME_QUEUE, UNIT_SIZE),
        (CONSUME_QUEUE, -1),
        (CONSUME_QUEUE, -2 * UNIT_SIZE),
    ],
)
def test_a_torn_tail_is_not_announced(
    posix: World, type: FileSegmentType, change_bytes: int, count: int
) -> None:
    """The rebuilt metadata excludes a torn tail, and finds the same messages as before the
    crash."""
    write(posix, count=count)
    path = posix.last_file(PATH, type)
    data = path.read_bytes()
    path.write_bytes(data + b"\xff" * change_bytes if change_bytes > 0 else data[:change_bytes])

    report = posix.rebuild()

    assert set(kinds(report)) == {("note", "tail-torn"), ("note", "topic-id-assigned")}
    before, after = posix.views()
    assert after[PATH]["messages"] == before[PATH]["messages"]
    assert after[PATH]["offsets"] == before[PATH]["offsets"]
    sizes = facts_of(posix.made)["segments"]
    assert {name: size for name, size, *_ in after[PATH]["segments"]} == {
        name: entry[1] for name, entry in sizes.items()
    }
    with posix.opened(posix.made, writing=True) as store:
        file = store.get_or_create("TopicA", 0)
        fill(file, file.consume_queue_commit_offset, 20)
    again = posix.view(posix.made)[PATH]["messages"]
    assert [offset for offset, _ in again] == list(range(len(again)))


@pytest.mark.parametrize("at", ["first", "rolled"])
def test_a_commit_that_never_ended_leaves_an_empty_segment(posix: World, at: str) -> None:
    """A segment whose units were not written before a crash is registered as empty."""
    write(posix, count=0 if at == "first" else 40)
    with posix.opened(posix.lost, writing=True) as store:
        file = store.get_or_create("TopicA", 0)
        file.commit_log.roll()
        file.append_batch(*batch(file.consume_queue_max_offset, 3))
        assert file.commit_log.commit()
    report = posix.rebuild()
    before, after = posix.views()
    assert after[PATH]["messages"] == before[PATH]["messages"]
    assert after[PATH]["writable"] is None
    assert report["damage"] == 0
    with posix.opened(posix.made, writing=True) as store:
        file = store.get_or_create("TopicA", 0)
        file.init_offset(0)
        first = file.consume_queue_commit_offset
        fill(file, first, 20)
    assert len(posix.view(posix.made)[PATH]["messages"]) == first + 20


# Accidents


def test_a_lost_tail_of_the_commit_log_is_damage_that_names_the_units(posix: World) -> None:
    write(posix)
    with posix.opened(posix.lost) as store:
        segments = store.get_or_create("TopicA", 0).commit_log.segments
    for segment in segments[-2:]:
        posix.file_of(segment.file.id).unlink()
    report = posix.rebuild()
    assert report["damage"] > 0
    assert ("damage", "segment-unreachable") in kinds(report)
    view = posix.view(posix.made)[PATH]
    assert [offset for offset, _ in view["messages"]] == list(range(view["offsets"][1]))


def test_a_lost_tail_of_the_consume_queue_does_not_let_the_commit_log_be_written_over(
    posix: World,
) -> None:
    write(posix)
    with posix.opened(posix.lost) as store:
        segments = store.get_or_create("TopicA", 0).consume_queue.segments
    for segment in segments[-2:]:
        posix.file_of(segment.file.id).unlink()
    report = posix.rebuild()
    assert ("damage", "segment-unreachable") in kinds(report)
    before = {p: p.read_bytes() for p in (posix.root / "tier").rglob("COMMIT_LOG/[!.]*")}
    with posix.opened(posix.made, writing=True) as store:
        file = store.get_or_create("TopicA", 0)
        fill(file, file.consume_queue_commit_offset, 20)
    for path, data in before.items():
        assert path.read_bytes().startswith(data)


def test_strays_are_left_out_and_named(posix: World) -> None:
    write(posix)
    folder = posix.last_file(PATH, CONSUME_QUEUE).parent
    (folder / segment_file_name(31)).write_bytes(b"x" * 20)
    (folder.parent / "COMMIT_LOG" / segment_file_name(77)).touch()
    (folder / "notes.txt").write_text("mine")
    report = posix.rebuild()
    assert sorted(kinds(report)) == [
        ("damage", "segment-base"),
        ("note", "segment-empty"),
        ("note", "topic-id-assigned"),
    ]
    assert facts_of(posix.made)["segments"] == facts_of(posix.lost)["segments"]


# Times


@pytest.mark.parametrize("exact", [False, True])
def test_times_that_do_not_rise_need_every_message(posix: World, exact: bool) -> None:
    with posix.opened(posix.lost, writing=True) as store:
        file = store.get_or_create("TopicA", 0)
        file.init_offset(0)
        for offset, time_ms in enumerate([T0 + 50, T0 + 90, T0, T0 + 70]):
            fill(file, offset, 1, timestamp_ms=time_ms)
    posix.rebuild(exact_times=exact)
    same = facts_of(posix.made)["segments"] == facts_of(posix.lost)["segments"]
    assert same is exact


@pytest.mark.parametrize("rolls", [False, True])
@pytest.mark.parametrize("exact", [False, True])
def test_times_of_segments_reach_over_a_hole(posix: World, exact: bool, rolls: bool) -> None:
    with posix.opened(posix.lost, writing=True) as store:
        file = store.get_or_create("TopicA", 0)
        file.init_offset(0)
        for offset in (0, 1, 2):
            fill(file, offset, 1, timestamp_ms=T0 + offset)
        file.skip_to(9)
        if rolls:  # the hole is where a segment of the commit log ends
            file.commit_log.roll()
        for offset in (9, 10):
            fill(file, offset, 1, timestamp_ms=T0 + offset)
    posix.rebuild(exact_times=exact)
    assert facts_of(posix.made)["segments"] == facts_of(posix.lost)["segments"]


@pytest.mark.parametrize("exact", [False, True])
def test_times_of_messages_whose_units_have_expired_before_them_count(
    posix: World, exact: bool
) -> None:
    with posix.opened(posix.lost, writing=True) as store:
        file = store.get_or_create("TopicA", 0)
        file.init_offset(0)
        for offset in (0, 1):
            fill(file, offset, 1, timestamp_ms=T0 + offset)
        file.skip_to(9)  # another segment of units, and none of the commit log
        for offset in (9, 10):
            fill(file, offset, 1, timestamp_ms=T0 + offset)
        assert file.expire(T0 + 5)
        assert file.commit_log_min_offset == 0
    posix.rebuild(exact_times=exact)
    assert facts_of(posix.made)["segments"] == facts_of(posix.lost)["segments"]


@pytest.mark.parametrize("exact", [False, True])
def test_ipv6_hosts_many_segments_and_ids_from_the_index(tmp_path: Path, exact: bool) -> None:
    built = small_tier(tmp_path)
    report = rebuilt(built, tmp_path / "made", exact_times=exact)
    assert kinds(report) == []
    assert facts_of(tmp_path / "made") == facts_of(built.state)


def test_damaged_messages_are_told_and_have_no_times(posix: World) -> None:
    write(posix, count=8)
    path = posix.last_file(PATH, COMMIT_LOG)
    data = path.read_bytes()
    path.write_bytes(b"\0" * 100 + data[100:])  # the first one
    for exact in (False, True):
        report = posix.rebuild(posix.root / f"made-{exact}", exact_times=exact)
        assert bool(report["damage"]) is exact
        segments = facts_of(posix.root / f"made-{exact}")["segments"]
        assert {times[2:4] for times in segments.values()} == {(T0 + 1, T0 + 7)}
