"""How far a queue is committed, and whether it is the queue that it was.

Writers append to the commit log before they append the units that name it, so a queue is committed
up to a unit that is there whole, whose record is there whole and is that message. A file's length
proves none of it: a write may be under way, or a crash may have left a file longer than what was
written to it.
"""

from __future__ import annotations

import numpy as np

from tieredstore.errors import Corrupt
from tieredstore.message.record import StoredMessage, decode_record
from tieredstore.scan.extents import QueueReader
from tieredstore.scan.read.batches import whole_records
from tieredstore.spark.offsets import Incarnation

_UNITS_PER_READ = 1 << 12


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
            found = _last_message(reader, first, high, check_bodies=check_bodies)
            if found is not None:
                return found + 1
            high = first
        if low == known_end:
            break
    return min(max(known_end, reader.min_offset()), reader.max_offset())


def _last_message(reader: QueueReader, first: int, until: int, *, check_bodies: bool) -> int | None:
    """The last of these queue offsets whose message is there."""
    try:
        units = reader.read_units(first, until - first)
    except Corrupt:  # shorter than it was listed
        return None
    offsets = units["physical_offset"].astype(np.int64)
    whole = whole_records(reader.queue, offsets, units["size"].astype(np.int64))
    for offset in (first + np.flatnonzero(whole)[::-1]).tolist():
        if _message_at(reader, int(offset), check_body=check_bodies) is not None:
            return int(offset)
    return None


def _message_at(reader: QueueReader, offset: int, *, check_body: bool) -> StoredMessage | None:
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


def incarnation_at(reader: QueueReader, offset: int, topic_id: int | None) -> Incarnation:
    """What the queue is known by at a position: the message in front of it, or the one there."""
    least, end = reader.min_offset(), reader.max_offset()
    for witness in (offset - 1, offset):
        if least <= witness < end:
            found = incarnation_of(reader, witness, topic_id)
            if found.message is not None:
                return found
    return Incarnation(topic_id)


def incarnation_of(reader: QueueReader, witness: int, topic_id: int | None) -> Incarnation:
    """What message `witness` says; without it, what the topic's id does."""
    message = _message_at(reader, witness, check_body=False)
    if message is None:
        return Incarnation(topic_id)
    return Incarnation(
        topic_id, witness, message.store_timestamp_ms, message.size, message.body_crc
    )
