"""Smallest and largest store time of a copied segment, for its metadata entry."""

from __future__ import annotations

from tieredstore.contracts.metadata_store import NEVER_WRITTEN_MS, FileSegmentMetadata
from tieredstore.contracts.segment import FileSegmentType, SegmentProvider
from tieredstore.errors import Corrupt
from tieredstore.message.consume_queue import UNIT_SIZE
from tieredstore.message.index.tiered import HEADER_SIZE, unpack_header
from tieredstore.scan.catalogue import QueueFiles, SegmentExtent
from tieredstore.scan.extents import QueueReader
from tieredstore.scan.plan import ScanRange
from tieredstore.scan.read.batches import read_batches

Times = tuple[int, int]
"""Smallest and largest store time, epoch ms. Both are NEVER_WRITTEN_MS without messages."""
NO_TIMES: Times = (NEVER_WRITTEN_MS, NEVER_WRITTEN_MS)


def segment_times(
    provider: SegmentProvider,
    queue: QueueFiles,
    extent: SegmentExtent,
    origin: FileSegmentMetadata | None,
    target: FileSegmentMetadata | None,
) -> Times:
    """Return the smallest and largest store time of all copied messages of a segment. `origin`,
    `target`: its metadata entries in the original tier and in the copy. Only messages that neither
    entry covers are read. Raises Unavailable, and Corrupt if a segment is missing."""
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
            if extent.id.type is FileSegmentType.CONSUME_QUEUE:
                first, last = max(start, low // UNIT_SIZE), min(end, high // UNIT_SIZE)
            else:
                span = (start, end)
                first, last = (first_unit_behind(reader, span, at) for at in (low, high))
            first = max(first, reader.min_offset())
            if first < last:
                scanned = ScanRange(queue, first, last, 0)
                # Damage has no store time. `verify` reports it.
                for batch in read_batches(provider, scanned, on_finding=lambda _: None):
                    found = batch.columns.store_timestamps
                    least, most = int(found.min()), int(found.max())
                    if times != NO_TIMES:
                        least, most = min(times[0], least), max(times[1], most)
                    times = least, most
    return times


def index_times(provider: SegmentProvider, extent: SegmentExtent) -> Times:
    """Return the begin and end time of the index file in a segment. Raises Unavailable, Corrupt."""
    segment = provider.open(extent.id, extent.listing)
    try:
        header = unpack_header(segment.read(0, HEADER_SIZE))
    except Corrupt as error:
        raise Corrupt(f"{extent.id}: {error}", path=str(extent.id), offset=0) from error
    finally:
        segment.close()
    return header.begin_timestamp_ms, header.end_timestamp_ms


def first_unit_behind(reader: QueueReader, span: tuple[int, int], offset: int) -> int:
    """Return the first unit of a span whose message begins at or after the commit log offset
    `offset`. Return the end of the span if there is none. O(log n) reads."""
    low, high = span
    while low < high:
        middle = (low + high) // 2
        if int(reader.read_units(middle, 1)[0]["physical_offset"]) < offset:
            low = middle + 1
        else:
            high = middle
    return low
