"""Tests of the cost simulation behind docs/cost.md, over shorter simulated times."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.cost.simulation import (
    ADAPTIVE,
    DAY_MS,
    FIXED,
    GROUPED,
    HOUR_MS,
    PIECES,
    PLAIN,
    Load,
    Outcome,
    Scheme,
    simulate,
    simulate_reading,
)
from tieredstore.contracts.usage import MONTH_MS

PLAIN_REQUESTS_A_MONTH = 2_677_303_934
SLOW = Load(queues=1, stands_for=10_000, record_bytes=1024, interval_ms=5_000, duration_ms=DAY_MS)
"""A slow load: a message of 1 KiB every 5 s. The commit log rolls once, and its segment is
sealed."""


def run(scheme: Scheme, load: Load, folder: Path) -> Outcome:
    folder.mkdir()
    return simulate(scheme, load, folder)


def test_slow_queues_cost_a_fifteenth_of_the_plain_scheme(tmp_path: Path) -> None:
    plain = run(PLAIN, SLOW, tmp_path / "plain")
    fixed = run(FIXED, SLOW, tmp_path / "fixed")
    ours = run(ADAPTIVE, SLOW, tmp_path / "ours")
    assert ours.request_count * 15 <= plain.request_count
    assert ours.cost_usd * 15 <= plain.cost_usd
    # RocketMQ's own 30 s are about 40, since it looks every 20 s.
    assert ours.request_count * 12 <= fixed.request_count < plain.request_count
    assert ours.cost_usd * 12 <= fixed.cost_usd < plain.cost_usd
    # The plain scheme is what it says: a PUT every 30 s, and merging of both files.
    commits = SLOW.stands_for * DAY_MS // 30_000
    assert commits <= plain.by_operation()["PutObject"] <= commits * 6 // 5
    # All have uploaded the same, up to what still waits.
    whole = SLOW.stands_for * SLOW.record_bytes * DAY_MS // 5_000
    assert whole - plain.uploaded_bytes <= whole * 31 // 86_400
    assert whole - ours.uploaded_bytes <= whole * 625 // 86_400
    # Opening a broker of such queues lists few pages.
    assert ours.keys_left <= 500_000
    # Merging reads back what the write cache, shared by so many queues, does not have.
    assert ours.by_operation()["GetObject"] >= ours.by_operation()["PutObject"] // 2


GROUPED_QUEUES = Load(
    queues=12, stands_for=10_000, record_bytes=1024, interval_ms=5_000, duration_ms=DAY_MS
)


@pytest.mark.parametrize("hours", [4, pytest.param(26, marks=pytest.mark.slow)])
def test_group_objects_cost_a_five_hundredth_of_the_plain_scheme(
    hours: int, tmp_path: Path
) -> None:
    """Group objects reduce the number of requests to a five-hundredth or less. The number of
    requests without group objects comes from docs/cost.md, because simulating it takes minutes."""
    load = replace(GROUPED_QUEUES, duration_ms=hours * HOUR_MS)
    grouped = run(GROUPED, load, tmp_path / "grouped").a_month()
    assert grouped.request_count * 500 <= PLAIN_REQUESTS_A_MONTH
    # A group is a request for many queues. Reads and moves are one for each queue.
    commits = MONTH_MS // 60_000
    assert commits <= grouped.requests["PutObject", "GROUP"] <= 10 * commits
    assert hours < 24 or grouped.requests["PutObject", "COMMIT_LOG"] >= 10_000
    assert grouped.requests["GetObject", PIECES] == 0  # the disk has them
    # A queue's times are one record of each segment, and its names are listed once.
    segments = grouped.requests["CompleteMultipartUpload", "COMMIT_LOG"]
    assert grouped.requests["PutObject", "TIMES"] == segments
    assert grouped.requests["GetObject", "TIMES"] == grouped.requests["HeadObject", "TIMES"] == 0
    whole = grouped.load.stands_for * 1024 * MONTH_MS // 5_000
    assert whole - grouped.uploaded_bytes <= whole * 65 // (hours * 3_600)


@pytest.mark.parametrize(
    ("hours", "most"), [(6, 200), pytest.param(22, 300, marks=pytest.mark.slow)]
)
def test_a_day_of_a_queue_in_groups_costs_a_reader_at_most_300_requests(
    hours: int, most: int, tmp_path: Path
) -> None:
    """A reader needs at most 300 requests to read one day of a queue from group objects. The test
    reads at the most expensive moment: just before the groups are sorted again."""
    load = replace(GROUPED_QUEUES, duration_ms=hours * HOUR_MS - 120_000)
    (tmp_path / "day").mkdir()
    assert 100 <= simulate_reading(GROUPED, load, tmp_path / "day") <= most


def test_fast_queues_fill_their_writes_under_the_same_defaults(tmp_path: Path) -> None:
    load = Load(1, 1, record_bytes=1024, interval_ms=1, duration_ms=200_000)
    outcome = run(ADAPTIVE, load, tmp_path / "fast")
    puts = outcome.requests["PutObject", "COMMIT_LOG"]
    assert outcome.uploaded_bytes / puts >= 8 << 20
    assert outcome.cost_per_gib_usd < 0.01


def test_a_month_is_thirty_days_of_the_same(tmp_path: Path) -> None:
    load = Load(1, 100, record_bytes=1024, interval_ms=5_000, duration_ms=HOUR_MS)
    hour = run(ADAPTIVE, load, tmp_path / "hour")
    month = hour.a_month()
    assert month.request_count == pytest.approx(hour.request_count * MONTH_MS / HOUR_MS)
    assert month.cost_per_gib_usd == pytest.approx(hour.cost_per_gib_usd)


def test_what_a_broker_has_once_is_counted_once(tmp_path: Path) -> None:
    few = run(ADAPTIVE, Load(1, 10, 1024, 5_000, HOUR_MS), tmp_path / "few")
    many = run(ADAPTIVE, Load(1, 1_000, 1024, 5_000, HOUR_MS), tmp_path / "many")
    row = ("ListObjectsV2", "EPOCH")
    assert few.requests[row] == many.requests[row]
    puts = ("PutObject", "COMMIT_LOG")
    assert many.requests[puts] == 100 * few.requests[puts]


def test_messages_that_expire_are_deleted_in_it(tmp_path: Path) -> None:
    rarely = Scheme("a scan every two minutes", 120_000)
    kept = run(rarely, Load(1, 1, 8_192, 40_000, 3 * DAY_MS), tmp_path / "kept")
    load = Load(1, 1, 8_192, 40_000, 3 * DAY_MS, retention_hours=24)
    gone = run(rarely, load, tmp_path / "gone")
    row = ("DeleteObjects", "COMMIT_LOG")
    assert gone.requests[row] > kept.requests[row]
    assert gone.keys_left < kept.keys_left
