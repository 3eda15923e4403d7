"""Batches and streams never omit rows silently if segments of a tier are missing."""

from __future__ import annotations

import json
import logging
import pickle
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.datasource import InputPartition

from tests.kit.growing_tier import BROKER, GrowingTier
from tieredstore.contracts.segment import FileSegmentType
from tieredstore.errors import Corrupt
from tieredstore.spark.batch import TieredBatchReader
from tieredstore.spark.options import parse_options
from tieredstore.spark.schema import Shape, spark_schema
from tieredstore.spark.stream.reader import TieredStreamReader

LOG, UNITS = FileSegmentType.COMMIT_LOG, FileSegmentType.CONSUME_QUEUE
SHAPES = [("queue_offset",), ("queue_offset", "body")]
Reader = TieredBatchReader | TieredStreamReader


@pytest.fixture
def tier(tmp_path: Path) -> GrowingTier:
    """A tier with messages 0 to 19, five per segment."""
    tier = GrowingTier(tmp_path)
    for number in range(4):
        if number:
            tier.roll("orders", 0)
        tier.append("orders", 0, 5)
    tier.metadata.flush()
    return tier


def batch_of(
    tier: GrowingTier, columns: tuple[str, ...] = SHAPES[1], **options: Any
) -> TieredBatchReader:
    given = {"path": tier.url, "subscribe": "orders", **options}
    return TieredBatchReader(parse_options(given), Shape.of(spark_schema(columns), None))


def stream_of(
    tier: GrowingTier, columns: tuple[str, ...] = SHAPES[1], **options: Any
) -> TieredStreamReader:
    given = {"path": tier.url, "subscribe": "orders", "startingOffsets": "earliest", **options}
    return TieredStreamReader(parse_options(given), Shape.of(spark_schema(columns), None))


def read(reader: Reader, partitions: list[InputPartition]) -> list[int]:
    sent: Reader = pickle.loads(pickle.dumps(reader))
    return [
        offset
        for partition in pickle.loads(pickle.dumps(partitions))
        for batch in sent.read(partition)
        for offset in batch.column("queue_offset").to_pylist()
    ]


def read_stream(reader: TieredStreamReader) -> list[int]:
    start = json.loads(json.dumps(reader.initialOffset()))
    end = json.loads(json.dumps(reader.latestOffset(start, reader.getDefaultReadLimit())))
    return read(reader, reader.partitions(start, end))


@pytest.mark.parametrize("columns", SHAPES)
@pytest.mark.parametrize("type_", [LOG, UNITS])
def test_a_missing_segment_fails_batch_and_stream(
    tier: GrowingTier, columns: tuple[str, ...], type_: FileSegmentType
) -> None:
    tier.segments("orders", 0, type_)[1].unlink()
    with pytest.raises(Corrupt, match="orders/0"):
        read(batch_of(tier, columns), batch_of(tier, columns).partitions())
    with pytest.raises(Corrupt, match="orders/0"):
        read_stream(stream_of(tier, columns))


def test_a_batch_that_starts_in_the_hole_fails(tier: GrowingTier) -> None:
    tier.segments("orders", 0, UNITS)[1].unlink()
    bound = json.dumps({"orders": {BROKER: {"0": 7}}})
    reader = batch_of(tier, startingOffsets=bound)
    with pytest.raises(Corrupt, match="messages 7 to 9"):
        read(reader, reader.partitions())


def test_a_stream_takes_a_segment_that_is_back(tier: GrowingTier) -> None:
    path = tier.segments("orders", 0, UNITS)[1]
    data = path.read_bytes()
    path.unlink()
    reader = stream_of(tier)
    start = json.loads(json.dumps(reader.initialOffset()))
    end = json.loads(json.dumps(reader.latestOffset(start, reader.getDefaultReadLimit())))
    with pytest.raises(Corrupt, match="CONSUME_QUEUE@100"):
        read(reader, reader.partitions(start, end))
    path.write_bytes(data)
    again = stream_of(tier)  # the same batch, after the query was started again
    assert read(again, again.partitions(start, end)) == [*range(20)]


def test_who_leaves_damage_out_is_warned_with_the_number(
    tier: GrowingTier, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tier.segments("orders", 0, UNITS)[1].unlink()
    options: dict[str, Any] = {
        "onDamage": "skip",
        "corruptReportPath": str(tmp_path / "report"),
    }
    rest = [*range(5), *range(10, 20)]
    with caplog.at_level(logging.WARNING):
        reader = batch_of(tier, **options)
        assert read(reader, reader.partitions()) == rest
        assert read_stream(stream_of(tier, **options)) == rest
    assert "[5, 10): 1 pieces of damage, 5 messages left out" in caplog.text
    [report] = (tmp_path / "report").iterdir()
    assert json.loads(report.read_text())["segment"] == "broker-a/orders/0/CONSUME_QUEUE@100"


@pytest.mark.parametrize("loose", ["true", "false"])
@pytest.mark.parametrize("type_", [LOG, UNITS])
@pytest.mark.parametrize("number", range(4))
def test_with_a_state_a_missing_segment_is_damage_and_not_expiry(
    tier: GrowingTier, type_: FileSegmentType, number: int, loose: str
) -> None:
    path = tier.segments("orders", 0, type_)[number]
    data = path.read_bytes()
    path.unlink()
    options: dict[str, Any] = {"state": str(tier.root / "state"), "failOnDataLoss": loose}
    reader = batch_of(tier, **options)
    with pytest.raises(Corrupt, match="orders/0"):
        read(reader, reader.partitions())
    with pytest.raises(Corrupt, match="orders/0"):
        read_stream(stream_of(tier, **options))
    path.write_bytes(data)
    assert read_stream(stream_of(tier, **options)) == [*range(20)]


def test_a_hole_that_the_dispatcher_left_is_passed(tier: GrowingTier) -> None:
    tier.skip("orders", 0, 30)
    tier.append("orders", 0, 5)
    reader = batch_of(tier)
    assert read(reader, reader.partitions()) == [*range(20), *range(50, 55)]
    assert read_stream(stream_of(tier)) == [*range(20), *range(50, 55)]
