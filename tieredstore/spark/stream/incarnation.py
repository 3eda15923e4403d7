"""What a queue is known by: whether it is the queue that it was."""

from __future__ import annotations

from collections.abc import Iterator

from tieredstore.scan.extents import QueueReader
from tieredstore.scan.segments.tail import read_message
from tieredstore.spark.stream.checkpoint import Incarnation

_DISTANCES = 1, 0, *(2**power for power in range(1, 24))


def witnesses_of(offset: int, least: int, end: int) -> Iterator[int]:
    """Yield the messages of [least, end) by which a queue is known at a position, the best first:
    the one in front of it, the one there, and where both are damaged some further in front."""
    for distance in _DISTANCES:
        if least <= offset - distance < end:
            yield offset - distance


def incarnation_of(reader: QueueReader, witness: int, topic_id: int | None) -> Incarnation:
    """Return what message `witness` says; without it, what the topic's id does."""
    message = read_message(reader, witness)
    if message is None:
        return Incarnation(topic_id)
    return Incarnation.of_message(
        topic_id, witness, message.store_timestamp_ms, message.size, message.body_crc
    )
