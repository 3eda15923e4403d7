"""Tests of an epoch's shutdown snapshot and of writers that use it."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.kit.chunks import LOG, UNITS, Process, Store
from tests.kit.object_faults import ObjectFault
from tieredstore.contracts.segment import FileSegmentType, SegmentId, SegmentListing, Written
from tieredstore.errors import Corrupt, Fenced, TieredStoreError, Unavailable
from tieredstore.providers.chunks.epochs.epoch import ChunkWriterEpoch
from tieredstore.providers.chunks.manifests.epoch_manifest import (
    EpochManifestName,
    parse_epoch_manifest_name,
    snapshot_name,
)
from tieredstore.providers.chunks.manifests.extents import Extent
from tieredstore.providers.chunks.manifests.names import Generation
from tieredstore.providers.chunks.manifests.segment_manifest import Garbage, SegmentManifest
from tieredstore.providers.chunks.manifests.shutdown_snapshot import (
    ShutdownSnapshot,
    decode_snapshot,
    encode_snapshot,
)

FAIL, LOSE = ObjectFault.FAIL, ObjectFault.LOSE_REPLY
HEIR_OF_A_STOP = ["LIST", "GET", "LIST", "PUT"]
"""Requests of the next writer after a clean stop. This writer lists the last epoch, gets the
shutdown snapshot, checks that the epoch is still the last one, and puts the new epoch manifest."""
WITH_A_LISTING = ["LIST", "GET", "GET", "LIST", "LIST", "LIST", "PUT"]
"""Requests of the next writer after a clean stop, if it must list one segment. In addition to
HEIR_OF_A_STOP, it gets the last epoch's manifest, and lists the segment and the groups."""
AFTER_A_CRASH = ["LIST", "GET", "GET", "LIST", "LIST", "PUT"]
"""Requests of the next writer after a crash. There is no snapshot, so everything is listed."""

generations = st.builds(Generation, st.integers(0, 9_999_999_999), st.integers(0, 9_999_999_999))
sizes = st.integers(0, 2**63 - 1)
names = st.builds(lambda generation, start: generation.name(f"c.{start:020d}"), generations, sizes)
manifests = st.builds(
    SegmentManifest,
    st.lists(st.builds(Extent, sizes, sizes, names, sizes, st.integers(-1, 99)), max_size=4).map(
        tuple
    ),
    st.booleans(),
    st.booleans(),
    st.lists(st.builds(Garbage, names, sizes), max_size=3).map(tuple),
    epoch=st.just(7),
    born=st.none() | generations,
)
segment_ids = st.builds(
    SegmentId,
    st.sampled_from(["b/T/0", "b/T/10", "b/%RETRY%g/1", "b/é/2"]),
    st.sampled_from(FileSegmentType),
    sizes,
)


@pytest.fixture
def store() -> Store:
    return Store()


def take(process: Process) -> ChunkWriterEpoch:
    return process.tier.acquire_writer("broker-a", take_over=True)


def begin(process: Process) -> dict[SegmentId, SegmentListing]:
    """Take over the epoch and list the tier, like a starting broker."""
    process.take_over()
    return {found.id: found for found in process.tier.list("broker-a")}


def written_and_stopped(store: Store, *pieces: bytes) -> Process:
    first = store.process()
    epoch = take(first)
    first.append(*pieces or (b"abc", b"def"))
    epoch.release()
    return first


@given(st.dictionaries(segment_ids, manifests, max_size=8), st.integers(1, 2_000))
def test_what_is_left_is_read(tier: dict[SegmentId, SegmentManifest], shard_bytes: int) -> None:
    unsure = (SegmentId("b/T/3", FileSegmentType.INDEX, 5),)
    objects = list(encode_snapshot(7, ShutdownSnapshot(tier, unsure), shard_bytes))
    assert objects[-1][0] == snapshot_name(7)  # what makes the others count is made last
    found = decode_snapshot(7, dict(objects).get)
    assert found is not None
    assert (found.manifests, found.unsure) == (tier, unsure)
    for segment_id, manifest in tier.items():
        read = found.manifests[segment_id]
        assert (read.epoch, read.born) == (7, manifest.born)


def test_names() -> None:
    assert parse_epoch_manifest_name(snapshot_name(7)) == EpochManifestName(7, is_main=False)
    assert parse_epoch_manifest_name(snapshot_name(7, 3)) == EpochManifestName(7, is_main=False)


def pack(**content: object) -> bytes:
    return zlib.compress(msgspec.json.encode(content))


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"no zlib",
        zlib.compress(b"no JSON"),
        zlib.compress(b"{}"),
        pack(format=2, epoch=6, segments=[]),
        pack(format=4, epoch=7, segments=[]),
        pack(format=2, epoch=7, shards=1),
        pack(format=2, epoch=7, segments=[["b/T/0", 9, 0, False, False, None, [], []]]),
        pack(format=2, epoch=7, segments=[["b/T/0", 0, 0, False, False, None, [[1]], []]]),
    ],
)
def test_what_cannot_be_read_is_no_offer(content: bytes) -> None:
    assert decode_snapshot(7, {snapshot_name(7): content}.get) is None


# A stop, and the next start


def test_a_start_after_a_stop_lists_no_segment(store: Store) -> None:
    written_and_stopped(store)
    heir = store.process()
    listings = begin(heir)
    assert heir.operations() == HEIR_OF_A_STOP
    assert listings[LOG].size_bytes == 6
    assert heir.tier.open(LOG, listings[LOG]).write(6, [b"ghi"]) == Written(9)
    assert heir.operations() == ["PUT"]  # the snapshot has its end
    assert store.process().content() == b"abcdefghi"


def test_a_start_after_a_crash_lists_all(store: Store) -> None:
    store.process().take_over().append(b"abc", b"def")
    heir = store.process()
    assert begin(heir)[LOG].size_bytes == 6
    assert heir.operations() == AFTER_A_CRASH


def test_what_is_left_is_what_a_listing_shows(store: Store) -> None:
    """A shutdown snapshot equals a listing of the tier."""
    others = [SegmentId(f"broker-a/TopicA/{queue}", LOG.type, 0) for queue in range(1, 6)]
    first = store.process()
    epoch = take(first)
    for other in others:
        first.append(b"old" * 3, b"x", id=other)
    epoch.release()

    second = store.process()
    epoch = take(second)
    untouched, sealed, deleted, again, only_read = others
    second.append(*[b"0123456789"] * 9)
    second.tier.run_maintenance(sweep=False)
    second.append(b"!")
    second.open(sealed).seal()
    second.open(deleted).delete()
    second.open(again).delete()
    second.append(b"new", id=again)
    second.append(b"units" * 4, id=UNITS)
    assert second.content(only_read) == b"old" * 3 + b"x"
    epoch.release()

    left = read_chains(begin_of_heir(store).values())
    assert set(left) == {LOG, UNITS, untouched, sealed, again, only_read}
    assert left == read_chains(store.process().tier.list("broker-a"))
    assert any(manifest.garbage for manifest in left.values())


def read_chains(listings: Iterable[SegmentListing]) -> dict[SegmentId, SegmentManifest]:
    """Return the segment manifests of a listing. Tombstones and markers of former epochs are not
    included in the garbage, because sweeps delete them."""
    manifests = {}
    for found in listings:
        assert isinstance(found.token, SegmentManifest)
        left_to_sweeps = ("/t", f"/c.{found.size_bytes:020d}")
        garbage = [item for item in found.token.garbage if not item.name.endswith(left_to_sweeps)]
        manifests[found.id] = replace(found.token, garbage=tuple(sorted(garbage)))
    return manifests


def begin_of_heir(store: Store) -> dict[SegmentId, SegmentListing]:
    heir = store.process()
    listings = begin(heir)
    assert heir.operations() == HEIR_OF_A_STOP
    return listings


def test_an_heir_collects_what_was_left_as_garbage(store: Store) -> None:
    first = store.process(grace_ms=10**9)
    epoch = take(first)
    first.append(*[b"0123456789"] * 20)
    first.tier.run_maintenance(sweep=False)
    epoch.release()
    before = len(store.names())
    heir = store.process(grace_ms=0)
    begin(heir)
    heir.tier.run_maintenance(sweep=False)
    assert len(store.names()) < before
    assert store.process().content() == b"0123456789" * 20


def test_behind_an_epoch_that_said_nothing_an_heir_lists(store: Store) -> None:
    """A writer lists the tier if the previous epoch has no shutdown snapshot."""
    written_and_stopped(store)
    take(store.process()).release()
    take(store.process())  # and this one is killed
    heir = store.process()
    assert begin(heir)[LOG].size_bytes == 6
    assert heir.operations() == ["LIST", "GET", "LIST", "LIST", "PUT"]


def test_an_epoch_whose_inheritance_is_lost_is_not_passed_over(store: Store) -> None:
    written_and_stopped(store)
    second = store.process()
    epoch = take(second)
    second.append(b"x" * 4)
    epoch.release()
    lost = f"/.inherited/{epoch.number:020d}"
    store.first.delete([info.key for info in store.first.list("") if lost in info.key])
    with pytest.raises(Corrupt, match="Restore this object"):
        begin(store.process())


def test_an_epoch_that_only_listed_leaves_what_it_found(store: Store) -> None:
    written_and_stopped(store)
    second = store.process()
    epoch = take(second)
    list(second.tier.list("broker-a"))
    epoch.release()
    heir = store.process()
    assert begin(heir)[LOG].size_bytes == 6
    assert heir.operations() == HEIR_OF_A_STOP


def test_what_an_epoch_left_before_the_last_that_wrote_is_nobodys(store: Store) -> None:
    written_and_stopped(store)
    store.process().take_over().append(b"ghi")  # and killed
    heir = store.process()
    assert begin(heir)[LOG].size_bytes == 9
    assert heir.operations() == AFTER_A_CRASH


def test_the_next_epoch_deletes_what_the_one_before_has_left(store: Store) -> None:
    written_and_stopped(store)
    heir = store.process().take_over()
    heir.append(b"ghi")
    heir.tier.run_maintenance()
    folder = "212d6b50_DefaultCluster/broker-a/.inherited/"
    left = [info.key.removeprefix(folder).lstrip("0") for info in store.first.list(folder)]
    assert left == ["2"]


# The content is not known


def fail_to_append(process: Process) -> None:
    process.client.fault_of = lambda operation, key: (
        LOSE
        if operation == "PUT" and "/COMMIT_LOG/" in key
        else FAIL
        if operation in {"HEAD", "LIST"} and "/COMMIT_LOG/" in key
        else None
    )
    process.open().write(6, [b"ghi"])


def fail_to_delete(process: Process) -> None:
    process.client.fault_of = lambda operation, key: (
        FAIL if operation in {"PUT", "LIST"} and "/COMMIT_LOG/" in key else None
    )
    process.open().delete()


def fail_to_merge(process: Process) -> None:
    process.append(*[b"0123456789"] * 12)
    process.client.fault_of = lambda operation, key: (
        LOSE
        if operation == "PUT" and "/m." in key
        else FAIL
        if operation == "LIST" and "/COMMIT_LOG/" in key
        else None
    )
    assert process.tier.run_maintenance(sweep=False).failed_count == 1


@pytest.mark.parametrize("fail", [fail_to_append, fail_to_delete, fail_to_merge])
def test_w08_a_segment_whose_last_request_got_no_answer_is_listed(
    store: Store, fail: Callable[[Process], None]
) -> None:
    first = store.process()
    epoch = take(first)
    first.append(b"abc", b"def")
    first.append(b"units" * 4, id=UNITS)
    with suppress(Unavailable):
        fail(first)
    first.client.fault_of = lambda *_: None
    epoch.release()
    heir = store.process()
    listings = begin(heir)
    assert heir.operations() == WITH_A_LISTING
    assert read_chains(listings.values()) == read_chains(store.process().tier.list("broker-a"))


def test_a_write_that_was_answered_at_last_is_known(store: Store) -> None:
    first = store.process()
    epoch = take(first)
    first.append(b"abc")
    puts = [LOSE, None]
    first.client.fault_of = lambda operation, _: puts.pop(0) if operation == "PUT" else None
    first.append(b"def")
    first.client.fault_of = lambda *_: None
    epoch.release()
    heir = store.process()
    assert begin(heir)[LOG].size_bytes == 6
    assert heir.operations() == HEIR_OF_A_STOP


def test_where_much_is_not_known_nothing_is_left(store: Store) -> None:
    first = store.process()
    epoch = take(first)
    queues = [SegmentId(f"broker-a/TopicA/{queue}", LOG.type, 0) for queue in range(40)]
    segments = [first.append(b"abc", id=queue) for queue in queues]
    first.client.fault_of = lambda operation, key: FAIL if "/COMMIT_LOG/" in key else None
    for segment in segments:
        segment.write(3, [b"def"])
    first.client.fault_of = lambda *_: None
    epoch.release()
    heir = store.process()
    assert len(begin(heir)) == 40
    assert heir.operations() == AFTER_A_CRASH


@pytest.mark.parametrize("fault", [FAIL, LOSE])
def test_a_stop_whose_last_word_gets_no_answer_is_a_stop(store: Store, fault: ObjectFault) -> None:
    first = store.process()
    epoch = take(first)
    first.append(b"abc", b"def")
    first.client.fault_of = lambda _, key: fault if key.endswith(".left") else None
    epoch.release()
    heir = store.process("heir")
    assert heir.tier.acquire_writer("broker-a").number == 2  # it is released
    heir.operations()
    assert [found.size_bytes for found in heir.tier.list("broker-a")] == [6]
    assert heir.operations() == (HEIR_OF_A_STOP if fault is LOSE else AFTER_A_CRASH)


def test_an_epoch_with_helpers_leaves_nothing(store: Store) -> None:
    """An epoch with helper processes writes no shutdown snapshot, because its owner does not know
    the helpers' objects."""
    first = store.process()
    epoch = take(first)
    epoch.expect_helpers()
    list(first.tier.list("broker-a"))
    helper = store.process()
    helper.tier.help_writer("broker-a", epoch.number)
    helper.append(b"abc")
    epoch.confirm()
    epoch.release()
    assert begin(store.process())[LOG].size_bytes == 3


def test_a_writer_that_lost_its_right_leaves_nothing(store: Store) -> None:
    first = store.process()
    epoch = take(first)
    first.append(b"abc")
    store.process().take_over()
    with pytest.raises(TieredStoreError):
        epoch.confirm()
    first.operations()
    epoch.release()
    assert first.operations() == []


# The remembered and the real content agree


def test_w03_a_listing_from_before_a_deletion_is_not_remembered(store: Store) -> None:
    """A listing made before a deletion is not cached. Otherwise a snapshot would contain deleted
    segments."""
    writer = store.process()
    epoch = take(writer)
    segment = writer.append(b"abc")
    (old,) = writer.tier.list("broker-a")
    segment.delete()
    writer.tier.open(LOG, old).seal()
    epoch.release()
    (found,) = begin_of_heir(store).values()
    assert (found.size_bytes, found.sealed) == (0, True)


def test_w03_a_listing_while_a_segment_is_deleted_is_not_remembered(store: Store) -> None:
    writer = store.process(grace_ms=0)
    epoch = take(writer)
    segment = writer.append(b"abc")
    reply = writer.client.reply

    def look_and_stop(operation: str, key: str) -> None:
        reply(operation, key)
        writer.client.reply = reply  # type: ignore[method-assign]
        assert writer.tier.open(LOG).size() == 3
        epoch.release()

    writer.client.reply = look_and_stop  # type: ignore[method-assign]
    with pytest.raises(Fenced, match="released"):
        segment.delete()
    heir = store.process()
    begin(heir)
    assert heir.operations() == WITH_A_LISTING
