"""The nightly run executes `cat` over random tiers with random options, and compares the output
with the written messages."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.kit.command_line import tieredstore
from tests.kit.growing_tier import START_MS, GrowingTier

Row = dict[str, Any]
Test = Callable[[Row], bool]
WHERE: list[tuple[str, Test]] = [
    ("tags = 'T1'", lambda row: row["tags"] == "T1"),
    ("NOT (tags = 'T1')", lambda row: row["tags"] != "T1"),
    ("queue_offset BETWEEN 3 AND 9", lambda row: 3 <= row["queue_offset"] <= 9),
    ("body_length > 100 OR keys = 'KEY-1'", lambda row: row["body"] > 100 or row["number"] == 1),
    ("TAGS IN ('T0','T2')", lambda row: row["tags"] in ("T0", "T2")),
]


def build(root: Path, rng: random.Random) -> tuple[GrowingTier, list[Row]]:
    """Build a tier, and return its messages. During the writing, some writers' clocks are set
    back."""
    tier, rows = GrowingTier(root), list[Row]()
    for topic in ("orders", "%RETRY%g", "x_y"):
        for queue_id in range(rng.randrange(1, 4)):
            now = START_MS + rng.randrange(10**6)
            for _ in range(rng.randrange(1, 6)):
                count, body = rng.randrange(1, 12), rng.choice([20, 100, 3000])
                times = []
                for _ in range(count):
                    now += rng.choice([0, 1, 1000]) - rng.choice([0] * 19 + [3_600_000])
                    times.append(now)
                added = tier.append(topic, queue_id, count, body_bytes=body, times_ms=times)
                rows += [
                    {"topic": topic, "queue_id": queue_id, "queue_offset": offset, "time": time,
                     "tags": f"T{offset % 3}", "body": body, "number": offset}
                    for offset, time in zip(added, times, strict=True)
                ]  # fmt: skip
                if rng.random() < 0.4:
                    tier.roll(topic, queue_id)
    return tier, rows


def key(row: Row) -> tuple[str, int, int]:
    return row["topic"], row["queue_id"], row["queue_offset"]


def choose(rng: random.Random, rows: list[Row]) -> tuple[list[object], list[Test]]:
    """Draw random options, and compute the messages that they select."""
    topics = rng.sample(["orders", "%RETRY%g", "x_y"], rng.randrange(1, 4))
    options: list[object] = ["--topic", ",".join(topics)]
    tests: list[Test] = [lambda row: row["topic"] in topics]
    one = rng.choice([row for row in rows if row["topic"] in topics])
    if rng.random() < 0.25:
        options += ["--queue", one["queue_id"]]
        tests.append(lambda row: row["queue_id"] == one["queue_id"])
    if rng.random() < 0.25:
        options += ["--from-offset", one["queue_offset"]]
        tests.append(lambda row: row["queue_offset"] >= one["queue_offset"])
    if rng.random() < 0.4:
        is_since = rng.random() < 0.5
        options += ["--since" if is_since else "--until", one["time"]]
        tests.append(lambda row: (row["time"] >= one["time"]) is is_since)
    if rng.random() < 0.25:
        options += ["--tag", "T0 || T2"]
        tests.append(lambda row: row["tags"] != "T1")
    if rng.random() < 0.3:
        text, test = rng.choice(WHERE)
        options += ["--where", text]
        tests.append(test)
    return options, tests


@pytest.mark.parametrize(
    "seed", [0, 1, *(pytest.param(n, marks=pytest.mark.slow) for n in range(2, 120))]
)
def test_j40_cat_prints_what_was_written_and_chosen(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    tier, rows = build(tmp_path, rng)
    for _ in range(12):
        options, tests = choose(rng, rows)
        expected = sorted(key(row) for row in rows if all(test(row) for test in tests))
        form, limit = rng.choice(["", "--limit", "--reverse", "--tail"]), rng.randrange(1, 20)
        more = [form] if form == "--reverse" else [form, limit] if form else []
        ran = tieredstore("cat", "--tier", tier.url, *options, *more, "--output", "ndjson")
        assert ran.code == 0, (options, more, ran.err)
        found = [key(row) for row in ran.rows]
        if form == "--tail":
            assert len(found) == len(set(found)) == min(limit, len(expected)), (options, more)
            assert set(found) <= set(expected)
            continue
        if form == "--reverse":
            found = sorted(found)
        assert found == (expected[:limit] if form == "--limit" else expected), (options, more)
