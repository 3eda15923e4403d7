"""Tests of the keys for cold reads: read-ahead cache, checks, and the size of a get."""

from __future__ import annotations

import logging

import pytest

from tests.kit.configured_broker import Broker, MakeBroker, sizes
from tieredstore.contracts.segment import FileSegmentType
from tieredstore.tier.fetch import fetcher
from tieredstore.tier.fetch.block_fetcher import BAD_MESSAGES

COMMIT_LOG, CONSUME_QUEUE, _ = FileSegmentType


def cold(broker: MakeBroker, count: int = 40, **keys: object) -> Broker:
    """A broker with an uploaded queue that has never been read."""
    made = broker(**keys)
    made.put(count)
    made.upload()
    made.provider.reads.clear()
    return made


def backend_reads(made: Broker, offset: int = 0, count: int = 8) -> int:
    """Return the number of commit log reads that one get needs."""
    before = len(sizes(made.provider.reads, COMMIT_LOG))
    assert len(made.cold_get(offset, count).messages) == count
    return len(sizes(made.provider.reads, COMMIT_LOG)) - before


@pytest.mark.parametrize(("enabled", "reads"), [(True, [1, 0, 0]), (False, [1, 1, 1])])
def test_read_ahead_cache_enable_keeps_what_was_read_ahead(
    broker: MakeBroker, enabled: bool, reads: list[int]
) -> None:
    made = cold(broker, readAheadCacheEnable=enabled)
    assert [backend_reads(made, *wanted) for wanted in ((0, 16), (8, 8), (8, 8))] == reads
    assert made.store.fetcher.cache.stats.hits == (2 if enabled else 0)


def largest_read(made: Broker) -> int:
    """Return the size in bytes of the largest commit log read while the whole queue is read."""
    made.provider.reads.clear()
    offset = 0
    while offset < 200:
        offset = made.cold_get(offset, 8).next_begin_offset
    return max(sizes(made.provider.reads, COMMIT_LOG))


@pytest.mark.parametrize("threshold", [10, 25])
def test_read_ahead_message_count_threshold_is_how_many_messages_one_read_brings_at_most(
    broker: MakeBroker, threshold: int
) -> None:
    made = cold(broker, 200, readAheadMessageCountThreshold=threshold)
    size = made.get(0, 1).messages[0].size
    assert largest_read(made) == threshold * size


def test_read_ahead_message_size_threshold_is_how_many_bytes_one_read_brings_at_most(
    broker: MakeBroker,
) -> None:
    size = cold(broker).get(0, 1).messages[0].size
    for threshold, messages in ((10 * size, 10), (25 * size + 1, 25), (1, 1)):
        made = cold(broker, 200, readAheadMessageSizeThreshold=threshold)
        assert largest_read(made) == messages * size


@pytest.mark.parametrize(("expire_ms", "reads"), [(1000, 1), (1001, 0)])
def test_read_ahead_cache_expire_duration_is_how_long_a_block_waits_for_a_reader(
    broker: MakeBroker, expire_ms: int, reads: int
) -> None:
    made = cold(broker, readAheadCacheExpireDuration=expire_ms)
    assert backend_reads(made, 0, 16) == 1
    made.clock.advance(1000)
    assert backend_reads(made, 8) == reads


@pytest.mark.parametrize(("rate", "limit"), [(0.5, 50_000), (0.25, 25_000), (0.0, 0)])
def test_read_ahead_cache_size_threshold_rate_is_the_cache_s_share_of_the_memory(
    broker: MakeBroker, monkeypatch: pytest.MonkeyPatch, rate: float, limit: int
) -> None:
    monkeypatch.setattr(fetcher, "usable_memory_bytes", lambda: 100_000)
    made = cold(
        broker,
        500,
        readAheadCacheSizeBytes=0,
        readAheadCacheSizeThresholdRate=rate,
        maxTransferBytesOnMessageInMemory=2000,
    )
    weights = []
    for offset in range(0, 496, 8):
        made.cold_get(offset, 8)
        weights.append(made.store.fetcher.cache.size_bytes)
    # A part is kept free of blocks that were not read to their end.
    assert 0.75 * limit <= max(weights) <= limit


@pytest.mark.parametrize(("limit", "reads"), [(8 << 20, 0), (1, 1)])
def test_read_ahead_cache_size_bytes_limits_the_cache(
    broker: MakeBroker, limit: int, reads: int
) -> None:
    made = cold(broker, readAheadCacheSizeBytes=limit)
    assert backend_reads(made, 0, 16) == 1
    assert backend_reads(made, 8) == reads
    assert made.store.fetcher.cache.size_bytes <= limit


@pytest.mark.parametrize("batch", [1, 100])
@pytest.mark.parametrize(("enabled", "found"), [(False, [0, 1, 2]), (True, [0, 2])])
def test_crc_check_enable_leaves_out_messages_with_a_bad_body(
    broker: MakeBroker, enabled: bool, found: list[int], batch: int
) -> None:
    made = cold(broker, 3, tieredStoreCrcCheckEnable=enabled)
    log = made.provider.content(COMMIT_LOG)
    at = log.index(b"x" * 100, len(log) // 3)
    log[at] ^= 1
    seen, offset = [], 0
    while offset < 3:
        result = made.cold_get(offset, batch)
        seen += [message.queue_offset for message in result.messages]
        offset = result.next_begin_offset
    assert seen == found
    counted = made.store.metrics.value(BAD_MESSAGES, topic="TopicA", queue_id=0)
    assert counted == 3 - len(found)


@pytest.mark.parametrize("enabled", [True, False])
def test_record_get_message_result_logs_each_get(
    broker: MakeBroker, caplog: pytest.LogCaptureFixture, enabled: bool
) -> None:
    caplog.set_level(logging.INFO, logger="tieredstore")
    made = cold(broker, recordGetMessageResult=enabled)
    made.cold_get(3, 8)
    lines = [record.getMessage() for record in caplog.records if record.name == fetcher.__name__]
    assert len(lines) == (1 if enabled else 0)
    assert all("TopicA/0 at 3: FOUND, next 11, 8 messages" in line for line in lines)


@pytest.mark.parametrize("messages", [5, 9])
def test_max_transfer_bytes_in_memory_limits_a_get_of_the_tier(
    broker: MakeBroker, messages: int
) -> None:
    size = cold(broker).get(0, 1).messages[0].size
    made = cold(broker, maxTransferBytesOnMessageInMemory=messages * size)
    assert len(made.cold_get(0, 32).messages) == messages
