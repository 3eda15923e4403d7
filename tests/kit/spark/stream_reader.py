"""Drives a stream reader as Spark does, without Spark."""

from __future__ import annotations

import json
import pickle
from typing import Any

from tests.kit.growing_tier import GrowingTier
from tieredstore.clock import SYSTEM_CLOCK, Clock
from tieredstore.spark.options import parse_options
from tieredstore.spark.partitions import TieredPartition
from tieredstore.spark.schema import Shape, spark_schema
from tieredstore.spark.stream.checkpoint import StreamOffset
from tieredstore.spark.stream.reader import TieredStreamReader

COLUMNS = ("topic", "queue_id", "queue_offset")
Offset = dict[str, Any]


def reader_of(
    tier: GrowingTier, clock: Clock = SYSTEM_CLOCK, /, **options: str
) -> TieredStreamReader:
    """Return a stream reader that lists the tier at every trigger. It covers all topics unless
    `options` select some."""
    given = {"path": tier.url, "startingOffsets": "earliest", "listInterval": "0", **options}
    if not {"subscribe", "assign"}.intersection(options):
        given.setdefault("subscribePattern", ".*")
    shape = Shape.of(spark_schema(COLUMNS), None)
    return TieredStreamReader(parse_options(given), shape, clock=clock)


def through_json(offset: Offset) -> Offset:
    """Return a value after a round trip through Spark's JSON."""
    found: Offset = json.loads(json.dumps(offset))
    return found


def offsets(offset: Offset) -> dict[tuple[str, int], int]:
    """Return the offsets of a stream by topic and queue."""
    positions = StreamOffset.from_json(offset).positions
    return {(topic, queue_id): one.offset for (topic, _, queue_id), one in positions.items()}


def partitions(reader: TieredStreamReader, start: Offset, end: Offset) -> list[TieredPartition]:
    """Return the partitions of a batch."""
    found = reader.partitions(start, end)
    return [one for one in found if isinstance(one, TieredPartition)]


def rows(reader: TieredStreamReader, start: Offset, end: Offset) -> list[tuple[str, int, int]]:
    """Return the rows of a batch. Reader and partitions are pickled first, as in Spark."""
    sent = pickle.loads(pickle.dumps((reader, partitions(reader, start, end))))
    return [
        tuple(row.values())
        for partition in sent[1]
        for batch in sent[0].read(partition)
        for row in batch.to_pylist()
    ]


def latest(reader: TieredStreamReader, start: Offset, limit: Any = None) -> Offset:
    """Return the end of the batch that begins at `start`. `limit` is its read limit, by default
    that of the reader's options."""
    return through_json(reader.latestOffset(start, limit or reader.getDefaultReadLimit()))
