"""Tests of planning and reading with the batch reader, without Spark."""

from __future__ import annotations

import json
import logging
import operator
import pickle
from datetime import UTC, datetime
from pathlib import Path

import pytest
from pyspark.sql.datasource import EqualTo, Filter, GreaterThanOrEqual, InputPartition, LessThan
from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType

from tests.kit.growing_tier import BROKER, START_MS, GrowingTier
from tests.kit.tier_builder import TierBuilder, message
from tieredstore.contracts.segment import FileSegmentType, SegmentId
from tieredstore.errors import Corrupt, Invalid
from tieredstore.scan.time_search import search as time_search
from tieredstore.spark.batch import PushDownReader, TieredBatchReader
from tieredstore.spark.options import parse_options
from tieredstore.spark.partitions import TieredPartition
from tieredstore.spark.schema import Shape, spark_schema

COLUMNS = ("topic", "queue_id", "queue_offset", "body")
LOG, UNITS = FileSegmentType.COMMIT_LOG, FileSegmentType.CONSUME_QUEUE


@pytest.fixture
def tier(tmp_path: Path) -> GrowingTier:
    """A tier with two queues. Queue 0 has messages 0 to 11 in segments of four, and queue 1 has
    messages 0 to 4."""
    built = GrowingTier(tmp_path)
    for _ in range(3):
        built.append("orders", 0, 4)
        built.roll("orders", 0)
    built.append("orders", 1, 5)
    return built


def reader_of(
    tier: GrowingTier,
    options: dict[str, str] | None = None,
    *,
    kind: type[TieredBatchReader] = TieredBatchReader,
    columns: tuple[str, ...] = COLUMNS,
) -> TieredBatchReader:
    given = {"path": tier.url, "subscribe": "orders", **(options or {})}
    return kind(parse_options(given), Shape.of(spark_schema(columns), None))


def offsets(reader: TieredBatchReader) -> list[tuple[int, int]]:
    """Return the queue id and offset of all rows. As in Spark, the reader is pickled before it
    plans."""
    sent: TieredBatchReader = pickle.loads(pickle.dumps(reader))
    return read(sent, reader.partitions())


def read(reader: TieredBatchReader, partitions: list[InputPartition]) -> list[tuple[int, int]]:
    return [
        (row["queue_id"], row["queue_offset"])
        for partition in pickle.loads(pickle.dumps(partitions))
        for batch in reader.read(partition)
        for row in batch.to_pylist()
    ]


def queue(number: int, first: int, until: int) -> list[tuple[int, int]]:
    return [(number, offset) for offset in range(first, until)]


def bounds(**offsets_of: int) -> str:
    return json.dumps({"orders": {BROKER: {q[1:]: n for q, n in offsets_of.items()}}})


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, queue(0, 0, 12) + queue(1, 0, 5)),
        ({"startingOffsets": bounds(q0=10, q1=-2)}, queue(0, 10, 12) + queue(1, 0, 5)),
        ({"endingOffsets": bounds(q0=2, q1=-1)}, queue(0, 0, 2) + queue(1, 0, 5)),
        ({"endingOffsets": bounds(q1=0)}, queue(0, 0, 12)),
        ({"startingTimestamp": str(START_MS + 3500)}, queue(0, 4, 12) + queue(1, 4, 5)),
        ({"endingTimestamp": str(START_MS + 1000)}, queue(0, 0, 1) + queue(1, 0, 1)),
        ({"startingTimestamp": "2100-01-01"}, []),
        (
            {"startingTimestamp": "2023-11-15 06:13:23.500", "timeZone": "Asia/Shanghai"},
            queue(0, 4, 12) + queue(1, 4, 5),
        ),
        ({"keys": '["KEY-3", "KEY-9"]', "startingTimestamp": str(START_MS + 4000)}, [(0, 9)]),
        ({"tags": "T1"}, [(0, 1), (0, 4), (0, 7), (0, 10), (1, 1), (1, 4)]),
        ({"keys": '["KEY-3", "KEY-9"]'}, [(0, 3), (0, 9), (1, 3)]),
        ({"keys": "KEY-3", "endingOffsets": bounds(q0=3)}, [(1, 3)]),
    ],
)
def test_what_is_read(
    tier: GrowingTier, options: dict[str, str], expected: list[tuple[int, int]]
) -> None:
    assert offsets(reader_of(tier, options)) == expected


def test_assigned_queues_and_patterns(tier: GrowingTier) -> None:
    tier.append("other", 0, 1)
    shape = Shape.of(spark_schema(COLUMNS), None)
    assign = {"path": tier.url, "assign": json.dumps({"orders": {BROKER: [1]}})}
    assert offsets(TieredBatchReader(parse_options(assign), shape)) == queue(1, 0, 5)
    pattern = {"path": tier.url, "subscribePattern": "oth.*"}
    assert offsets(TieredBatchReader(parse_options(pattern), shape)) == [(0, 0)]
    assign["assign"] = json.dumps({"orders": {BROKER: [7]}})
    with pytest.raises(Invalid, match=r"topic 'orders' has no queue 7\. It has 0, 1"):
        TieredBatchReader(parse_options(assign), shape).partitions()


def test_partitions_are_as_many_as_asked_for_and_small_queues_share_one(tier: GrowingTier) -> None:
    everything = queue(0, 0, 12) + queue(1, 0, 5)
    for options, count in (
        ({}, 1),
        ({"minPartitions": "5"}, range(5, 8)),
        ({"minPartitions": "100"}, 17),
        ({"maxPartitionBytes": "1100"}, range(4, 7)),
    ):
        reader = reader_of(tier, options)
        partitions = reader.partitions()
        assert len(partitions) in ([count] if isinstance(count, int) else count)
        assert read(reader, partitions) == everything


def test_pushed_filters_cut_what_is_planned(tier: GrowingTier) -> None:
    reader = reader_of(tier, {"maxPartitionBytes": "1100"}, kind=PushDownReader)
    assert isinstance(reader, PushDownReader)
    filters: list[Filter] = [EqualTo(("queue_id",), 0), GreaterThanOrEqual(("queue_offset",), 6)]
    filters.append(EqualTo(("body",), b"x"))
    # Spark applies all again: this plan serves other queries of the DataFrame too.
    assert list(reader.pushFilters(filters)) == filters
    planned = [
        (one.queue.queue_id, one.from_offset, one.until_offset)
        for partition in reader.partitions()
        if isinstance(partition, TieredPartition)
        for one in partition.ranges
    ]
    assert planned == [(0, 6, 9), (0, 9, 12)]


def test_pushed_tags_reach_the_tasks(tier: GrowingTier) -> None:
    reader = reader_of(tier, {"tags": "T1 || T2"}, kind=PushDownReader)
    assert isinstance(reader, PushDownReader)
    reader.pushFilters([EqualTo(("tags",), "T1"), EqualTo(("queue_id",), 1)])
    assert offsets(reader) == [(1, 1), (1, 4)]
    reader = reader_of(tier, {"tags": "T2"}, kind=PushDownReader)
    assert isinstance(reader, PushDownReader)
    reader.pushFilters([EqualTo(("tags",), "T1")])
    assert offsets(reader) == []


def test_columns_of_the_queue_leave_the_commit_log_alone(tier: GrowingTier) -> None:
    # But for the head of the last message: by it the end of a queue is known.
    for queue_id, last in ((0, 11), (1, 4)):
        units = b"".join(one.read_bytes() for one in tier.segments("orders", queue_id, UNITS))
        place = int.from_bytes(units[last * 20 :][:8], "big")
        for path in tier.segments("orders", queue_id, LOG):
            data, base = path.read_bytes(), int(path.name[-20:])
            kept = data[place - base :][:8] if base <= place < base + len(data) else b""
            path.write_bytes(
                (bytes(max(place - base, 0)) + kept).ljust(len(data), b"\0")[: len(data)]
            )
    reader = reader_of(tier, columns=("queue_id", "queue_offset"))
    assert offsets(reader) == queue(0, 0, 12) + queue(1, 0, 5)
    with pytest.raises(Corrupt):
        offsets(reader_of(tier))


def test_metadata_behind_the_listing_are_believed_and_it_is_told(
    tier: GrowingTier, caplog: pytest.LogCaptureFixture
) -> None:
    tier.metadata.flush()
    saved = tier.metadata.path.read_bytes()
    tier.append("orders", 0, 4)  # into segments that the saved metadata do not know
    tier.metadata.path.write_bytes(saved)
    with caplog.at_level(logging.WARNING):
        found = offsets(reader_of(tier, {"state": str(tier.root / "state")}))
    assert found == queue(0, 0, 12) + queue(1, 0, 5)
    assert "COMMIT_LOG@3098: the tier has a segment that the metadata does not know" in caplog.text
    assert len(offsets(reader_of(tier))) == 21


# Out of range


@pytest.mark.parametrize("which", ["startingOffsets", "endingOffsets"])
def test_offsets_out_of_range(
    tier: GrowingTier, which: str, caplog: pytest.LogCaptureFixture
) -> None:
    tier.expire("orders", 0)
    with pytest.raises(Invalid, match=r"orders/0: offset 99 is out of range: .* \[4, 12\)"):
        reader_of(tier, {which: bounds(q0=99)}).partitions()
    with pytest.raises(Invalid, match=r"orders/0: .* wanted offset 2, min offset 4"):
        reader_of(tier, {which: bounds(q0=2)}).partitions()
    loose = {"failOnDataLoss": "false"}
    with caplog.at_level(logging.WARNING):
        all_of_0, all_of_1 = queue(0, 4, 12), queue(1, 0, 5)
        low = offsets(reader_of(tier, {**loose, which: bounds(q0=2)}))
        high = offsets(reader_of(tier, {**loose, which: bounds(q0=99)}))
    starts = which == "startingOffsets"
    assert low == (all_of_0 + all_of_1 if starts else all_of_1)
    assert high == (all_of_1 if starts else all_of_0 + all_of_1)
    assert "2 messages expired before they were read, 2 to 3" in caplog.text
    assert "offset 99 is out of range" in caplog.text


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"startingOffsets": "latest"}, "startingOffsets: latest: nothing would be read"),
        ({"endingOffsets": "earliest"}, "endingOffsets: earliest: nothing would be read"),
        ({"startingOffsets": bounds(q7=1)}, "orders/7 is not among the queues that are read"),
        ({"subscribe": "order"}, "no topic 'order' in the tier. Did you mean orders"),
        ({"path": "/nowhere/at/all"}, "/nowhere/at/all: no such directory"),
        ({"state": "/nowhere"}, "state /nowhere: no such directory"),
    ],
)
def test_what_is_wrong_is_said(tier: GrowingTier, options: dict[str, str], message: str) -> None:
    with pytest.raises(Invalid, match=message):
        reader_of(tier, options).partitions()


# Expired while it is read


@pytest.mark.parametrize("skip", [False, True])
@pytest.mark.parametrize("begun", [False, True])
def test_messages_that_expire_after_planning(
    tier: GrowingTier, caplog: pytest.LogCaptureFixture, skip: bool, begun: bool
) -> None:
    options = {"onDamage": "skip" if skip else "fail", "batchBytes": "600"}
    reader = reader_of(tier, options)
    loose = reader_of(tier, {"failOnDataLoss": "false", **options})
    [partition] = reader.partitions()
    found: list[tuple[int, int]] = []
    with caplog.at_level(logging.WARNING):
        batches = loose.read(partition)
        if begun:  # the first batch, of two messages, is read before
            found += [(row["queue_id"], row["queue_offset"]) for row in next(batches).to_pylist()]
        tier.expire("orders", 0)
        tier.expire("orders", 0)
        found += [(row["queue_id"], row["queue_offset"]) for b in batches for row in b.to_pylist()]
    # Earlier messages are returned once. An open file may still have the rest of its segment.
    assert found[-9:] == queue(0, 8, 12) + queue(1, 0, 5)
    assert found == sorted(set(found))
    lost = 8 - (len(found) - 9)
    assert f"{lost} messages expired before they were read, {8 - lost} to 7" in caplog.text
    assert "pieces of damage" not in caplog.text
    with pytest.raises(Invalid, match=r"orders/0: messages 0 to 7 expired .* min offset 8"):
        list(reader.read(partition))


def test_a_queue_that_is_gone_after_planning(tier: GrowingTier) -> None:
    [partition] = reader_of(tier).partitions()
    for _ in range(3):
        tier.expire("orders", 0)
    assert read(reader_of(tier, {"failOnDataLoss": "false"}), [partition]) == queue(1, 0, 5)
    with pytest.raises(Invalid, match="messages 0 to 11 expired"):
        read(reader_of(tier), [partition])


# Damage


def damage(tier: GrowingTier) -> Path:
    """Change one byte of the body of message 5. Return the path of the segment."""
    path = tier.segments("orders", 0, LOG)[1]
    data = bytearray(path.read_bytes())
    data[258 + 100] ^= 0xFF
    path.write_bytes(data)
    return path


def test_damage_names_file_and_byte(tier: GrowingTier) -> None:
    damage(tier)
    with pytest.raises(Corrupt, match=r"broker-a/orders/0/COMMIT_LOG@1032 byte \d+ .*offset 5"):
        offsets(reader_of(tier))
    assert len(offsets(reader_of(tier, {"checkBodies": "false"}))) == 17


def test_records_behind_columns_of_the_consume_queue_are_read_if_asked_for(
    tier: GrowingTier,
) -> None:
    damage(tier)
    columns = ("queue_id", "queue_offset")
    assert len(offsets(reader_of(tier, columns=columns))) == 17
    with pytest.raises(Corrupt, match="offset 5"):
        offsets(reader_of(tier, {"verifyRecords": "true"}, columns=columns))


@pytest.mark.parametrize("keys", [{}, {"keys": "orders-0-203"}])
def test_what_no_sample_of_times_shows_is_found_if_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keys: dict[str, str]
) -> None:
    monkeypatch.setattr(time_search, "READ_WHOLE_BYTES", 0)
    times = [START_MS + n * 1000 for n in range(600)]
    times[203] += 10_000_000
    builder = TierBuilder(tmp_path, messages_per_segment=1000, times=times)
    builder.queue("orders", 0, [message("orders", 0, n) for n in range(600)])
    late = str(START_MS + 9_000_000)
    given = {"path": builder.built.url, "subscribe": "orders", "startingTimestamp": late, **keys}
    shape = Shape.of(spark_schema(COLUMNS), None)
    found = {}
    for search in ("sampled", "exact"):
        options = parse_options({**given, "searchTimes": search})
        found[search] = offsets(TieredBatchReader(options, shape))
    # In a search by keys, the index decides which messages are read.
    assert found == {"sampled": [(0, 203)] if keys else [], "exact": [(0, 203)]}


def test_damage_is_no_loss_where_only_what_was_read_has_expired(tier: GrowingTier) -> None:
    path = tier.segments("orders", 0, LOG)[2]
    data = bytearray(path.read_bytes())
    data[258 + 100] ^= 0xFF  # a byte of message 9
    path.write_bytes(data)
    reader = reader_of(tier, {"batchBytes": "600"})
    [partition] = reader.partitions()
    batches = reader.read(partition)
    assert sum(next(batches).num_rows for _ in range(3)) == 6
    tier.expire("orders", 0)
    with pytest.raises(Corrupt, match="queue offset 9"):
        list(batches)


def test_damage_is_left_out_counted_and_reported(
    tier: GrowingTier, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    damage(tier)
    expected = queue(0, 0, 5) + queue(0, 6, 12) + queue(1, 0, 5)
    for folder in (str(tmp_path / "report"), f"file://{tmp_path}/report"):
        reader = reader_of(tier, {"onDamage": "skip", "corruptReportPath": folder})
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            for _ in range(2):  # a second attempt at the task writes the same file
                assert offsets(reader) == expected
        assert "[0, 12): 1 pieces of damage, 1 messages left out" in caplog.text
        [file] = (tmp_path / "report").iterdir()
        [line] = map(json.loads, file.read_text().splitlines())
        assert (line["topic"], line["queue_id"], line["queue_offset"]) == ("orders", 0, 5)
        assert line["segment"] == "broker-a/orders/0/COMMIT_LOG@1032"
        assert line["kind"] == "record-body-crc"


# Schemas


def test_a_schema_is_compared_by_name_and_type() -> None:
    def shape(*fields: StructField, columns: tuple[str, ...] | None = None) -> Shape:
        return Shape.of(StructType(list(fields)), columns)

    queue_id = StructField("queue_id", IntegerType(), nullable=False)
    found = shape(queue_id, StructField("body_length", IntegerType()))
    assert found.columns == ("queue_id", "body_length")
    assert found.read == ("queue_id", "body_length", "queue_offset")
    assert not found.arrow.field("queue_id").nullable
    with pytest.raises(Invalid, match="column 'queue_id': expected int, found bigint"):
        shape(StructField("queue_id", LongType()))
    with pytest.raises(Invalid, match=r"no column 'queueId' in a message\. Did you mean queue_id"):
        shape(StructField("queueId", IntegerType()))
    with pytest.raises(Invalid, match="expected at least one column"):
        shape()
    with pytest.raises(Invalid, match="schema and the option columns differ: queue_id and body"):
        shape(queue_id, columns=("body",))
    with pytest.raises(Invalid, match="column 'keys': expected array<string>, found string"):
        shape(StructField("keys", StringType()))


TORN_AT = 19


def stepped(root: Path, *, torn: bool) -> str:
    """Return the URL of a tier with 20 messages, one per second. The clock was set back by five
    seconds halfway. With `torn`, zeros replace the last message."""
    seconds = [*range(10), *range(5, 15)]
    builder = TierBuilder(
        root, messages_per_segment=100, times=[START_MS + n * 1000 for n in seconds]
    )
    stored = builder.queue("orders", 0, [message("orders", 0, n) for n in range(20)])
    builder.built.metadata.flush()
    if torn:
        path = builder.built.path(SegmentId(f"{BROKER}/orders/0", LOG, 0))
        path.write_bytes(path.read_bytes()[: stored[-1].offset] + bytes(len(stored[-1].record)))
    return builder.built.url


@pytest.mark.parametrize("torn", [False, True])
@pytest.mark.parametrize("second", [-1, 0, 5, 8, 9, 12, 15])
def test_times_that_go_back_give_the_same_rows_by_option_filter_and_hand(
    tmp_path: Path, torn: bool, second: int
) -> None:
    url = stepped(tmp_path, torn=torn)
    border = START_MS + second * 1000
    shape = Shape.of(spark_schema((*COLUMNS, "store_timestamp")), None)
    given = {"path": url, "subscribe": "orders", "onDamage": "skip"}

    def rows_of(reader: TieredBatchReader) -> list[tuple[int, datetime]]:
        return [
            (row["queue_offset"], row["store_timestamp"])
            for partition in reader.partitions()
            for batch in reader.read(partition)
            for row in batch.to_pylist()
        ]

    everything = rows_of(TieredBatchReader(parse_options(given), shape))
    moment = datetime.fromtimestamp(border / 1000, UTC)
    assert len(everything) == (TORN_AT if torn else 20)
    for option, filter_of, matches in (
        ("startingTimestamp", GreaterThanOrEqual, operator.ge),
        ("endingTimestamp", LessThan, operator.lt),
    ):
        wanted = [row for row in everything if matches(row[1], moment)]
        by_option = {**given, option: str(border)}
        assert rows_of(TieredBatchReader(parse_options(by_option), shape)) == wanted
        pushed = PushDownReader(parse_options(given), shape)
        assert list(pushed.pushFilters([filter_of(("store_timestamp",), moment)]))
        assert rows_of(pushed) == wanted
