"""Deletion of segments in three steps: mark the metadata entry, delete the object, delete the
entry.

This way neither a crash nor a failing backend can leave an orphaned object. If the backend fails to
delete an object, its marked entry stays. No queue opens such a segment, and
`FlatFileStore.sweep_deleted` retries the deletion.

A backend may take seconds per object, so a deletion holds no lock that uploads or reads need.
`Deletions.hold` reserves the names, so that no new object gets the name of an object that is being
deleted.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from tieredstore.contracts.metadata_store import STATUS_DELETED, FileSegmentMetadata, MetadataStore
from tieredstore.contracts.segment import FileSegment, FileSegmentType, SegmentId, SegmentProvider
from tieredstore.errors import Busy, Fenced, TieredStoreError
from tieredstore.message.consume_queue import UNIT_SIZE
from tieredstore.tier.deleted.records import QueueEnds
from tieredstore.tier.flat.segments import FlatSegment

DELETED_TOGETHER: Final = 16
"""Number of objects that are deleted, one by one, between two updates of the metadata."""
_log = logging.getLogger(__name__)


def mark_deleted(metadata: MetadataStore, segments: Sequence[FlatSegment], now_ms: int) -> None:
    """Mark segments for deletion in the metadata. Readers no longer see their content."""
    with metadata.batch():
        for segment in segments:
            entry = segment.metadata(now_ms, STATUS_DELETED)
            entry.size = 0
            metadata.put_segment(entry)


def never_stop() -> bool:
    """Return False, as the default of `is_stopping`."""
    return False


class Deletions:
    """Pending deletions of a broker's segments, shared by all queues. Thread-safe."""

    def __init__(self, metadata: MetadataStore) -> None:
        self._metadata = metadata
        self._lock = threading.Lock()
        self._held: set[SegmentId] = set()

    @contextmanager
    def hold(self, segment_id: SegmentId) -> Iterator[None]:
        """Reserve a name while a segment is created or deleted. Raises Busy if another thread has
        reserved it."""
        with self._lock:
            if segment_id in self._held:
                raise Busy(
                    f"{segment_id}: a segment of that name is being deleted", path=segment_id.path
                )
            self._held.add(segment_id)
        try:
            yield
        finally:
            with self._lock:
                self._held.discard(segment_id)

    @contextmanager
    def _hold_free(self, ids: Iterable[SegmentId]) -> Iterator[set[SegmentId]]:
        """Reserve the given names that no other thread has reserved, for the duration of a `with`
        block. Yields the reserved names."""
        with self._lock:
            held = set(ids) - self._held
            self._held |= held
        try:
            yield held
        finally:
            with self._lock:
                self._held -= held

    def remove(
        self,
        files: Iterable[FileSegment],
        is_stopping: Callable[[], bool] = never_stop,
        together: int = DELETED_TOGETHER,
    ) -> int:
        """Try once to delete each marked segment, until the caller stops. Segments that another
        thread has deleted or recreated since they were marked are skipped. `together`: number of
        deletions between two updates of the metadata. Returns the number of remaining segments.
        Raises Fenced, and the errors of the metadata."""
        waiting = list(files)
        left = 0
        for begin in range(0, len(waiting), together):
            some = waiting[begin : begin + together]
            with self._hold_free(file.id for file in some) as held:
                mine = [file for file in some if file.id in held]
                left += len(some) - len(mine) + self._delete(mine, is_stopping)
        return left

    def finish(
        self,
        provider: SegmentProvider,
        ids: Iterable[SegmentId],
        is_stopping: Callable[[], bool] = never_stop,
    ) -> int:
        """Retry pending deletions. See `remove`."""
        return self.remove([provider.open(segment_id) for segment_id in ids], is_stopping)

    def _delete(self, files: Sequence[FileSegment], is_stopping: Callable[[], bool]) -> int:
        gone: list[SegmentId] = []
        left = 0
        for file in files:
            entry = self._metadata.segment(file.id)
            if entry is None or entry.status != STATUS_DELETED:
                continue
            if is_stopping():
                left += 1
                continue
            try:
                file.delete()
            except Fenced:
                raise
            except TieredStoreError as error:
                _log.warning("%s: not deleted, tried again later: %s", file.id, error)
                left += 1
            else:
                gone.append(file.id)
        if gone:
            with self._metadata.batch():
                for segment_id in gone:
                    self._metadata.delete_segment(segment_id)
        return left


_COMMIT_LOG = FileSegmentType.COMMIT_LOG
_UNIT_BYTES = {FileSegmentType.COMMIT_LOG: 1, FileSegmentType.CONSUME_QUEUE: UNIT_SIZE}


def replace_segments(
    metadata: MetadataStore,
    provider: SegmentProvider,
    path: str,
    strays: Iterable[SegmentId],
    now_ms: int,
) -> list[SegmentId]:
    """Mark all segments of a path for deletion, and begin two empty files after them. This is a
    single write of the metadata. `strays`: segments of the path that the metadata lacks. Returns
    the segments to delete. Raises Unavailable."""
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
            entry.end_timestamp_ms = now_ms  # Java's expiry deletes segments without it
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


def find_recorded_ends(
    metadata: MetadataStore,
    provider: SegmentProvider,
    path: str,
    strays: Iterable[SegmentId] | None,
) -> QueueEnds:
    """Return the file ends of a queue that is not open, from the metadata and from segments that
    the metadata lacks. The end of the commit log is greater than the base offset of each segment
    that the metadata has. Raises Unavailable."""
    ends = dict.fromkeys(_UNIT_BYTES, 0)
    for entry in metadata.segments(path):
        if entry.type in ends:
            end = entry.base_offset + max(_find_size(entry), entry.type is _COMMIT_LOG)
            ends[entry.type] = max(ends[entry.type], end)
    for one in strays or ():
        if one.type in ends:
            ends[one.type] = max(ends[one.type], one.base_offset + provider.open(one).size())
    return QueueEnds(ends[_COMMIT_LOG], ends[FileSegmentType.CONSUME_QUEUE])
