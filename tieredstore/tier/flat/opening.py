"""Which segments a flat file has, and how much of each counts."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from tieredstore.contracts.metadata_store import (
    NEVER_WRITTEN_MS,
    FileSegmentMetadata,
    MetadataStore,
)
from tieredstore.contracts.segment import (
    FileSegment,
    FileSegmentType,
    SegmentId,
    SegmentListing,
    SegmentProvider,
)
from tieredstore.errors import Corrupt
from tieredstore.tier.flat.segment import STATUS_DELETED, FlatSegment

_log = logging.getLogger(__name__)


def open_segments(
    path: str,
    type: FileSegmentType,
    provider: SegmentProvider,
    metadata: MetadataStore,
    listings: Mapping[SegmentId, SegmentListing] | None,
    unit_bytes: int,
) -> tuple[FlatSegment, ...]:
    """Open the segments of a path, by base offset; see `FlatAppendFile.recover`."""
    entries = [entry for entry in metadata.segments(path, type) if entry.status != STATUS_DELETED]
    segments = []
    for index, entry in enumerate(entries):
        if entry.base_offset < 0 or entry.base_offset % unit_bytes:
            raise Corrupt(
                f"{entry.id}: base offset is not a multiple of {unit_bytes}",
                path=path,
                offset=entry.base_offset,
            )
        segment_id = entry.id
        listing = listings.get(segment_id) if listings is not None else None
        file = provider.open(segment_id, listing)
        room = None
        if index + 1 < len(entries):
            room = entries[index + 1].base_offset - entry.base_offset
        if listings is None:
            real = entry.size if entry.size == room else file.size()
        else:
            real = listing.size_bytes if listing is not None else 0
        size = _valid_size(entry, file, real, room)
        # The end of a segment without a begin is only when it was announced.
        is_new = entry.begin_timestamp_ms == NEVER_WRITTEN_MS
        end_ms = NEVER_WRITTEN_MS if is_new else entry.end_timestamp_ms
        segments.append(
            FlatSegment(
                file,
                size - size % unit_bytes,
                entry.begin_timestamp_ms,
                end_ms,
                real,
                entry.size,
            )
        )
    return tuple(segments)


def _valid_size(entry: FileSegmentMetadata, file: FileSegment, real: int, room: int | None) -> int:
    """room: bytes up to the next segment's base; None for the last segment."""
    if room is None:
        return real
    if real >= room:
        return room
    # Behind a hole: what lies beyond the recorded size was never valid.
    size = min(real, entry.size or real)
    if size < entry.size:
        _log.error("%s: %d of %d bytes are gone", file.id, entry.size - size, entry.size)
    return size
