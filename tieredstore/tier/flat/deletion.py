"""Deleting segments so that a crash or a failing backend leaves nothing behind for ever.

The entry is marked first, then the object goes, then the entry. What the backend does not delete
keeps its marked entry, which no queue opens, and is tried again by `FlatFileStore.sweep_deleted`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence

from tieredstore.contracts.metadata_store import MetadataStore
from tieredstore.contracts.segment import FileSegment, SegmentId, SegmentProvider
from tieredstore.errors import Unavailable
from tieredstore.tier.flat.segment import STATUS_DELETED, FlatSegment

_log = logging.getLogger(__name__)


def mark_deleted(metadata: MetadataStore, segments: Sequence[FlatSegment], now_ms: int) -> None:
    """Announce the deletion of segments: they hold nothing any more."""
    with metadata.batch():
        for segment in segments:
            entry = segment.metadata(now_ms, STATUS_DELETED)
            entry.size = 0
            metadata.put_segment(entry)


def remove(metadata: MetadataStore, files: Iterable[FileSegment]) -> int:
    """Delete announced segments, one try each; returns how many the backend kept."""
    gone = []
    left = 0
    for file in files:
        try:
            file.delete()
        except Unavailable as error:
            _log.warning("%s: not deleted, tried again later: %s", file.id, error)
            left += 1
        else:
            gone.append(file.id)
    if gone:
        with metadata.batch():
            for segment_id in gone:
                metadata.delete_segment(segment_id)
    return left


def finish_deletion(
    provider: SegmentProvider, metadata: MetadataStore, segment_id: SegmentId
) -> int:
    """Try an announced deletion again; returns 1 when the segment is still there. The caller
    keeps others from using the name meanwhile."""
    entry = metadata.segment(segment_id)
    if entry is None or entry.status != STATUS_DELETED:
        return 0
    return remove(metadata, [provider.open(segment_id)])
