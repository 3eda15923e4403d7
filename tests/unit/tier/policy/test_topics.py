"""Topics are selected for uploads and reads by patterns and by their own storage level."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.kit.configured_broker import HOUR_MS, TOPIC, Broker, brokers
from tieredstore.config import StorageLevel, StoreConfig, change_config
from tieredstore.contracts.dispatch_source import QueueKey
from tieredstore.contracts.message_store import GetMessageStatus
from tieredstore.local.topic_table import read_topics
from tieredstore.tier.policy.topic_filter import (
    BY_LEVEL,
    BY_PATTERN,
    EXCLUDED_METRIC,
    TopicFilter,
)
from tieredstore.tier.upload.dispatcher import BEHIND_METRIC, LATENCY_METRIC
from tieredstore.tier.upload.outcome import DispatchStatus

KEY = QueueKey(TOPIC, 0)


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Broker]:
    with brokers(tmp_path) as make:
        yield make(tieredBackendServiceProvider="posix", tieredStoreFileReservedTime=100)


def set_attributes(made: Broker, **topics: dict[str, str]) -> None:
    """Write topic attributes as the broker does after `mqadmin updateTopic -a`."""
    path = made.root / "store" / "config" / "topics.json"
    path.parent.mkdir(exist_ok=True)
    table = {
        topic: {"topicName": topic, "attributes": attributes}
        for topic, attributes in topics.items()
    }
    path.write_text(json.dumps({"topicConfigTable": table, "dataVersion": {"counter": 1}}))


def set_level(made: Broker, level: str | None) -> None:
    set_attributes(made, **{TOPIC: {} if level is None else {"tiered.storage.level": level}})


def exclude(made: Broker, patterns: str) -> None:
    change_config(made.loaded.config, {"tieredStoreExcludeTopics": patterns})


def backlog(made: Broker) -> tuple[Any, Any]:
    labels = {"topic": TOPIC, "queue_id": 0, "file_type": "consume_queue"}
    value = made.store.metrics.value
    return value(BEHIND_METRIC, **labels), value(LATENCY_METRIC, **labels)


def leave_waiting(made: Broker) -> None:
    """Put too few messages for a batch. Check that a scan uploads none and counts them as
    waiting."""
    made.put(3)
    made.clock.advance(1000)
    assert made.scan() == 0
    assert backlog(made) == (3, 1000)
    assert made.store.describe_tier().behind_messages == 3


@pytest.mark.parametrize("policy", ["pattern", "level"])
def test_a_topic_that_is_excluded_holds_no_cleaning_and_rings_no_alarm(
    made: Broker, policy: str
) -> None:
    made.put(5)
    made.upload()
    leave_waiting(made)
    assert made.store.dispatcher.retention_guard(KEY) == 5
    if policy == "pattern":
        exclude(made, "Topic?")
    else:
        set_level(made, "DISABLE")
    made.scan()
    assert made.store.dispatcher.retention_guard(KEY) is None
    assert backlog(made) == (0, 0)
    found = made.store.describe_tier()
    assert (found.behind_messages, found.behind_ms, found.hours_to_local_expiry) == (0, 0, None)
    assert made.upload() == 0
    assert made.store.dispatcher.dispatch(KEY, force=True).status is DispatchStatus.FILTERED
    reason = BY_PATTERN if policy == "pattern" else BY_LEVEL
    assert made.store.metrics.value(EXCLUDED_METRIC, reason=reason) == 1


def test_what_the_tier_has_of_an_excluded_topic_is_read_until_it_expires(made: Broker) -> None:
    made.put(5)
    made.upload()
    exclude(made, TOPIC)
    made.put(5)
    made.scan()
    # The local store loses what the tier has.
    source = made.store.next_store.dispatch_source
    source.is_in_store = lambda key, offset: offset >= 5
    reads = made.store.fetcher.cache.stats.accesses
    assert [message.queue_offset for message in made.get(0, 32).messages] == [0, 1, 2, 3, 4]
    assert made.store.fetcher.cache.stats.accesses > reads  # it was the tier's answer
    assert [message.queue_offset for message in made.get(5, 32).messages] == [5, 6, 7, 8, 9]
    assert made.store.get_min_offset_in_queue(TOPIC, 0) == 0
    assert made.query("k003") == [3]
    made.clock.advance(101 * HOUR_MS)
    made.store.expiry.retention_clock.begin()
    assert made.store.expiry.run_once().segments == 2
    assert made.store.flat_files.get(TOPIC, 0).consume_queue_min_offset == 5


def test_a_topic_that_is_included_again_goes_on_where_it_was(made: Broker) -> None:
    made.put(5)
    made.upload()
    exclude(made, TOPIC)
    made.put(5)
    made.scan()
    exclude(made, "")
    assert made.upload() == 5
    assert [message.queue_offset for message in made.cold_get(0).messages] == list(range(10))
    assert made.store.metrics.value(EXCLUDED_METRIC, reason=BY_PATTERN) == 0


def test_a_level_of_the_topic_s_own_says_which_reads_go_to_the_tier(made: Broker) -> None:
    made.put(5)
    made.upload()
    made.put(5)

    def reads(level: str | None) -> GetMessageStatus:
        """Set the storage level and run a scan. Return the status of a get at the end of the
        tier."""
        set_level(made, level)
        made.store.dispatcher.scan()
        found: GetMessageStatus = made.get(7, 1).status
        return found

    change_config(made.loaded.config, {"tieredStoreGroupCommitTimeout": 1 << 30})
    assert reads(None) is GetMessageStatus.FOUND
    accesses = made.store.fetcher.cache.stats.accesses
    made.get(0, 1)
    assert made.store.fetcher.cache.stats.accesses == accesses  # it is in the local store
    set_level(made, "FORCE")
    made.store.dispatcher.scan()
    assert made.get(0, 1).status is GetMessageStatus.FOUND
    assert made.store.fetcher.cache.stats.accesses > accesses
    accesses = made.store.fetcher.cache.stats.accesses
    set_level(made, "DISABLE")
    made.store.dispatcher.scan()
    assert made.get(0, 1).status is GetMessageStatus.FOUND
    assert made.store.fetcher.cache.stats.accesses == accesses


def test_a_topic_s_level_counts_from_the_start_on(tmp_path: Path) -> None:
    with brokers(tmp_path) as make:
        made = make(tieredBackendServiceProvider="posix", at=tmp_path / "one")
        made.put(5)
        set_level(made, "DISABLE")
        made.store.shutdown()
        again = make(tieredBackendServiceProvider="posix", at=tmp_path / "one")
        assert again.store.topic_filter.find_level(TOPIC) is StorageLevel.DISABLE
        assert again.store.dispatcher.retention_guard(KEY) is None
        assert again.upload() == 0


def test_a_broker_whose_level_is_disable_has_no_topic_with_another() -> None:
    found = TopicFilter(StoreConfig(storage_level=StorageLevel.DISABLE))
    found.take_levels({TOPIC: StorageLevel.FORCE})
    assert found.find_level(TOPIC) is StorageLevel.DISABLE


@pytest.mark.parametrize("text", ["", "disable", "7", "NEVER"])
def test_what_is_no_level_in_a_table_of_topics_is_none(made: Broker, text: str) -> None:
    set_attributes(
        made, Good={"tiered.storage.level": "NOT_IN_MEM"}, Bad={"tiered.storage.level": text}
    )
    assert read_topics(made.root / "store").storage_levels() == {"Good": StorageLevel.NOT_IN_MEM}


def test_patterns_that_change_are_asked_anew_for_every_topic() -> None:
    config = StoreConfig()
    found = TopicFilter(config)
    names = ["a", "ab", "b", "%RETRY%a"]
    for include, exclude_, uploaded in (
        ("", "", names),
        ("a*", "", ["a", "ab"]),
        ("a*", "?b", ["a"]),
        ("", "[ab]", ["ab", "%RETRY%a"]),
        (",", " , ", names),
    ):
        change_config(
            config, {"tieredStoreIncludeTopics": include, "tieredStoreExcludeTopics": exclude_}
        )
        for _ in range(2):  # asked, and known
            assert [name for name in names if found.is_uploaded(name)] == uploaded


def test_a_topic_that_no_tier_can_hold_is_no_policy_s(made: Broker) -> None:
    found = TopicFilter(StoreConfig(include_topics="nothing"))
    found.report_policies(["SCHEDULE_TOPIC_XXXX", "a", "b"])
    assert found.reason("SCHEDULE_TOPIC_XXXX") is not None
    exclude(made, "*")
    made.put(1)
    made.put(1, topic="SCHEDULE_TOPIC_XXXX")
    made.scan()
    assert made.store.metrics.value(EXCLUDED_METRIC, reason=BY_PATTERN) == 1


def test_each_change_of_what_is_uploaded_is_another_version_and_nothing_else_is() -> None:
    """The filter's version changes exactly when the set of uploaded topics changes. The next scan
    then checks all queues."""
    config = StoreConfig()
    found = TopicFilter(config)
    seen = [found.version]

    def changes() -> bool:
        found.take_levels(levels)
        seen.append(found.version)
        return seen[-1] != seen[-2]

    levels: dict[str, StorageLevel] = {}
    assert not changes()
    found.exclude("T", "BatchCQ")
    assert changes()
    found.include("T")
    assert changes()
    levels = {"T": StorageLevel.DISABLE}
    assert changes()
    assert not changes()
    change_config(config, {"tieredStoreIncludeTopics": "a*"})
    assert changes()
    change_config(config, {"tieredStoreExcludeTopics": "b*"})
    assert changes()
    levels = {}
    assert changes()
    assert not changes()
