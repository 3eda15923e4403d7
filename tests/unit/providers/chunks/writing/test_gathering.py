"""Tests of writing the commits of many queues in one object: cost, replies and late requests."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest

from tests.kit.chunks import GRACE_MS, Store
from tests.kit.gathered import (
    BROKER,
    GROUP_BYTES,
    REGROUP_MS,
    Gathering,
    attempt,
    list_groups,
    queue_ids,
    read_queue,
)
from tests.kit.object_faults import ObjectFault
from tieredstore.contracts.segment import Companion, SegmentListing, Written
from tieredstore.errors import Fenced, Unavailable
from tieredstore.providers.chunks.manifests.groups import Group, make_group
from tieredstore.providers.chunks.writing import gathering

BUSY, FAIL, LOSE = ObjectFault.BUSY, ObjectFault.FAIL, ObjectFault.LOSE_REPLY
TEXT = b"0123456789"
A, B = (b"A" + TEXT, TEXT[:2]), (b"B" + TEXT, TEXT[:2])


@pytest.fixture
def store() -> Store:
    return Store()


@pytest.fixture
def writer(store: Store) -> Gathering:
    return Gathering(store)


def test_commits_of_queues_are_one_request_and_a_look(store: Store, writer: Gathering) -> None:
    writer.write("A", "B", "C")
    assert writer.process.operations() == ["PUT", "HEAD"]
    writer.write("A", "C")
    assert writer.process.operations() == ["PUT", "HEAD"]
    assert read_queue(store, "A") == (A[0] * 2, A[1] * 2)
    assert read_queue(store, "B") == B


def test_nothing_is_asked_for_before_the_confirmation(store: Store, writer: Gathering) -> None:
    writer.take("A", *A)
    assert writer.process.operations() == []
    assert list_groups(store) == []


def test_what_may_not_wait_is_stored_at_once(store: Store, writer: Gathering) -> None:
    log, queue = queue_ids("A")
    place = Companion(writer.segment(queue), 0, [A[1]])
    assert writer.segment(log).write_with(0, [A[0]], place) == (Written(11), Written(2))
    assert read_queue(store, "A") == A


def test_without_groups_each_queue_is_written_by_itself(store: Store) -> None:
    writer = Gathering(store, group_bytes=0)
    writer.write("A", "B")
    assert writer.process.operations() == ["PUT", "PUT", "HEAD"]
    assert list_groups(store) == []


def test_what_is_taken_stays_within_bounds(store: Store, writer: Gathering) -> None:
    text = b"x" * (GROUP_BYTES - 2)
    for topic in "ABCDE":
        writer.take(topic, text, b"12")
    assert writer.process.operations() == ["PUT", "PUT"]  # two of them each, so far
    writer.epoch.confirm()
    assert all(read_queue(store, topic) == (text, b"12") for topic in "ABCDE")


def test_a_write_too_long_for_a_group_is_stored_by_itself(store: Store, writer: Gathering) -> None:
    text = b"x" * GROUP_BYTES
    writer.take("A", text, b"12")
    assert writer.process.operations() == ["PUT"]
    assert list_groups(store) == []
    assert read_queue(store, "A") == (text, b"12")


def test_two_commits_of_a_queue_are_two_groups(store: Store, writer: Gathering) -> None:
    writer.take("A", *A)
    writer.take("A", *A)
    writer.epoch.confirm()
    assert len(list_groups(store)) == 2
    assert read_queue(store, "A") == (A[0] * 2, A[1] * 2)


@pytest.mark.parametrize("fault", [LOSE, FAIL, BUSY])
def test_a_group_without_an_answer_is_sent_again_as_it_is(
    store: Store, writer: Gathering, fault: ObjectFault
) -> None:
    writer.take("A", *A)
    writer.take("B", *B)
    writer.process.fail_next(fault)
    writer.epoch.confirm()
    assert len(list_groups(store)) == 1
    assert read_queue(store, "A") == A
    writer.write("A", "B")
    assert read_queue(store, "B") == (B[0] * 2, B[1] * 2)


@pytest.mark.parametrize("fault", [LOSE, FAIL])
def test_it_counts_by_the_confirmation_that_succeeds(
    store: Store, writer: Gathering, fault: ObjectFault
) -> None:
    writer.take("A", *A)
    writer.process.fail_all(fault, ["PUT"])
    with pytest.raises(Unavailable):
        writer.epoch.confirm()
    with pytest.raises(Unavailable):
        writer.epoch.confirm()
    # Another queue is taken in the meantime, and does not overtake it
    writer.take("B", *B)
    writer.process.client.fault_of = None
    writer.epoch.confirm()
    assert read_queue(store, "A") == A
    assert read_queue(store, "B") == B
    assert [name[:2] for name in list_groups(store)] == ["0."] * 2


def test_who_confirms_while_a_group_is_made_waits_for_it(
    store: Store, writer: Gathering, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def make_slowly(*args: Any) -> Group:
        begun.set()
        assert go_on.wait(60)
        return make_group(*args)

    monkeypatch.setattr(gathering, "make_group", make_slowly)
    writer.take("A", *A)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(writer.epoch.confirm)
        assert begun.wait(60)
        second = pool.submit(writer.epoch.confirm)
        with pytest.raises(TimeoutError):
            second.result(0.1)
        go_on.set()
        first.result()
        second.result()
    assert writer.process.operations()[0] == "PUT"
    assert read_queue(store, "A") == A


def test_a_queue_goes_on_by_itself_once_its_group_is_stored(
    store: Store, writer: Gathering
) -> None:
    log, queue = queue_ids("A")
    writer.take("A", *A)
    assert writer.segment(log).write(11, [b"more"]) == Written(15)
    assert writer.segment(queue).write(2, [b"22"]) == Written(4)
    assert len(list_groups(store)) == 1
    assert read_queue(store, "A") == (A[0] + b"more", A[1] + b"22")
    writer.ends[log], writer.ends[queue] = 15, 4
    writer.write("A")
    assert read_queue(store, "A") == (A[0] + b"more" + A[0], A[1] + b"22" + A[1])


def test_a_write_behind_a_group_without_an_answer_is_refused(
    store: Store, writer: Gathering
) -> None:
    log, _ = queue_ids("A")
    writer.take("A", *A)
    writer.process.fail_all(FAIL, ["PUT"])
    with pytest.raises(Unavailable):
        writer.segment(log).write(11, [b"more"])
    with pytest.raises(Unavailable):
        writer.segment(log).seal()
    with pytest.raises(Unavailable):
        writer.segment(log).delete()
    writer.process.client.fault_of = None
    assert writer.segment(log).write(11, [b"more"]) == Written(15)
    assert read_queue(store, "A") == (A[0] + b"more", A[1])


@pytest.mark.parametrize("ends", ["stop", "keep"])
def test_a_listing_made_while_a_commit_waits_is_not_what_is_there(store: Store, ends: str) -> None:
    writer = Gathering(store, split_age_ms=0)
    writer.write("A")
    store.clock.advance(REGROUP_MS)
    writer.take("A", *A)
    # The segment manifest is unknown after a run without an answer
    writer.process.client.fault_of = lambda _, key: FAIL if "/m." in key else None
    assert attempt(lambda: writer.process.tier.run_maintenance(sweep=False)) == "Unavailable"
    writer.process.client.fault_of = None
    writer.segment(queue_ids("A")[0]).size()
    writer.epoch.confirm()
    if ends == "stop":
        writer.epoch.release()
        Gathering(store)
    else:
        writer.write("B")
        for _ in range(3):
            writer.keep(store, REGROUP_MS + GRACE_MS)
    assert read_queue(store, "A") == (A[0] * 2, A[1] * 2)


def test_what_is_taken_stays_so_where_no_group_can_be_made(
    store: Store, writer: Gathering, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> Group:
        raise MemoryError

    writer.take("A", *A)
    with monkeypatch.context() as patch:
        patch.setattr(gathering, "make_group", fail)
        with pytest.raises(MemoryError):
            writer.epoch.confirm()
    writer.take("B", *B)
    writer.epoch.confirm()
    assert read_queue(store, "A") == A
    assert read_queue(store, "B") == B


def test_a_queue_that_goes_on_in_other_segments_loses_nothing_that_waits(
    store: Store, writer: Gathering
) -> None:
    writer.take("A", *A)
    log, queue = (
        writer.process.tier.open(later, SegmentListing(later, 0))
        for later in (replace(former, base_offset=100) for former in queue_ids("A"))
    )
    place = Companion(queue, 0, [B[1]], may_wait=True)
    assert log.write_with(0, [B[0]], place) == (Written(11), Written(2))
    writer.epoch.confirm()
    assert read_queue(store, "A") == A
    assert bytes(store.process().content(log.id)) == B[0]


def test_a_sealed_segment_has_what_was_taken(store: Store, writer: Gathering) -> None:
    log, _ = queue_ids("A")
    writer.take("A", *A)
    writer.segment(log).seal()
    listed = {found.id: found for found in store.process().tier.list(BROKER)}
    assert (listed[log].size_bytes, listed[log].sealed) == (11, True)


def test_nothing_of_a_deleted_queue_comes_back(store: Store, writer: Gathering) -> None:
    writer.write("A", "B")
    for id in queue_ids("A")[::-1]:  # noqa: A001
        writer.segment(id).delete()
        writer.ends[id] = 0
    assert [found.id.path for found in store.process().tier.list(BROKER)] == [f"{BROKER}/B/0"] * 2
    writer.write("A", text=b"anew")
    assert read_queue(store, "A") == (b"Aanew", b"an")
    assert read_queue(store, "B") == B


def test_a_queue_in_inherited_groups_alone_is_deleted(store: Store, writer: Gathering) -> None:
    writer.write("A", "B")
    heir = Gathering(store)
    for id in queue_ids("A")[::-1]:  # noqa: A001
        heir.process.tier.open(id).delete()
    assert {found.id.path for found in store.process().tier.list(BROKER)} == {f"{BROKER}/B/0"}
    heir = Gathering(store)
    assert {found.id.path for found in heir.process.tier.list(BROKER)} == {f"{BROKER}/B/0"}


def test_who_lost_the_epoch_forgets_what_was_taken(store: Store, writer: Gathering) -> None:
    writer.write("A")
    writer.take("A", *A)
    heir = Gathering(store)
    assert attempt(writer.epoch.confirm) == "Fenced"
    with pytest.raises(Fenced):
        writer.epoch.confirm()
    heir.write("A", text=b"heir")
    assert read_queue(store, "A") == (A[0] + b"Aheir", A[1] + b"he")


def test_a_group_that_comes_late_is_nobodys(store: Store, writer: Gathering) -> None:
    """A group object that arrives after its writer was fenced does not count for any queue."""
    writer.write("A", "B")
    heir = Gathering(store)
    heir.write("A", text=b"heir")
    writer.take("A", *A)
    assert attempt(writer.epoch.confirm) == "Fenced"
    assert len(list_groups(store)) == 3
    assert read_queue(store, "A") == (A[0] + b"Aheir", A[1] + b"he")
    assert read_queue(store, "B") == B


def test_an_heir_goes_on_where_a_clean_stop_left_it(store: Store, writer: Gathering) -> None:
    writer.write("A", "B")
    writer.epoch.release()
    heir = Gathering(store)
    heir.write("A", "B")
    assert read_queue(store, "A") == (A[0] * 2, A[1] * 2)


def test_what_was_never_confirmed_is_not_left(store: Store, writer: Gathering) -> None:
    writer.write("A")
    writer.take("A", *A)
    writer.epoch.release()
    heir = Gathering(store)
    assert heir.ends == dict(zip(queue_ids("A"), (11, 2), strict=True))


def test_who_never_had_groups_lists_them_once_at_most(store: Store) -> None:
    writer = Gathering(store, group_bytes=0)
    writer.write("A")
    reader = store.process()
    for _ in range(2):
        reader.tier.open(queue_ids("A")[0], SegmentListing(queue_ids("A")[0], 11)).size()
        assert sum("/.groups/" in request for request in reader.client.requests) == 1
    assert not any("/.groups/" in request for request in writer.process.client.requests)


def test_a_reader_of_one_queue_reads_the_index_of_its_groups_alone(
    store: Store, writer: Gathering
) -> None:
    for topic in "ABCDEF":
        writer.write(topic)
    reader = store.process()
    log, _ = queue_ids("A")
    assert reader.open(log).size() == 11
    read = [request for request in reader.client.requests if "GET" in request]
    assert sum("/.groups/" in request for request in read) == 1


def test_reads_of_a_group_that_went_away_start_over(store: Store, writer: Gathering) -> None:
    writer.write("A")
    reader = store.process()
    log, _ = queue_ids("A")
    segment = reader.open(log)
    assert bytes(segment.read(0, 11)) == A[0]
    store.clock.advance(25 * 3_600_000)
    for _ in range(2):
        writer.keep(store)
    assert list_groups(store) == []
    assert bytes(segment.read(0, 11)) == A[0]
