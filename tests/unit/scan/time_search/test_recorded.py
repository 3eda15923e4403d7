"""Tests of time records: who writes them, what they cost, and when they are valid."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import tieredstore
from tests.kit.counted_requests import CountedTier
from tests.kit.growing_tier import BROKER
from tests.kit.tier.flat import T0, Tier, as_batch, record
from tests.kit.tier_builder import START_MS, BuiltTier, TierBuilder, message
from tieredstore import jobs
from tieredstore.message import time_records
from tieredstore.message.time_records import decode_time_record, encode_time_record
from tieredstore.scan.extents import QueueReader
from tieredstore.scan.listing import load_catalogue
from tieredstore.scan.plan import ScanBounds, plan
from tieredstore.scan.time_search import search as time_search
from tieredstore.scan.time_search.recorded import load_ranges
from tieredstore.tier import recorded_times

COUNT, PER_SEGMENT = 2_000, 900
PATH = f"{BROKER}/orders/0"


@pytest.fixture(autouse=True)
def small_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorded_times, "LEAST_BYTES", 4_000)
    monkeypatch.setattr(recorded_times, "RECORD_BYTES", 6_000)
    monkeypatch.setattr(recorded_times, "MOST_UNRECORDED_BYTES", 12000)
    monkeypatch.setattr(recorded_times, "MOST_READ_BACK_BYTES", 18000)
    monkeypatch.setattr(time_records, "RANGE_BYTES", 2_000)
    monkeypatch.setattr(time_search, "READ_WHOLE_BYTES", 4_000)
    monkeypatch.setattr(time_search, "TOLD_BYTES", 6_000)


def times_with_a_step() -> list[int]:
    times = [START_MS + number * 100 for number in range(COUNT)]
    times[1_010:1_030] = [time - 7_200_000 for time in times[1_010:1_030]]
    return times


@pytest.fixture
def java(tmp_path: Path) -> BuiltTier:
    """A tier with a clock step, whose writer records no times."""
    builder = TierBuilder(tmp_path, messages_per_segment=PER_SEGMENT, times=times_with_a_step())
    builder.queue("orders", 0, [message("orders", 0, number) for number in range(COUNT)])
    builder.built.metadata.flush()
    return builder.built


def planned(tier: BuiltTier, **bounds: Any) -> list[tuple[int, int, bool]]:
    ranges = plan(tier.provider, load_catalogue(tier.provider).queues, ScanBounds(**bounds))
    return [(one.from_offset, one.until_offset, one.is_searched) for one in ranges]


def files_of(tier: BuiltTier) -> list[Path]:
    return sorted((tier.root / "tier").rglob(".times/*/*/*"))


def test_sealing_records_times_which_then_choose_what_is_read(
    java: BuiltTier, caplog: pytest.LogCaptureFixture
) -> None:
    assert planned(java, until_ms=START_MS) == [(0, COUNT, False)]
    assert "no times are recorded of 2000 messages" in caplog.text
    done = jobs.verify(java.url, seal=True)["sealed"]
    assert (done["timed_segments"], done["deleted"]) == (3, 0)
    caplog.clear()
    [(first, until, is_searched)] = planned(java, until_ms=START_MS)
    assert is_searched
    assert first in range(990, 1_011)
    assert until in range(1_030, 1_051)
    late = START_MS + 1_500 * 100
    [(first, until, _)] = planned(java, since_ms=late, until_ms=late + 500)
    assert first in range(1_480, 1_501)
    assert until in range(1_505, 1_530)
    assert not caplog.records
    opened = tieredstore.open(java.url)
    found = opened.scan("orders", columns="queue_offset", until=START_MS).to_arrow()
    assert found["queue_offset"].to_pylist() == list(range(1_010, 1_030))
    assert jobs.verify(java.url, seal=True)["sealed"]["timed_segments"] == 0


def test_what_has_grown_is_looked_at_from_there_on(java: BuiltTier) -> None:
    jobs.verify(java.url, seal=True)
    whole = {file: file.read_bytes() for file in files_of(java)}
    last = max(whole)
    builder = TierBuilder(
        java.root / "longer", messages_per_segment=PER_SEGMENT, times=[*times_with_a_step(), 5, 6]
    )
    builder.queue("orders", 0, [message("orders", 0, number) for number in range(COUNT + 2)])
    longer = builder.built
    for file, data in whole.items():
        copy = longer.root / file.relative_to(java.root)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(data)
    assert planned(longer, until_ms=10) == [(COUNT, COUNT + 2, False)]
    assert jobs.verify(longer.url, seal=True)["sealed"]["timed_segments"] == 1
    assert not (longer.root / last.relative_to(java.root)).exists()
    [(first, until, is_searched)] = planned(longer, until_ms=10)
    assert (first > COUNT - 30, until, is_searched) == (True, COUNT + 2, True)


def test_a_record_of_other_messages_counts_for_nothing(java: BuiltTier) -> None:
    """A time record of other messages is ignored, for example after Java has recreated the
    topic."""
    jobs.verify(java.url, seal=True)
    other = TierBuilder(java.root / "other", messages_per_segment=PER_SEGMENT)
    other.queue("orders", 0, [message("orders", 0, number) for number in range(COUNT)])
    folder = next((java.root / "tier").rglob(".times"))
    shutil.copytree(folder, other.built.root / folder.relative_to(java.root))
    assert planned(other.built, since_ms=START_MS) == [(0, COUNT, False)]
    sealed = jobs.verify(other.built.url, seal=True)["sealed"]
    assert sealed["timed_segments"] == 3
    assert all(is_searched for _, _, is_searched in planned(other.built, since_ms=START_MS + 5))


def damage_record(file: Path, changed: dict[str, Any]) -> None:
    """Change one range in a file's time record, so that its offsets or times are no longer
    ascending."""
    record = decode_time_record(file.read_bytes())
    assert record is not None
    ranges = list(record.ranges)
    number = next(n for n, one in enumerate(ranges) if "rises" not in changed or not one.rises)
    ranges[number] = ranges[number]._replace(**changed)
    file.write_bytes(encode_time_record(replace(record, ranges=tuple(ranges))))


@pytest.mark.parametrize(
    "changed", [{"least_ms": START_MS + 86_400_000}, {"most_ms": START_MS - 1}, {"rises": True}]
)
def test_j81_verify_tells_of_wrong_records_and_seal_makes_them_anew(
    java: BuiltTier, changed: dict[str, Any]
) -> None:
    jobs.verify(java.url, seal=True)
    assert jobs.verify(java.url)["damage"] == 0
    good = {file: file.read_bytes() for file in files_of(java)}
    damage_record(sorted(good)[1], changed)
    found = jobs.verify(java.url)
    assert found["kinds"]["recorded-times"] == found["damage"] == 1
    [told] = [one for one in found["findings"] if one["kind"] == "recorded-times"]
    assert "verify --seal" in told["message"]
    sealed = jobs.verify(java.url, seal=True)["sealed"]
    assert (sealed["timed_segments"], sealed["left_alone"]) == (3, 0)
    assert {file: file.read_bytes() for file in files_of(java)} == good
    assert jobs.verify(java.url)["damage"] == 0


def test_a_record_whose_segment_is_gone_is_deleted_by_sealing(java: BuiltTier) -> None:
    jobs.verify(java.url, seal=True)
    for name in ("COMMIT_LOG", "CONSUME_QUEUE"):
        folder = next(java.root.rglob(name))
        first = min(path for path in folder.iterdir() if path.name[0] != ".")
        if name == "COMMIT_LOG":
            first.unlink()
    assert jobs.verify(java.url, seal=True)["sealed"]["deleted"] >= 1
    assert len(files_of(java)) == 2


def test_a_copy_takes_records_along(java: BuiltTier, tmp_path: Path) -> None:
    jobs.verify(java.url, seal=True)
    url = f"file://{tmp_path / 'copy'}"
    jobs.copy(tieredstore.open(java.url), url, to_state=tmp_path / "other")
    copied = {file.name: file.read_bytes() for file in (tmp_path / "copy").rglob(".times/*/*/*")}
    assert copied == {file.name: file.read_bytes() for file in files_of(java)}
    found = tieredstore.open(url).scan("orders", until=START_MS).plan()
    assert [task.range.is_searched for task in found] == [True]


def test_j82_a_copy_brings_its_own_records(java: BuiltTier, tmp_path: Path) -> None:
    """A copy of a tier replaces existing time records in the target."""
    jobs.verify(java.url, seal=True)
    copy = tmp_path / "copy"
    for file in files_of(java):
        stale = copy / file.relative_to(java.root / "tier")
        stale.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, stale)
        damage_record(stale, {"least_ms": START_MS - 9, "most_ms": START_MS - 8})
    url = f"file://{copy}"
    jobs.copy(tieredstore.open(java.url), url, to_state=tmp_path / "other")
    assert sorted(file.read_bytes() for file in copy.rglob(".times/*/*/*")) == sorted(
        file.read_bytes() for file in files_of(java)
    )
    assert jobs.verify(url)["damage"] == 0
    [file, *_] = copy.rglob(".times/*/*/*")
    written = file.stat().st_mtime_ns
    jobs.copy(tieredstore.open(java.url), url, to_state=tmp_path / "other")
    assert file.stat().st_mtime_ns == written


def test_records_are_in_the_order_of_the_writer_and_go_with_the_queue() -> None:
    tier = Tier()
    file = tier.queue()
    for first in range(0, 200, 10):
        made = [record(number, timestamp_ms=T0 + number) for number in range(first, first + 10)]
        file.append_batch(*as_batch(made))
        file.commit()
        if file.times.is_due:
            file.times.record()
    place = tier.provider
    names = place.list_times(file.path)  # type: ignore[attr-defined]
    assert 0 < names[-1].size_bytes <= file.commit_log_commit_offset
    [queue] = load_catalogue(tier.provider).queues
    with QueueReader(tier.provider, queue) as reader:
        ranges = load_ranges(reader)
    assert [one.rises for one in ranges] == [True] * len(ranges)
    assert ranges[0].first == 0
    file.take_out()
    assert place.list_times(file.path) == []  # type: ignore[attr-defined]


def test_what_a_search_asks_of_an_object_store(tmp_path: Path) -> None:
    """A time search in a large queue makes few requests to an object store. Small queues need
    none."""
    tier = CountedTier(tmp_path)
    for queue_id in range(10):
        tier.written.append("small", queue_id, 4)
    tier.written.append("orders", 0, 200)
    provider = tier.location.connect()
    catalogue = tier.list_whole(provider)
    small = [queue for queue in catalogue.queues if queue.topic == "small"]
    assert len(list(plan(provider, small, ScanBounds(since_ms=START_MS, narrow=True)))) == 10
    assert tier.client.requests.total() == 0
    large = catalogue.select("orders", 0, BROKER)
    jobs_done = len(list(plan(provider, large, ScanBounds(since_ms=START_MS))))
    assert jobs_done == 1
    assert tier.client.requests == {"LIST": 1}
