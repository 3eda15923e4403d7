"""Tests of the keys for operators' policies: topics, rates and intervals."""

from __future__ import annotations

import pytest

from tests.kit.configured_broker import T0, Broker, MakeBroker, SteppedClock
from tieredstore.contracts.segment import FileSegmentType

COMMIT_LOG, CONSUME_QUEUE, INDEX = FileSegmentType
TOPICS = ("orders", "orders_eu", "trace")


def uploaded_topics(made: Broker) -> list[str]:
    for topic in TOPICS:
        made.put(2, topic=topic)
    made.upload()
    return [topic for topic in TOPICS if made.store.flat_files.get(topic, 0) is not None]


@pytest.mark.parametrize(
    ("patterns", "uploaded"),
    [("", list(TOPICS)), ("orders*", ["orders", "orders_eu"]), (" trace , *_eu", TOPICS[1:])],
)
def test_include_topics_says_which_topics_are_uploaded(
    broker: MakeBroker, patterns: str, uploaded: list[str]
) -> None:
    assert uploaded_topics(broker(tieredStoreIncludeTopics=patterns)) == list(uploaded)


@pytest.mark.parametrize(
    ("patterns", "uploaded"), [("trace", ["orders", "orders_eu"]), ("*", []), ("ORDERS", TOPICS)]
)
def test_exclude_topics_says_which_topics_are_not_uploaded(
    broker: MakeBroker, patterns: str, uploaded: list[str]
) -> None:
    made = broker(tieredStoreExcludeTopics=patterns, tieredStoreIncludeTopics="orders*,trace")
    assert uploaded_topics(made) == list(uploaded)


def upload_seconds(made: Broker) -> float:
    """Return the duration of five uploads of a message, in seconds."""
    begin_ms = made.clock.now_ms()
    for _ in range(5):
        made.put(1)
        made.upload()
    return (made.clock.now_ms() - begin_ms) / 1000


def test_upload_bytes_per_second_is_how_fast_the_tier_is_written(broker: MakeBroker) -> None:
    assert upload_seconds(broker(tieredStoreUploadBytesPerSecond=0)) == 0
    made = broker(tieredStoreUploadBytesPerSecond=100)
    took = upload_seconds(made)
    *earlier, _ = made.provider.writes
    assert sum(call.size for call in earlier) / 100 - 2 <= took
    assert took <= sum(call.size for call in made.provider.writes) / 100 + 1


def read_seconds(made: Broker) -> float:
    """Return the duration of five reads of a message, in seconds."""
    made.put(5)
    made.upload()
    made.provider.reads.clear()
    begin_ms = made.clock.now_ms()
    for offset in range(5):
        assert len(made.cold_get(offset, 1).messages) == 1
    return (made.clock.now_ms() - begin_ms) / 1000


def test_download_bytes_per_second_is_how_fast_the_tier_is_read(broker: MakeBroker) -> None:
    assert read_seconds(broker(readAheadCacheEnable=False)) == 0
    made = broker(readAheadCacheEnable=False, tieredStoreDownloadBytesPerSecond=100)
    took = read_seconds(made)
    *earlier, _ = made.provider.reads
    assert sum(call.size for call in earlier) / 100 - 2 <= took
    assert took <= sum(call.size for call in made.provider.reads) / 100 + 1


@pytest.mark.parametrize(("interval_ms", "files"), [(0, 0), (60_000, 1), (60_001, 0)])
def test_index_file_upload_interval_is_when_keys_of_a_file_that_is_not_full_go(
    broker: MakeBroker, interval_ms: int, files: int
) -> None:
    made = broker(tieredStoreIndexFileUploadInterval=interval_ms)
    made.put(3)
    made.upload()
    made.store.index.tick()
    made.clock.advance(60_000)
    made.store.index.tick()
    assert len(made.segments(INDEX)) == files
    assert made.query("all") == [0, 1, 2]


@pytest.mark.parametrize("interval_ms", [1000, 60_000])
def test_dispatch_interval_is_the_time_between_two_looks(
    broker: MakeBroker, interval_ms: int
) -> None:
    clock = SteppedClock(T0)
    made = broker(clock=clock, tieredStoreDispatchInterval=interval_ms)
    made.store.dispatcher.start()
    try:
        assert clock.await_waits(1) == [T0 + interval_ms]
    finally:
        made.store.dispatcher.stop()
