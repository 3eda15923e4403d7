"""Traces are read as workloads: the arrivals of each queue and the reads of each group."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.advise import DelayedClient
from benchmarks.traced_store import TracedLoad, TracedRun
from tieredstore.clock import ManualClock
from tieredstore.contracts.dispatch_source import ArrivedRuns, QueueKey
from tieredstore.contracts.message_store import GetMessageResult, GetMessageStatus, GetRequest
from tieredstore.errors import Invalid
from tieredstore.jobs.advising import observing as traces
from tieredstore.jobs.advising.observing import read_trace
from tieredstore.jobs.advising.timeline import Backend
from tieredstore.jobs.advising.workload import MAX_WINDOW_MS, Arrivals, find_cold_runs
from tieredstore.tier.trace.blocks import encode_block
from tieredstore.tier.trace.service import TraceRecorder

A, B = QueueKey("orders", 0), QueueKey("orders", 1)
BEGIN_MS = 1_700_000_000_000
STEP_MS = 10_000


class Made:
    """Writes a trace, and appends a block to its file at each step."""

    def __init__(self, path: Path) -> None:
        self.path = path / f"{BEGIN_MS:020d}.trace"
        self.clock = ManualClock(BEGIN_MS)
        self.recorder = TraceRecorder(self.clock)
        self.ends: dict[QueueKey, int] = {}
        self.data = b""

    def put(self, key: QueueKey, count: int, size_bytes: int = 100) -> None:
        first = self.ends.get(key, 0)
        self.ends[key] = first + count
        columns = (first, count, count * size_bytes, self.clock.now_ms())
        self.recorder.put(ArrivedRuns([key], *(np.array([column]) for column in columns)))

    def get(self, group: str, offset: int, count: int, key: QueueKey = A) -> None:
        messages: list[Any] = [None] * count
        result = GetMessageResult(GetMessageStatus.FOUND, offset + count, messages=messages)
        self.recorder.get(GetRequest(*key, offset, group=group), result, from_tier=False)

    def step(self) -> None:
        self.clock.advance(STEP_MS)
        self.data += encode_block(self.recorder.take())
        self.path.write_bytes(self.data)


@pytest.fixture
def made(tmp_path: Path) -> Made:
    return Made(tmp_path)


def test_queues_grow_when_they_grew(made: Made) -> None:
    made.put(A, 10)
    made.put(B, 3, size_bytes=50)
    made.step()
    made.step()
    made.put(A, 5, size_bytes=400)
    made.clock.advance(2_000)
    made.put(A, 5, size_bytes=400)
    made.step()
    found = read_trace(made.path)
    assert (found.begin_ms, found.end_ms) == (BEGIN_MS, BEGIN_MS + 3 * STEP_MS + 2_000)
    first = found.arrivals[A]
    asked = np.array([0, STEP_MS, 2 * STEP_MS, 2 * STEP_MS + 1_000, 3 * STEP_MS]) + BEGIN_MS
    assert first.count_until(asked.astype(np.float64)).tolist() == [10, 10, 10, 15, 20]
    assert first.record_bytes == 250
    assert found.arrivals[B].record_bytes == 50
    assert np.diff(first.times_ms).min() > 0


def test_gets_that_go_on_are_one_reading_whatever_the_blocks(made: Made) -> None:
    made.put(A, 100)
    for offset in range(0, 60, 20):
        made.get("g", offset, 20)
        made.step()
    made.get("g", 10, 5)  # it went back
    made.get("other", 0, 40)
    made.step()
    readings = read_trace(made.path).readings
    assert [(r.group, r.first, r.last) for r in readings] == [
        ("g", 0, 60),
        ("g", 10, 15),
        ("other", 0, 40),
    ]
    [first, *_] = readings
    assert (first.begin_ms, first.end_ms) == (BEGIN_MS, BEGIN_MS + 2 * STEP_MS)
    assert first.count_gets(0, 60) == 3
    assert first.time_of(30) == BEGIN_MS + STEP_MS


def test_who_waits_and_then_reads_at_once_is_cold_where_it_was_late(made: Made) -> None:
    """A trace shows that a group pauses and then catches up with cold reads. Two snapshots would
    suggest a constant lag."""
    for _ in range(10):
        made.put(A, 10)
        made.step()
        made.get("g", made.ends[A] - 10, 10)  # close behind
    for _ in range(60):  # no read for ten minutes
        made.put(A, 10)
        made.step()
    made.get("g", 100, 600)
    made.step()
    found = read_trace(made.path)
    [reading] = found.readings
    assert (reading.first, reading.last) == (0, 700)

    def leaves_ms(stored_ms: float) -> float:
        return stored_ms + 5 * 60_000

    [cold] = find_cold_runs(reading, found.arrivals[A], leaves_ms)
    assert cold.first == pytest.approx(100, abs=8)
    assert cold.last == pytest.approx(410, abs=12)
    assert cold.gets == pytest.approx(0.5, abs=0.5)


def test_a_long_trace_has_bounded_curves(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traces, "MAX_POINTS", 10)
    for number in range(100):
        made.put(A, 1)
        made.get("g", number, 1)
        made.step()
    found = read_trace(made.path)
    curve = found.arrivals[A]
    assert len(curve.times_ms) == 10
    assert (curve.offsets[0], curve.offsets[-1]) == (0, 100)
    [reading] = found.readings
    assert reading.progress is not None
    assert len(reading.progress.offsets) == 10
    assert reading.count_gets(0, 100) == 100


def test_readings_beyond_the_bound_are_told_of(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traces, "MAX_READINGS", 3)
    made.put(A, 100)
    for number in range(5):
        made.get("g", number * 10, 1)
    made.step()
    found = read_trace(made.path)
    assert [reading.first for reading in found.readings] == [0, 10, 20]
    assert found.missing == ["of 5 runs of reads the first 3 are replayed"]


def test_damage_is_told_of_and_the_rest_is_replayed(made: Made) -> None:
    made.put(A, 10)
    made.step()
    made.put(A, 10)
    made.step()
    made.path.write_bytes(made.data[:-1])
    found = read_trace(made.path)
    assert found.arrivals[A].messages == 10
    assert found.missing == ["1 places of the trace are damaged and left out"]


@pytest.mark.parametrize(
    "spoil", [lambda data: b"", lambda data: data[:30], lambda data: b"x" * 99]
)
def test_a_trace_of_nothing_is_refused(made: Made, spoil: Callable[[bytes], bytes]) -> None:
    made.step()
    made.path.write_bytes(spoil(made.data))
    with pytest.raises(Invalid, match="spans no time"):
        read_trace(made.path)


def test_of_more_than_a_week_the_last_counts(made: Made) -> None:
    made.put(A, 10)
    made.step()
    made.clock.advance(MAX_WINDOW_MS)
    made.recorder.take()
    made.put(A, 10)
    made.step()
    found = read_trace(made.path)
    assert found.end_ms - found.begin_ms == MAX_WINDOW_MS
    assert found.arrivals[A].messages == 10


def test_seen_from_a_distance_messages_in_bursts_of_seconds_are_steady() -> None:
    times = np.arange(2_000, dtype=np.float64) * 5_000
    offsets = np.repeat(np.arange(1_000, dtype=np.float64), 2)
    assert Arrivals(times, offsets, 100).is_steady
    offsets[1_000:] = offsets[1_000]
    assert not Arrivals(times, offsets, 100).is_steady


def test_the_model_over_a_trace_counts_the_requests_of_the_store_that_recorded_it(
    tmp_path: Path,
) -> None:
    run = TracedRun(TracedLoad(2, 1024, 3 * 3_600_000, bursts=(1,)), tmp_path, DelayedClient)
    try:
        run.live()
        uploads = sum(run.count().values())
        run.restart()
        before = run.client.meter.usage().requests_by_operation.get("GetObject", 0)
        run.read_all()
        reads = run.client.meter.usage().requests_by_operation["GetObject"] - before
        found = run.predict(Backend(1, 1))
    finally:
        run.close()
    assert found.uploads == pytest.approx(uploads, rel=0.1)
    assert found.reads == pytest.approx(reads, rel=0.2, abs=2)
