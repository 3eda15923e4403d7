"""Tests of sorting group objects by queue, moving their content to the queues' folders, and
deleting them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import pytest

from tests.kit.chunks import GRACE_MS, Store
from tests.kit.gathered import (
    BROKER,
    REGROUP_MS,
    Gathering,
    attempt,
    list_groups,
    queue_ids,
    read_queue,
)
from tests.kit.object_faults import ObjectFault
from tieredstore.contracts.segment import Buffer, SegmentId, Written
from tieredstore.providers.chunks.manifests.extents import Extent
from tieredstore.providers.chunks.manifests.groups import Group
from tieredstore.providers.chunks.manifests.views import Views
from tieredstore.providers.chunks.upkeep.compaction import Compactor

FAIL, LOSE = ObjectFault.FAIL, ObjectFault.LOSE_REPLY
TOPICS = "ABC"
DAY_MS = 24 * 3_600_000


@pytest.fixture
def store() -> Store:
    return Store()


def content(topic: str, count: int) -> tuple[bytes, bytes]:
    return (topic.encode() + b"0123456789") * count, b"01" * count


def write(writer: Gathering, count: int = 3) -> None:
    for _ in range(count):
        writer.write(*TOPICS)


def assert_all(store: Store, count: int = 3) -> None:
    for topic in TOPICS:
        assert read_queue(store, topic) == content(topic, count)


def levels(store: Store) -> str:
    return "".join(name[0] for name in list_groups(store))


def test_writes_of_many_groups_become_runs_in_one(store: Store) -> None:
    writer = Gathering(store)
    write(writer)
    writer.keep(store)
    assert levels(store) == "0001"
    assert_all(store)
    writer.keep(store, GRACE_MS + REGROUP_MS)
    assert levels(store) == "1"
    assert_all(store)


def test_runs_are_cut_at_their_size(store: Store) -> None:
    writer = Gathering(store, regrouped_bytes=35)
    write(writer)
    writer.keep(store)
    assert levels(store) == "000111"
    assert_all(store)


def test_nothing_is_done_between_two_times(store: Store) -> None:
    writer = Gathering(store)
    write(writer)
    writer.process.operations()
    writer.keep(store, REGROUP_MS - 1)
    assert writer.process.operations() == []


def test_nothing_is_asked_where_there_are_no_groups(store: Store) -> None:
    writer = Gathering(store, group_bytes=0)
    write(writer, 1)
    writer.process.operations()
    writer.keep(store)
    assert writer.process.operations() == []


@pytest.mark.parametrize("settings", [{"split_bytes": 33}, {"split_age_ms": 0}])
def test_much_or_old_bytes_move_to_the_queues_folder(
    store: Store, settings: dict[str, int]
) -> None:
    writer = Gathering(store, **settings)
    write(writer)
    writer.keep(store)
    for id in queue_ids("A"):  # noqa: A001
        assert [name[0] for name in store.names(id)] == ["m"]
    assert_all(store)
    writer.keep(store)
    assert levels(store) == ""
    assert_all(store)
    write(writer, 1)
    assert_all(store, 4)


def test_runs_in_groups_move_with_the_writes_behind_them(store: Store) -> None:
    writer = Gathering(store, split_age_ms=DAY_MS)
    write(writer)
    writer.keep(store)
    write(writer)
    writer.keep(store, DAY_MS)
    assert len(store.names(queue_ids("A")[0])) == 1
    writer.keep(store)
    assert levels(store) == ""
    assert_all(store, 6)


def test_bytes_come_from_the_disk_where_it_has_them(store: Store) -> None:
    writer = Gathering(store)
    asked: list[tuple[str, int, int, int]] = []

    def read(path: str, first: int, count: int, place: int) -> tuple[Buffer, Buffer] | None:
        asked.append((path, first, count, place))
        return content(path.split("/")[1], 3)

    writer.process.tier.use_local_copy(BROKER, read)
    # Units of 20 bytes, so that they can be counted
    for topic in TOPICS:
        writer.take(topic, topic.encode(), b"u" * 20)
    writer.epoch.confirm()

    def read_one(path: str, first: int, count: int, place: int) -> tuple[Buffer, Buffer] | None:
        asked.append((path, first, count, place))
        return path.split("/")[1].encode(), b"u" * 20

    writer.process.tier.use_local_copy(BROKER, read_one)
    writer.process.operations()
    writer.keep(store)
    assert writer.process.operations() == ["PUT", "LIST"]
    assert sorted(asked) == [(f"{BROKER}/{topic}/0", 0, 1, 0) for topic in TOPICS]
    assert all(read_queue(store, topic) == (topic.encode(), b"u" * 20) for topic in TOPICS)


@pytest.mark.parametrize(
    "read",
    [
        lambda *_: None,
        lambda *_: (b"other bytes" * 3, b"01" * 3),
        lambda path, *_: (content(path.split("/")[1], 3)[0], b"10" * 3),
        lambda path, *_: (content(path.split("/")[1], 2)[0], b"01" * 3),
    ],
)
def test_a_disk_that_has_other_bytes_is_left_alone(
    store: Store, read: Callable[..., tuple[Buffer, Buffer] | None]
) -> None:
    writer = Gathering(store)
    writer.process.tier.use_local_copy(BROKER, read)
    write(writer)
    writer.keep(store)
    assert "GET" in writer.process.operations()
    assert_all(store)


def test_bytes_without_a_crc_do_not_come_from_the_disk(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bytes without a CRC are never taken from the local disk, because they cannot be compared. An
    extent that a later epoch has shortened has no CRC."""
    make_extents = Group.make_extents

    def make_without_crcs(group: Group, made_ms: int) -> Iterator[tuple[SegmentId, Extent]]:
        for of, extent in make_extents(group, made_ms):
            yield of, extent._replace(crc=-1)

    monkeypatch.setattr(Group, "make_extents", make_without_crcs)
    writer = Gathering(store)
    writer.process.tier.use_local_copy(BROKER, lambda *_: (b"other byte!" * 3, b"01" * 3))
    write(writer)
    writer.keep(store)
    assert_all(store)


@pytest.mark.parametrize("fault", [FAIL, LOSE])
@pytest.mark.parametrize("settings", [{}, {"split_age_ms": 0}])
def test_what_is_not_made_stays_in_its_groups(
    store: Store, fault: ObjectFault, settings: dict[str, int]
) -> None:
    writer = Gathering(store, **settings)
    write(writer)
    writer.process.fail_all(fault, ["PUT"])
    store.clock.advance(REGROUP_MS)
    assert attempt(lambda: writer.process.tier.run_maintenance(sweep=False)) == "Unavailable"
    writer.process.client.fault_of = None
    assert_all(store)
    for _ in range(3):
        writer.keep(store)
    assert_all(store)
    assert len(levels(store)) == (0 if settings else 1)
    write(writer, 1)
    assert_all(store, 4)


def test_groups_of_an_epoch_before_are_moved_by_its_heir(store: Store) -> None:
    writer = Gathering(store)
    write(writer)
    writer.keep(store)
    heir = Gathering(store, group_bytes=0)
    heir.keep(store)
    assert_all(store)
    heir.keep(store)
    assert levels(store) == ""
    assert_all(store)
    # The next one has nothing in groups, and lists none
    last = Gathering(store, group_bytes=0)
    last.process.operations()
    last.keep(store)
    assert last.process.operations() == []
    assert_all(store)


def test_a_group_of_a_fenced_writer_is_collected_by_its_heir(store: Store) -> None:
    writer = Gathering(store)
    write(writer, 1)
    heir = Gathering(store)
    writer.take("A", b"late", b"22")
    assert attempt(writer.epoch.confirm) == "Fenced"
    assert levels(store) == "00"
    for _ in range(2):
        heir.keep(store)
    assert_all(store, 1)
    assert levels(store) == "1"


def test_an_heirs_groups_are_not_touched_by_who_was_fenced(store: Store) -> None:
    writer = Gathering(store)
    write(writer, 1)
    heir = Gathering(store)
    write(heir, 1)
    assert [attempt(lambda: writer.keep(store)) for _ in range(2)] == ["", "Fenced"]
    assert_all(store, 2)


def test_groups_of_deleted_queues_go_when_the_others_need_them_no_more(store: Store) -> None:
    writer = Gathering(store)
    write(writer, 1)
    for id in queue_ids("A")[::-1]:  # noqa: A001
        writer.segment(id).delete()
        writer.ends[id] = 0
    for _ in range(2):
        writer.keep(store)
    assert levels(store) == "1"
    for topic in "BC":
        assert read_queue(store, topic) == content(topic, 1)
        for id in queue_ids(topic)[::-1]:  # noqa: A001
            writer.segment(id).delete()
            writer.ends[id] = 0
    for _ in range(2):
        writer.keep(store)
    assert levels(store) == ""
    write(writer, 2)
    assert_all(store, 2)


def test_a_run_of_a_queue_that_was_made_again_does_not_come_into_it(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A merged run of a deleted queue does not become part of the recreated queue."""
    writer = Gathering(store)
    write(writer, 1)
    insist = Compactor.insist
    begun: list[str] = []

    def make_again(compactor: Compactor, key: str, *args: object) -> bool:
        if not begun:
            begun.append(key)
            for id in queue_ids("A")[::-1]:  # noqa: A001
                writer.segment(id).delete()
                writer.ends[id] = 0
            writer.write("A", text=b"9876543210")
        return insist(compactor, key, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(Compactor, "insist", make_again)
    writer.keep(store)
    assert begun
    expected = b"A9876543210", b"98"
    assert read_queue(store, "A") == expected
    for _ in range(3):
        writer.keep(store)
    assert read_queue(store, "A") == expected
    assert read_queue(store, "B") == content("B", 1)


def test_what_is_stored_while_it_is_looked_who_needs_what_stays(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = Gathering(store, grace_ms=0)
    write(writer, 1)
    exclude_groups = Views.exclude_groups

    def write_more(views: Views, broker_name: str, groups: frozenset[str]) -> None:
        exclude_groups(views, broker_name, groups)
        if groups:
            writer.write(*TOPICS)

    monkeypatch.setattr(Views, "exclude_groups", write_more)
    writer.keep(store)
    monkeypatch.undo()
    assert_all(store, 3)
    writer.keep(store)
    assert_all(store, 3)


def test_a_group_that_is_about_to_go_is_not_taken_up_again(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A group object is not used again once it is going to be deleted."""
    writer = Gathering(store)
    write(writer)
    writer.process.fail_all(LOSE, ["PUT"])
    store.clock.advance(REGROUP_MS)
    assert attempt(lambda: writer.process.tier.run_maintenance(sweep=False)) == "Unavailable"
    writer.process.client.fault_of = None
    assert levels(store) == "0001"
    late = next(name for name in list_groups(store) if name.startswith("1"))
    segments = [writer.segment(id) for topic in TOPICS for id in queue_ids(topic)]  # noqa: A001
    delete = writer.process.client.delete

    def look_before(keys: Sequence[str]) -> None:
        if any(key.endswith(late) for key in keys):
            for segment in segments:
                segment.state.manifest = None
                segment.size()
        delete(keys)

    monkeypatch.setattr(writer.process.client, "delete", look_before)
    for _ in range(4):
        writer.keep(store)
        assert_all(store)
    assert late not in list_groups(store)
    write(writer, 1)
    assert_all(store, 4)


def test_a_marked_segment_becomes_one_object(store: Store) -> None:
    """A segment that is marked as sealed becomes one object. Its bytes in groups are moved to the
    queue's folder first."""
    writer = Gathering(store)
    write(writer)
    log, units = queue_ids("A")
    writer.segment(log).seal()
    writer.process.tier.run_maintenance(sweep=False)
    assert [name[0] for name in store.names(log)] == ["c"]
    writer.keep(store)
    assert [name[0] for name in store.names(log)] == ["c", "m", "s"]
    assert [name[0] for name in store.names(units)] == ["m"]
    for _ in range(3):
        writer.keep(store)
    assert_all(store)


def test_merging_leaves_what_is_in_groups_alone(store: Store) -> None:
    """Merges skip bytes in group objects, even if the queue has later objects of its own."""
    writer = Gathering(store)
    write(writer, 5)
    log, _ = queue_ids("A")
    for _ in range(2):
        segment = writer.segment(log)
        assert segment.write(writer.ends[log], [b"alone"]) == Written(writer.ends[log] + 5)
        writer.ends[log] += 5
        write(writer, 5)
    writer.process.operations()
    writer.process.tier.run_maintenance(sweep=False)
    assert writer.process.operations() == []
    for _ in range(6):
        assert segment.write(writer.ends[log], [b"alone"]) == Written(writer.ends[log] + 5)
        writer.ends[log] += 5
    writer.process.tier.run_maintenance(sweep=False)
    assert sorted(name[0] for name in store.names(log)) == ["c"] * 8 + ["m"]
    expected = (content("A", 5)[0] + b"alone") * 2 + content("A", 5)[0] + b"alone" * 6
    assert read_queue(store, "A")[0] == expected


def test_a_start_after_a_clean_stop_reads_no_index(store: Store) -> None:
    writer = Gathering(store)
    write(writer)
    writer.keep(store)
    writer.epoch.release()
    process = store.process(group_bytes=1_000)
    process.tier.acquire_writer(BROKER)
    found = {listing.id: listing.size_bytes for listing in process.tier.list(BROKER)}
    assert found == writer.ends
    assert not any("/.groups/" in request for request in process.client.requests)
