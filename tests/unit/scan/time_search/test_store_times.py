"""Tests of reading store times from record heads: the number and size of reads."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kit.counted_reads import CountedReads
from tests.kit.tier_builder import START_MS, TierBuilder
from tieredstore.contracts.segment import FileSegmentType
from tieredstore.message.encoding import Message
from tieredstore.scan.extents import QueueReader
from tieredstore.scan.time_search.store_times import read_times

LOG = FileSegmentType.COMMIT_LOG


@pytest.mark.parametrize(
    ("body_bytes", "reads"),
    [
        ([100] * 30, 3),  # one read a segment
        ([20_000] * 30, 30),  # each apart from the next one
        ([*[100] * 4, 20_000, *[100] * 5] * 3, 6),  # a large body in the middle of each segment
    ],
)
def test_heads_near_each_other_are_read_together(
    tmp_path: Path, body_bytes: list[int], reads: int
) -> None:
    times = [START_MS + 7 * number for number in range(30)]
    builder = TierBuilder(tmp_path, messages_per_segment=10, times=times)
    builder.queue("orders", 0, [Message.create("orders", bytes(size)) for size in body_bytes])
    counted = CountedReads(builder.built.provider)
    [queue] = builder.built.catalogue().queues
    with QueueReader(counted, queue) as reader:
        found = read_times(reader, 0, 30)
    assert found.times.tolist() == times
    assert found.known.all()
    assert counted.reads[LOG] == reads
    assert counted.read_bytes[LOG] < 30 * 300  # no large body
