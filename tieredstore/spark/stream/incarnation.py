"""What a queue is known by: whether it is the queue that it was."""

from __future__ import annotations

from tieredstore.scan.extents import QueueReader
from tieredstore.scan.segments.tail import read_message
from tieredstore.spark.stream.checkpoint import Incarnation

_FURTHER = tuple(2**power for power in range(1, 24))


def incarnation_at(reader: QueueReader, offset: int, topic_id: int | None) -> Incarnation:
    """Find what the queue is known by at a position: the message in front of it, the one there, or
    where both are damaged one further in front. Looks at few messages, however many are."""
    least, end = reader.min_offset(), reader.max_offset()
    for distance in (1, 0, *_FURTHER):
        witness = offset - distance
        if least <= witness < end:
            found = incarnation_of(reader, witness, topic_id)
            if found.message is not None:
                return found
    return Incarnation(topic_id)


def incarnation_of(reader: QueueReader, witness: int, topic_id: int | None) -> Incarnation:
    """Return what message `witness` says; without it, what the topic's id does."""
    message = read_message(reader, witness)
    if message is None:
        return Incarnation(topic_id)
    return Incarnation.of_message(
        topic_id, witness, message.store_timestamp_ms, message.size, message.body_crc
    )
