"""For any behaviour of a writer, its clock and its restarts, recorded times never hide a
message."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.kit.memory_chunks import chunk_provider
from tests.kit.tier.flat import T0, Tier, as_batch, record
from tieredstore.contracts.segment import SegmentProvider
from tieredstore.contracts.time_records import TimesPlace
from tieredstore.contracts.wrapping import find_layer
from tieredstore.message import time_records
from tieredstore.message.time_records import decode_time_record, encode_time_record
from tieredstore.providers.memory.provider import MemoryProvider
from tieredstore.scan.extents import QueueReader
from tieredstore.scan.listing import load_catalogue
from tieredstore.scan.plan import ScanBounds, plan
from tieredstore.scan.read.batches import read_batches
from tieredstore.scan.time_search import search as time_search
from tieredstore.scan.time_search.recorded import load_ranges
from tieredstore.scan.time_search.sealing import record_queue
from tieredstore.tier import recorded_times

PATH = "broker-a/TopicA/0"


@pytest.fixture(autouse=True, scope="module")
def small_sizes() -> Iterator[None]:
    """Lower the limits, so that a queue of a few messages counts as large, and a range of a few
    messages counts as full."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(recorded_times, "LEAST_BYTES", 1_000)
        patched.setattr(recorded_times, "RECORD_BYTES", 1_500)
        patched.setattr(recorded_times, "MOST_UNRECORDED_BYTES", 3000)
        patched.setattr(recorded_times, "MOST_READ_BACK_BYTES", 4500)
        patched.setattr(time_records, "RANGE_BYTES", 700)
        patched.setattr(time_search, "READ_WHOLE_BYTES", 900)
        yield


def offsets_of(provider: SegmentProvider, since: int | None, until: int | None) -> list[int]:
    bounds = ScanBounds(since_ms=since, until_ms=until, narrow=True, range_bytes=2_000)
    ranges = plan(provider, load_catalogue(provider).queues, bounds)
    return [
        int(number)
        for one in ranges
        for batch in read_batches(provider, one)
        for number in batch.queue_offsets
    ]


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(1, 12)),
        st.tuples(st.just("clock"), st.integers(-50, 50)),
        st.tuples(st.sampled_from(["roll", "restart", "rollback", "seal", "forget"]), st.just(0)),
    ),
    min_size=4,
    max_size=40,
)


@pytest.mark.parametrize("make", [MemoryProvider, chunk_provider])
@settings(max_examples=40, suppress_health_check=list(HealthCheck))
@given(steps=STEPS, data=st.data())
def test_j31_recorded_times_hide_no_message(make: Any, steps: Any, data: st.DataObject) -> None:
    provider = make()
    place = find_layer(provider, TimesPlace)
    assert place is not None
    tier = Tier(provider, settings={"commit_log_max_size_bytes": 6_000})
    epoch = provider.acquire_writer("broker-a")
    file = tier.queue()
    times: list[int] = []
    now = T0
    for step, value in steps:
        if step == "append":
            made = []
            for number in range(len(times), len(times) + value):
                now += 1
                times.append(now)
                made.append(record(number, timestamp_ms=now))
            units, records = as_batch(made)
            assert file.append_batch(units, records).count == value
            assert file.commit()
            if file.times.is_due:
                file.times.record()
        elif step == "clock":
            now += value * 100
        elif step == "roll":
            file.commit_log.roll()
            file.times.note_roll()
        elif step == "rollback":
            file.append_batch(*as_batch([record(len(times), timestamp_ms=T0 - 1)]))
            file.rollback()
        elif step == "seal":
            for queue in load_catalogue(provider).queues:
                record_queue(provider, place, queue)
        elif step == "restart":
            file = tier.queue()
        else:
            place.delete_times(PATH, place.list_times(PATH)[:1])
    for queue in load_catalogue(provider).queues:
        with QueueReader(provider, queue) as reader:
            for one in load_ranges(reader):
                found = times[one.first : one.until]
                assert (min(found), max(found)) == (one.least_ms, one.most_ms)
                assert one.rises == (found == sorted(found))
    for name in place.list_times(PATH):
        raw = place.read_times(PATH, name)
        assert raw is not None
        decoded = decode_time_record(raw)
        assert decoded is not None
        assert encode_time_record(decoded) == raw
    borders = st.sampled_from([T0 - 1, *times, *(time + 1 for time in times)])
    for _ in range(3):
        since, until = data.draw(borders | st.none()), data.draw(borders | st.none())
        assert offsets_of(provider, since, until) == [
            number
            for number, time in enumerate(times)
            if (since is None or time >= since) and (until is None or time < until)
        ]
    epoch.release()


def test_a_record_that_is_damaged_counts_for_nothing() -> None:
    one = time_records.TimedRange(0, 100, 0, 1, 5, 5, rises=True)
    raw = encode_time_record(time_records.TimeRecord(0, 100, bytes(80), bytes(80), (one,)))
    assert decode_time_record(raw) is not None
    for at in range(len(raw)):
        assert decode_time_record(raw[:at]) is None
        assert decode_time_record(raw[:at] + bytes([raw[at] ^ 1]) + raw[at + 1 :]) is None
