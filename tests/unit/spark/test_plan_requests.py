"""Tests of the requests to an object store that planning a query needs for each queue."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from tests.kit.counted_requests import WHOLE_LISTING, WHOLE_LISTING_AGAIN, CountedTier
from tests.kit.growing_tier import START_MS
from tests.kit.memory_chunks import chunk_provider
from tieredstore.spark.batch import TieredBatchReader
from tieredstore.spark.options import SourceOptions, parse_options
from tieredstore.spark.schema import Shape, spark_schema
from tieredstore.spark.stream.reader import TieredStreamReader

QUEUES = 40
WIDTH = chunk_provider().capabilities.concurrent_reads
SHAPE = Shape.of(spark_schema(("queue_offset", "body")), None)


@pytest.fixture
def tier(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CountedTier:
    """A tier of forty queues with four messages each."""
    made = CountedTier(tmp_path)
    for queue_id in range(QUEUES):
        made.written.append("orders", queue_id, 4)
    monkeypatch.setattr(SourceOptions, "tier", lambda _: made.location)
    return made


def options_of(**given: str) -> SourceOptions:
    return parse_options({"path": "s3://bucket", "subscribe": "orders", **given})


@pytest.mark.parametrize(
    "given", [{}, {"startingTimestamp": str(START_MS + 2_000)}, {"startingOffsets": "earliest"}]
)
def test_a_batch_is_planned_from_one_listing(tier: CountedTier, given: dict[str, str]) -> None:
    assert TieredBatchReader(options_of(**given), SHAPE).partitions()
    assert dict(tier.client.requests) == {"LIST": WHOLE_LISTING}


@pytest.mark.parametrize("start", ["earliest", "latest"])
def test_a_stream_begins_with_two_reads_a_queue(tier: CountedTier, start: str) -> None:
    tier.client.together = threading.Barrier(WIDTH, timeout=30)  # breaks unless so many come
    reader = TieredStreamReader(options_of(startingOffsets=start), SHAPE)
    begin = reader.initialOffset()
    end = reader.latestOffset(begin, None)
    assert (begin != end) == (start == "earliest")
    assert bool(reader.partitions(begin, end)) == (start == "earliest")
    assert tier.reads <= 2 * QUEUES
    reader.stop()


def test_the_next_batch_of_a_stream_reads_the_queues_that_grew(tier: CountedTier) -> None:
    reader = TieredStreamReader(options_of(listInterval="0s"), SHAPE)
    begin = reader.initialOffset()
    for queue_id in range(WIDTH):
        tier.written.append("orders", queue_id, 1)
    tier.client.requests.clear()
    tier.client.together = threading.Barrier(WIDTH, timeout=30)
    end = reader.latestOffset(begin, None)
    assert reader.partitions(begin, end)
    # Units and message at the new end, and what the queue was known by.
    assert tier.reads <= 4 * WIDTH
    reader.stop()


def test_where_many_topics_grow_one_listing_of_all_takes_fewer_requests(tier: CountedTier) -> None:
    topics = [f"topic-{number}" for number in range(20)]
    given = {"path": "s3://bucket", "subscribePattern": ".*", "listInterval": "1h"}
    reader = TieredStreamReader(parse_options(given), SHAPE)
    for count in (1, 2):
        for topic in topics:
            tier.written.append(topic, 0, count)
        reader._tier().look(lambda catalogue: catalogue.queues, now=True)
    tier.client.requests.clear()
    reader._tier().look(lambda catalogue: catalogue.queues)  # those that grew, all twenty
    assert tier.client.requests["LIST"] == WHOLE_LISTING_AGAIN
    reader.stop()


def test_a_limit_of_bytes_is_shared_out_by_several_queues_together(tier: CountedTier) -> None:
    given = {"startingOffsets": "earliest", "maxBytesPerTrigger": "20000"}
    reader = TieredStreamReader(options_of(**given), SHAPE)
    begin = reader.initialOffset()
    tier.client.requests.clear()
    tier.client.together = threading.Barrier(WIDTH, timeout=30)
    assert reader.latestOffset(begin, reader.getDefaultReadLimit()) != begin
    assert tier.reads <= 3 * QUEUES
    reader.stop()
