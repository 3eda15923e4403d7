"""Tests of the stream reader's offsets, limits and errors, without Spark."""

from __future__ import annotations

import json
import logging
import re
from pathlib import Path

import pytest
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadMaxBytes,
    ReadMaxRows,
)

from tests.kit.growing_tier import BROKER, GrowingTier
from tests.kit.spark.stream_reader import COLUMNS, latest, offsets, reader_of, rows, through_json
from tests.kit.tier_builder import START_MS, TierBuilder, message
from tieredstore.clock import ManualClock
from tieredstore.contracts.segment import FileSegmentType, SegmentId
from tieredstore.errors import Corrupt, Invalid, Unavailable
from tieredstore.scan.time_search import search as time_search
from tieredstore.spark.options import parse_options
from tieredstore.spark.schema import Shape, spark_schema
from tieredstore.spark.stream import reader as streaming
from tieredstore.spark.stream.reader import TieredStreamReader

LOG, UNITS = FileSegmentType.COMMIT_LOG, FileSegmentType.CONSUME_QUEUE


@pytest.fixture
def tier(tmp_path: Path) -> GrowingTier:
    return GrowingTier(tmp_path)


def test_batches_follow_one_another(tier: GrowingTier) -> None:
    tier.append("orders", 0, 5)
    tier.append("orders", 1, 2)
    reader = reader_of(tier)
    start = through_json(reader.initialOffset())
    assert offsets(start) == {("orders", 0): 0, ("orders", 1): 0}
    end = latest(reader, start)
    assert offsets(end) == {("orders", 0): 5, ("orders", 1): 2}
    assert len(rows(reader, start, end)) == 7
    assert latest(reader, end) == end
    tier.append("orders", 1, 3)
    tier.append("later", 0, 4)  # a new topic is read from its first message
    following = latest(reader, end)
    found = rows(reader, end, following)
    assert found == [("later", 0, n) for n in range(4)] + [("orders", 1, n) for n in (2, 3, 4)]
    assert offsets(reader.reportLatestOffset()) == offsets(following)


def test_a_stream_starts_at_a_message_that_no_sample_shows_if_asked_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time_search, "READ_WHOLE_BYTES", 0)
    times = [START_MS + n * 1000 for n in range(600)]
    times[203] += 10_000_000
    builder = TierBuilder(tmp_path, messages_per_segment=1000, times=times)
    builder.queue("orders", 0, [message("orders", 0, n) for n in range(600)])
    given = {
        "path": builder.built.url,
        "subscribe": "orders",
        "startingTimestamp": str(START_MS + 9_000_000),
    }
    shape = Shape.of(spark_schema(COLUMNS), None)
    for search, first in (("sampled", 600), ("exact", 203)):
        reader = TieredStreamReader(parse_options({**given, "searchTimes": search}), shape)
        assert offsets(reader.initialOffset()) == {("orders", 0): first}


def test_a_stream_starts_at_the_end_unless_it_is_told_otherwise(tier: GrowingTier) -> None:
    tier.append("orders", 0, 5)
    given = {"path": tier.url, "subscribe": "orders"}
    shape = Shape.of(spark_schema(COLUMNS), None)
    reader = TieredStreamReader(parse_options(given), shape)
    assert offsets(reader.initialOffset()) == {("orders", 0): 5}
    for value, first in (("2023-11-14T22:13:22Z", 2), ("2100-01-01", 5)):
        reader = TieredStreamReader(parse_options({**given, "startingTimestamp": value}), shape)
        assert offsets(reader.initialOffset()) == {("orders", 0): first}
    text = json.dumps({"orders": {BROKER: {"0": 3}}})
    reader = TieredStreamReader(parse_options({**given, "startingOffsets": text}), shape)
    assert offsets(reader.initialOffset()) == {("orders", 0): 3}


@pytest.mark.parametrize("torn", ["", "zeros", "cut"])
def test_a_starting_time_is_found_in_front_of_a_torn_tail_and_where_times_go_back(
    tmp_path: Path, torn: str
) -> None:
    seconds = [*range(10), *range(5, 15)]
    builder = TierBuilder(
        tmp_path, messages_per_segment=100, times=[START_MS + n * 1000 for n in seconds]
    )
    stored = builder.queue("orders", 0, [message("orders", 0, n) for n in range(20)])
    builder.built.metadata.flush()
    last, end = stored[-1], 19 if torn else 20
    path = builder.built.path(SegmentId(f"{BROKER}/orders/0", LOG, 0))
    if torn:
        path.write_bytes(path.read_bytes()[: last.offset + 20])
    if torn == "zeros":
        path.write_bytes(path.read_bytes()[: last.offset] + bytes(len(last.record)))
    shape = Shape.of(spark_schema(COLUMNS), None)
    for second, first in ((3, 3), (5, 5), (9, 9), (10, 15), (14, 19), (15, end)):
        given = {"path": builder.built.url, "subscribe": "orders"}
        given["startingTimestamp"] = str(START_MS + second * 1000)
        reader = TieredStreamReader(parse_options(given), shape)
        start = through_json(reader.initialOffset())
        assert offsets(start) == {("orders", 0): min(first, end)}
        found = rows(reader, start, latest(reader, start))
        assert [row[2] for row in found] == list(range(min(first, end), end))


@pytest.mark.parametrize("limit", [1, 3, 4, 100])
def test_a_limit_of_messages(tier: GrowingTier, limit: int) -> None:
    tier.append("orders", 0, 9)
    tier.append("orders", 1, 2)
    reader = reader_of(tier, maxOffsetsPerTrigger=str(limit))
    assert reader.getDefaultReadLimit() == ReadMaxRows(limit)
    start = through_json(reader.initialOffset())
    found: list[tuple[str, int, int]] = []
    while (end := latest(reader, start)) != start:
        batch = rows(reader, start, end)
        assert len(batch) == min(limit, 11 - len(found))
        found += batch
        start = end
    assert len(found) == len(set(found)) == 11


def test_no_messages_are_no_bytes(tier: GrowingTier) -> None:
    tier.append("orders", 0, 5)
    [view] = reader_of(tier)._look().values()
    assert [view.log_bytes(start, end) for start, end in ((0, 0), (3, 3), (4, 2))] == [0, 0, 0]
    assert view.log_bytes(0, 5) == view.log_bytes(0, 2) + view.log_bytes(2, 5) > 0


def test_a_limit_of_bytes_and_a_message_above_it(tier: GrowingTier) -> None:
    tier.append("orders", 0, 10)
    tier.append("orders", 0, 1, body_bytes=5000)
    tier.append("orders", 1, 3)
    reader = reader_of(tier, maxBytesPerTrigger="1100")  # four messages of 258 bytes
    assert reader.getDefaultReadLimit() == ReadMaxBytes(1100)
    start = through_json(reader.initialOffset())
    found: list[tuple[str, int, int]] = []
    sizes = []
    while (end := latest(reader, start)) != start:
        batch = rows(reader, start, end)
        sizes.append(len(batch))
        found += batch
        start = end
    assert len(found) == len(set(found)) == 14
    assert max(sizes) <= 4
    assert latest(reader_of(tier), reader.initialOffset(), ReadAllAvailable()) == through_json(end)


def test_available_now_reads_what_was_there_when_it_began(tier: GrowingTier) -> None:
    tier.append("orders", 0, 5)
    reader = reader_of(tier, maxOffsetsPerTrigger="3")
    start = through_json(reader.initialOffset())
    reader.prepareForTriggerAvailableNow()
    tier.append("orders", 0, 5)
    tier.append("orders", 1, 5)
    first = latest(reader, start)
    second = latest(reader, first)
    assert offsets(second) == {("orders", 0): 5}
    assert latest(reader, second) == second


def test_older_sparks_give_no_start_and_take_no_limit(
    tier: GrowingTier, monkeypatch: pytest.MonkeyPatch
) -> None:
    tier.append("orders", 0, 5)
    monkeypatch.setattr(streaming, "HAS_ADMISSION_CONTROL", False)
    reader = reader_of(tier)
    start = through_json(reader.initialOffset())
    end = through_json(reader.latestOffset())
    assert len(rows(reader, start, end)) == 5
    with pytest.raises(Invalid, match=r"maxOffsetsPerTrigger: needs Spark 4\.2"):
        reader_of(tier, maxOffsetsPerTrigger="3")


# Commits


def test_a_commit_log_without_units_is_not_committed(tier: GrowingTier) -> None:
    tier.append("orders", 0, 5)
    tier.append("orders", 0, 3, with_units=False)
    reader = reader_of(tier)
    assert offsets(latest(reader, reader.initialOffset())) == {("orders", 0): 5}


@pytest.mark.parametrize("state", ["unit torn", "record torn", "record of zeros", "units ahead"])
def test_a_length_proves_nothing(tier: GrowingTier, state: str) -> None:
    tier.append("orders", 0, 5)
    log, units = (tier.segments("orders", 0, kind)[0] for kind in (LOG, UNITS))
    whole = log.stat().st_size
    tier.append("orders", 0, 2)
    match state:
        case "unit torn":
            with units.open("r+b") as file:
                file.truncate(6 * 20 + 7)
        case "record torn":
            with log.open("r+b") as file:
                file.truncate(log.stat().st_size - 1)
        case "record of zeros":
            with log.open("r+b") as file:
                file.seek(-258, 2)
                file.write(bytes(258))
        case _:
            with log.open("r+b") as file:
                file.truncate(whole)
    expected = 5 if state == "units ahead" else 6
    reader = reader_of(tier)
    start = through_json(reader.initialOffset())
    end = latest(reader, start)
    assert offsets(end) == {("orders", 0): expected}
    assert len(rows(reader, start, end)) == expected


def test_a_last_body_with_another_crc_counts_where_bodies_are_not_checked(
    tier: GrowingTier,
) -> None:
    tier.append("orders", 0, 3)
    path = tier.segments("orders", 0, LOG)[0]
    data = bytearray(path.read_bytes())
    data[2 * 258 + 95] ^= 1  # a byte of the last body
    path.write_bytes(data)
    for check, expected in (("true", 2), ("false", 3)):
        reader = reader_of(tier, checkBodies=check)
        start = through_json(reader.initialOffset())
        end = latest(reader, start)
        assert offsets(end) == {("orders", 0): expected}
        assert len(rows(reader, start, end)) == expected


def test_j60_a_damaged_head_of_the_last_record_ends_a_stream(tier: GrowingTier) -> None:
    tier.append("orders", 0, 3)
    path = tier.segments("orders", 0, LOG)[0]
    data = bytearray(path.read_bytes())
    data[2 * 258 + 5] ^= 1  # a byte of the last magic
    path.write_bytes(data)
    shape = Shape.of(spark_schema((*COLUMNS, "body")), None)
    given = {"path": tier.url, "subscribe": "orders", "startingOffsets": "earliest"}
    reader = TieredStreamReader(parse_options(given), shape)
    start = through_json(reader.initialOffset())
    end = latest(reader, start)
    assert offsets(end) == {("orders", 0): 3}
    with pytest.raises(Corrupt, match="magic"):
        rows(reader, start, end)
    reader = TieredStreamReader(parse_options({**given, "onDamage": "skip"}), shape)
    assert len(rows(reader, start, end)) == 2


def test_a_queue_of_which_nothing_is_proven_is_not_begun(tier: GrowingTier) -> None:
    tier.append("orders", 0, 2, with_units=False)
    reader = reader_of(tier)
    start = through_json(reader.initialOffset())
    assert offsets(start) == offsets(latest(reader, start)) == {}
    tier.append("orders", 0, 2)
    path = tier.segments("orders", 0, LOG)[0]
    data = path.read_bytes()
    path.write_bytes(bytes(len(data)))
    assert offsets(latest(reader_of(tier), start)) == {}
    path.write_bytes(data)
    assert offsets(latest(reader_of(tier), start)) == {("orders", 0): 2}


def test_metadata_behind_the_listing_hold_a_stream_back(
    tier: GrowingTier, caplog: pytest.LogCaptureFixture
) -> None:
    tier.append("orders", 0, 3)
    tier.metadata.flush()
    tier.metadata.close()  # the writer's file stays as it is
    saved = tier.metadata.path.read_bytes()
    reader = reader_of(tier, state=str(tier.root / "state"))
    start = through_json(reader.initialOffset())
    end = latest(reader, start)
    tier.roll("orders", 0)
    log_base, units_base = tier.segments("orders", 0, LOG)[0].stat().st_size, 60
    known = len(rows(reader, start, end))
    bare = GrowingTier(tier.root / "other", tier.provider)
    bare._queues = tier._queues
    bare.append("orders", 0, 4)
    assert (known, log_base, units_base) == (3, 3 * 258, 60)
    assert tier.metadata.path.read_bytes() == saved
    with caplog.at_level(logging.WARNING):
        assert latest(reader, end) == end
        assert latest(reader, end) == end
    assert caplog.text.count("COMMIT_LOG@774: the tier has a segment that the metadata does") == 1
    tier.metadata.path.write_bytes(bare_metadata_of(bare))
    assert offsets(latest(reader, end)) == {("orders", 0): 7}


def bare_metadata_of(bare: GrowingTier) -> bytes:
    """Return the metadata of an empty tier plus the segments of the tier `bare`."""
    tier = GrowingTier(bare.root.parent, bare.provider)
    for entry in bare.metadata.segments():
        tier.metadata.put_segment(entry)
    tier.metadata.flush()
    return tier.metadata.path.read_bytes()


# A recreated topic


@pytest.mark.parametrize("count", [3, 5, 9])
@pytest.mark.parametrize("restarted", [False, True])
def test_a_topic_that_was_made_again_fails_and_both_are_named(
    tier: GrowingTier, count: int, restarted: bool
) -> None:
    tier.append("orders", 0, 5)
    reader = reader_of(tier)
    start = through_json(reader.initialOffset())
    end = latest(reader, start)
    tier.make_again("orders")
    tier.append("orders", 0, count, body_bytes=101)
    reader = reader_of(tier) if restarted else reader
    with pytest.raises(Invalid, match="made again") as raised:
        reader.latestOffset(end, ReadAllAvailable())
    last = min(count, 5) - 1
    assert "message 4 with the mark " in str(raised.value)
    now = rf"message {last} with the mark \S{{5}} stored 2023-11-14T22:13:2{last}\.001Z \(259 bytes"
    assert re.search(now, str(raised.value))
    with pytest.raises(Invalid, match="made again"):  # a batch that is planned again
        reader.partitions(start, end)


def test_j46_a_topic_that_was_made_again_with_the_same_sizes_fails_a_running_stream(
    tier: GrowingTier,
) -> None:
    tier.append("orders", 0, 5)
    reader = reader_of(tier)
    end = latest(reader, through_json(reader.initialOffset()))
    assert latest(reader, end) == end
    tier.make_again("orders")
    tier.append("orders", 0, 5)
    with pytest.raises(Invalid, match="orders/0: the topic was made again"):
        reader.latestOffset(end, ReadAllAvailable())


@pytest.mark.parametrize("damaged", [1, 2, 5])
def test_a_topic_that_was_made_again_is_told_though_the_messages_at_the_offset_are_damaged(
    tier: GrowingTier, damaged: int
) -> None:
    tier.append("orders", 0, 12)
    [log] = tier.segments("orders", 0, LOG)
    each = log.stat().st_size // 12
    data = bytearray(log.read_bytes())
    data[(10 - damaged) * each : 11 * each] = bytes((damaged + 1) * each)
    log.write_bytes(data)
    reader = reader_of(tier, maxOffsetsPerTrigger="10")
    start = through_json(reader.initialOffset())
    end = latest(reader, start)
    assert offsets(end) == {("orders", 0): 10}
    assert end["orders"].startswith("10-")
    assert latest(reader_of(tier), end) != end  # it continues
    tier.make_again("orders")
    tier.append("orders", 0, 12, body_bytes=101)
    with pytest.raises(Invalid, match="orders/0: the topic was made again"):
        reader_of(tier).latestOffset(end, ReadAllAvailable())


def test_a_new_queue_that_was_made_again_before_its_batch_is_planned_again(
    tier: GrowingTier,
) -> None:
    tier.append("orders", 0, 5)
    start = through_json(reader_of(tier).initialOffset())
    tier.append("later", 0, 3)
    end = latest(reader_of(tier), start)
    tier.make_again("later")
    tier.append("later", 0, 4, body_bytes=101)
    with pytest.raises(Invalid, match="later/0: the topic was made again"):
        reader_of(tier).partitions(start, end)


def test_the_topic_id_tells_too(tier: GrowingTier) -> None:
    tier.append("orders", 0, 5)
    tier.metadata.flush()
    options = {"state": str(tier.root / "state")}
    end = latest(reader_of(tier, **options), reader_of(tier, **options).initialOffset())
    tier.make_again("orders")
    tier._life = 0  # to the byte the same messages
    tier.append("orders", 0, 7)
    tier.metadata.flush()
    assert offsets(latest(reader_of(tier), end)) == {("orders", 0): 7}
    with pytest.raises(Invalid, match=r"then topic id 0, message 4 .*; now topic id 1, message 4"):
        latest(reader_of(tier, **options), end)


def test_a_queue_that_is_gone_keeps_its_place(tier: GrowingTier) -> None:
    tier.append("orders", 0, 5)
    tier.append("orders", 1, 5)
    reader = reader_of(tier)
    end = latest(reader, reader.initialOffset())
    tier.roll("orders", 0)
    tier.expire("orders", 0)
    assert latest(reader, end) == end
    tier.append("orders", 0, 2)
    following = latest(reader, end)
    assert rows(reader, end, following) == [("orders", 0, 5), ("orders", 0, 6)]


# Lost data


def test_expired_messages_are_an_error_or_a_counted_warning(
    tier: GrowingTier, caplog: pytest.LogCaptureFixture
) -> None:
    tier.append("orders", 0, 5)
    start = through_json(reader_of(tier).initialOffset())
    tier.roll("orders", 0)
    tier.append("orders", 0, 3)
    end = latest(reader_of(tier), start)
    tier.expire("orders", 0)
    message = "broker-a/orders/0: messages 0 to 4 expired .* wanted offset 0, min offset 5"
    with pytest.raises(Invalid, match=message):
        latest(reader_of(tier), start)
    with pytest.raises(Invalid, match=message):
        reader_of(tier).partitions(start, end)
    reader = reader_of(tier, failOnDataLoss="false")
    assert latest(reader, start) == end
    with caplog.at_level(logging.WARNING):
        assert rows(reader, start, end) == [("orders", 0, n) for n in (5, 6, 7)]
    assert "5 messages expired before they were read, 0 to 4" in caplog.text


@pytest.mark.parametrize("limit", ["maxOffsetsPerTrigger", "maxBytesPerTrigger"])
@pytest.mark.parametrize("is_whole", [False, True])
def test_j72_messages_that_expire_between_two_listings_of_a_running_stream_are_lost_data(
    tier: GrowingTier, caplog: pytest.LogCaptureFixture, limit: str, is_whole: bool
) -> None:
    """Messages that expire between two listings of a running stream are reported as lost."""
    tier.append("orders", 0, 5)
    tier.roll("orders", 0)
    tier.append("orders", 0, 5)
    tier.append("other", 0, 1)
    options = {limit: "700" if "Bytes" in limit else "3", "listInterval": "10s"}
    readers = [
        reader_of(tier, ManualClock(), failOnDataLoss=fails, **options)
        for fails in ("true", "false")
    ]
    starts = [through_json(reader.initialOffset()) for reader in readers]
    ends = [latest(*one) for one in zip(readers, starts, strict=True)]
    for _ in range(1 + is_whole):
        tier.expire("orders", 0)
    message = r"orders/0: .*(expired before they were read|the queue is gone from the tier)"
    with pytest.raises(Invalid, match=message):
        rows(readers[0], ends[0], latest(readers[0], ends[0]))
    offset = ends[1]
    found = []
    with caplog.at_level(logging.WARNING):
        while (end := latest(readers[1], offset)) != offset:
            found += rows(readers[1], offset, end)
            offset = end
    expected = [] if is_whole else [("orders", 0, number) for number in range(5, 10)]
    assert sorted(set(found) - {("other", 0, 0)}) == expected
    assert re.search(message, caplog.text)


@pytest.mark.parametrize("first", [0, 3])
def test_a_batch_of_which_nothing_is_lost_warns_of_nothing(
    tier: GrowingTier, caplog: pytest.LogCaptureFixture, first: int
) -> None:
    tier.append("orders", 0, 5)
    wanted = json.dumps({"orders": {BROKER: {"0": first}}})
    reader = reader_of(tier, failOnDataLoss="false", startingOffsets=wanted)
    start = through_json(reader.initialOffset())
    with caplog.at_level(logging.WARNING):
        found = rows(reader, start, latest(reader, start))
    assert found == [("orders", 0, n) for n in range(first, 5)]
    assert caplog.messages == []


def test_a_queue_that_is_gone_before_it_was_read(
    tier: GrowingTier, caplog: pytest.LogCaptureFixture
) -> None:
    tier.append("orders", 0, 5)
    tier.append("orders", 1, 1)
    start = through_json(reader_of(tier).initialOffset())
    end = latest(reader_of(tier), start)
    tier.expire("orders", 0)
    with pytest.raises(Invalid, match=r"orders/0: wanted offset 0, but the queue is gone"):
        reader_of(tier).partitions(start, end)
    with caplog.at_level(logging.WARNING):
        reader = reader_of(tier, failOnDataLoss="false")
        assert rows(reader, start, end) == [("orders", 1, 0)]
    assert "5 messages were not read" in caplog.text


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"endingOffsets": "latest"}, "endingOffsets: a stream has no end"),
        ({"startingOffsets": '{"orders": {"broker-a": {"0": 9}}}'}, r"offset 9 .* \[0, 5\)"),
        ({"startingOffsets": '{"orders": {"broker-a": {"4": 9}}}'}, "orders/4 is not among"),
        ({"path": "/nowhere/at/all"}, "no such directory"),
        ({"cluster": "other"}, "no cluster 'other'"),
    ],
)
def test_what_a_stream_refuses(tier: GrowingTier, options: dict[str, str], message: str) -> None:
    tier.append("orders", 0, 5)
    with pytest.raises((Invalid, Unavailable), match=message):
        reader_of(tier, **options).initialOffset()


def test_an_unknown_topic_is_an_error_where_a_stream_begins(tier: GrowingTier) -> None:
    tier.append("orders", 0, 5)
    given = {"path": tier.url, "subscribe": "order,orders"}
    reader = TieredStreamReader(parse_options(given), Shape.of(spark_schema(COLUMNS), None))
    with pytest.raises(Invalid, match=r"no topic 'order' in the tier\. Did you mean orders"):
        reader.initialOffset()
    # A running query waits for it.
    start = through_json(reader_of(tier).initialOffset())
    assert offsets(latest(reader, start)) == {("orders", 0): 5}


def test_a_new_queue_that_expires_before_its_first_batch_is_read_is_lost_data(
    tier: GrowingTier,
) -> None:
    tier.append("a", 0, 3)
    reader = reader_of(tier)
    start = through_json(reader.initialOffset())
    tier.append("b", 0, 5)
    tier.roll("b", 0)
    tier.append("b", 0, 5)
    end = through_json(reader.latestOffset(start, ReadAllAvailable()))
    assert offsets(end)["b", 0] == 10
    tier.expire("b", 0)
    with pytest.raises(Invalid, match="b/0"):  # a restart: Spark asks for the same batch again
        rows(reader_of(tier), start, end)
