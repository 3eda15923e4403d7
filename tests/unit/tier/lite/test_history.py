"""The history of lite topics is read from the tier once the local store no longer has it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.lite_tier import PARENT, LiteTier, queue_of
from tieredstore.contracts.dispatch_source import QueueKey
from tieredstore.contracts.message_store import BoundaryType, GetMessageStatus, GetRequest
from tieredstore.message.hashes import java_string_hash
from tieredstore.message.tag_filter import TagFilter
from tieredstore.tier.lite import merging

BODIES = [b"%03d" % number + b"x" * 300 for number in range(40)]


@pytest.fixture
def store_type() -> str:
    return "default"


@pytest.fixture
def it(store_type: str, tmp_path: Path) -> Iterator[LiteTier]:
    store = LiteTier(tmp_path, storeType=store_type)
    yield store
    store.close()


@pytest.mark.parametrize("store_type", ["default", "defaultRocksDB"])
def test_messages_that_left_the_local_store_are_read_from_the_tier(it: LiteTier) -> None:
    for number, body in enumerate(BODIES):
        it.put_lite(f"s{number % 3}", body, queue_id=number % 4)
    it.move_to_tier()
    it.put_lite("s0", b"new")
    queue = queue_of("s0")
    assert it.local.get_message("g", queue, 0, 0, 32).messages == []
    for first in range(3):
        rest = [b"new"] if not first else []
        assert it.read_lite(f"s{first}") == BODIES[first::3] + rest
    assert it.store.get_min_offset_in_queue(queue, 0) == 0
    assert it.store.get_max_offset_in_queue(queue, 0) == len(BODIES[::3]) + 1
    result = asyncio.run(it.store.get_async(GetRequest(queue, 0, 2, 3)))
    assert [bytes(one.body) for one in result.messages] == BODIES[6:15:3]
    assert (result.next_begin_offset, result.min_offset) == (5, 0)


def test_an_idle_lite_topic_costs_no_object(it: LiteTier) -> None:
    it.put_lite("s", *BODIES[:5])
    it.move_to_tier()
    runs = it.list_runs()
    for _ in range(3):
        it.lite.run_once()
        it.upload_runs()
    assert it.list_runs() == runs
    assert len(runs) == 1


def test_runs_are_found_again_after_a_start(it: LiteTier) -> None:
    it.put_lite("s", *BODIES[:7])
    it.move_to_tier()
    it.put_lite("s", *BODIES[7:9])
    it.reopen()
    it.fill()
    it.move_to_tier()
    it.reopen()
    assert it.read_lite("s") == BODIES[:9]


def test_messages_without_a_run_are_read_back_after_a_crash(
    it: LiteTier, monkeypatch: pytest.MonkeyPatch
) -> None:
    it.put_lite("s", *BODIES[:7])
    it.fill()
    it.upload()
    monkeypatch.setattr(it.lite, "_write", lambda: None)  # the process ends here
    it.close()
    assert it.list_runs() == []
    it.open()
    it.clean()
    assert it.get("s", 0).status is GetMessageStatus.OFFSET_FOUND_NULL  # no run has them yet
    it.lite.run_once()
    assert it.read_lite("s") == BODIES[:7]


def test_tags_are_filtered(it: LiteTier) -> None:
    for number, body in enumerate(BODIES[:10]):
        it.put_lite("s", body, tags="ab"[number % 2])
    it.move_to_tier()
    wanted = TagFilter([java_string_hash("b")])
    found = it.store.get(GetRequest(queue_of("s"), 0, 0, 32, message_filter=wanted))
    assert [bytes(one.body) for one in found.messages] == BODIES[1:10:2]
    assert found.next_begin_offset == 10


def test_times_are_found_in_the_tier(it: LiteTier) -> None:
    it.put_lite("s", *BODIES[:10])
    queue = queue_of("s")
    times = [it.store.get_message_store_timestamp(queue, 0, offset) for offset in range(10)]
    it.move_to_tier()
    it.put_lite("s", b"new")
    now = it.clock.now_ms()
    found = [it.store.get_message_store_timestamp(queue, 0, offset) for offset in range(11)]
    assert found == [*times, now]
    assert it.store.get_earliest_message_time(queue, 0) == times[0]
    for boundary in BoundaryType:
        at = [it.store.get_offset_in_queue_by_time(queue, 0, ms, boundary) for ms in found]
        assert at == list(range(11))
    lower = it.store.get_offset_in_queue_by_time
    assert lower(queue, 0, times[3] + 1) == 4
    assert lower(queue, 0, times[9] + 1) == 10
    assert lower(queue, 0, now + 1) == 11
    assert lower(queue, 0, times[3] + 1, BoundaryType.UPPER) == 3
    assert lower(queue, 0, times[9] + 1, BoundaryType.UPPER) == 9


@pytest.mark.parametrize("store_type", ["default", "defaultRocksDB"])
def test_a_store_without_its_disk_continues_the_offsets(it: LiteTier) -> None:
    it.put_lite("s", *BODIES[:7])
    it.move_to_tier()
    it.lose_disk()
    it.open(tieredStoreAdopt=True)
    queue = queue_of("s")
    assert it.store.get_max_offset_in_queue(queue, 0) == 7
    assert it.read_lite("s") == BODIES[:7]
    it.put_lite("s", b"new")
    assert it.read_lite("s") == [*BODIES[:7], b"new"]


def test_a_deleted_lite_topic_stays_deleted(it: LiteTier) -> None:
    it.put_lite("s", *BODIES[:7])
    it.put_lite("t", *BODIES[7:9])
    it.move_to_tier()
    it.store.delete_topics({queue_of("s")})
    assert it.read_lite("s") == []
    it.put_lite("s", b"again")
    it.move_to_tier()
    assert it.read_lite("s") == [b"again"]
    it.reopen()
    assert it.read_lite("s") == [b"again"]
    assert it.read_lite("t") == BODIES[7:9]


def test_a_deletion_survives_a_crash_before_its_run(
    it: LiteTier, monkeypatch: pytest.MonkeyPatch
) -> None:
    it.put_lite("s", *BODIES[:7])
    it.move_to_tier()
    it.store.delete_topics({queue_of("s")})
    monkeypatch.setattr(it.lite, "_write", lambda: None)
    it.reopen()
    assert it.read_lite("s") == []
    it.lite.run_once()
    it.reopen()
    assert it.read_lite("s") == []
    assert it.lite.find_end(queue_of("s")) == 7


def test_a_deletion_before_the_first_upload_of_the_parent_counts(it: LiteTier) -> None:
    it.put_lite("s", *BODIES[:7])
    it.put_lite("t", *BODIES[7:9])
    it.store.delete_topics({queue_of("s")})
    it.lite.run_once()
    it.move_to_tier()
    for _ in range(2):
        assert it.read_lite("s") == []
        assert it.read_lite("t") == BODIES[7:9]
        it.reopen()
    it.lite.run_once()
    assert it.local.dispatch_source.find_deleted_queues() == {}


def test_a_deletion_counts_for_messages_that_are_uploaded_much_later(
    it: LiteTier, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(merging, "FAN_IN", 2)
    it.put_lite("s", *BODIES[:7], queue_id=1)
    it.put_lite("t", BODIES[7])
    it.store.dispatcher.dispatch(QueueKey(PARENT, 0), force=True)
    it.store.delete_topics({queue_of("s")})
    for body in BODIES[8:12]:
        it.lite.run_once()
        it.put_lite("t", body)
        it.store.dispatcher.dispatch(QueueKey(PARENT, 0), force=True)
    it.move_to_tier()
    for _ in range(3):
        assert it.read_lite("s") == []
        assert it.read_lite("t") == BODIES[7:12]
        it.lite.run_once()


def test_messages_that_come_into_a_run_later_are_not_skipped(it: LiteTier) -> None:
    for number, body in enumerate(BODIES[:3]):
        it.put_lite("s", body, queue_id=(1, 0, 1)[number])
    it.store.dispatcher.dispatch(QueueKey(PARENT, 1), force=True)
    it.lite.run_once()
    it.fill()
    it.upload()
    assert it.clean()
    assert it.get("s", 1).status is GetMessageStatus.OFFSET_FOUND_NULL
    it.lite.run_once()
    assert it.read_lite("s", offset=1) == BODIES[1:3]


def test_a_deleted_parent_takes_its_lite_topics_along(it: LiteTier) -> None:
    it.put_lite("s", *BODIES[:7])
    it.move_to_tier()
    it.store.delete_topics({"P", queue_of("s")})
    assert it.read_lite("s") == []
    it.put_lite("s", b"again")
    it.move_to_tier()
    assert it.read_lite("s") == [b"again"]
    it.lite.run_once()
    it.clock.advance(100_000)
    it.lite.run_once()
    it.reopen()
    assert it.read_lite("s") == [b"again"]


def test_a_tier_that_cannot_be_read_is_asked_again(
    it: LiteTier, monkeypatch: pytest.MonkeyPatch
) -> None:
    it.put_lite("s", *BODIES[:7])
    it.move_to_tier()
    place = it.lite._place
    assert place is not None
    with monkeypatch.context() as patch:
        patch.setattr(place, "read_backup_range", lambda *_: None)
        found = it.get("s", 2)
        assert (found.status, found.next_begin_offset) == (GetMessageStatus.OFFSET_FOUND_NULL, 2)
    it.lite.run_once()
    assert it.read_lite("s") == BODIES[:7]


def test_messages_that_leave_the_local_store_during_a_read_are_asked_for_again(
    it: LiteTier, monkeypatch: pytest.MonkeyPatch
) -> None:
    it.put_lite("s", *BODIES[:7])
    it.move_to_tier()
    it.put_lite("s", b"new")
    with monkeypatch.context() as patch:
        patch.setattr(it.local.dispatch_source, "is_in_store", lambda *_: True)
        found = it.get("s", 2)
        assert (found.status, found.next_begin_offset) == (GetMessageStatus.OFFSET_FOUND_NULL, 2)
    assert it.read_lite("s") == [*BODIES[:7], b"new"]


def test_a_damaged_message_hides_no_earlier_one(it: LiteTier) -> None:
    it.put_lite("s", *BODIES[:7])
    it.move_to_tier()
    it.close()
    [log] = [path for path in it.tier_files("P") if "COMMIT_LOG" in str(path)]
    for sums in log.parent.glob(".*.crc32"):
        sums.unlink()  # a tier of Java has none
    data = bytearray(log.read_bytes())
    at = data.find(BODIES[4][:3] + b"x")
    data[at - 84] ^= 0xFF  # in the head of the record: not the message any more
    log.write_bytes(data)
    it.open()
    found: list[bytes] = []
    offset = 0
    while (result := it.get("s", offset)).messages:
        found += [bytes(one.body) for one in result.messages]
        offset = result.next_begin_offset
    assert found == BODIES[:4]
    assert (result.status, offset) == (GetMessageStatus.OFFSET_FOUND_NULL, 4)
    assert "%LMQ%$P$s" in result.fault
