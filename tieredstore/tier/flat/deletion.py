"""Deleting segments so that a crash or a failing backend leaves nothing behind for ever.

The entry is marked first, then the object goes, then the entry. What the backend does not delete
keeps its marked entry, which no queue opens, and is tried again by `FlatFileStore.sweep_deleted`.

A backend may take seconds for each: no lock is held meanwhile that an upload or a read needs. That
nothing new gets the name of what is being deleted is seen to by the names (`Deletions.hold`).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from tieredstore.contracts.metadata_store import MetadataStore
from tieredstore.contracts.segment import FileSegment, SegmentId, SegmentProvider
from tieredstore.errors import Busy, Fenced, TieredStoreError
from tieredstore.tier.flat.segment import STATUS_DELETED, FlatSegment

DELETED_TOGETHER: Final = 16
"""Objects that are deleted, one by one, before the metadata is told."""
_log = logging.getLogger(__name__)


def mark_deleted(metadata: MetadataStore, segments: Sequence[FlatSegment], now_ms: int) -> None:
    """Announce the deletion of segments: they hold nothing any more."""
    with metadata.batch():
        for segment in segments:
            entry = segment.metadata(now_ms, STATUS_DELETED)
            entry.size = 0
            metadata.put_segment(entry)


def _never() -> bool:
    return False


class Deletions:
    """The announced deletions of a broker's segments. Thread-safe; one for all queues."""

    def __init__(self, metadata: MetadataStore) -> None:
        self._metadata = metadata
        self._lock = threading.Lock()
        self._held: set[SegmentId] = set()

    @contextmanager
    def hold(self, segment_id: SegmentId) -> Iterator[None]:
        """Keep a name to oneself while a segment is made or deleted. Raises Busy when another
        thread does either."""
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
        """Keep those of the names that nobody else has."""
        with self._lock:
            held = set(ids) - self._held
            self._held |= held
        try:
            yield held
        finally:
            with self._lock:
                self._held -= held

    def remove(self, files: Iterable[FileSegment], is_stopping: Callable[[], bool] = _never) -> int:
        """Delete announced segments, one try each, until it is to stop; returns how many are left.
        One that was deleted since, or made anew, is not touched. Raises Fenced, and what the
        metadata raises."""
        waiting = list(files)
        left = 0
        for begin in range(0, len(waiting), DELETED_TOGETHER):
            some = waiting[begin : begin + DELETED_TOGETHER]
            with self._hold_free(file.id for file in some) as held:
                mine = [file for file in some if file.id in held]
                left += len(some) - len(mine) + self._delete(mine, is_stopping)
        return left

    def finish(
        self,
        provider: SegmentProvider,
        ids: Iterable[SegmentId],
        is_stopping: Callable[[], bool] = _never,
    ) -> int:
        """Try announced deletions again, as `remove` does."""
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
