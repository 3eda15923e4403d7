"""`ls` and `stat` print the first and last offset and the times of the messages in each queue."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kit.command_line import tieredstore
from tests.kit.growing_tier import START_MS, GrowingTier
from tests.kit.tier_builder import TierBuilder, message
from tieredstore.contracts.segment import FileSegmentType

COUNT = 20


@pytest.fixture
def tier(tmp_path: Path) -> GrowingTier:
    tier = GrowingTier(tmp_path)
    tier.append("orders", 0, COUNT)
    return tier


@pytest.mark.parametrize("end", ["cut", "zeros", "missing"])
def test_j41_a_queue_ends_before_a_torn_last_message_in_ls_and_stat(
    tier: GrowingTier, end: str
) -> None:
    [log] = tier.segments("orders", 0, FileSegmentType.COMMIT_LOG)
    data = log.read_bytes()
    whole = data[: data.rindex((0xDAA320A7).to_bytes(4, "big")) - 4]
    rest = {"cut": data[len(whole) : -10], "zeros": bytes(len(data) - len(whole)), "missing": b""}
    log.write_bytes(whole + rest[end])
    ran = tieredstore("ls", "--tier", tier.url, "--output", "ndjson")
    [row] = ran.rows
    rows = tieredstore("cat", "--tier", tier.url, "--topic", "orders", "--output", "ndjson").rows
    assert len(rows) == COUNT - 1
    assert (row["max_offset"], row["messages"]) == (COUNT - 1, COUNT - 1)
    assert row["min_store_timestamp"] == START_MS
    assert row["max_store_timestamp"] == rows[-1]["store_timestamp"]
    assert "units up to offset 20 name messages that are not there" in ran.err
    found = tieredstore("stat", "--tier", tier.url, "--output", "json").record
    assert (found["messages"], found["max_store_timestamp"]) == (19, rows[-1]["store_timestamp"])


def test_j60_the_time_of_a_damaged_last_message_is_unknown(tier: GrowingTier) -> None:
    [log] = tier.segments("orders", 0, FileSegmentType.COMMIT_LOG)
    data = log.read_bytes()
    log.write_bytes(data[:-260] + b"\x55" * 260)
    [row] = tieredstore("ls", "--tier", tier.url, "--output", "ndjson").rows
    assert (row["max_offset"], row["max_store_timestamp"]) == (COUNT, None)


def test_the_times_of_a_queue_are_ordered_after_a_clock_was_set_back(tmp_path: Path) -> None:
    builder = TierBuilder(tmp_path, times=[START_MS + 9, START_MS + 5, START_MS + 7])
    builder.queue("orders", 0, [message("orders", 0, number) for number in range(3)])
    for verb in ("ls", "stat"):
        [row] = tieredstore(verb, "--tier", builder.built.url, "--output", "ndjson").rows
        times = row["min_store_timestamp"], row["max_store_timestamp"]
        assert times == (START_MS + 7, START_MS + 9)
