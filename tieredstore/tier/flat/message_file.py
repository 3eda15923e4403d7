"""FlatMessageFile: one queue in the tier, a commit log and a consume queue that move together.

The consume queue never gets ahead of the commit log, and neither is rolled before both are
committed up to the same message. So whatever a crash leaves behind the last consume queue unit is
in the last commit log segment, where the next commit writes over it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tieredstore.clock import Clock
from tieredstore.config import StoreConfig
from tieredstore.contracts.metadata_store import NEVER_WRITTEN_MS, MetadataStore
from tieredstore.contracts.segment import (
    FileSegment,
    FileSegmentType,
    SegmentId,
    SegmentListing,
    SegmentProvider,
)
from tieredstore.errors import Busy, Corrupt, Invalid
from tieredstore.message.columns.bounds import find_greatest, find_least
from tieredstore.message.consume_queue import UNIT_SIZE
from tieredstore.message.names import queue_path
from tieredstore.tier.clean_ends import QueueEnds
from tieredstore.tier.flat import batch, recovery
from tieredstore.tier.flat.appender import AppendResult
from tieredstore.tier.flat.batch import RecordBatch
from tieredstore.tier.flat.commit_log_file import FlatCommitLogFile
from tieredstore.tier.flat.confirmation import Confirmation, StoredEnds
from tieredstore.tier.flat.consume_queue_file import FlatConsumeQueueFile
from tieredstore.tier.flat.deletion import Deletions
from tieredstore.tier.flat.queue_view import QueueView
from tieredstore.tier.flat.turns import Turns

HOUR_MS = 3_600_000


@dataclass(slots=True)
class _Mark:
    """Units appended and not committed: the first one's queue offset, where its
    message begins in the commit log, and where the message of each ends."""

    first_unit: int
    commit_log_begin: int
    commit_log_ends: npt.NDArray[np.int64]

    @property
    def behind(self) -> int:
        """Queue offset behind the last unit."""
        return self.first_unit + len(self.commit_log_ends)


class FlatMessageFile(QueueView):
    """The tiered messages of one queue.

    Offsets are queue offsets, or byte offsets of the queue's own commit log. `lock` serialises
    writers (dispatch, expiry, destroy); readers take no lock. It is held for no longer than a batch
    takes: see `give_way`. confirm_writer: as `WriterEpoch.confirm`; called when both files are
    stored, before anything of them counts. deletions, turns: those of the whole broker.
    """

    __slots__ = (
        "_clock",
        "_closed",
        "_config",
        "_confirmation",
        "_deletions",
        "_marks",
        "_metadata",
        "_topic_id",
        "_turns",
        "lock",
        "path",
        "queue_id",
        "read_only_reason",
        "topic",
    )

    def __init__(
        self,
        topic: str,
        queue_id: int,
        config: StoreConfig,
        provider: SegmentProvider,
        metadata: MetadataStore,
        clock: Clock,
        confirm_writer: Callable[[], None] = lambda: None,
        deletions: Deletions | None = None,
        turns: Turns | None = None,
    ) -> None:
        self.topic = topic
        self.queue_id = queue_id
        self.path = queue_path(config.broker_name, topic, queue_id)
        self.lock = threading.RLock()
        self.read_only_reason: str | None = None
        self._config = config
        self._metadata = metadata
        self._clock = clock
        self._closed = False
        self._topic_id: int | None = None
        self._marks: list[_Mark] = []
        self._deletions = deletions = deletions if deletions is not None else Deletions(metadata)
        self._turns = turns if turns is not None else Turns()
        # The commit log joins first: a unit never counts before its message.
        self._confirmation = confirmation = Confirmation(confirm_writer)
        commit_log = FlatCommitLogFile(
            self.path,
            FileSegmentType.COMMIT_LOG,
            provider,
            metadata,
            config=config,
            clock=clock,
            lock=self.lock,
            confirmation=confirmation,
            deletions=deletions,
        )
        consume_queue = FlatConsumeQueueFile(
            self.path,
            FileSegmentType.CONSUME_QUEUE,
            provider,
            metadata,
            config=config,
            clock=clock,
            lock=self.lock,
            confirmation=confirmation,
            deletions=deletions,
        )
        super().__init__(commit_log, consume_queue)

    def recover(
        self,
        listings: Mapping[SegmentId, SegmentListing] | None = None,
        clean_ends: QueueEnds | None = None,
    ) -> None:
        """Take what the metadata and the backend have of this queue; writes nothing.

        Whole, valid consume queue units decide what is there. clean_ends: where the files ended
        when a writer stopped after which nobody wrote; what ends there needs no look at its units.
        Raises Unavailable, Corrupt.
        """
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
        """Find where the files end; None while anything is not committed, or not in both."""
        with self.lock:
            stored = QueueEnds(self.commit_log.stored_offset, self.consume_queue.stored_offset)
            is_clean = not self._marks and stored == self._committed_ends
            return stored if is_clean and self.is_initialised else None

    def find_lost_ends(self) -> list[str]:
        """Tell of the last segments that had more, by the metadata, than the backend has of them:
        the queue ends before where it ended once."""
        return [
            f"{last.file.id}: {last.recorded_size_bytes - last.real_size_bytes} of "
            f"{last.recorded_size_bytes} bytes are gone"
            for file in (self.commit_log, self.consume_queue)
            for last in file.segments[-1:]
            if last.real_size_bytes < last.recorded_size_bytes
        ]

    def trust_listing(self) -> None:
        """Take new segments for surely absent from now on: see `FlatAppendFile.is_listed_whole`."""
        self.commit_log.is_listed_whole = self.consume_queue.is_listed_whole = True

    @property
    def topic_id(self) -> int:
        """Id of the topic in the metadata, -1 when it has none yet."""
        if self._topic_id is None:
            entry = self._metadata.topic(self.topic)
            if entry is None:
                return -1
            self._topic_id = entry.topic_id
        return self._topic_id

    @property
    def is_closed(self) -> bool:
        return self._closed

    # Turns

    def wait_for_lock(self) -> None:
        """Take `lock`, also from an upload that has more to do: it gives way between two batches.
        The caller gives it back."""
        if not self.lock.acquire(blocking=False):
            with self._turns.waiting(self.path):
                self.lock.acquire()

    def give_way(self) -> None:
        """Let others have the lock who wait for it. The caller holds it, once; afterwards the file
        may be closed, or longer."""
        self._turns.give_way(self.path, self.lock)

    # Writing

    def init_offset(self, offset: int, commit_log_offset: int = 0) -> None:
        """Announce the queue, its first message being `offset`; nothing when it is there already.
        commit_log_offset: where a log begins that shall not use any place again.

        Raises Corrupt when the tier holds bytes that the metadata does not know of.
        """
        with self.lock:
            self._check_writable()
            if self.is_initialised:
                return
            try:
                with self._metadata.batch():
                    self._topic_id = self._metadata.add_topic(self.topic).topic_id
                    self._metadata.add_queue(self.topic, self.queue_id)
                    self.commit_log.init_offset(commit_log_offset)
                    self.consume_queue.init_offset(offset * UNIT_SIZE)
            except BaseException:
                self.undo_init()
                raise

    def undo_init(self) -> None:
        """Take `init_offset` back: the metadata that it changed, or the batch around it, did not
        reach the disk."""
        with self.lock:
            self.consume_queue.undo_init()
            self.commit_log.undo_init()

    def skip_to(self, offset: int) -> None:
        """Go on at a later queue offset, leaving a hole; what is there stays readable. Raises
        Invalid for an offset below the max offset, Busy while something is not committed."""
        with self.lock:
            self._check_writable()
            self.consume_queue.roll(offset * UNIT_SIZE)

    def append_batch(
        self,
        units: npt.NDArray[np.void],
        records: Sequence[memoryview],
        *,
        may_roll: bool = True,
    ) -> RecordBatch:
        """Append the next messages of the queue, in order.

        units: their consume queue units (UNIT_DTYPE; sizes and tags codes are used); records:
        buffers of one or more whole records, together those of the units. They are copied once,
        with the physical offsets of the tier; a single one that can be written to is not, and
        belongs to the file from then on. Segments are rolled where they are full, which
        commits what was appended before; a message larger than a segment gets its own. may_roll:
        whether to do so; if not, only what comes before is appended (see `roll_full`).

        Returns the batch as it is in the tier. Raises Corrupt when units and records disagree
        (nothing is appended), Busy when a commit that rolling needs is in the hands of another
        thread, and what commits raise; `rollback` then forgets what is not committed.
        """
        with self.lock:
            self._check_writable()
            if not self.is_initialised:
                raise Invalid(f"{self.path}: append before the first offset is known")
            prepared = batch.prepare(
                units,
                records,
                self.commit_log.append_offset,
                path=self.path,
                first_offset=self.consume_queue_max_offset,
            )
            done = 0
            while done < prepared.count:
                stop = self._find_fitting_end(prepared, done)
                if stop > done:
                    self._append_range(prepared, done, stop)
                    done = stop
                elif may_roll or not self._is_full(int(prepared.sizes[done])):
                    self._make_room(int(prepared.sizes[done]))
                else:
                    break
            return prepared.take_first(done)

    def _find_fitting_end(self, prepared: RecordBatch, first: int) -> int:
        """Behind the last message from `first` on that fits both files' segments and limits."""
        log, queue = self.commit_log.find_writer(), self.consume_queue.find_writer()
        count = min(
            prepared.count - first,
            log.room_count,
            queue.room_count,
            queue.room_bytes // UNIT_SIZE,
        )
        begin = int(prepared.starts[first])
        stop = int(prepared.ends.searchsorted(begin + log.room_bytes, side="right"))
        if stop <= first and not log.append_position:
            stop = first + 1
        return max(min(stop, first + count), first)

    def _append_range(self, prepared: RecordBatch, first: int, stop: int) -> None:
        data = memoryview(prepared.buffer)
        write_size = self._config.group_commit_size_bytes
        times = prepared.store_timestamps[first:stop]
        begin_ms, end_ms = find_least(times), find_greatest(times)
        at = first
        while at < stop:
            begin = int(prepared.starts[at])
            to = int(prepared.ends.searchsorted(begin + write_size, side="right"))
            to = min(max(to, at + 1), stop)
            part = data[begin : int(prepared.ends[to - 1])]
            self._expect(self.commit_log.append(part, to - at, begin_ms, end_ms))
            at = to
        self._marks.append(
            _Mark(
                self.consume_queue_max_offset,
                int(prepared.offsets[first]),
                prepared.offsets[first:stop] + prepared.sizes[first:stop],
            )
        )
        self._expect(
            self.consume_queue.append(
                prepared.unit_bytes(first, stop), stop - first, begin_ms, end_ms
            )
        )

    def _expect(self, result: AppendResult) -> None:
        if result is not AppendResult.SUCCESS:
            raise Busy(f"{self.path}: append gave {result.name}")

    def _is_full(self, size_bytes: int) -> bool:
        """Whether a message of that size needs a new segment, of either file."""
        log = self.commit_log
        is_log_full = log.room_bytes < size_bytes and not log.is_last_empty
        return is_log_full or self.consume_queue.room_bytes < UNIT_SIZE

    def _make_room(self, size_bytes: int) -> None:
        if not self.commit():
            raise Busy(f"{self.path}: another thread commits", topic=self.topic)
        log = self.commit_log
        if log.room_bytes < size_bytes and not log.is_last_empty:
            log.roll()
        if self.consume_queue.room_bytes < UNIT_SIZE:
            self.consume_queue.roll()

    def roll_full(self, size_bytes: int) -> None:
        """Roll what has no room for a message of that size, and a commit log that is due. In a
        `batch()` of the metadata nothing is to be appended before its end: `doubt_roll` follows
        where that fails. Raises Busy while something is not committed."""
        with self.lock:
            self._check_writable()
            if self._marks:
                raise Busy(f"{self.path}: messages are not committed", topic=self.topic)
            self.roll_commit_log_if_due()
            self._make_room(size_bytes)

    def doubt_roll(self) -> None:
        """Append nothing before the metadata on disk has what `roll_full` announced."""
        with self.lock:
            self.commit_log.doubt_entries()
            self.consume_queue.doubt_entries()

    def roll_commit_log_if_due(self) -> bool:
        """Roll the commit log when its last segment is old and large enough; everything must be
        committed. Returns whether it was rolled."""
        with self.lock:
            if self.is_roll_due:
                self.commit_log.roll()
                return True
            return False

    @property
    def is_roll_due(self) -> bool:
        """Whether the commit log's last segment is to be rolled for its age, and may be now."""
        hours = self._config.commit_log_rolling_interval_hours
        return not self._marks and self.commit_log.is_rolling_due(
            self._clock.now_ms(),
            hours * HOUR_MS,
            self._config.commit_log_rolling_minimum_size_bytes,
        )

    def commit(self) -> bool:
        """Write the commit log, then the consume queue, in one request where the provider can; then
        confirm the right to write, once for both: only then are they committed.

        True when all that was appended is committed; False when another thread is committing.
        Raises Unavailable (call again, or `rollback`; what is stored is not written again),
        Fenced, Corrupt.
        """
        if not self.lock.acquire(blocking=False):
            return False
        try:
            if not self._store():
                return False
            self._confirmation.commit_stored()
            return True
        finally:
            self._forget_marks()
            self.lock.release()

    def store(self) -> StoredEnds | None:
        """Write as `commit` does, but confirm nothing: what is stored then, or by that look, counts
        after a look that begins later, and `settle`, or with the next `commit`. None when another
        thread is committing. Raises as `commit`."""
        if not self.lock.acquire(blocking=False):
            return None
        try:
            return self._confirmation.note_stored() if self._store(may_wait=True) else None
        finally:
            self._forget_marks()
            self.lock.release()

    def settle(self, ends: StoredEnds) -> bool:
        """Count as committed what `store` told of, after a look that began behind it. False when
        the file was closed meanwhile, as its topic was deleted."""
        with self.lock:
            if self._closed:
                return False
            self._confirmation.settle(ends)
            self._forget_marks()
            return True

    def _store(self, *, may_wait: bool = False) -> bool:
        if self._closed:
            return False
        if self._marks:
            # Units that a failed write left must not come to name the messages of this one.
            self.consume_queue.trim()
        stored = self.commit_log.store(self.consume_queue, may_wait=may_wait)
        return stored and self.consume_queue.store()

    def _forget_marks(self) -> None:
        committed = self.consume_queue_commit_offset
        while self._marks and self._marks[0].behind <= committed:
            del self._marks[0]

    @property
    def has_uncommitted(self) -> bool:
        """Whether messages are appended, or stored, and not committed."""
        return bool(self._marks)

    def rollback(self) -> None:
        """Forget the messages that are appended and not stored: the next append begins behind the
        last stored unit. What is stored and not committed waits for the next `commit`. Bytes of
        forgotten messages that are in the commit log already are written again, or compared."""
        with self.lock:
            self._forget_marks()
            if not self._marks:
                return
            sure = self.consume_queue.stored_offset // UNIT_SIZE
            end = self._marks[0].commit_log_begin
            kept: list[_Mark] = []
            for mark in self._marks:
                if mark.first_unit < sure:
                    ends = mark.commit_log_ends[: sure - mark.first_unit]
                    kept.append(_Mark(mark.first_unit, mark.commit_log_begin, ends))
                    end = int(ends[-1])
            self.consume_queue.rollback(sure * UNIT_SIZE)
            self.commit_log.rollback(min(end, self.commit_log.stored_offset))
            self._marks = kept

    # Ending

    def expire(
        self,
        before_ms: int,
        is_stopping: Callable[[], bool] = lambda: False,
        most: int | None = None,
    ) -> list[SegmentId]:
        """Delete the segments whose newest message is older than a time, `most` of them (None for
        all); consume queue first.

        Offsets go on where they are, also when everything expired (D19). What the backend does
        not delete now, or is left when it is to stop, is left to `FlatFileStore.sweep_deleted`
        (D7). Returns what left the queue.
        """
        return self._remove(self.take_expired(before_ms, most), is_stopping)

    def take_expired(self, before_ms: int, most: int | None = None) -> list[FileSegment]:
        """Take what `expire` deletes out of the queue, announced as deleted: `Deletions.remove` is
        the caller's to call once the metadata is on disk."""
        with self._turns.waiting(self.path), self.lock:
            if self._closed:
                return []
            if not self._marks:
                # The commit log first, so that recovery never meets units without messages.
                self.commit_log.roll_if_expired(before_ms)
                self.consume_queue.roll_if_expired(before_ms)
            victims = self.consume_queue.take_expired(before_ms, most)
            rest = None if most is None else most - len(victims)
            victims += self.commit_log.take_expired(before_ms, rest)
        return victims

    def begin_anew(self, offset: int) -> list[SegmentId]:
        """Delete all that is there and go on at any queue offset, a lower one too; the commit log
        goes on where it is, so that no place in it comes to mean another message. Whoever stops in
        between leaves an empty queue that goes on at its former end. Returns what left the queue;
        raises Busy while something is not committed."""
        with self._turns.waiting(self.path), self.lock:
            self._check_writable()
            if self._marks:
                raise Busy(f"{self.path}: messages are not committed", topic=self.topic)
            self.commit_log.roll_if_expired(NEVER_WRITTEN_MS)
            self.consume_queue.roll_if_expired(NEVER_WRITTEN_MS)
            victims = self.consume_queue.take_expired(NEVER_WRITTEN_MS)
            victims += self.commit_log.take_expired(NEVER_WRITTEN_MS)
        gone = self._remove(victims)
        with self.lock:
            self._check_writable()
            self.consume_queue.rebase(offset * UNIT_SIZE)
            self._first_message = None
        return gone

    def destroy(self) -> list[SegmentId]:
        """Delete the queue's segments and its queue metadata (the topic's stays), and close."""
        with self._turns.waiting(self.path), self.lock:
            self.close()
            victims = self.consume_queue.take_all() + self.commit_log.take_all()
        gone = self._remove(victims)
        self._metadata.delete_queue(self.topic, self.queue_id)
        return gone

    def _remove(
        self, victims: Sequence[FileSegment], is_stopping: Callable[[], bool] = lambda: False
    ) -> list[SegmentId]:
        """Delete what was taken out; the lock is not held."""
        self._deletions.remove(victims, is_stopping)
        return [file.id for file in victims]

    def close(self) -> None:
        """Refuse further writes and release the segments. Idempotent."""
        with self.lock:
            self._closed = True
            self._marks.clear()
            self.consume_queue.close()
            self.commit_log.close()

    def _check_writable(self) -> None:
        if self._closed:
            raise Invalid(f"{self.path}: the file is closed", topic=self.topic)
        if self.read_only_reason is not None:
            raise Corrupt(
                f"{self.path}: not written to: {self.read_only_reason}",
                topic=self.topic,
                queue_id=self.queue_id,
                path=self.path,
            )
