"""What a segment's end tells of another one's: both ended with one write, or run of writes."""

from __future__ import annotations

from tieredstore.contracts.segment import SegmentId
from tieredstore.providers import naming
from tieredstore.providers.chunks.lives.chain import Chain
from tieredstore.providers.chunks.lives.extents import Extent
from tieredstore.providers.chunks.lives.names import find_group


def find_shared_end(id: SegmentId, chain: Chain) -> str:
    """Find the object with which a segment ends, where other segments have a part in it: messages
    with their units, or pieces of a group. "" where it is the segment's own, or a part of that was
    cut off.

    Segments of a queue that end with one object end at the same message: a write holds all
    messages that wait, and their units; and what is moved to a group of runs is all that the queue
    has in groups of writes.
    """
    if chain.holes or not chain.extents or not _is_whole(chain.extents[-1]):
        return ""
    name = chain.extents[-1].name
    # Units are called by the object that they are in, from the queue's folder on.
    return find_group(name) or f"{id.type.name}/{naming.segment_file_name(id.base_offset)}/{name}"


def _is_whole(extent: Extent) -> bool:
    """Whether it is all that the segment has in a shared object. Of a group only a piece that was
    not cut has its CRC."""
    if extent.is_grouped:
        return extent.crc >= 0
    place = f"{extent.start:020d}-{extent.end:020d}"
    if extent.is_carried:
        return extent.name.endswith(f".{place}")
    return f"/u.{place}." in extent.name
