"""A queue's segments are checked before they are registered in the metadata."""

from __future__ import annotations

from tieredstore.contracts.segment import FileSegmentType, SegmentId, SegmentListing
from tieredstore.jobs.metadata.queues import _check_bases
from tieredstore.scan.catalogue import QueueFiles, SegmentExtent
from tieredstore.scan.findings import Finding

PATH = "broker-a/orders/0"


def unit_segment(base: int, size_bytes: int) -> SegmentExtent:
    id = SegmentId(PATH, FileSegmentType.CONSUME_QUEUE, base)  # noqa: A001 - its name everywhere
    return SegmentExtent(id, size_bytes, SegmentListing(id, size_bytes))


def test_a_segment_where_none_can_begin_is_left_out_and_an_overlap_is_told() -> None:
    segments = (unit_segment(0, 60), unit_segment(30, 20), unit_segment(40, 20))
    findings: list[Finding] = []
    queue = _check_bases(QueueFiles("broker-a", "orders", 0, (), segments), findings)
    kept = [(extent.base_offset, extent.size_bytes) for extent in queue.consume_queue]
    assert kept == [(0, 40), (40, 20)]
    told = [(one.kind, one.segment, one.position, one.found) for one in findings]
    assert told == [
        ("segment-base", segments[1].id, None, "30"),
        ("segment-overlap", segments[0].id, 40, "20 bytes"),
    ]
