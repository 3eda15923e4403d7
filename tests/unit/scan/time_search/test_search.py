"""A search by store time includes every message in the range, even after changes of the clock."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tieredstore
from tests.kit.command_line import tieredstore as command
from tests.kit.counted_reads import CountedReads
from tests.kit.tier_builder import (
    BROKER,
    START_MS,
    BuiltTier,
    Stored,
    TierBuilder,
    message,
)
from tieredstore.contracts.segment import FileSegmentType, SegmentId
from tieredstore.scan.extents import QueueReader
from tieredstore.scan.findings import Finding, Severity
from tieredstore.scan.plan import ScanBounds, plan
from tieredstore.scan.read.batches import read_batches
from tieredstore.scan.time_search import sampled
from tieredstore.scan.time_search import search as time_search
from tieredstore.scan.time_search.modes import SearchTimes
from tieredstore.scan.time_search.search import find_first, narrow_by_time

LOG = SegmentId(f"{BROKER}/orders/0", FileSegmentType.COMMIT_LOG, 0)
SECOND, MINUTE = 1_000, 60_000


def build(
    root: Path, times: Sequence[int], *, per_segment: int = 1 << 20
) -> tuple[BuiltTier, list[Stored]]:
    builder = TierBuilder(root, messages_per_segment=per_segment, times=times)
    stored = builder.queue("orders", 0, [message("orders", 0, n) for n in range(len(times))])
    builder.built.metadata.flush()
    return builder.built, stored


def zero(tier: BuiltTier, item: Stored) -> None:
    """Overwrite a range with zeros, as a crash can leave it after a file was extended."""
    path = tier.path(LOG)
    data = bytearray(path.read_bytes())
    data[item.offset : item.offset + len(item.record)] = bytes(len(item.record))
    path.write_bytes(data)


def scan(tier: BuiltTier, **chosen: Any) -> list[int]:
    columns = ["queue_offset", "body_crc"]
    found = tieredstore.open(tier.url).scan("orders", columns=columns, **chosen)
    offsets: list[int] = found.to_arrow()["queue_offset"].to_pylist()
    return offsets


@pytest.fixture(params=["a small queue", "a large queue, exact", "a large queue, sampled"])
def searched(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The kind of search, `exact` or `sampled`. In two of three cases the size limit is lowered, so
    that each queue is searched as a large one."""
    if request.param != "a small queue":
        monkeypatch.setattr(time_search, "READ_WHOLE_BYTES", 0)
        monkeypatch.setattr(sampled, "_BLOCK_BYTES", 1000)
    return "sampled" if "sampled" in request.param else "exact"


def expect_right_rows(
    tier: BuiltTier, times: Sequence[int], borders: Sequence[int], searched: str
) -> None:
    for border in borders:
        late = [n for n, time in enumerate(times) if time >= border]
        early = [n for n, time in enumerate(times) if time < border]
        assert scan(tier, since=border, search_times=searched) == late
        assert scan(tier, until=border, search_times=searched) == early


def test_a_clock_set_back_by_an_hour_at_the_end_of_a_queue(tmp_path: Path, searched: str) -> None:
    minutes = [*range(120), *range(60, 90)]
    times = [START_MS + minute * MINUTE for minute in minutes]
    tier, _ = build(tmp_path, times)
    expect_right_rows(
        tier, times, [START_MS + m * MINUTE for m in (0, 60, 89, 91, 100, 119, 120)], searched
    )


def test_a_clock_set_back_by_seconds_in_the_middle(tmp_path: Path, searched: str) -> None:
    times = [START_MS + second * SECOND for second in (*range(10), *range(5, 15))]
    tier, _ = build(tmp_path, times)
    expect_right_rows(tier, times, [START_MS + second * SECOND for second in range(16)], searched)


@pytest.mark.parametrize("bad_ms", [-5, 0, START_MS * 3])
@pytest.mark.parametrize("at", [0, 7, 19])
def test_one_bad_time(tmp_path: Path, searched: str, bad_ms: int, at: int) -> None:
    times = [START_MS + number * SECOND for number in range(20)]
    times[at] = bad_ms
    tier, _ = build(tmp_path, times)
    expect_right_rows(tier, times, [bad_ms, bad_ms + 1, START_MS, START_MS + 7 * SECOND], searched)


@pytest.mark.parametrize("of", ["zeros", "half of a head", "a part of a body"])
def test_a_torn_tail(tmp_path: Path, of: str) -> None:
    tier, stored = build(tmp_path, [START_MS + number * SECOND for number in range(20)])
    path = tier.path(LOG)
    if of == "zeros":
        zero(tier, stored[-1])
    else:
        path.write_bytes(path.read_bytes()[: stored[-1].offset + (20 if of[0] == "h" else 110)])
    findings: list[Finding] = []
    since, until = START_MS + 3 * SECOND, START_MS + 5 * SECOND
    assert scan(tier, since=since, on_finding=findings.append) == list(range(3, 19))
    assert {(one.severity, one.kind) for one in findings} == {(Severity.NOTE, "tail-unwritten")}
    assert scan(tier, since=since) == list(range(3, 19))
    assert scan(tier, until=until) == list(range(5))
    arguments = ("cat", "--tier", tier.url, "--topic", "orders", "--output", "ndjson")
    assert len(command(*arguments, "--until", until).rows) == 5
    assert [len(command(*arguments, *more).rows) for more in ((), ("--since", since))] == [19, 16]


def test_damage_loses_no_other_message_and_does_not_stop_a_search_elsewhere(tmp_path: Path) -> None:
    tier, stored = build(tmp_path, [START_MS + number * 1_500 for number in range(20)])
    whole = tier.path(LOG).read_bytes()
    for bad in range(20):
        tier.path(LOG).write_bytes(whole)
        zero(tier, stored[bad])
        for first in (0, 1, 7, 12, 19):
            border = START_MS + first * 1_500
            late = [number for number in range(first, 20) if number != bad]
            early = [number for number in range(first) if number != bad]
            assert scan(tier, since=border, on_finding=lambda _: None) == late
            assert scan(tier, until=border, on_finding=lambda _: None) == early
            if bad < first - 1:
                assert scan(tier, since=border) == late
            if bad > first:
                assert scan(tier, until=border) == early


def test_a_head_that_is_of_another_message_has_no_time(tmp_path: Path) -> None:
    """A unit that points to another message has no time."""
    tier, stored = build(tmp_path, [START_MS + number * SECOND for number in range(6)])
    units = tier.path(SegmentId(LOG.path, FileSegmentType.CONSUME_QUEUE, 0))
    data = bytearray(units.read_bytes())
    data[60:80] = data[40:60]
    units.write_bytes(data)
    [queue] = tier.catalogue().queues
    with QueueReader(tier.provider, queue) as reader:
        found = [find_first(reader, 3, 6, until_ms=stored[n].store_timestamp_ms) for n in (3, 5)]
    assert found == [None, 4]


def test_few_heads_of_a_large_queue_are_read(tmp_path: Path) -> None:
    """A time search in 40,000 messages reads less than one head in a hundred. Several segments need
    less than twice as many reads."""
    times = [START_MS + number * 10 * SECOND for number in range(40_000)]
    tier, _ = build(tmp_path, times, per_segment=9_000)
    for with_state in (False, True):
        counted = CountedReads(tier.provider)
        [queue] = tier.catalogue(with_state=with_state).queues
        since = times[31_000]
        with QueueReader(counted, queue) as reader:
            low, high = narrow_by_time(
                reader, 0, 40_000,
                since_ms=since, until_ms=since + SECOND, search_times=SearchTimes.SAMPLED,
            )  # fmt: skip
        assert low <= 31_000 < high
        assert high - low < 40_000 // 4
        assert counted.reads[FileSegmentType.COMMIT_LOG] < 200
        assert counted.reads[FileSegmentType.CONSUME_QUEUE] < 300
        assert counted.read_bytes[FileSegmentType.COMMIT_LOG] < 200 * 200


def test_segment_times_show_what_no_sample_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time_search, "READ_WHOLE_BYTES", 0)
    times = [START_MS + number * SECOND for number in range(3_000)]
    odd = 1_403  # no multiple of the distance of samples
    times[odd] += 10_000 * SECOND
    tier, _ = build(tmp_path, times, per_segment=500)
    since = START_MS + 9_000 * SECOND
    found = {}
    for with_state in (False, True):
        queues = tier.catalogue(with_state=with_state).queues
        ranges = plan(
            tier.provider, queues, ScanBounds(since_ms=since, search_times=SearchTimes.SAMPLED)
        )
        found[with_state] = [
            int(number)
            for one in ranges
            for batch in read_batches(tier.provider, one)
            for number in batch.queue_offsets
        ]
    assert found[True] == [odd]


def test_what_no_sample_shows_is_found_by_an_exact_search(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time_search, "READ_WHOLE_BYTES", 0)
    times = [START_MS + number * SECOND for number in range(600)]
    late, early = 203, 407  # no multiples of the distance of samples
    times[late] += 10_000 * SECOND
    times[early] -= 10_000 * SECOND
    tier, _ = build(tmp_path, times)
    after, before = START_MS + 9_000 * SECOND, START_MS - SECOND
    assert late not in scan(tier, since=after, search_times="sampled")
    assert scan(tier, since=after) == [late]
    assert early not in scan(tier, until=before, search_times="sampled")
    assert scan(tier, until=before) == [early]
    assert scan(tier, since=before, until=after) == [
        number for number in range(600) if number not in (late, early)
    ]
    opened = tieredstore.open(tier.url)
    assert opened.scan("orders", since=after).count_rows() == 1
    key = f"orders-0-{late}"
    assert opened.scan(keys=key, since=after).to_arrow().num_rows == 1
    [queue] = tier.catalogue().queues
    with QueueReader(tier.provider, queue) as reader:
        assert find_first(reader, 0, 600, since_ms=after) == late
        assert find_first(reader, 0, 600, until_ms=before) == early
        assert find_first(reader, 0, late, since_ms=after) is None


PACE = st.sampled_from([1, 50, 1_000])
STEP = st.integers(-3_000, 3_000).map(lambda tenths: tenths * 100)


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    pace=PACE,
    steps=st.lists(st.tuples(st.integers(0, 599), STEP), max_size=4),
    damaged=st.sets(st.integers(0, 599), max_size=5),
    data=st.data(),
)
def test_clocks_that_step_lose_no_message(
    tmp_path_factory: pytest.TempPathFactory,
    pace: int,
    steps: list[tuple[int, int]],
    damaged: set[int],
    data: st.DataObject,
) -> None:
    times = START_MS + np.arange(600) * pace
    for at, by in steps:
        times[at:] += by
    tier, stored = build(tmp_path_factory.mktemp("steps"), times.tolist(), per_segment=100)
    for number in damaged:
        path = tier.path(SegmentId(LOG.path, LOG.type, stored[number // 100 * 100].offset))
        content = bytearray(path.read_bytes())
        at = stored[number].offset - stored[number // 100 * 100].offset
        content[at : at + 40] = bytes(40)
        path.write_bytes(content)
    borders = st.sampled_from(sorted(set(times.tolist())))
    since, until = data.draw(borders | st.none()), data.draw(borders | st.none())
    if since is not None and until is not None:
        since, until = sorted((since, until))
    wanted = [
        number
        for number, time in enumerate(times.tolist())
        if number not in damaged
        and (since is None or time >= since)
        and (until is None or time < until)
    ]
    assert scan(tier, since=since, until=until, on_finding=lambda _: None) == wanted
