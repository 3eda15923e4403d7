"""A backfill records store times. Records of an earlier topic with the same name are ignored."""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow as pa
import pytest

import tieredstore
from tests.kit.jobs.backfill import START_MS, fill, messages, tier_at
from tieredstore import jobs
from tieredstore.jobs.options import BackfillOptions
from tieredstore.message import time_records
from tieredstore.scan.time_search import search as time_search
from tieredstore.tier import recorded_times

COUNT = 400


@pytest.fixture(autouse=True)
def small_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorded_times, "LEAST_BYTES", 4_000)
    monkeypatch.setattr(time_records, "RANGE_BYTES", 2_000)
    monkeypatch.setattr(time_search, "READ_WHOLE_BYTES", 4_000)
    monkeypatch.setattr(time_search, "TOLD_BYTES", 4_000)


def times_of(root: Path) -> list[Path]:
    return sorted((root / "tier").rglob(".times/*/*/*"))


def rows_between(root: Path, since_ms: int, until_ms: int) -> list[int]:
    opened = tieredstore.open(tier_at(root).url, state=root / "state")
    found = opened.scan("orders", columns="queue_offset", since=since_ms, until=until_ms)
    return [int(number) for number in found.to_arrow()["queue_offset"].to_pylist()]


def test_a_backfill_records_the_times_of_each_segment(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    report = fill(tmp_path, messages(COUNT), BackfillOptions(segment_bytes=20_000))
    assert len(times_of(tmp_path)) == report["segments"] > 2
    assert rows_between(tmp_path, START_MS + 100, START_MS + 110) == list(range(100, 110))
    assert "no times are recorded" not in caplog.text
    checked = jobs.verify(tier_at(tmp_path).url, seal=True)
    assert (checked["damage"], checked["sealed"]["timed_segments"]) == (0, 0)
    fill(tmp_path, messages(COUNT, first=COUNT), BackfillOptions(segment_bytes=20_000), name="more")
    assert rows_between(tmp_path, START_MS + 390, START_MS + 410) == list(range(390, 410))
    assert jobs.verify(tier_at(tmp_path).url, seal=True)["sealed"]["timed_segments"] == 0


def test_a_small_queue_has_no_record(tmp_path: Path) -> None:
    fill(tmp_path, messages(10))
    assert times_of(tmp_path) == []


@pytest.mark.parametrize("count", [COUNT, 20])
def test_j82_records_of_a_deleted_topic_count_for_nothing_in_the_next_one(
    tmp_path: Path, count: int
) -> None:
    """Time records of a deleted topic are ignored in a recreated topic, even if the first and last
    messages are identical."""
    first = tmp_path / "first"
    fill(first, messages(COUNT))
    stale = first / "tier"
    again = tmp_path / "again"
    for record in times_of(first):  # as after a deletion that could not delete them
        copy = again / "tier" / record.relative_to(stale)
        copy.parent.mkdir(parents=True)
        shutil.copyfile(record, copy)
    times = [START_MS + number for number in range(count)]
    times[5:-5] = [times[5]] * len(times[5:-5])
    changed = messages(count).set_column(6, "store_timestamp", pa.array(times, pa.int64()))
    fill(again, changed)
    wanted = [number for number, time in enumerate(times) if time <= START_MS + 5]
    assert rows_between(again, START_MS, START_MS + 6) == wanted
    assert len(times_of(again)) == (count == COUNT)
    assert jobs.verify(tier_at(again).url)["damage"] == 0
