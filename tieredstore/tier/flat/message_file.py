"""One queue in the tier: a commit log and a consume queue that move together. This module creates
and deletes the queue. `queue_writer` appends messages, and `queue_view` reads them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from tieredstore.contracts.metadata_store import NEVER_WRITTEN_MS
from tieredstore.contracts.segment import (
    FileSegment,
    SegmentId,
    SegmentListing,
)
from tieredstore.errors import Busy
from tieredstore.message.consume_queue import UNIT_SIZE
from tieredstore.tier.deleted.records import QueueEnds
from tieredstore.tier.flat import recovery
from tieredstore.tier.flat.append_file import FlatAppendFile
from tieredstore.tier.flat.queue_writer import QueueWriter


class FlatMessageFile(QueueWriter):
    """One queue in the tier. `QueueWriter` has the methods that write messages."""

    __slots__ = ()

    def recover(
        self,
        listings: Mapping[SegmentId, SegmentListing] | None = None,
        clean_ends: QueueEnds | None = None,
    ) -> None:
        """Load the queue from the metadata and the backend. Writes nothing. A message exists if its
        consume queue unit is complete and valid. `clean_ends`: file ends at the last clean stop, if
        no other process has written since. If the files still have these ends, units are not
        checked. Raises Unavailable, Corrupt."""
        with self.lock:
            self.commit_log.recover(listings)
            self.consume_queue.recover(listings)
            if clean_ends != self._committed_ends:
                recovery.validate_tail(self.commit_log, self.consume_queue)
            recovery.repair_times(self.commit_log, self.consume_queue)

    @property
    def _committed_ends(self) -> QueueEnds:
        return QueueEnds(self.commit_log.commit_offset, self.consume_queue.commit_offset)

    def find_clean_ends(self) -> QueueEnds | None:
        """Return the ends of the two files, or None if bytes are uncommitted or the files do not
        end with the same message."""
        with self.lock:
            stored = QueueEnds(self.commit_log.stored_offset, self.consume_queue.stored_offset)
            is_clean = not self._marks and stored == self._committed_ends
            return stored if is_clean and self.is_initialised else None

    def find_lost_ends(self) -> list[str]:
        """Describe each file whose last segment has fewer bytes in the backend than in the
        metadata. The end of the queue is then lost."""
        return [
            f"{last.file.id}: {last.recorded_size_bytes - last.real_size_bytes} of "
            f"{last.recorded_size_bytes} bytes are gone"
            for file in (self.commit_log, self.consume_queue)
            for last in file.segments[-1:]
            if last.real_size_bytes < last.recorded_size_bytes
        ]

    def find_gaps(self) -> list[str]:
        """Describe each segment, except the last of a file, that has fewer bytes in the backend
        than in the metadata. Messages in it are lost, but the queue continues after them."""
        return [
            f"{one.file.id}: {one.recorded_size_bytes - one.real_size_bytes} of "
            f"{one.recorded_size_bytes} bytes are gone"
            for file in (self.commit_log, self.consume_queue)
            for one in file.segments[:-1]
            if one.real_size_bytes < one.recorded_size_bytes
        ]

    def trust_listing(self) -> None:
        """Assume that new segments do not exist in the backend
        (`FlatAppendFile.is_listed_whole`)."""
        self.commit_log.is_listed_whole = self.consume_queue.is_listed_whole = True

    # Beginning

    def init_offset(self, offset: int, commit_log_offset: int = 0) -> None:
        """Create the queue with `offset` as its first queue offset. No-op if the queue exists. The
        commit log begins at `commit_log_offset`, or after the commit logs of deleted topics of this
        name if that is greater, so that no position is used twice. Raises Corrupt if the tier holds
        bytes that the metadata lacks, and the errors of `DeletedTopics.find_log_begin`."""
        with self.lock:
            self._check_writable()
            if self.is_initialised:
                return
            begin = self._deleted.find_log_begin(self.topic, self.queue_id, offset)
            try:
                with self._metadata.batch():
                    self._topic_id = self._deleted.add_topic(self.topic)
                    self._metadata.add_queue(self.topic, self.queue_id)
                    self.commit_log.init_offset(max(commit_log_offset, begin))
                    self.consume_queue.init_offset(offset * UNIT_SIZE)
            except BaseException:
                self.undo_init()
                raise

    def undo_init(self) -> None:
        """Undo `init_offset` after its metadata could not be written to disk."""
        with self.lock:
            self.consume_queue.undo_init()
            self.commit_log.undo_init()

    # Ending

    def expire(
        self,
        before_ms: int,
        is_stopping: Callable[[], bool] = lambda: False,
        most: int | None = None,
    ) -> list[SegmentId]:
        """Delete segments whose newest message is older than `before_ms`, first those of the
        consume queue. Offsets continue even if all messages have expired. `most`: maximum number of
        segments (None: no limit). Segments that are not deleted, because the backend fails or the
        caller stops, are left to `FlatFileStore.sweep_deleted`. Returns the removed segments."""
        return self._remove(self.take_expired(before_ms, most), is_stopping)

    def take_expired(self, before_ms: int, most: int | None = None) -> list[FileSegment]:
        """Remove the segments that `expire` would delete from the queue, and register their
        deletion. The caller must call `Deletions.remove` once the metadata is on disk."""
        with self._turns.waiting(self.path), self.lock:
            if self.is_closed:
                return []
            if not self._marks:
                # The commit log first, so that recovery never meets units without messages.
                self.commit_log.roll_if_expired(before_ms)
                self.consume_queue.roll_if_expired(before_ms)
            victims = self.consume_queue.take_expired(before_ms, most)
            rest = None if most is None else most - len(victims)
            victims += self.commit_log.take_expired(before_ms, rest)
        return victims

    @property
    def is_emptied(self) -> bool:
        """Whether the queue had messages and all of them are gone. Then no segment in the tier
        shows the end of the queue."""
        return 0 < self.consume_queue_min_offset == self.consume_queue_max_offset

    def begin_anew(
        self, offset: int, renew: Callable[[], object] = lambda: None
    ) -> list[SegmentId]:
        """Delete all messages and continue at the given queue offset, which may be lower than the
        current end. The commit log keeps its position, so that no position is used for two
        messages. If the process is killed during the call, the queue is empty and continues at its
        previous end.

        `renew`: called after all segments are marked for deletion and before the first is deleted.
        If it raises an error, the segments stay marked.

        Returns the removed segments. Raises Busy while bytes are uncommitted.
        """
        with self._turns.waiting(self.path), self.lock:
            self._check_writable()
            if self._marks:
                raise Busy(f"{self.path}: messages are not committed", topic=self.topic)
            self.times.delete()
            self.commit_log.roll_if_expired(NEVER_WRITTEN_MS)
            self.consume_queue.roll_if_expired(NEVER_WRITTEN_MS)
            victims = self.consume_queue.take_expired(NEVER_WRITTEN_MS)
            victims += self.commit_log.take_expired(NEVER_WRITTEN_MS)
        if victims:
            renew()
        gone = self._remove(victims)
        with self.lock:
            self._check_writable()
            self.consume_queue.rebase(offset * UNIT_SIZE)
            self._first_message = None
        return gone

    def end_writes(self) -> QueueEnds:
        """Reject further writes and return the ends of the files. The end of the commit log is
        greater than the base offset of each segment."""
        with self._turns.waiting(self.path), self.lock:
            self.close()
            return QueueEnds(_find_end_behind(self.commit_log), self.consume_queue.append_offset)

    def take_out(self) -> list[FileSegment]:
        """Close the queue, remove all segments and register their deletion. Once the metadata is on
        disk, the caller must call `Deletions.remove` and delete the queue's entry."""
        with self._turns.waiting(self.path), self.lock:
            self.close()
            self.times.delete()
            return self.consume_queue.take_all() + self.commit_log.take_all()

    def _remove(
        self, victims: Sequence[FileSegment], is_stopping: Callable[[], bool] = lambda: False
    ) -> list[SegmentId]:
        self._deletions.remove(victims, is_stopping)
        return [file.id for file in victims]

    def close(self) -> None:
        """Reject further writes and release the segments. Idempotent."""
        with self.lock:
            self.is_closed = True
            self._marks.clear()
            self.consume_queue.close()
            self.commit_log.close()


def _find_end_behind(file: FlatAppendFile) -> int:
    """Return the end of a file. It is above the base offset even if the last segment is empty."""
    segments = file.segments
    end = file.append_offset
    return max(end, segments[-1].base_offset + 1) if segments else end
