"""Tests of reads while epochs begin and end."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.kit.chunks import GRACE_MS, LOG, UNITS, Process, Store
from tests.kit.object_faults import ObjectFault
from tieredstore.contracts.segment import FileSegmentType, SegmentId, Written
from tieredstore.errors import Corrupt, Fenced, Unavailable
from tieredstore.providers.chunks.manifests import epoch_manifest
from tieredstore.providers.chunks.manifests.generations import EpochGenerations
from tieredstore.providers.chunks.manifests.names import Generation, chunk_name

FAIL, LOSE, SHORT = ObjectFault.FAIL, ObjectFault.LOSE_REPLY, ObjectFault.SHORT


@pytest.fixture
def store() -> Store:
    return Store()


def before_request(process: Process, number: int, act: Callable[[], object]) -> None:
    """Call `act` before the n-th of the following requests."""
    request = process.client.request
    wanted = len(process.client.requests) + number

    def send(operation: str, key: str) -> None:
        request(operation, key)
        if len(process.client.requests) == wanted:
            act()

    process.client.request = send  # type: ignore[method-assign]


@pytest.mark.parametrize("number", [1, 2, 3])
def test_a_reader_starts_over_when_the_inheritance_changes(store: Store, number: int) -> None:
    """A reader restarts when the epoch manifest changes, because the new writer deletes the
    inherited objects after merging them."""
    store.process().take_over().append(b"abc", b"def", b"ghi", b"jkl")
    writer = store.process(grace_ms=0).take_over()
    reader = store.process()

    def take_over() -> None:
        writer.append(b"mno")
        writer.tier.run_maintenance()

    before_request(reader, number, take_over)
    assert reader.content() == b"abcdefghijklmno"
    assert {generation.epoch for generation in store.generations()} == {2}


def test_a_reader_that_knows_the_inheritance_pays_one_look(store: Store) -> None:
    store.process().take_over().append(b"abc")
    reader = store.process()
    assert reader.content() == b"abc"
    reader.operations()
    reader.open().size()
    assert reader.operations() == ["LIST", "LIST"]


def test_a_writer_pays_a_look_at_its_epoch(store: Store) -> None:
    writer = store.process().take_over()
    segment = writer.append(b"abc")
    writer.operations()
    assert segment.size() == 3
    assert writer.operations() == ["LIST", "HEAD"]


def test_writers_that_change_all_the_time_are_told_of(store: Store) -> None:
    store.process().take_over().append(b"abc")
    reader = store.process()
    request = reader.client.request

    def change(operation: str, key: str) -> None:
        request(operation, key)
        if operation == "LIST" and "/COMMIT_LOG/" in key:
            store.process().take_over().append(b"x")

    reader.client.request = change  # type: ignore[method-assign]
    with pytest.raises(Unavailable, match="writers change faster"):
        reader.open().size()


def test_a_former_writer_reads_what_its_successor_merged(store: Store) -> None:
    zombie = store.process().take_over()
    segment = zombie.append(b"abc", b"def", b"ghi", b"jkl")
    winner = store.process(grace_ms=0).take_over()
    winner.append(b"mno")
    winner.tier.run_maintenance()
    assert bytes(segment.read(0, 12)) == b"abcdefghijkl"
    assert bytes(zombie.tier.open(LOG).read(0, 15)) == b"abcdefghijklmno"


def delete(process: Process) -> None:
    process.open().delete()


def delete_and_die(process: Process) -> None:
    """Delete a segment, but keep its first object, as if the process had been killed. That object
    is deleted last."""
    delete(process)
    heir = process.store.process().take_over()
    heir.tier.run_maintenance()
    store = process.store.first
    left = [info.key for info in store.list(f"{process.store.folder()}/")]
    store.delete(left)
    store.put_if_absent(
        process.store.folder() + "/" + Generation(1, 1).name(chunk_name(0)), [b"abc"], {}
    )


def delete_and_make_again(process: Process) -> None:
    delete(process)
    process.append(b"n", b"e", b"w")


def merge_and_collect(process: Process) -> None:
    process.append(b"m", b"n", b"o", b"p")
    process.tier.run_maintenance()


@pytest.mark.parametrize(
    "change", [delete, delete_and_die, delete_and_make_again, merge_and_collect]
)
def test_a_former_writer_lists_what_any_reader_does(
    store: Store, change: Callable[[Process], None]
) -> None:
    zombie = store.process("zombie").take_over()
    segment = zombie.append(b"abc", b"def", b"ghi", b"jkl")
    change(store.process("successor", grace_ms=0).take_over())
    expected = [(found.id, found.size_bytes) for found in store.process().tier.list()]
    assert [(found.id, found.size_bytes) for found in zombie.tier.list()] == expected
    assert segment.size() == sum(size for _, size in expected)
    assert zombie.content() == store.process().content()
    with pytest.raises(Fenced, match="successor"):
        segment.write(12, [b"late"])
    with pytest.raises(Fenced, match="successor"):
        segment.seal()


@pytest.mark.parametrize("faults", [(LOSE,), (FAIL,), (LOSE, FAIL, LOSE)])
def test_o03_an_inheritance_whose_reply_was_lost_is_sent_again(
    store: Store, faults: tuple[ObjectFault, ...]
) -> None:
    store.process().append(b"abc")
    writer = store.process().take_over()
    writer.fail_next(None, None, None, *faults)
    assert [found.size_bytes for found in writer.tier.list("broker-a")] == [3]
    assert writer.append(b"def").size() == 6


def test_o03_what_was_sent_once_is_never_changed(store: Store) -> None:
    """A writer never changes an epoch manifest that it has tried to send, even if the request
    seemed to fail."""
    late = store.process().append(b"abc")
    writer = store.process().take_over()
    writer.fail_next(None, None, None, LOSE, FAIL, FAIL, FAIL)
    with pytest.raises(Unavailable, match="the epoch manifest was not written"):
        writer.tier.list("broker-a")
    assert late.write(3, [b"late"]) == Written(7)
    assert [found.size_bytes for found in writer.tier.list("broker-a")] == [3]
    assert store.process().content() == b"abc"


def test_an_epoch_that_was_taken_over_before_it_inherits_is_told(store: Store) -> None:
    first = store.process("first").take_over()
    store.process("second").take_over().append(b"abc")
    with pytest.raises(Fenced, match="epoch 2 has written"):
        first.open().write(0, [b"x"])
    assert store.process().content() == b"abc"


def test_o05_an_inheritance_that_comes_in_pieces_is_read(store: Store) -> None:
    store.process().take_over().append(b"abc")
    reader = store.process()
    reader.fail_next(None, SHORT, FAIL, SHORT)
    assert reader.content() == b"abc"
    assert reader.operations().count("GET") >= 4


def test_o09_a_damaged_inheritance_is_told(store: Store) -> None:
    store.process().take_over().append(b"abc")
    [key] = [info.key for info in store.first.list("") if "/.inherited/" in info.key]
    content = store.first.get_range(key, 0, 1_000)
    assert content is not None
    store.first.delete([key])
    store.first.put_if_absent(key, [content[:-2]], {})
    with pytest.raises(Corrupt, match="ends after"):
        store.process().open().size()


def find_inheritances(store: Store) -> list[str]:
    return [info.key for info in store.first.list("") if "/.inherited/" in info.key]


def delete_inheritances(store: Store) -> None:
    store.first.delete(find_inheritances(store))


def delete_newest_inheritance(store: Store) -> None:
    """Delete the newest epoch manifest, which may be missing in a replica of a bucket."""
    store.first.delete([max(find_inheritances(store))])


@pytest.mark.parametrize("lose", [delete_inheritances, delete_newest_inheritance])
def test_o09_a_tier_whose_inheritance_is_lost_is_not_taken_for_an_empty_one(
    store: Store, lose: Callable[[Store], None]
) -> None:
    """A tier without its epoch manifest is not treated as empty."""
    store.process().take_over().append(b"abc", b"def")
    writer = store.process(grace_ms=0).take_over()
    writer.append(b"ghi")
    lose(store)
    before = store.names()
    for read in (Process.content, lambda process: process.tier.list()):
        with pytest.raises(Corrupt, match=r"\.inherited/0+2: epoch 2 has written"):
            read(store.process())
    heir = store.process(grace_ms=0).take_over()
    with pytest.raises(Corrupt, match="epoch 2 has written"):
        heir.append(b"xyz")
    with pytest.raises(Corrupt, match="epoch 2 has written"):
        heir.tier.run_maintenance()
    assert store.names() == before


def test_o09_an_inheritance_that_is_gone_is_put_back_by_its_epoch(store: Store) -> None:
    store.process().take_over().append(b"abc", b"def")
    writer = store.process().take_over()
    writer.append(b"ghi")
    delete_inheritances(store)
    writer.operations()
    writer.tier.run_maintenance()
    assert writer.operations().count("PUT") == 1
    assert store.process().content() == b"abcdefghi"
    writer.tier.run_maintenance()
    assert "PUT" not in writer.operations()


def test_o09_a_successor_that_has_deleted_an_inheritance_gets_no_other(store: Store) -> None:
    zombie = store.process().take_over()
    zombie.append(b"abc")
    heir = store.process().take_over()
    heir.append(b"def")
    heir.tier.run_maintenance()
    kept = find_inheritances(store)
    with pytest.raises(Fenced):
        zombie.tier._views.keep("broker-a")
    assert find_inheritances(store) == kept


def test_o09_a_part_of_an_inheritance_that_is_lost_is_told(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(epoch_manifest.encode_epoch_manifest, "__defaults__", (300,))
    ids = [SegmentId(f"broker-a/T/{n}", FileSegmentType.COMMIT_LOG, 0) for n in range(20)]
    former = store.process().take_over()
    for segment_id in ids:
        former.append(b"x", id=segment_id)
    store.process().take_over().append(b"x", id=ids[3])
    [lost] = [key for key in find_inheritances(store) if key.endswith("2.000001")]
    store.first.delete([lost])
    with pytest.raises(Corrupt, match=r"0+2\.000001: a part of the manifest of epoch 2"):
        store.process().tier.list()
    assert store.process().content(ids[0]) == b"x"  # of another part


@pytest.mark.parametrize("content", [b"", b"junk", b"\x78\x9c\x03"])
def test_o09_what_is_no_inheritance_is_named(store: Store, content: bytes) -> None:
    store.process().take_over().append(b"abc")
    [key] = find_inheritances(store)
    other = f"{key[:-1]}7"
    store.first.put_if_absent(other, [content], {})
    with pytest.raises(Corrupt) as raised:
        store.process().content()
    assert raised.value.path == other


@pytest.mark.parametrize(
    "topic", ["..", ".x", "a\nb", "a\0", "x" * 256, "\\"], ids=lambda name: ascii(name[:4])
)
def test_objects_of_no_possible_topic_are_left_alone(store: Store, topic: str) -> None:
    """Objects with invalid topic names are ignored by maintenance."""
    store.process().take_over().append(b"abc")
    strange = store.folder().replace("TopicA", topic) + "/" + Generation(1, 9).name(chunk_name(0))
    store.first.put_if_absent(strange, [b"x"], {})
    assert [found.id for found in store.process().tier.list()] == [LOG]
    writer = store.process(grace_ms=0).take_over()
    writer.append(b"d", b"e", b"f", b"g")
    assert writer.tier.run_maintenance().merged_count == 1
    assert store.first.head(strange) is not None


@pytest.mark.parametrize("name", ["", "broker", "a", "README.txt", "a_$folder$"])
def test_an_object_beside_the_brokers_hides_none(store: Store, name: str) -> None:
    """An object next to the brokers' folders does not hide a broker. In key order, `broker-a`
    precedes `broker0`."""
    store.process().take_over().append(b"abc")
    folder = store.folder().partition("/")[0]
    store.first.put_if_absent(f"{folder}/{name}", [b"x"], {})
    assert [found.id for found in store.process().tier.list()] == [LOG]


def test_a_large_inheritance_is_cut_and_read_in_part(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(epoch_manifest.encode_epoch_manifest, "__defaults__", (300,))
    ids = [SegmentId(f"broker-a/T/{n}", FileSegmentType.COMMIT_LOG, 0) for n in range(20)]
    former = store.process().take_over()
    for number, segment_id in enumerate(ids):
        former.append(b"%d" % number, id=segment_id)
    heir = store.process().take_over()
    heir.append(b"x", id=ids[3])
    reader = store.process()
    assert reader.content(ids[17]) == b"17"
    assert reader.operations().count("GET") == 3  # the names of the shards, one of them, the bytes
    assert len(list(reader.tier.list())) == 20
    assert reader.content(ids[3]) == b"3x"


def test_all_brokers_are_listed_each_in_its_view(store: Store) -> None:
    names = ["broker-a", "broker-a0", "broker-a-1", "broker", "%b"]
    for broker in names:
        process = store.process()
        process.tier.acquire_writer(broker)
        for _ in range(2):
            process.append(b"abc", id=SegmentId(f"{broker}/T/0", FileSegmentType.COMMIT_LOG, 0))
    found = list(store.process().tier.list())
    assert sorted(listing.id.path.partition("/")[0] for listing in found) == sorted(names)
    assert {listing.size_bytes for listing in found} == {6}


def test_a_deleted_topic_is_swept_whoever_is_late(store: Store) -> None:
    first = store.process().take_over()
    late = first.append(b"abc", id=UNITS)
    writer = store.process().take_over()
    writer.open(UNITS).delete()
    late.write(3, [b"late"])
    assert list(store.process().tier.list()) == []
    store.clock.advance(GRACE_MS)
    assert writer.tier.run_maintenance().deleted_count == 1
    assert store.names(UNITS) == ["t"]


def test_no_sequence_number_serves_twice() -> None:
    own = EpochGenerations(3)
    first = own.take(LOG)
    assert own.take(LOG) == first
    assert own.has(LOG)
    made = [first, own.make(), own.take(UNITS)]
    own.leave(LOG)
    assert own.has(LOG)
    own.leave(LOG, unsure=True)
    assert own.has(LOG)
    made.append(own.take(LOG))
    own.forget(LOG)
    assert not own.has(LOG)
    made.append(own.take(LOG))
    assert made == sorted(set(made))
    assert {generation.epoch for generation in made} == {3}
