"""How far a queue is whole: up to the last consume queue unit whose message is there.

Writers append to the commit log before they append the units that name it. A file's length proves
nothing: a write may be under way, or a crash may have left a file longer than what was written to
it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from tieredstore.contracts.metadata_store import FileSegmentMetadata
from tieredstore.contracts.segment import SegmentId, SegmentProvider
from tieredstore.errors import Corrupt
from tieredstore.message.consume_queue import UNIT_SIZE
from tieredstore.message.layout import MAGIC_V1, MAGIC_V2
from tieredstore.message.record import StoredMessage, decode_record
from tieredstore.scan.catalogue import QueueFiles, SegmentExtent
from tieredstore.scan.extents import QueueReader
from tieredstore.scan.read.batches import whole_records

_UNITS_PER_READ = 1 << 12
_UNITS_AT_ONCE = 4096
_HEAD_BYTES = 8
"""Size and magic of a record."""


def committed_end(reader: QueueReader, known_end: int = 0, *, check_bodies: bool = True) -> int:
    """Queue offset behind the last message that is proven to be there, its body CRC included with
    `check_bodies`.

    Reads backwards from the end of the consume queue, usually one unit and one record, and not
    beyond `known_end`, which was proven before. Raises Unavailable.
    """
    for start, end in reversed(reader.queue.unit_spans()):
        low = max(start, known_end)
        high = end
        while high > low:
            first = max(low, high - _UNITS_PER_READ)
            found = _last_proven_message(reader, first, high, check_bodies=check_bodies)
            if found is not None:
                return found + 1
            high = first
        if low == known_end:
            break
    return min(max(known_end, reader.min_offset()), reader.max_offset())


def _last_proven_message(
    reader: QueueReader, first: int, until: int, *, check_bodies: bool
) -> int | None:
    """The last of these queue offsets whose message is there."""
    try:
        units = reader.read_units(first, until - first)
    except Corrupt:  # shorter than it was listed
        return None
    offsets = units["physical_offset"].astype(np.int64)
    whole = whole_records(reader.queue, offsets, units["size"].astype(np.int64))
    for offset in (first + np.flatnonzero(whole)[::-1]).tolist():
        if read_message(reader, int(offset), check_body=check_bodies) is not None:
            return int(offset)
    return None


def read_message(reader: QueueReader, offset: int, *, check_body: bool) -> StoredMessage | None:
    """Message `offset` of the queue; None where there is none, or not that one, or damaged."""
    try:
        unit = reader.read_units(offset, 1)[0]
        place, size = int(unit["physical_offset"]), int(unit["size"])
        if not whole_records(reader.queue, np.array([place]), np.array([size]))[0]:
            return None
        message = decode_record(reader.commit_log.read(place, size))
        if check_body:
            message.check_body()
    except Corrupt:
        return None
    fits = message.size == size and message.queue_offset == offset
    fits = fits and message.topic == reader.queue.topic
    return message if fits and message.queue_id == reader.queue.queue_id else None


def consistent_prefix(
    provider: SegmentProvider,
    queue: QueueFiles,
    known: Mapping[SegmentId, FileSegmentMetadata] | None,
) -> QueueFiles:
    """The queue up to its last consume queue unit whose message is there, the commit log up to the
    end of that message; segments end where the next one begins, empty ones are left out.

    Bytes that no unit names are not in it. Raises Corrupt when a segment that was listed cannot be
    read, Unavailable.
    """
    if not queue.consume_queue:
        return replace(queue, commit_log=(), consume_queue=())
    with QueueReader(provider, queue) as reader:
        found = last_message(reader)
        queue = reader.queue  # its commit log may have been listed again
    if found is None:
        return replace(queue, commit_log=(), consume_queue=())
    return cut_behind(queue, *found, known)


def cut_behind(
    queue: QueueFiles,
    units: int,
    end: int,
    known: Mapping[SegmentId, FileSegmentMetadata] | None,
) -> QueueFiles:
    """The queue below a queue offset and below an offset of its commit log; without empty
    segments."""
    return replace(
        queue,
        commit_log=_until(queue.commit_log, end, known, 1),
        consume_queue=_until(queue.consume_queue, units * UNIT_SIZE, known, UNIT_SIZE),
    )


def last_message(reader: QueueReader) -> tuple[int, int] | None:
    """Queue offset behind the last unit whose message is there (or has expired), and where in the
    commit log that message ends."""
    for start, end in reversed(reader.queue.unit_spans()):
        behind, count = end, 1  # the last unit is nearly always good
        while behind > start:
            first = max(start, behind - count)
            units = reader.read_units(first, behind - first)
            offsets = units["physical_offset"].astype(np.int64)
            sizes = units["size"].astype(np.int64)
            expired = (offsets < reader.queue.commit_log_min_offset) & (offsets >= 0) & (sizes > 0)
            whole = whole_records(reader.queue, offsets, sizes)
            if not (whole | expired)[-1] and reader.see_growth():
                whole = whole_records(reader.queue, offsets, sizes)
            for at in np.flatnonzero(whole | expired)[::-1].tolist():
                offset, size = int(offsets[at]), int(sizes[at])
                if expired[at] or _is_message(reader, offset, size):
                    return first + at + 1, offset + size
            behind, count = first, _UNITS_AT_ONCE
    return None


def _is_message(reader: QueueReader, offset: int, size: int) -> bool:
    head = reader.commit_log.read(offset, _HEAD_BYTES)
    return int.from_bytes(head[:4], "big") == size and int.from_bytes(head[4:], "big") in {
        MAGIC_V1,
        MAGIC_V2,
    }


def _until(
    extents: Sequence[SegmentExtent],
    end: int,
    known: Mapping[SegmentId, FileSegmentMetadata] | None,
    unit_bytes: int,
) -> tuple[SegmentExtent, ...]:
    """The segments as far as they are valid, below the file offset `end`."""
    result = []
    extents = [extent for extent in extents if extent.size_bytes]  # others end nothing
    for index, extent in enumerate(extents):
        size = extent.size_bytes
        if index + 1 < len(extents):
            room = extents[index + 1].base_offset - extent.base_offset
            entry = None if known is None else known.get(extent.id)
            if size >= room:
                size = room
            elif entry is not None and entry.size:
                size = min(size, entry.size)  # before a hole only what was recorded is valid
        size = min(size, end - extent.base_offset)
        size -= size % unit_bytes
        if size > 0:
            result.append(SegmentExtent(extent.id, size, extent.listing))
    return tuple(result)
