"""Detects that a topic was deleted and recreated between the plan of a read and its end. In a tier
that Java writes, the deleted topic and the new one use the same names and offsets, so a read could
mix messages of both."""

from __future__ import annotations

from typing import NamedTuple

from tieredstore.contracts.block_checksums import read_as_found
from tieredstore.contracts.segment import SegmentProvider
from tieredstore.errors import Corrupt, Expired
from tieredstore.message.layout import MIN_RECORD_SIZE, is_head_of_message
from tieredstore.scan.ahead import waits_for_network
from tieredstore.scan.catalogue import QueueFiles, SegmentExtent
from tieredstore.scan.expired import list_now
from tieredstore.scan.extents import QueueReader, find_message


class Witness(NamedTuple):
    """A message by which a reader recognises that its queue is still the one of the plan. `head`:
    the first bytes of its record, which include its store time. `position`: position of the record
    in its segment (bytes)."""

    queue_offset: int
    extent: SegmentExtent
    position: int
    head: bytes


def take_witness(reader: QueueReader, queue_offset: int) -> Witness | None:
    """Read the head of a message. Returns None if the head is damaged or missing. Raises
    Unavailable."""
    try:
        unit = reader.read_units(queue_offset, 1)[0]
        place = find_message(reader, int(unit["physical_offset"]))
        head = bytes(reader.commit_log.read(place, MIN_RECORD_SIZE))
    except Corrupt:
        return None
    extent = reader.commit_log.extent_at(place)
    if extent is None or not is_head_of_message(head, int(unit["size"])):
        return None
    return Witness(queue_offset, extent, place - extent.base_offset, head)


def require_same_generation(
    provider: SegmentProvider, queue: QueueFiles, witness: Witness | None
) -> None:
    """Read the message of a witness again, and raise Expired if another message is in its place. If
    the witness itself has expired, a recreated topic is not detected. Raises Unavailable."""
    if witness is None:
        return
    extent = witness.extent
    segment = provider.open(extent.id, extent.listing)
    try:
        if not waits_for_network(provider):
            segment.size()  # another process may have recreated the file
        if read_as_found(segment, witness.position, len(witness.head)) == witness.head:
            return
    except Corrupt:
        pass  # gone, or shorter
    finally:
        segment.close()
    now, place = list_now(provider, queue), extent.base_offset + witness.position
    if now.commit_log and now.commit_log_min_offset <= place:
        raise Expired(
            f"{queue.path}: the topic was recreated while it was read: the message at queue offset "
            f"{witness.queue_offset} is another one now. Nothing is damaged, read again",
            topic=queue.topic, queue_id=queue.queue_id, path=queue.path,
        )  # fmt: skip
