"""The local half of the index: the files that take keys, and the watermarks over them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

from tieredstore.clock import Clock
from tieredstore.errors import Invalid, TieredStoreError, Unavailable
from tieredstore.tier.index.local_file import IndexRows, LocalIndexStoreFile
from tieredstore.tier.index.replay import ReplayFilter
from tieredstore.tier.index.watermarks import FileState, Watermarks, save_watermarks

QueueId = tuple[int, int]
"""Topic id and queue id."""


class IndexWriter:
    """Thread-safe. `files` is replaced whole, by ascending begin, so that readers need no lock.

    find_capacity: tells slots and items of a new file; replay: rows that a crash may make the
    caller put again; last_begin: the newest name among the uploaded files.
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
    ) -> None:
        self.files = tuple(files)
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
        """Add rows, over several files if need be, and move the queue's mark; returns how many
        were new. Raises Unavailable, Invalid when closed."""
        with self._put_lock:
            self.check_usable()
            added = self._put_rows(queue, rows) if len(rows) else 0
            if indexed_until is not None:
                self._advance(queue, indexed_until)
            self.batches += 1
        return added

    def mark(self, queue: QueueId, offset: int) -> None:
        """Note that nothing of the queue below an offset is to be put any more."""
        with self._put_lock:
            self._advance(queue, offset)

    def mark_of(self, queue: QueueId) -> int | None:
        """Return the queue's watermark."""
        return self._indexed_until.get(queue)

    @property
    def mark_count(self) -> int:
        """How many queues have a watermark."""
        return len(self._indexed_until)

    def forget(self, queue: QueueId) -> None:
        """Remove the queue's watermark."""
        with self._put_lock:
            self._indexed_until.pop(queue, None)
            self._replay.forget(queue)

    def seal(self) -> None:
        """Seal the files: none takes keys any more; the next key begins a new one."""
        with self._put_lock:
            self._seal()

    def _seal(self) -> None:
        self._first_put_ms = None
        for file in self.files:
            file.seal()

    def seal_after(self, age_ms: int) -> None:
        """Seal what has held keys for that long, by the time that has passed; of what was there at
        the start, since then."""
        with self._put_lock:
            first_ms = self._first_put_ms
            if first_ms is not None and self._clock.monotonic_ms() - first_ms >= age_ms:
                self._seal()

    def remove(self, file: LocalIndexStoreFile) -> None:
        """Drop a file that is in the tier. Raises Unavailable when it cannot be deleted."""
        with self._put_lock:
            self.files = tuple(other for other in self.files if other is not file)
        file.destroy()

    def checkpoint(self, *, clean: bool = False) -> None:
        """Sync the files, then write the watermarks. Raises Unavailable; after a failed sync no
        more keys are taken, since what was put may be lost."""
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
        """Take no more keys and release the files."""
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
            )
            for file in self.files
        }

    def check_usable(self) -> None:
        """Raise Invalid once it is closed, Unavailable once a sync has failed."""
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
        """Names increase. Java asks only files that began within a query's times (D5), so a file
        of old messages is named by the first of them."""
        newest = max((file.begin_ms for file in self.files), default=0)
        newest = max(newest, self._last_begin())
        begin_ms = max(min(self._clock.now_ms(), first_ms), newest + 1)
        while (self._directory / str(begin_ms)).exists():  # a file that recovery left out
            begin_ms += 1
        return begin_ms

    def _advance(self, queue: QueueId, offset: int) -> None:
        self._indexed_until[queue] = max(offset, self._indexed_until.get(queue, 0))
        self._replay.advance(queue, offset)
