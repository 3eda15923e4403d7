"""If group objects are damaged or lost, only their own content is missing."""

from __future__ import annotations

from collections.abc import Mapping

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
from tieredstore.contracts.segment import Buffer, Written
from tieredstore.errors import Corrupt, Unavailable

TOPICS = "ABC"
TEXT = b"0123456789"
DAY_MS = 24 * 3_600_000


@pytest.fixture
def store() -> Store:
    return Store()


def group_keys(store: Store) -> list[str]:
    return [info.key for info in store.first.list("") if "/.groups/" in info.key]


def flip(store: Store, key: str, at: int) -> None:
    """Change a byte of an object. A negative position counts from the object's end."""
    [info] = store.first.list(key)
    whole = bytearray(store.first.get_range(key, 0, info.size_bytes) or b"")
    whole[at] ^= 0xFF
    store.first.delete([key])
    store.first.put_if_absent(key, [whole], info.metadata or {})


def damage_index(store: Store, key: str) -> None:
    flip(store, key, -3)


def lose(store: Store, key: str) -> None:
    store.first.delete([key])


def content(topic: str, count: int) -> tuple[bytes, bytes]:
    return (topic.encode() + TEXT) * count, b"01" * count


def levels(store: Store) -> str:
    return "".join(name[0] for name in list_groups(store))


def read_behind(store: Store, topic: str, start: int) -> bytes:
    """Return the bytes of a commit log from `start`, read by a process without cached state."""
    segment = store.process().open(queue_ids(topic)[0])
    return bytes(segment.read(start, segment.size() - start))


def write_and_harm(store: Store, harm: object) -> Gathering:
    """Write queues A and B three times and queue C twice. Apply `harm` to the second group, which
    contains only A and B."""
    writer = Gathering(store)
    writer.write(*TOPICS)
    before = group_keys(store)
    writer.write("A", "B")
    [second] = set(group_keys(store)) - set(before)
    writer.write(*TOPICS)
    harm(store, second)  # type: ignore[operator]
    return writer


@pytest.mark.parametrize("harm", [damage_index, lose])
def test_i06_a_group_that_cannot_be_read_is_a_hole_of_its_queues_alone(
    store: Store, harm: object
) -> None:
    write_and_harm(store, harm)
    assert read_queue(store, "C") == content("C", 2)
    for topic in "AB":
        assert read_behind(store, topic, 22) == topic.encode() + TEXT
        with pytest.raises(Corrupt, match="bytes 11 to 22 are in no object; the next valid") as at:
            read_behind(store, topic, 0)
        assert at.value.offset == 11


@pytest.mark.parametrize("harm", [damage_index, lose])
def test_i06_an_heir_goes_on_with_all_other_queues(store: Store, harm: object) -> None:
    write_and_harm(store, harm)
    heir = Gathering(store)
    heir.write("C", "D")
    assert read_queue(store, "C") == content("C", 3)
    assert read_queue(store, "D") == content("D", 1)
    for topic in "AB":
        assert attempt(lambda topic=topic: heir.write(topic)) == "Corrupt"
    heir.write("C")
    assert read_queue(store, "C") == content("C", 4)
    # The rest beside the hole is sorted and moved as usual
    for _ in range(2):
        heir.keep(store, DAY_MS)
    assert "m" in {name[0] for name in store.names(queue_ids("A")[0])}
    assert read_behind(store, "A", 22) == b"A" + TEXT
    assert read_queue(store, "C") == content("C", 4)


def test_a_group_that_nobody_can_read_is_kept(store: Store) -> None:
    write_and_harm(store, damage_index)
    heir = Gathering(store)
    for _ in range(3):
        heir.keep(store, DAY_MS)
    assert levels(store) == "0"
    last = Gathering(store, group_bytes=0)
    last.process.tier.run_maintenance()
    assert levels(store) == "0"


def test_a_group_with_what_a_segment_misses_is_kept(store: Store) -> None:
    write_and_harm(store, damage_index)
    broken = group_keys(store)[1]
    heir = Gathering(store)
    damage_index(store, broken)  # as before, if its pieces have no owner
    for _ in range(3):
        heir.keep(store, DAY_MS)
    assert group_keys(store) == [broken]


def test_a_damaged_index_of_its_own_keeps_no_writer_from_its_bytes(store: Store) -> None:
    writer = Gathering(store)
    writer.write(*TOPICS)
    damage_index(store, group_keys(store)[0])
    for _ in range(2):
        writer.keep(store, GRACE_MS + REGROUP_MS)
    assert levels(store) == "1"
    for topic in TOPICS:
        assert read_queue(store, topic) == content(topic, 1)


def test_a_group_that_was_lost_is_made_again_from_the_disk(store: Store) -> None:
    writer = Gathering(store)
    writer.write("A")

    def read(path: str, first: int, count: int, place: int) -> tuple[Buffer, Buffer] | None:
        del path, first, count, place
        return b"A" + TEXT, b"01"

    writer.process.tier.use_local_copy(BROKER, read)
    lose(store, group_keys(store)[0])
    assert attempt(lambda: writer.keep(store)) == ""
    assert read_queue(store, "A") == content("A", 1)


def test_a_broken_group_is_looked_at_ever_more_rarely(store: Store) -> None:
    write_and_harm(store, damage_index)
    reader = store.process()
    found = []
    for _ in range(200):
        reader.client.requests.clear()
        list(reader.tier.list(BROKER))
        found.append(sum("GET" in r and "/.groups/" in r for r in reader.client.requests))
        store.clock.advance(60_000)
    assert found[0] > 1
    assert sum(1 for count in found if count) <= 10
    # Who inherits looks in any case: what it does not see is lost for good
    heir = store.process()
    list(heir.tier.list(BROKER))
    heir.client.requests.clear()
    heir.take_over()
    list(heir.tier.list(BROKER))
    assert any("GET" in r and "/.groups/" in r for r in heir.client.requests)


def test_an_index_that_reads_damaged_once_is_read_again(store: Store) -> None:
    Gathering(store).write(*TOPICS)
    reader = store.process()
    group, get = group_keys(store)[0], reader.client.get_range
    seen: list[int] = []

    def damaged_once(key: str, position: int, length: int) -> bytes | None:
        found = get(key, position, length)
        if key == group and position and not seen:
            seen.append(position)
            return bytes(len(found or b""))
        return found

    reader.client.get_range = damaged_once  # type: ignore[method-assign]
    log, _ = queue_ids("A")
    assert reader.open(log).size() == 11
    assert seen


def test_a_listing_that_goes_on_to_show_a_lost_group_stops_nobody(store: Store) -> None:
    write_and_harm(store, lambda *_: None)
    lost = group_keys(store)[1]
    reader = store.process()
    get = reader.client.get_range
    reader.client.get_range = (  # type: ignore[method-assign]
        lambda key, *place: None if key == lost else get(key, *place)
    )
    assert {found.id.path: found.size_bytes for found in reader.tier.list(BROKER)}[
        f"{BROKER}/C/0"
    ] == 4
    assert bytes(reader.content(queue_ids("C")[0])) == content("C", 2)[0]


@pytest.mark.parametrize("queues", [8, 40])
def test_holes_of_many_queues_take_few_listings(store: Store, queues: int) -> None:
    writer = Gathering(store, group_bytes=10_000)
    names = [f"T{number:03d}" for number in range(queues)]
    for _ in range(3):
        writer.write(*names)
    damage_index(store, group_keys(store)[1])
    writer.process.tier.close()
    reader = store.process()
    list(reader.tier.list(BROKER))
    assert len([r for r in reader.client.requests if "LIST" in r]) <= 100
    heir = Gathering(store, group_bytes=10_000)
    for _ in range(2):
        heir.keep(store)
    heir.process.client.requests.clear()
    heir.keep(store)
    assert len([r for r in heir.process.client.requests if "LIST" in r]) <= 2


@pytest.mark.parametrize("settings", [{}, {"split_bytes": 1}])
def test_damaged_bytes_keep_nothing_else_where_it_is(
    store: Store, settings: dict[str, int]
) -> None:
    writer = Gathering(store, **settings)
    for _ in range(3):
        writer.write(*TOPICS)
    damaged = group_keys(store)[1]
    [info] = store.first.list(damaged)
    whole = bytes(store.first.get_range(damaged, 0, info.size_bytes) or b"")
    flip(store, damaged, whole.index(b"B" + TEXT))
    assert attempt(lambda: writer.keep(store, GRACE_MS + REGROUP_MS)) == "ExtentsDamaged"
    assert attempt(lambda: writer.keep(store, GRACE_MS + REGROUP_MS)) == "ExtentsDamaged"
    assert levels(store) == ("0" if settings else "01")
    assert damaged in group_keys(store)
    for topic in "AC":
        assert read_queue(store, topic) == content(topic, 3)
    assert read_behind(store, "B", 22) == b"B" + TEXT
    # It is reported ever more rarely
    told = [attempt(lambda: writer.keep(store)) for _ in range(48)]
    assert "ExtentsDamaged" in told
    assert told.count("ExtentsDamaged") < 8
    assert damaged in group_keys(store)


def test_a_run_that_somebody_cut_short_keeps_no_other_queue_in_its_groups(store: Store) -> None:
    writer = Gathering(store, split_age_ms=0)
    writer.write(*TOPICS)
    client, make = writer.process.client, writer.process.client._make
    cut: list[str] = []

    def make_short(key: str, content: bytes, metadata: Mapping[str, str]) -> bool:
        if "/m." in key and not cut:
            cut.append(key)
            make(key, content[:-1], metadata)
            raise Unavailable(f"{key}: no reply")
        return make(key, content, metadata)

    client._make = make_short  # type: ignore[method-assign]
    assert attempt(lambda: writer.keep(store)) == "Corrupt"
    others = [topic for topic in TOPICS if f"/{topic}/" not in cut[0]]
    assert len(others) == 2
    for topic in others:
        assert [name[0] for name in store.names(queue_ids(topic)[0])] == ["m"]
    for _ in range(3):
        assert attempt(lambda: writer.keep(store, GRACE_MS + REGROUP_MS)) == ""
    assert levels(store) == ""
    for topic in TOPICS:
        assert read_queue(store, topic) == content(topic, 1)


class TestGroupsOfDeletedTopicsAlone:
    """Tests of groups of deleted topics that a killed writer left. Its successors write no
    groups."""

    def leave_deleted(self, store: Store) -> None:
        writer = Gathering(store)
        writer.write("A")
        for id in queue_ids("A"):  # noqa: A001
            writer.segment(id).delete()
        assert levels(store) == "0"

    def test_the_heir_collects_them(self, store: Store) -> None:
        self.leave_deleted(store)
        heir = Gathering(store, group_bytes=0)
        assert levels(store) == "0"
        assert heir.process.tier.run_maintenance().deleted_count > 0
        assert levels(store) == ""

    def test_what_comes_late_goes_with_a_later_sweep(self, store: Store) -> None:
        late = Gathering(store)
        late.write("A")
        for id in queue_ids("A"):  # noqa: A001
            late.segment(id).delete()
        late.take("B", b"late", b"22")
        heir = Gathering(store, group_bytes=0)
        heir.process.tier.run_maintenance()
        assert levels(store) == ""
        assert attempt(late.epoch.confirm) == "Fenced"
        assert levels(store) == "0"
        heir.process.tier.run_maintenance()
        assert levels(store) == ""

    def test_groups_that_are_needed_stay(self, store: Store) -> None:
        writer = Gathering(store)
        writer.write("A", "B")
        for id in queue_ids("A"):  # noqa: A001
            writer.segment(id).delete()
        heir = Gathering(store, group_bytes=0)
        heir.process.tier.run_maintenance()
        assert levels(store) == "0"
        assert read_queue(store, "B") == content("B", 1)

    def test_a_group_with_bytes_that_are_in_a_hole_stays(self, store: Store) -> None:
        writer = Gathering(store)
        log, _ = queue_ids("A")
        assert writer.segment(log).write(0, [b"first"]) == Written(5)
        writer.ends[log] = 5
        writer.write("A")
        assert writer.segment(log).write(16, [b"last"]) == Written(20)
        [group] = group_keys(store)
        damage_index(store, group)
        heir = Gathering(store, group_bytes=0)
        heir.process.tier.run_maintenance()
        damage_index(store, group)  # somebody put it back
        heir = Gathering(store, group_bytes=0)
        heir.process.tier.run_maintenance()
        assert read_behind(store, "A", 16) == b"last"
        assert group_keys(store) == [group]

    def test_who_lost_the_epoch_collects_nothing(self, store: Store) -> None:
        Gathering(store, group_bytes=0).write("A")
        former = Gathering(store, group_bytes=0)
        Gathering(store).write("B")
        assert attempt(former.process.tier.run_maintenance) == "Fenced"
        assert levels(store) == "0"


class TestLostInheritance:
    """Tests of a lost epoch manifest whose epoch wrote only groups."""

    def lose_inheritance(self, store: Store, number: int) -> None:
        [key] = [i.key for i in store.first.list("") if f"/.inherited/{number:020d}" in i.key]
        store.first.delete([key])

    @pytest.mark.parametrize("before", [None, 0, 1_000])
    def test_readers_and_heirs_are_told(self, store: Store, before: int | None) -> None:
        if before is not None:
            Gathering(store, group_bytes=before).write("A")
        Gathering(store).write("B")
        number = 1 if before is None else 2
        self.lose_inheritance(store, number)
        told = f"epoch {number} has written, and its manifest is missing"
        with pytest.raises(Corrupt, match=told):
            list(store.process().tier.list(BROKER))
        with pytest.raises(Corrupt, match=told):
            store.process().open(queue_ids("A")[0]).size()
        with pytest.raises(Corrupt, match=told):
            Gathering(store, group_bytes=0)
        assert len(list_groups(store)) >= 1


def test_what_is_deleted_while_its_group_cannot_be_read_does_not_come_back(store: Store) -> None:
    writer = Gathering(store)
    writer.write("A", "B")
    writer.epoch.release()
    writer = Gathering(store)  # which uses the shutdown snapshot, and reads no group
    [group] = group_keys(store)
    damage_index(store, group)
    for id in queue_ids("A")[::-1]:  # noqa: A001 - the contract's name
        writer.segment(id).delete()
    damage_index(store, group)  # it was so for a while
    assert read_queue(store, "A") == (b"", b"")
    successor = Gathering(store)
    assert not [id for id in successor.ends if id in queue_ids("A")]  # noqa: A001
    assert read_queue(store, "B") == (b"B" + TEXT, b"01")
