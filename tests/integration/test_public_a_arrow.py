"""Several libraries read Java's tiers through Arrow, as tables. Each message equals its entry in
the manifest."""

from __future__ import annotations

import hashlib
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import tieredstore
from tieredstore.scan.arrow.schema import TYPES
from tieredstore.table import Tier

PLACE = ["topic", "queue_id", "queue_offset"]


@pytest.fixture(scope="module")
def tier(public_a: Path) -> Tier:
    return tieredstore.open(f"file://{public_a / 'tiered'}")


@pytest.fixture(scope="module")
def expected(public_a_manifest: dict[str, Any]) -> dict[tuple[str, int, int], dict[str, Any]]:
    return {
        (m["topic"], m["queueId"], m["queueOffset"]): m
        for m in public_a_manifest["messages"]
        if m.get("tiered")
    }


def test_every_column_of_every_message_is_what_java_wrote(
    tier: Tier, expected: dict[tuple[str, int, int], dict[str, Any]]
) -> None:
    expected = dict(expected)
    rows = tier.scan(columns=tuple(TYPES)).to_arrow().to_pylist()
    assert len(rows) == len(expected) == 1759
    for row in rows:
        m = expected.pop((row["topic"], row["queue_id"], row["queue_offset"]))
        assert dict(row["properties"]) == m["properties"]
        assert row["msg_id"] == m["properties"].get("UNIQ_KEY", row["offset_msg_id"])
        assert row["keys"] == (m["properties"].get("KEYS") or "").split()
        assert row["tags"] == m["properties"].get("TAGS")
        assert round(row["store_timestamp"].timestamp() * 1000) == m["storeTimestamp"]
        assert round(row["born_timestamp"].timestamp() * 1000) == m["bornTimestamp"]
        assert hashlib.sha256(row["body"]).hexdigest() == m["bodySHA256"]
        assert row["body_length"] == len(row["body"])
        assert row["body_crc"] == m["bodyCRC"]
        assert row["sys_flag"] & ~1 == m["sysFlag"]  # Java's decoder clears the bit of compression
        assert row["flag"] == m["flag"]
        assert row["reconsume_times"] == m["reconsumeTimes"]
        assert row["physical_offset"] == m["tiered"]["commitLogOffset"]
        assert row["broker"] == "labBroker"
        assert row["born_host"] == m["bornHost"].lstrip("/")
        assert row["store_host"] == m["storeHost"].lstrip("/")
    assert expected == {}


def test_counts_and_bodies_agree_in_every_library(
    tier: Tier, expected: dict[tuple[str, int, int], dict[str, Any]]
) -> None:
    counts = Counter(topic for topic, _, _ in expected)
    lengths = Counter[str]()
    for row in tier.scan(columns=["topic", "body_length"]).to_arrow().to_pylist():
        lengths[row["topic"]] += row["body_length"]
    scan = tier.scan(columns=[*PLACE, "body", "tags", "store_timestamp"])
    relation = scan.to_duckdb()
    found = relation.aggregate("topic, count(*), sum(octet_length(body))", "topic")
    assert {topic: (n, size) for topic, n, size in found.fetchall()} == {
        topic: (n, lengths[topic]) for topic, n in counts.items()
    }
    frame = scan.to_pandas()
    assert frame.groupby("topic").size().to_dict() == counts
    assert frame["body"].map(len).sum() == sum(lengths.values())
    polars = scan.to_polars()
    assert dict(polars.group_by("topic").len().iter_rows()) == counts
    places = set(polars.select(PLACE).iter_rows())
    assert places == set(expected)


def test_keys_and_tags_find_what_the_manifest_has(
    tier: Tier, expected: dict[tuple[str, int, int], dict[str, Any]]
) -> None:
    for key in ("shared", "pubn-K5"):
        right = {
            place
            for place, m in expected.items()
            if key in (m["properties"].get("KEYS") or "").split()
        }
        for use_index in (True, False):
            rows = tier.scan(keys=key, columns=PLACE, use_index=use_index).to_arrow().to_pylist()
            assert {tuple(row.values()) for row in rows} == right
            assert len(rows) == len(right) > 0
    right = {place for place, m in expected.items() if m["properties"].get("TAGS") == "TagA"}
    rows = tier.scan(tags="TagA", columns=PLACE).to_arrow().to_pylist()
    assert {tuple(row.values()) for row in rows} == right


@pytest.mark.parametrize("version", ["java-5.3.3", "java-5.5.0"])
def test_golden_tiers_of_several_segments_begin_at_their_first_offset(
    golden: Path, version: str
) -> None:
    tier = tieredstore.open(f"file://{golden / version / 'tier'}")
    # Its bodies carry a made-up CRC.
    scan = tier.scan(
        "TopicA", columns=["queue_offset", "body_length", "stored_length"], check_bodies=False
    )
    for target_bytes in (1, 1 << 20):
        tasks = scan.plan(target_bytes=target_bytes)
        rows = [row for task in tasks for batch in task.read() for row in batch.to_pylist()]
        assert [row["queue_offset"] for row in rows] == list(range(100, 105))
        assert [row["body_length"] for row in rows] == [row["stored_length"] for row in rows]
