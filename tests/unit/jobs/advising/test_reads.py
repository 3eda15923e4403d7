"""The read model predicts about as many requests as a fetcher makes on a chunk log."""

from __future__ import annotations

import dataclasses
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.advise import (
    Reads,
    catch_up,
    jump,
    open_written,
    predict_reads,
    read_all,
    read_store,
)
from benchmarks.cost.simulation import HOUR_MS, Load
from tieredstore.config import StoreConfig
from tieredstore.contracts.dispatch_source import QueueKey
from tieredstore.jobs.advising.replay import HIT_MS, ColdReader, ReadFigures, model_reads
from tieredstore.jobs.advising.timeline import Backend
from tieredstore.providers.chunks.modelling.queue import ChunkRequestModel

MODEL = ChunkRequestModel()
RECORD_BYTES = 1000


def _read(
    runs: list[tuple[int, int]],
    *,
    cache_bytes: int,
    latency_ms: float = 30,
    readers: int = 1,
    pull: int = 32,
    messages_per_s: float = float("inf"),
) -> ReadFigures:
    cold = _make_readers(runs, readers=readers, pull=pull, messages_per_s=messages_per_s)
    backend = Backend(latency_ms, latency_ms)
    return model_reads(cold, StoreConfig(), MODEL, backend, cache_bytes)


def _make_readers(
    runs: list[tuple[int, int]],
    *,
    readers: int = 1,
    pull: int = 32,
    messages_per_s: float = float("inf"),
) -> list[ColdReader]:
    cold = []
    for number in range(readers):
        stored = MODEL.make_queue(1)
        for commit in range(40):
            stored.append(RECORD_BYTES * 500, 20 * 500, commit * 600_000)
        stored.reopen()
        key = QueueKey("TopicA", number)
        size = 40 * 500 * RECORD_BYTES
        cold.append(ColdReader(key, runs, RECORD_BYTES, pull, messages_per_s, stored, size))
    return cold


@pytest.mark.parametrize(
    "reads",
    [
        pytest.param(Reads("all", Load(1, 1, 1024, 200, HOUR_MS), read_all), id="sequential"),
        pytest.param(Reads("two", Load(2, 2, 1024, 200, HOUR_MS), read_all), id="two readers"),
        pytest.param(
            Reads("some", Load(1, 1, 1024, 100, HOUR_MS), lambda n: catch_up(n, count=4_000)),
            id="from anywhere",
        ),
        pytest.param(
            Reads("here and there", Load(1, 1, 1024, 200, HOUR_MS), jump, pull=1), id="scattered"
        ),
    ],
)
def test_the_model_counts_the_requests_of_the_fetcher(reads: Reads, tmp_path: Path) -> None:
    with open_written(reads.load, tmp_path) as (client, store):
        real = read_store(reads, client, store)
    predicted = predict_reads(reads)
    assert len(predicted.times_ms) == pytest.approx(len(real.times_ms), rel=0.05)
    # How threads take turns decides over a few: the benchmark keeps the figures.
    assert sum(predicted.requests.values()) == pytest.approx(real.requests, rel=0.2, abs=3)


def test_a_message_anywhere_takes_one_or_two_round_trips() -> None:
    found = _read([(n * 3_000, 1) for n in range(6)], cache_bytes=64 << 20, pull=1)
    assert found.waited == 6
    assert all(30 <= time_ms < 100 for time_ms in found.times_ms)


def test_a_slow_reader_finds_ahead_what_a_fast_one_waits_for() -> None:
    fast = _read([(0, 10_000)], cache_bytes=64 << 20)
    slow = _read([(0, 10_000)], cache_bytes=64 << 20, messages_per_s=2_000)
    assert slow.messages == fast.messages == 10_000
    assert 0 < slow.waited < fast.waited
    assert min(slow.times_ms) == HIT_MS


def test_what_is_read_ahead_behind_a_run_counts_where_the_queue_goes_on() -> None:
    def count(queue_messages: int) -> int:
        [reader] = _make_readers([(0, 6_000)])
        reader = dataclasses.replace(reader, messages=queue_messages)
        found = model_reads([reader], StoreConfig(), MODEL, Backend(30, 30), 256 << 20)
        assert found.messages == 6_000
        return sum(found.requests.values())

    assert count(0) == count(6_000)
    assert count(20_000) >= count(6_000) + 2


def test_latency_is_waited_for_and_changes_no_request() -> None:
    near = _read([(0, 4_000)], cache_bytes=64 << 20, latency_ms=1)
    far = _read([(0, 4_000)], cache_bytes=64 << 20, latency_ms=100)
    assert sum(near.times_ms) < sum(far.times_ms)
    assert sum(near.requests.values()) == sum(far.requests.values())


@settings(max_examples=12, deadline=None)
@given(
    readers=st.integers(1, 4),
    count=st.integers(32, 3_000),
    pull=st.sampled_from([1, 8, 32, 256]),
    messages_per_s=st.sampled_from([100.0, 5_000.0, float("inf")]),
)
def test_more_cache_never_predicts_more_requests(
    readers: int, count: int, pull: int, messages_per_s: float
) -> None:
    count = min(count, pull * 100)
    counts = [
        sum(
            _read(
                [(0, count)],
                cache_bytes=size << 20,
                readers=readers,
                pull=pull,
                messages_per_s=messages_per_s,
            ).requests.values()
        )
        for size in (0, 1, 4, 64)
    ]
    # Where nothing fits, nothing is read ahead: that may be a read of a file or two for each.
    assert all(more <= less + 2 * readers for less, more in pairwise(counts)), counts
    assert counts[-1] <= min(counts[:-1]) + 2 * readers, counts


def test_times_of_a_backend_have_the_percentiles_that_were_asked_for() -> None:
    backend = Backend(30, 120)
    times = sorted(backend.end_ms([0], 1e6 * n) - 1e6 * n for n in range(2_000))
    assert times[1_000] == pytest.approx(30, rel=0.05)
    assert times[1_980] == pytest.approx(120, rel=0.15)
    assert Backend(30, 30, concurrent=2).end_ms([1] * 5, 0) == pytest.approx(90, rel=0.01)
    assert backend.end_ms([], 17) == 17


def test_reads_side_by_side_share_the_line() -> None:
    backend = Backend(30, 30, 1e6)
    assert backend.end_ms([1_000_000], 0) == pytest.approx(1_030)
    assert backend.end_ms([1_000_000], 10) == pytest.approx(2_030)
    assert backend.end_ms([1_000_000], 9_000) == pytest.approx(10_030)
