"""A queue whose segments are of no use any more: empty ones take their place."""

from __future__ import annotations

from collections.abc import Iterable

from tieredstore.contracts.metadata_store import FileSegmentMetadata, MetadataStore
from tieredstore.contracts.segment import FileSegmentType, SegmentId, SegmentProvider
from tieredstore.message.consume_queue import UNIT_SIZE
from tieredstore.tier.flat.segment import STATUS_DELETED

_UNIT_BYTES = {FileSegmentType.COMMIT_LOG: 1, FileSegmentType.CONSUME_QUEUE: UNIT_SIZE}


def replace_segments(
    metadata: MetadataStore,
    provider: SegmentProvider,
    path: str,
    strays: Iterable[SegmentId],
    now_ms: int,
) -> list[SegmentId]:
    """Announce in one write that all segments of a path are deleted, `strays` that the metadata
    does not know too, and that both files go on, empty, behind all that there ever was. Returns
    what is to be deleted; raises Unavailable."""
    entries = {entry.id: entry for entry in metadata.segments(path)}
    going = list(dict.fromkeys((*strays, *entries)))
    new = []
    for type_, unit_bytes in _UNIT_BYTES.items():
        end = 0
        of_type = [one for one in going if one.type is type_]
        if of_type:
            last = max(of_type, key=lambda one: one.base_offset)
            end = max(one.base_offset + _find_size(entries.get(one)) for one in of_type)
            end = max(end, last.base_offset + provider.open(last).size())
            known = entries.get(last)
            if end == last.base_offset and (known is None or known.status == STATUS_DELETED):
                end += 1  # that name is being deleted
        new.append(SegmentId(path, type_, -(-end // unit_bytes) * unit_bytes))
    going = [one for one in going if one not in new]
    with metadata.batch():
        for one in new:
            entry = _make_entry(one, now_ms)
            entry.end_timestamp_ms = now_ms  # Java's expiry deletes what has none
            metadata.put_segment(entry)
        for one in going:
            metadata.put_segment(_make_entry(one, now_ms, STATUS_DELETED))
    return going


def _find_size(entry: FileSegmentMetadata | None) -> int:
    return 0 if entry is None or entry.status == STATUS_DELETED else entry.size


def _make_entry(segment: SegmentId, now_ms: int, status: int = 0) -> FileSegmentMetadata:
    return FileSegmentMetadata(
        segment.path, segment.type, segment.base_offset, status=status, create_timestamp_ms=now_ms
    )
