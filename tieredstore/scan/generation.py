"""Detection of a topic that was deleted and recreated during a read. In a tier that Java writes,
both topics use the same names and offsets, so a read could mix their messages."""

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
    """Message that identifies the topic of a plan. `head`: first bytes of its record, including its
    store time. `position`: position of the record in its segment (bytes)."""

    queue_offset: int
    extent: SegmentExtent
    position: int
    head: bytes


def take_witness(reader: QueueReader, queue_offset: int) -> Witness | None:
    """Read the head of a message, or return None if it is damaged or missing. Raises
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
    """Raise Expired if another message has replaced the witness. If the witness has expired, a
    recreated topic is not detected. Raises Unavailable."""
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
