"""Tests of `find_touched_segments`, which finds segments with incomplete times after damage."""

from __future__ import annotations

from tieredstore.contracts.segment import FileSegmentType, SegmentId
from tieredstore.scan.catalogue import QueueFiles, SegmentExtent
from tieredstore.scan.findings import damage
from tieredstore.scan.verify.gaps import find_touched_segments

PATH = "broker-a/orders/0"
LOG = SegmentId(PATH, FileSegmentType.COMMIT_LOG, 0)
UNITS = [SegmentId(PATH, FileSegmentType.CONSUME_QUEUE, base) for base in (0, 200)]
QUEUE = QueueFiles(
    "broker-a",
    "orders",
    0,
    commit_log=(SegmentExtent(LOG, 1000),),
    consume_queue=tuple(SegmentExtent(unit, 200) for unit in UNITS),
)


def test_damage_of_no_segment_touches_none() -> None:
    assert list(find_touched_segments(QUEUE, damage("x", "somewhere"))) == []
    assert list(find_touched_segments(QUEUE, damage("x", "of a message", queue_offset=3))) == []


def test_damage_of_bytes_touches_their_segment() -> None:
    assert list(find_touched_segments(QUEUE, damage("x", "bytes", segment=LOG))) == [LOG]


def test_damage_of_a_message_touches_the_segment_of_its_unit_too() -> None:
    for offset, touched in ((0, UNITS[0]), (9, UNITS[0]), (10, UNITS[1]), (19, UNITS[1])):
        finding = damage("x", "a message", segment=LOG, queue_offset=offset)
        assert list(find_touched_segments(QUEUE, finding)) == [LOG, touched]
    beyond = damage("x", "a message", segment=LOG, queue_offset=20)
    assert list(find_touched_segments(QUEUE, beyond)) == [LOG]
