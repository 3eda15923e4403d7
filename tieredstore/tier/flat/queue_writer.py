"""Writes to the commit log and the consume queue of a queue in the tier. The consume queue never
gets ahead of the commit log. Both are rolled only when they are committed up to the same message.
If a crash leaves bytes after the last consume queue unit, they are in the last commit log segment,
and the next commit overwrites them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import numpy.typing as npt

from tieredstore.clock import Clock
from tieredstore.config import StoreConfig
from tieredstore.contracts.metadata_store import MetadataStore
from tieredstore.contracts.segment import FileSegmentType, SegmentProvider
from tieredstore.errors import Busy, Corrupt, Invalid
from tieredstore.message.buffers import find_greatest, find_least
from tieredstore.message.consume_queue import UNIT_SIZE
from tieredstore.message.names import queue_path
from tieredstore.tier.deleted.register import DeletedTopics
from tieredstore.tier.flat import batch
from tieredstore.tier.flat.appender import AppendResult
from tieredstore.tier.flat.batch import Mark, Marks, RecordBatch
from tieredstore.tier.flat.confirmation import Confirmation, StoredEnds
from tieredstore.tier.flat.deletion import Deletions
from tieredstore.tier.flat.queue_files import FlatCommitLogFile, FlatConsumeQueueFile
from tieredstore.tier.flat.queue_view import QueueView
from tieredstore.tier.flat.time_tracker import TimeTracker, take_heads

_LOOK_SECONDS = 0.001
_MOST_LOOKS = 5_000
"""Maximum number of checks whether another thread still waits for the lock of the queue. The upload
then continues anyway."""


class Turns:
    """Fair sharing of queue locks between threads. Thread-safe. A thread that releases a lock and
    reacquires it immediately would nearly always keep it from waiting threads. So a thread that
    needs the lock of a queue registers here. Between two batches, an upload of the queue lets that
    thread have the lock first."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: dict[str, int] = {}

    @contextmanager
    def waiting(self, path: str) -> Iterator[None]:
        """Register a request for the lock of a queue. Acquire the lock inside the `with` block."""
        with self._lock:
            self._waiting[path] = self._waiting.get(path, 0) + 1
        try:
            yield
        finally:
            with self._lock:
                left = self._waiting[path] - 1
                if left:
                    self._waiting[path] = left
                else:
                    del self._waiting[path]

    def give_way(self, path: str, lock: threading.RLock) -> None:
        """Release the lock while other threads wait for it, then reacquire it. The caller must hold
        the lock exactly once. The other threads may change the queue."""
        if path not in self._waiting:
            return
        lock.release()
        try:
            for _ in range(_MOST_LOOKS):
                time.sleep(_LOOK_SECONDS)
                if path not in self._waiting:
                    break
        finally:
            lock.acquire()


HOUR_MS = 3_600_000


class QueueWriter(QueueView):
    """Queue to which messages are appended. Offsets are queue offsets, or byte offsets of the
    queue's own commit log. Readers take no lock.

    `lock`: serialises writers (dispatch, expiry, destroy), and is held for one batch at most (see
    `give_way`).
    `confirm_writer`: `WriterEpoch.confirm`, called after both files are stored and before the bytes
    are committed.
    `deletions`, `turns`, `deleted`: shared by all queues of the broker.
    """

    __slots__ = (
        "_clock",
        "_config",
        "_confirmation",
        "_deleted",
        "_deletions",
        "_marks",
        "_metadata",
        "_topic_id",
        "_turns",
        "is_closed",
        "lock",
        "path",
        "queue_id",
        "read_only_reason",
        "times",
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
        deleted: DeletedTopics | None = None,
    ) -> None:
        self.topic = topic
        self.queue_id = queue_id
        self.path = queue_path(config.broker_name, topic, queue_id)
        self.lock = threading.RLock()
        self.read_only_reason: str | None = None
        self._config = config
        self._metadata = metadata
        self._clock = clock
        self.is_closed = False
        self._topic_id: int | None = None
        self._deletions = deletions = deletions if deletions is not None else Deletions(metadata)
        self._turns = turns if turns is not None else Turns()
        if deleted is None:
            deleted = DeletedTopics(provider, metadata, config.broker_name, clock)
        self._deleted = deleted
        # The commit log joins first, so that a unit is never committed before its message.
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
        self.times = TimeTracker(provider, self.path, commit_log)
        self._marks = Marks(self.times.add)

    @property
    def topic_id(self) -> int:
        """Id of the topic in the metadata. -1 while the topic has no id."""
        if self._topic_id is None:
            entry = self._metadata.topic(self.topic)
            if entry is None:
                return -1
            self._topic_id = entry.topic_id
        return self._topic_id

    # Turns

    def wait_for_lock(self) -> None:
        """Acquire `lock`. During an upload, this waits only for the current batch. The caller must
        release the lock."""
        if not self.lock.acquire(blocking=False):
            with self._turns.waiting(self.path):
                self.lock.acquire()

    def give_way(self) -> None:
        """Release the lock for waiting threads, then reacquire it. The caller must hold the lock
        exactly once. The other threads may append to the file or close it."""
        self._turns.give_way(self.path, self.lock)

    # Writing

    def skip_to(self, offset: int) -> None:
        """Continue the queue at a later queue offset, which leaves a hole. Existing messages stay
        readable. Raises Invalid for an offset below the max offset, and Busy while bytes are
        uncommitted."""
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
        """Append the next messages of the queue, in order. Returns the batch as it is written to
        the tier. `units`: consume queue units of the messages (UNIT_DTYPE, only sizes and tags
        codes are used). `records`: buffers of whole records, which together contain the records of
        the units. They are copied once and get the physical offsets of the tier. A single writable
        buffer is not copied, and belongs to the file from then on.

        Full segments are rolled, after a commit of the messages appended before. A message larger
        than a segment gets a segment of its own. `may_roll`: whether segments may be rolled. If
        False, only the messages that fit are appended (see `roll_full`).

        Raises Corrupt, before anything is appended, if units and records disagree. Raises Busy if
        another thread runs a commit that rolling needs, and the errors of commits. After these
        errors, `rollback` drops the uncommitted messages.
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
        """Return the end of the messages, counted from `first`, that fit into the segments and
        limits of both files."""
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
        starts, ends = prepared.offsets[first:stop], prepared.ends[first:stop]
        ends = ends + (starts[0] - prepared.starts[first])
        heads = take_heads(data[int(prepared.starts[first]) :], starts, ends)
        mark = Mark(self.consume_queue_max_offset, int(starts[0]), ends, times, heads)
        self._marks.add(mark)
        self._expect(
            self.consume_queue.append(
                prepared.unit_bytes(first, stop), stop - first, begin_ms, end_ms
            )
        )

    def _expect(self, result: AppendResult) -> None:
        if result is not AppendResult.SUCCESS:
            raise Busy(f"{self.path}: append gave {result.name}")

    def _is_full(self, size_bytes: int) -> bool:
        """Return whether a message of the given size needs a new segment in either file."""
        log = self.commit_log
        is_log_full = log.room_bytes < size_bytes and not log.is_last_empty
        return is_log_full or self.consume_queue.room_bytes < UNIT_SIZE

    def _make_room(self, size_bytes: int) -> None:
        if not self.commit():
            raise Busy(f"{self.path}: another thread commits", topic=self.topic)
        log = self.commit_log
        if log.room_bytes < size_bytes and not log.is_last_empty:
            log.roll()
            self.times.note_roll()
        if self.consume_queue.room_bytes < UNIT_SIZE:
            self.consume_queue.roll()

    def roll_full(self, size_bytes: int) -> None:
        """Roll the files without room for a message of the given size, and a commit log that is
        due. Inside a `batch()` of the metadata, no message may be appended until the batch ends. If
        the batch fails, call `doubt_roll`. Raises Busy while messages are not committed."""
        with self.lock:
            self._check_writable()
            if self._marks:
                raise Busy(f"{self.path}: messages are not committed", topic=self.topic)
            self.roll_commit_log_if_due()
            self._make_room(size_bytes)

    def doubt_roll(self) -> None:
        """Record that the entries of the segments from `roll_full` may not be on disk. The next
        append first writes them."""
        with self.lock:
            self.commit_log.doubt_entries()
            self.consume_queue.doubt_entries()

    def roll_commit_log_if_due(self) -> bool:
        """Roll the commit log if its last segment is old and large enough. All messages must be
        committed. Returns whether the commit log was rolled."""
        with self.lock:
            if self.is_roll_due:
                self.commit_log.roll()
                self.times.note_roll()
                return True
            return False

    @property
    def is_roll_due(self) -> bool:
        """Whether the commit log is due to be rolled because of its age, and all messages are
        committed."""
        hours = self._config.commit_log_rolling_interval_hours
        return not self._marks and self.commit_log.is_rolling_due(
            self._clock.now_ms(),
            hours * HOUR_MS,
            self._config.commit_log_rolling_minimum_size_bytes,
        )

    def commit(self) -> bool:
        """Write the commit log, then the consume queue, and confirm the epoch to commit both. If
        the provider supports it, both are written in one request. Returns True if all appended
        messages are committed, False if another thread is committing. Raises Unavailable, Fenced,
        Corrupt. After Unavailable, call this again or call `rollback`. Stored bytes are not written
        again."""
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
        """Write like `commit`, but without a fence check. Call `settle` after a later check to
        commit the messages, or call `commit`. Returns None if another thread is committing. Raises
        the errors of `commit`."""
        if not self.lock.acquire(blocking=False):
            return None
        try:
            return self._confirmation.note_stored() if self._store(may_wait=True) else None
        finally:
            self._forget_marks()
            self.lock.release()

    def settle(self, ends: StoredEnds) -> bool:
        """Commit the messages up to the ends that `store` returned. A fence check that began after
        `store` must have succeeded. Returns False if the file was closed in between, because its
        topic was deleted."""
        with self.lock:
            if self.is_closed:
                return False
            self._confirmation.settle(ends)
            self._forget_marks()
            return True

    def _store(self, *, may_wait: bool = False) -> bool:
        if self.is_closed:
            return False
        if self._marks:
            # Units left by a failed write must not refer to the messages of this write.
            self.consume_queue.trim()
        stored = self.commit_log.store(self.consume_queue, may_wait=may_wait)
        return stored and self.consume_queue.store()

    def _forget_marks(self) -> None:
        self._marks.commit(self.consume_queue_commit_offset)

    @property
    def has_uncommitted(self) -> bool:
        """Whether any appended or stored messages are not yet committed."""
        return bool(self._marks)

    def rollback(self) -> None:
        """Drop the messages that are appended but not stored. The next append begins after the last
        stored unit. Stored messages that are not committed wait for the next `commit`. If bytes of
        dropped messages are already in the commit log, a later commit overwrites them or compares
        them with its own."""
        with self.lock:
            self._forget_marks()
            if not self._marks:
                return
            sure = self.consume_queue.stored_offset // UNIT_SIZE
            end = self._marks.keep_first(sure)
            self.consume_queue.rollback(sure * UNIT_SIZE)
            self.commit_log.rollback(min(end, self.commit_log.stored_offset))

    def _check_writable(self) -> None:
        if self.is_closed:
            raise Invalid(f"{self.path}: the file is closed", topic=self.topic)
        if self.read_only_reason is not None:
            raise Corrupt(
                f"{self.path}: not written to: {self.read_only_reason}",
                topic=self.topic,
                queue_id=self.queue_id,
                path=self.path,
            )
