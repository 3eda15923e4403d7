"""Detects that a topic was deleted and recreated during a read. In a tier that Java writes, the
deleted topic and the new one use the same names and offsets, so a read could mix messages of both.
An object store never has two messages at the same place (`docs/formats/topic-deletion.md`)."""

from __future__ import annotations

from tieredstore.contracts.block_checksums import read_as_found
from tieredstore.contracts.segment import SegmentProvider
from tieredstore.errors import Corrupt, Expired
from tieredstore.message.layout import (
    MIN_RECORD_SIZE,
    has_magic,
    identify,
    is_head_of_message,
)
from tieredstore.scan.ahead import waits_for_network
from tieredstore.scan.catalogue import QueueFiles, Witness
from tieredstore.scan.expired import list_now, make_expired_error
from tieredstore.scan.extents import QueueReader, find_message


def take_witness(reader: QueueReader, queue_offset: int) -> Witness | None:
    """Read the head of a message, or return None if it is damaged or missing. Raises
    Unavailable."""
    try:
        unit = reader.read_units(queue_offset, 1)[0]
        place = find_message(reader, int(unit["physical_offset"]))
        head = reader.commit_log.read(place, MIN_RECORD_SIZE)
    except Corrupt:
        return None
    extent, found = reader.commit_log.extent_at(place), identify(head)
    is_sound = is_head_of_message(head, int(unit["size"])) and found[:2] == (queue_offset, place)
    return Witness(extent, *found) if extent is not None and is_sound else None


def is_still_there(provider: SegmentProvider, witness: Witness) -> bool:
    """Read the message of a witness again. Returns False if it has expired. Raises Expired if
    another message is in its place, or if its queue has no messages any more, Unavailable."""
    extent = witness.extent
    segment = provider.open(extent.id, extent.listing)
    try:
        if not waits_for_network(provider):
            segment.size()  # another process may have recreated the file
        place = witness.physical_offset - extent.base_offset
        head = read_as_found(segment, place, MIN_RECORD_SIZE)
        if has_magic(head) and identify(head) == witness[1:]:
            return True
    except Corrupt:
        pass  # gone, or shorter
    finally:
        segment.close()
    queue = list_now(provider, QueueFiles.at(extent.id.path))
    if queue.commit_log and queue.commit_log_min_offset > witness.physical_offset:
        return False
    if not queue.commit_log:  # deleted, or expired
        raise make_expired_error(queue, witness.queue_offset, queue, 0)
    raise Expired(
        f"{queue.path}: the topic was recreated while it was read: the message at queue offset "
        f"{witness.queue_offset} is another one now. Nothing is damaged, read again",
        topic=queue.topic, queue_id=queue.queue_id, path=queue.path,
    )  # fmt: skip
