"""Local part of the index: the files that accept keys, and the watermarks."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tieredstore.clock import Clock
from tieredstore.errors import Invalid, TieredStoreError, Unavailable
from tieredstore.tier.index.local_file import IndexRows, LocalIndexStoreFile
from tieredstore.tier.index.watermarks import FileState, Watermarks, save_watermarks

_MASK = 0xFFFFFFFF
_SHIFT = np.uint64(32)


@dataclass(slots=True)
class _QueueRows:
    """Rows of a queue. `offsets`: distinct commit log offsets, ascending. `pairs`: one number per
    row, (index of its offset in `offsets`) << 32 | hash."""

    offsets: npt.NDArray[np.int64]
    pairs: npt.NDArray[np.uint64]


class ReplayFilter:
    """Finds rows that are put a second time after a crash, by comparing them with the rows that the
    index had at recovery. Not thread-safe: the index service's put lock guards it."""

    def __init__(self) -> None:
        self._queues: dict[tuple[int, int], _QueueRows] = {}

    def __len__(self) -> int:
        return len(self._queues)

    def add(
        self,
        topic_ids: npt.NDArray[np.integer],
        queue_ids: npt.NDArray[np.integer],
        offsets: npt.NDArray[np.int64],
        hashes: npt.NDArray[np.integer],
    ) -> None:
        """Add rows of any number of queues."""
        order = np.lexsort((queue_ids, topic_ids))
        topics, queues = topic_ids[order], queue_ids[order]
        starts = np.flatnonzero((topics[1:] != topics[:-1]) | (queues[1:] != queues[:-1])) + 1
        for rows in np.split(order, starts):
            if len(rows):
                key = (int(topic_ids[rows[0]]), int(queue_ids[rows[0]]))
                self.add_queue(key, offsets[rows].astype(np.int64), hashes[rows])

    def add_queue(
        self,
        key: tuple[int, int],
        offsets: npt.NDArray[np.int64],
        hashes: npt.NDArray[np.integer],
    ) -> None:
        """Add rows of one queue."""
        before = self._queues.get(key)
        low = hashes.astype(np.int64) & _MASK
        if before is not None:
            offsets = np.append(before.offsets[before.pairs >> _SHIFT], offsets)
            low = np.append((before.pairs & np.uint64(_MASK)).astype(np.int64), low)
        distinct, ranks = np.unique(offsets, return_inverse=True)
        self._queues[key] = _QueueRows(distinct, _pairs(ranks, low))

    def find_unknown(
        self,
        key: tuple[int, int],
        offsets: npt.NDArray[np.int64],
        hashes: npt.NDArray[np.int32],
    ) -> npt.NDArray[np.bool_] | None:
        """Return a mask of the rows of a batch that are not yet in the index, or None if all are
        new."""
        known = self._queues.get(key)
        if known is None or not len(offsets):
            return None
        ranks = np.searchsorted(known.offsets, offsets).astype(np.intp)
        ranks[ranks == len(known.offsets)] = 0
        present: npt.NDArray[np.bool_] = known.offsets[ranks] == offsets
        present &= np.isin(_pairs(ranks, hashes.astype(np.int64) & _MASK), known.pairs)
        return ~present

    def advance(self, key: tuple[int, int], offset: int) -> None:
        """Remove the rows of a queue below `offset`, because they will not be put a second time."""
        known = self._queues.get(key)
        if known is not None and offset > int(known.offsets[-1]):
            del self._queues[key]

    def forget(self, key: tuple[int, int]) -> None:
        """Remove all rows of a queue, because the queue restarts."""
        self._queues.pop(key, None)


def _pairs(ranks: npt.NDArray[np.intp], low: npt.NDArray[np.int64]) -> npt.NDArray[np.uint64]:
    return ranks.astype(np.uint64) << _SHIFT | low.astype(np.uint64)


QueueId = tuple[int, int]
"""Key of a queue: topic id and queue id."""


class IndexWriter:
    """Local files of an index. Thread-safe. `files` is sorted by begin time and always replaced as
    a whole, so readers need no lock.

    `find_capacity`: callable that returns the number of slots and items of a new file.
    `replay`: rows that the caller may put a second time after a crash.
    `last_begin`: callable that returns the greatest name (begin time) of an uploaded file.
    """

    def __init__(
        self,
        directory: Path,
        find_capacity: Callable[[], tuple[int, int]],
        clock: Clock,
        files: list[LocalIndexStoreFile],
        replay: ReplayFilter,
        indexed_until: dict[QueueId, int],
        last_begin: Callable[[], int],
        states: Mapping[int, FileState] | None = None,
    ) -> None:
        self.files = tuple(files)
        self._since_ms = {begin: state.since_ms for begin, state in (states or {}).items()}
        self.batches = 0
        self._directory = directory
        self._find_capacity = find_capacity
        self._clock = clock
        self._replay = replay
        self._indexed_until = indexed_until
        self._last_begin = last_begin
        self._saved: Watermarks | None = None
        self._first_put_ms: int | None = (
            None if not any(f.item_count for f in files) else (clock.monotonic_ms())
        )
        self._broken: TieredStoreError | None = None
        self._closed = False
        # Taken in this order.
        self._checkpoint_lock = threading.Lock()
        self._put_lock = threading.Lock()

    def put(self, queue: QueueId, rows: IndexRows, indexed_until: int | None) -> int:
        """Add rows of a queue, to several files if needed, and advance the watermark of the queue.
        Returns the number of new rows. Raises Unavailable, or Invalid if the writer is closed."""
        with self._put_lock:
            self.check_usable()
            added = self._put_rows(queue, rows) if len(rows) else 0
            if indexed_until is not None:
                self._advance(queue, indexed_until)
            self.batches += 1
        return added

    def mark(self, queue: QueueId, offset: int) -> None:
        """Advance the watermark of a queue to `offset`. No more keys are needed below it."""
        with self._put_lock:
            self._advance(queue, offset)

    def mark_of(self, queue: QueueId) -> int | None:
        """Return the watermark of a queue."""
        return self._indexed_until.get(queue)

    @property
    def mark_count(self) -> int:
        """Number of queues that have a watermark."""
        return len(self._indexed_until)

    def forget(self, queue: QueueId) -> None:
        """Remove the watermark of a queue."""
        with self._put_lock:
            self._indexed_until.pop(queue, None)
            self._replay.forget(queue)

    def seal(self) -> None:
        """Seal all files. The next key begins a new file."""
        with self._put_lock:
            self._seal()

    def _seal(self) -> None:
        self._first_put_ms = None
        for file in self.files:
            file.seal()

    def seal_after(self, age_ms: int) -> None:
        """Seal the files that have contained keys for longer than the given time. For files of an
        earlier run, the time counts from the opening of the index."""
        with self._put_lock:
            first_ms = self._first_put_ms
            if first_ms is not None and self._clock.monotonic_ms() - first_ms >= age_ms:
                self._seal()

    def remove(self, file: LocalIndexStoreFile) -> None:
        """Delete a local file that is in the tier. Raises Unavailable if it cannot be deleted."""
        with self._put_lock:
            self.files = tuple(other for other in self.files if other is not file)
        file.destroy()

    def checkpoint(self, *, clean: bool = False) -> None:
        """Sync the files, then write the watermarks. Raises Unavailable. After a failed sync, the
        index rejects further keys, because keys may be lost."""
        with self._checkpoint_lock:
            with self._put_lock:
                if self._broken is not None:
                    raise self._broken
                files = self.files
                watermarks = Watermarks(dict(self._indexed_until), self._states(), clean)
                self.batches = 0
            if watermarks == self._saved:
                return
            try:
                for file in files:
                    file.sync()
            except TieredStoreError as error:
                self._broken = error
                raise
            save_watermarks(self._directory, watermarks)
            self._saved = watermarks

    def close(self) -> None:
        """Reject further keys and release the files."""
        with self._put_lock:
            self._closed = True
            files, self.files = self.files, ()
        for file in files:
            file.close()

    def _states(self) -> dict[int, FileState]:
        covered = len(self._replay) == 0
        return {
            file.begin_ms: FileState(
                file.slots,
                file.max_items,
                file.item_count,
                file.item_count if covered else file.covered_items,
                self._find_since(file),
            )
            for file in self.files
        }

    def _find_since(self, file: LocalIndexStoreFile) -> int:
        if not self._since_ms.get(file.begin_ms):
            self._since_ms[file.begin_ms] = self._clock.now_ms()
        return self._since_ms[file.begin_ms]

    @property
    def waiting_since_ms(self) -> int | None:
        """Time (epoch ms) of the oldest key that is not uploaded, or None. An earlier process may
        have put it."""
        return min((self._find_since(file) for file in self.files if file.item_count), default=None)

    def check_usable(self) -> None:
        """Raise Invalid if the writer is closed, or Unavailable after a failed sync."""
        if self._closed:
            raise Invalid("index: the service is not open", path=str(self._directory))
        if self._broken is not None:
            raise Unavailable(
                f"index: takes no keys since a sync failed: {self._broken}",
                path=self._broken.path,
            )

    def _put_rows(self, queue: QueueId, rows: IndexRows) -> int:
        fresh = self._replay.find_unknown(queue, rows.offsets, rows.hashes)
        if fresh is not None:
            rows = rows[fresh]
        added = 0
        try:
            while added < len(rows):
                rest = rows[added:] if added else rows
                file = self._find_writable(rest)
                room = file.room
                part = rest if len(rest) <= room else rest[:room]
                file.put(*queue, part)
                added += len(part)
        except TieredStoreError:
            if added:  # the caller puts the whole batch again
                self._replay.add_queue(queue, rows.offsets[:added], rows.hashes[:added])
            raise
        return added

    def _find_writable(self, rows: IndexRows) -> LocalIndexStoreFile:
        if self.files and self.files[-1].room > 0:
            return self.files[-1]
        begin_ms = self._next_begin(int(rows.store_timestamps.min()))
        made = LocalIndexStoreFile.create(
            self._directory / str(begin_ms), begin_ms, *self._find_capacity()
        )
        self.files = (*self.files, made)
        self._first_put_ms = self._clock.monotonic_ms()
        return made

    def _next_begin(self, first_ms: int) -> int:
        """Return the begin time of the next file, which is also its name. Names always increase. A
        file of old messages gets the time of its first message if possible, because Java reads only
        files whose begin time is within the time range of a query."""
        newest = max((file.begin_ms for file in self.files), default=0)
        newest = max(newest, self._last_begin())
        begin_ms = max(min(self._clock.now_ms(), first_ms), newest + 1)
        while (self._directory / str(begin_ms)).exists():  # a file that recovery left out
            begin_ms += 1
        return begin_ms

    def _advance(self, queue: QueueId, offset: int) -> None:
        self._indexed_until[queue] = max(offset, self._indexed_until.get(queue, 0))
        self._replay.advance(queue, offset)
