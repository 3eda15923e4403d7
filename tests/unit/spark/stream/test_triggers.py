"""Tests of a stream's triggers: messages, waiting times, requests, and warnings about deleted
topics."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMinRows

from tests.kit.growing_tier import BROKER, START_MS, GrowingTier
from tests.kit.spark.stream_reader import (
    Offset,
    latest,
    offsets,
    partitions,
    reader_of,
    rows,
    through_json,
)
from tieredstore.clock import ManualClock
from tieredstore.contracts.segment import FileSegmentType, SegmentListing
from tieredstore.errors import Corrupt, Invalid
from tieredstore.providers.posix.provider import PosixProvider
from tieredstore.spark.stream.checkpoint import StreamOffset


@pytest.fixture
def tier(tmp_path: Path) -> GrowingTier:
    return GrowingTier(tmp_path)


# Turns, limits and what a trigger waits for


@pytest.mark.parametrize("restarted", [False, True])
def test_a_quiet_topic_beside_a_busy_one_has_its_turn(tier: GrowingTier, restarted: bool) -> None:
    tier.append("busy", 0, 3000)
    tier.append("quiet", 0, 3)
    reader = reader_of(tier, maxOffsetsPerTrigger="1")
    start = through_json(reader.initialOffset())
    seen = []
    for _ in range(4):
        tier.append("busy", 0, 1)
        end = latest(reader, start)
        seen += [topic for topic, _, _ in rows(reader, start, end)]
        start = end
        reader = reader_of(tier, maxOffsetsPerTrigger="1") if restarted else reader
    assert seen == ["busy", "quiet"] * 2


def hole(tier: GrowingTier) -> None:
    """Write messages 0 to 4 and 9. Messages 5 to 8 are a hole, as if they had expired before their
    upload."""
    tier.append("orders", 0, 5)
    queue = tier._queues["orders", 0]
    tier.roll("orders", 0)
    queue.offset += 4
    tier.roll("orders", 0)
    tier.append("orders", 0, 1)


@pytest.mark.parametrize("limit", ["maxOffsetsPerTrigger", "maxBytesPerTrigger"])
@pytest.mark.parametrize("size", ["1", "600"])
def test_a_limit_passes_a_hole(tier: GrowingTier, limit: str, size: str) -> None:
    hole(tier)
    reader = reader_of(tier, **{limit: size})
    start = through_json(reader.initialOffset())
    found: list[int] = []
    batches = 0
    while (end := latest(reader, start)) != start:
        found += [offset for _, _, offset in rows(reader, start, end)]
        batches += 1
        start = end
    assert found == [0, 1, 2, 3, 4, 9]
    assert batches <= 6


def test_an_idle_stream_gives_back_the_offset_that_it_was_given(tier: GrowingTier) -> None:
    tier.append("orders", 0, 5)
    reader = reader_of(tier)
    old = {"orders": {BROKER: {"0": 5}}, "@incarnations": {}}
    assert latest(reader, old) == old  # of an older version: no batch for its form alone
    start = through_json(reader.initialOffset())
    tier.append("new", 0, 2)
    end = latest(reader, start)
    assert "<0" in end["new"]
    assert latest(reader, end) == end


def test_a_trigger_waits_for_its_least_messages_or_its_longest_time(tier: GrowingTier) -> None:
    tier.append("orders", 0, 2)
    clock = ManualClock()
    options = {"minOffsetsPerTrigger": "4", "maxTriggerDelay": "1m"}
    reader = reader_of(tier, clock, **options)
    assert reader.getDefaultReadLimit() == ReadMinRows(4)
    start = through_json(reader.initialOffset())
    first = latest(reader, start)  # the first trigger waits for nothing
    assert offsets(first) == {("orders", 0): 2}
    tier.append("orders", 0, 3)
    assert latest(reader, first) == first
    assert latest(reader, first, ReadAllAvailable()) != first  # Trigger.Once
    tier.append("orders", 0, 1)
    second = latest(reader, first)
    assert offsets(second) == {("orders", 0): 6}
    tier.append("orders", 0, 1)
    assert latest(reader, second) == second
    clock.advance(60_000)
    third = latest(reader, second)
    assert offsets(third) == {("orders", 0): 7}
    tier.append("orders", 0, 1)
    reader.prepareForTriggerAvailableNow()
    assert offsets(latest(reader, third)) == {("orders", 0): 8}


# How often the tier is asked


@pytest.fixture
def listed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the prefixes of all listings, in order."""
    found: list[str] = []
    really = PosixProvider.list

    def listing(self: PosixProvider, prefix: str = "") -> Iterable[SegmentListing]:
        found.append(prefix)
        return really(self, prefix)

    monkeypatch.setattr(PosixProvider, "list", listing)
    return found


@pytest.mark.parametrize("options", [{"subscribe": "orders,other"}, {"subscribePattern": ".*"}])
def test_an_idle_stream_lists_the_tier_once_in_its_interval(
    tier: GrowingTier, listed: list[str], options: dict[str, str]
) -> None:
    for topic in ("orders", "other", "unread"):
        tier.append(topic, 0, 5)
    clock = ManualClock()
    reader = reader_of(tier, clock, listInterval="10s", **options)
    assert reader.initialOffset() == reader.initialOffset()  # as Spark does
    start = latest(reader, reader.initialOffset())
    assert listed == [""]
    for _ in range(999):
        clock.advance(100)
        assert latest(reader, start) == start
        reader.partitions(start, start)
        reader.reportLatestOffset()
    by_name = [f"{BROKER}/orders", f"{BROKER}/other"]
    assert listed == ["", *([""] if "subscribePattern" in options else by_name) * 9]


def test_a_look_that_took_long_is_not_made_again_at_once(
    tier: GrowingTier, listed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slow listing is shared by the start of a stream and the end of its first batch."""
    tier.append("orders", 0, 5)
    clock = ManualClock()
    listing = PosixProvider.list

    def list_slowly(self: PosixProvider, prefix: str = "") -> Iterable[SegmentListing]:
        clock.advance(60_000)
        return listing(self, prefix)

    monkeypatch.setattr(PosixProvider, "list", list_slowly)
    reader = reader_of(tier, clock, listInterval="10s", startingOffsets="earliest")
    start = latest(reader, reader.initialOffset())
    assert offsets(start) == {("orders", 0): 5}
    tier.append("orders", 0, 1)
    clock.advance(59_999)
    assert latest(reader, start) == start
    assert listed == [""]
    clock.advance(1)
    assert offsets(latest(reader, start)) == {("orders", 0): 6}


def test_a_topic_that_grows_is_listed_by_itself_until_it_rests(
    tier: GrowingTier, listed: list[str]
) -> None:
    for topic in ("orders", "other"):
        tier.append(topic, 0, 5)
    clock = ManualClock()
    reader = reader_of(tier, clock, listInterval="10s")
    start = latest(reader, reader.initialOffset())
    tier.append("orders", 0, 1)
    clock.advance(10_000)
    for _ in range(3):
        start = latest(reader, start)
        tier.append("orders", 0, 1)
    assert offsets(start)["orders", 0] == 8
    start = latest(reader, start)
    assert latest(reader, start) == start
    assert latest(reader, start) == start
    assert listed == ["", "", *[f"{BROKER}/orders"] * 4]


def test_a_topic_that_comes_later_is_found_by_its_name_and_a_new_broker_in_time(
    tier: GrowingTier, listed: list[str]
) -> None:
    tier.append("orders", 0, 5)
    clock = ManualClock()
    reader = reader_of(tier, clock, listInterval="10s", subscribe="orders")
    start = latest(reader, reader.initialOffset())
    reader = reader_of(tier, clock, listInterval="10s", subscribe="orders,later")
    start = latest(reader, start)
    tier.append("later", 0, 2)
    assert latest(reader, start) == start
    clock.advance(10_000)
    start = latest(reader, start)
    assert offsets(start) == {("orders", 0): 5, ("later", 0): 2}
    shutil.copytree(
        next((tier.root / "tier").glob(f"*/{BROKER}")),
        next((tier.root / "tier").iterdir()) / "broker-b",
    )
    for _ in range(30):
        clock.advance(10_000)
        start = latest(reader, start)
    assert {broker for _, broker, _ in StreamOffset.from_json(start).positions} == {
        BROKER,
        "broker-b",
    }


# Topics that are gone


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("options", [{}, {"subscribe": "orders,other"}])
def test_a_topic_deleted_with_unread_messages_is_lost_data(
    tier: GrowingTier,
    caplog: pytest.LogCaptureFixture,
    restarted: bool,
    options: dict[str, str],
) -> None:
    for topic in ("orders", "other"):
        tier.append(topic, 0, 5)
    reader = reader_of(tier, **options)
    start = through_json(reader.initialOffset())
    if restarted:
        start = latest(reader, start)
        tier.append("orders", 0, 10)
        reader = reader_of(tier, **options)
    tier.make_again("orders")
    message = r"broker-a/orders/0: wanted offset \d, but the queue is gone from the tier: "
    message += "messages behind it may not" if restarted else "5 messages were not read"
    with pytest.raises(Invalid, match=message):
        latest(reader, start)
    if restarted:
        reader = reader_of(tier, failOnDataLoss="false", **options)
    else:
        reader._options = replace(reader._options, fail_on_data_loss=False)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            start = latest(reader, start)
    assert caplog.text.count("but the queue is gone from the tier") == 1
    assert offsets(start)["other", 0] == 5


def test_a_topic_that_was_read_to_its_end_or_that_the_metadata_have_may_go(
    tier: GrowingTier,
) -> None:
    for topic in ("orders", "other"):
        tier.append(topic, 0, 5)
    reader = reader_of(tier)
    start = latest(reader, reader.initialOffset())
    tier.expire("orders", 0)
    assert latest(reader, start) == start
    tier.metadata.delete_topic("orders")
    tier.metadata.add_topic("orders")
    tier.metadata.flush()
    assert latest(reader_of(tier, state=str(tier.root / "state")), start) == start
    assert latest(reader_of(tier, subscribe="other"), start) == start  # it is no longer read
    with pytest.raises(Invalid, match="orders/0: wanted offset 5, but the queue is gone"):
        latest(reader_of(tier), start)


def test_offsets_by_timestamp_start_each_queue_at_its_time(tier: GrowingTier) -> None:
    for queue_id in (0, 1, 2):
        tier.append("orders", queue_id, 5)
    times = json.dumps({"orders": {BROKER: {"0": START_MS + 2000, "1": START_MS + 9000}}})
    reader = reader_of(tier, startingOffsetsByTimestamp=times)
    assert offsets(reader.initialOffset()) == {
        ("orders", 0): 2,
        ("orders", 1): 5,
        ("orders", 2): 0,
    }


def test_no_partition_has_more_records_than_it_may(tier: GrowingTier) -> None:
    tier.append("orders", 0, 10)
    tier.append("orders", 1, 2)
    reader = reader_of(tier, maxRecordsPerPartition="4")
    start = through_json(reader.initialOffset())
    end = latest(reader, start)
    found = [partition.ranges for partition in partitions(reader, start, end)]
    assert [sum(one.count for one in ranges) for ranges in found] == [4, 4, 4]
    assert len(rows(reader, start, end)) == 12


# Holes that are damage


def lose_units(tier: GrowingTier, index: int) -> None:
    """Write fifteen messages, five per segment. Delete the consume queue segment number `index`."""
    for _ in range(3):
        tier.append("orders", 0, 5)
        tier.roll("orders", 0)
    tier.metadata.flush()
    tier.segments("orders", 0, FileSegmentType.CONSUME_QUEUE)[index].unlink()


@pytest.mark.parametrize(
    "limit", [{}, {"maxOffsetsPerTrigger": "3"}, {"maxBytesPerTrigger": "700"}]
)
@pytest.mark.parametrize(("index", "has_state"), [(1, False), (0, True), (1, True), (2, True)])
def test_a_lost_segment_ends_a_stream_and_is_passed_only_when_told(
    tier: GrowingTier, limit: dict[str, str], index: int, has_state: bool
) -> None:
    tier.append("other", 0, 1)
    reader = reader_of(tier)
    before = through_json(reader.initialOffset())
    lose_units(tier, index)
    options = {**limit, **({"state": str(tier.root / "state")} if has_state else {})}

    def read(start: Offset, **more: str) -> list[int]:
        reader = reader_of(tier, **options, **more)
        found: list[int] = []
        while (end := latest(reader, start)) != start:
            found += [n for topic, _, n in rows(reader, start, end) if topic == "orders"]
            start = end
        return found

    fresh = through_json(reader_of(tier, **options).initialOffset())
    for start in (before, fresh):  # the queue is new to the stream, and not
        with pytest.raises(Corrupt, match=f"queue segment has the units of messages {5 * index} "):
            read(start)
        kept = [n for n in range(15) if n // 5 != index]
        assert read(start, onDamage="skip") == kept


def test_a_topic_that_grows_alone_says_nothing_of_others_in_the_metadata(
    tier: GrowingTier, listed: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    for topic in ("orders", "other"):
        tier.append(topic, 0, 5)
    tier.roll("other", 0)
    tier.append("other", 0, 5)
    tier.metadata.flush()
    clock = ManualClock()
    state = str(tier.root / "state")
    reader = reader_of(tier, clock, listInterval="10s", state=state)
    start = latest(reader, reader.initialOffset())
    clock.advance(10_000)
    for _ in range(3):
        tier.append("orders", 0, 1)
        tier.append("other", 0, 1)
        tier.metadata.flush()
        start = latest(reader, start)
    assert listed == ["", "", *[f"{BROKER}/{topic}" for topic in ("orders", "other")] * 2]
    tier.append("orders", 0, 1)
    tier.metadata.flush()
    start = latest(reader, start)
    path = "broker-a/other/0"
    gone = [entry for entry in tier.metadata.segments() if entry.path == path][:1]
    for entry in gone:
        tier.metadata.delete_segment(entry.id)
    tier.append("orders", 0, 1)
    tier.metadata.flush()
    start = latest(reader, start)
    assert offsets(start) == {("orders", 0): 10, ("other", 0): 13}
    assert caplog.messages == []
