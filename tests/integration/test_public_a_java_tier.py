"""This project reads Java's tier in the public-a fixture. Every message and every query of the
manifest is checked."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.kit import public_a as kit
from tests.kit.oracle import Oracle


@pytest.fixture(scope="module")
def oracle(public_a_manifest: dict[str, Any]) -> Oracle:
    return Oracle(public_a_manifest)


@pytest.fixture(scope="module")
def tier(public_a: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[kit.JavaTier]:
    tier = kit.JavaTier(public_a, tmp_path_factory.mktemp("java-tier"))
    yield tier
    tier.close()


def test_every_message_of_javas_tier_is_read_as_java_wrote_it(
    tier: kit.JavaTier, public_a_manifest: dict[str, Any]
) -> None:
    expected = {
        (m["topic"], m["queueId"], m["queueOffset"]): m["tiered"]
        for m in public_a_manifest["messages"]
        if m.get("tiered")
    }
    found = {}
    for topic, queue_id in sorted({place[:2] for place in expected}):
        offset = kit.JAVA_TIER_LOW.get((topic, queue_id), 0)
        while True:
            result = tier.fetcher.get_message("group", topic, queue_id, offset, 32)
            if not result.messages:
                break
            offset = result.next_begin_offset
            for message in result.messages:
                found[topic, queue_id, message.queue_offset] = {
                    "commitLogOffset": message.physical_offset,
                    "size": message.size,
                    "tagsCode": message.tags_code,
                    "rawSHA256": hashlib.sha256(message.raw).hexdigest(),
                }
    assert len(expected) == 1759
    assert found == expected


def test_decoded_messages_are_what_was_sent(
    tier: kit.JavaTier, public_a_manifest: dict[str, Any]
) -> None:
    for m in public_a_manifest["messages"]:
        if not m.get("tiered"):
            continue
        result = tier.fetcher.get_message("group", m["topic"], m["queueId"], m["queueOffset"], 1)
        [message] = result.messages
        assert message.properties == m["properties"]
        assert message.store_timestamp_ms == m["storeTimestamp"]
        assert message.born_timestamp_ms == m["bornTimestamp"]
        assert message.body_crc == m["bodyCRC"]
        assert hashlib.sha256(message.decode_body()).hexdigest() == m["bodySHA256"]


def test_every_get_is_answered_right(
    tier: kit.JavaTier, oracle: Oracle, public_a_manifest: dict[str, Any]
) -> None:
    rows = [r for r in public_a_manifest["queries"]["getMessage"] if r["store"] == "broker"]
    assert len(rows) == 240
    get = tier.fetcher.get_message
    assert kit.wrong_gets(rows, oracle, get, low=kit.JAVA_TIER_LOW) == []


def test_every_time_query_is_answered_right(
    tier: kit.JavaTier, oracle: Oracle, public_a_manifest: dict[str, Any]
) -> None:
    rows = public_a_manifest["queries"]["offsetByTime"]
    assert len(rows) == 1170
    search = tier.fetcher.offset_by_time
    assert kit.wrong_times(rows, oracle, search, low=kit.JAVA_TIER_LOW) == []


def test_every_key_query_is_answered_right(
    tier: kit.JavaTier, oracle: Oracle, public_a_manifest: dict[str, Any]
) -> None:
    """Every key query of the fixture is answered correctly. This includes messages of IPv6 hosts,
    although Java's index records them with times of 1970."""
    rows = public_a_manifest["queries"]["byKey"]
    assert len(rows) == 692
    query = tier.fetcher.query_message
    assert kit.wrong_queries(rows, oracle, query, low=kit.JAVA_TIER_LOW) == []


def test_earliest_and_store_times_are_those_of_the_messages(
    tier: kit.JavaTier, oracle: Oracle, public_a_manifest: dict[str, Any]
) -> None:
    for row in public_a_manifest["queries"]["minMax"]:
        queue = row["topic"], row["queueId"]
        times = oracle.queues[queue].times
        low = kit.JAVA_TIER_LOW.get(queue, 0)
        assert tier.fetcher.earliest_time(*queue) == (times[low] if times else -1)
        for asked in row["storeTimestampAt"]:
            is_there = low <= asked["offset"] < len(times)
            right = times[asked["offset"]] if is_there else -1
            assert tier.fetcher.store_timestamp(*queue, asked["offset"]) == right


def test_defects_d05_d10_d14_d16_d27_where_javas_recorded_answers_are_wrong(
    oracle: Oracle, public_a_manifest: dict[str, Any]
) -> None:
    """All wrong answers of Java in the fixture have a known reason. The test counts the wrong
    answers by the number of the defect in `docs/differences.md`."""
    found = {
        "get": kit.java_wrong_gets(public_a_manifest, oracle, "broker"),
        "time, tiered": kit.java_wrong_times(public_a_manifest, oracle, "tiered"),
        "time, broker": kit.java_wrong_times(public_a_manifest, oracle, "broker"),
        "key": kit.java_wrong_queries(public_a_manifest, oracle, "tiered"),
    }
    assert found == {
        "get": {},
        "time, tiered": {"D10": 6, "D14": 22, "D27": 267},
        "time, broker": {"D10": 6, "D14": 22, "D27": 267},
        "key": {"D5": 141, "D14": 20, "D16": 3},
    }
