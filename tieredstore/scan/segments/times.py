"""Store times of what was copied of a segment, for its entry in the metadata."""

from __future__ import annotations

from tieredstore.contracts.metadata_store import NEVER_WRITTEN_MS, FileSegmentMetadata
from tieredstore.contracts.segment import FileSegmentType, SegmentProvider
from tieredstore.errors import Corrupt
from tieredstore.message.consume_queue import UNIT_SIZE
from tieredstore.message.index.tiered import HEADER_SIZE, unpack_header
from tieredstore.scan.catalogue import QueueFiles, SegmentExtent
from tieredstore.scan.extents import QueueReader
from tieredstore.scan.findings import Finding
from tieredstore.scan.plan import ScanRange
from tieredstore.scan.read.batches import read_batches

Times = tuple[int, int]
"""Smallest and largest store time, epoch ms; NEVER_WRITTEN_MS twice for none."""
NO_TIMES: Times = (NEVER_WRITTEN_MS, NEVER_WRITTEN_MS)


def segment_times(
    provider: SegmentProvider,
    queue: QueueFiles,
    extent: SegmentExtent,
    origin: FileSegmentMetadata | None,
    target: FileSegmentMetadata | None,
) -> Times:
    """Find the times of all messages of a segment as far as it is copied.

    They are the origin's own when its state speaks of just these bytes. Otherwise the messages
    that neither the origin's nor the target's entry covers are read. Raises Unavailable, and
    Corrupt when a segment is gone.
    """
    times, covered = NO_TIMES, 0
    for entry in (target, origin):
        if (
            entry is not None
            and entry.begin_timestamp_ms != NEVER_WRITTEN_MS
            and covered < entry.size <= extent.size_bytes
        ):
            times, covered = (entry.begin_timestamp_ms, entry.end_timestamp_ms), entry.size
    if covered == extent.size_bytes:
        return times
    low, high = extent.base_offset + covered, extent.end_offset
    with QueueReader(provider, queue) as reader:
        for start, end in queue.unit_spans():
            first, last = _units_in(reader, extent.id.type, (start, end), low, high)
            first = max(first, reader.min_offset())
            if first < last:
                scanned = ScanRange(queue, first, last, 0)
                for batch in read_batches(provider, scanned, on_finding=_leave_out):
                    found = batch.columns.store_timestamps
                    times = _join_times(times, (int(found.min()), int(found.max())))
    return times


def index_times(provider: SegmentProvider, extent: SegmentExtent) -> Times:
    """Begin and end of the index file in a segment. Raises Unavailable, Corrupt."""
    segment = provider.open(extent.id, extent.listing)
    try:
        header = unpack_header(segment.read(0, HEADER_SIZE))
    except Corrupt as error:
        raise Corrupt(f"{extent.id}: {error}", path=str(extent.id), offset=0) from error
    finally:
        segment.close()
    return header.begin_timestamp_ms, header.end_timestamp_ms


def _join_times(a: Times, b: Times) -> Times:
    return b if a == NO_TIMES else (min(a[0], b[0]), max(a[1], b[1]))


def _leave_out(finding: Finding) -> None:
    """Damage has no store time; `verify` reports it."""
    del finding


def _units_in(
    reader: QueueReader, type: FileSegmentType, span: tuple[int, int], low: int, high: int
) -> tuple[int, int]:
    """The queue offsets of a span whose units (or whose messages) are within the file offsets
    [low, high)."""
    if type is FileSegmentType.CONSUME_QUEUE:
        return max(span[0], low // UNIT_SIZE), min(span[1], high // UNIT_SIZE)
    return first_unit_behind(reader, span, low), first_unit_behind(reader, span, high)


def first_unit_behind(reader: QueueReader, span: tuple[int, int], offset: int) -> int:
    """Find the first unit of a span whose message begins at or behind a commit log offset, the end
    of the span if there is none. O(log n) reads."""
    low, high = span
    while low < high:
        middle = (low + high) // 2
        if int(reader.read_units(middle, 1)[0]["physical_offset"]) < offset:
            low = middle + 1
        else:
            high = middle
    return low
