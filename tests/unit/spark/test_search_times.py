"""Spark's option `searchTimes` is exact after a clock step in a large queue, with and without
recorded times."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kit.tier_builder import START_MS, TierBuilder, message
from tieredstore import jobs
from tieredstore.scan.time_search import search as time_search
from tieredstore.spark.batch import TieredBatchReader
from tieredstore.spark.options import parse_options
from tieredstore.spark.schema import Shape, spark_schema

COLUMNS = ("queue_id", "queue_offset", "store_timestamp")
COUNT = 1_500


@pytest.mark.parametrize("sealed", [False, True])
def test_j31_a_batch_between_times_has_every_row_of_a_clock_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sealed: bool
) -> None:
    monkeypatch.setattr(time_search, "READ_WHOLE_BYTES", 1)
    times = [START_MS + number * 100 for number in range(COUNT)]
    times[505:520] = [time - 7_200_000 for time in times[505:520]]
    builder = TierBuilder(tmp_path, messages_per_segment=400, times=times)
    builder.queue("orders", 0, [message("orders", 0, number) for number in range(COUNT)])
    builder.built.metadata.flush()
    if sealed:
        jobs.verify(builder.built.url, seal=True)
    for since, until in ((0, START_MS), (START_MS + 1, times[900]), (times[1_400], times[-1])):
        options = parse_options(
            {
                "path": builder.built.url,
                "subscribe": "orders",
                "startingTimestamp": str(since),
                "endingTimestamp": str(until),
            }
        )
        reader = TieredBatchReader(options, Shape.of(spark_schema(COLUMNS), None))
        found = [
            number
            for partition in reader.partitions()
            for batch in reader.read(partition)
            for number in batch.column("queue_offset").to_pylist()
        ]
        assert found == [n for n, time in enumerate(times) if since <= time < until]
