"""CommitLogFlush: brings the commit log to disk, and ends the rounds of puts that wait for that."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from tieredstore.contracts.durability import FlushFuture
from tieredstore.contracts.message_store import PutMessageStatus
from tieredstore.errors import Exhausted, TieredStoreError
from tieredstore.local.log.commit_log import CommitLog
from tieredstore.local.put.rows import RowBuffer

PAGE_BYTES: Final = 4096
_LATE: Final = PutMessageStatus.FLUSH_DISK_TIMEOUT


@dataclass(slots=True, eq=False)
class _Round:
    """Puts that wait together. Once it is sealed: end_offset, where the log ended for the last of
    them; sealed_s, when the last of them was made at the latest (monotonic)."""

    future: FlushFuture
    end_offset: int = -1
    sealed_s: float = 0.0

    @property
    def is_sealed(self) -> bool:
        return self.end_offset >= 0


class CommitLogFlush:
    """Flush of one log. Thread-safe; no put is held up by a sync.

    puts: gives out the future of the current round under the put lock. sync_flush: whether puts
    wait (SYNC_FLUSH), at most timeout_ms. on_failure: told once that a sync has failed; nothing is
    synced any more then: what the system failed to write it may have dropped, so that a later
    success would mean nothing.
    """

    def __init__(
        self,
        log: CommitLog,
        puts: RowBuffer,
        on_failure: Callable[[TieredStoreError], object],
        *,
        sync_flush: bool,
        timeout_ms: Callable[[], int],
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self.error: TieredStoreError | None = None
        self._log = log
        self._puts = puts
        self._on_failure = on_failure
        self._sync_flush = sync_flush
        self._timeout_ms = timeout_ms
        self._now_s = now_s
        self._sync_lock = threading.Lock()
        # Rounds are begun one after the other: of two at once the second would seal the first one
        # before it has any put, and a sync end it, so that later puts had a future that is done.
        self._begin_lock = threading.Lock()
        self._rounds_lock = threading.Lock()
        self._is_given_up = False
        self._rounds: list[_Round] = []  # the last one is open
        self._sealed_offset = 0

    def open(self) -> None:
        """Let the puts from now on wait, under SYNC_FLUSH."""
        self._sealed_offset = self._log.max_offset
        if self._sync_flush:
            with self._begin_lock:
                self._is_given_up = False
                self._begin_round()

    def _begin_round(self) -> int:
        """Let the puts from now on wait for a round of their own; returns where the log ended.
        Called with `_begin_lock`."""
        begun = _Round(FlushFuture())
        with self._rounds_lock:
            self._rounds.append(begun)  # first, so that an interrupt loses nobody who waits
        _, end = self._puts.seal(begun.future)
        now_s = self._now_s()
        with self._rounds_lock:
            for found in self._rounds[: self._rounds.index(begun)]:
                if not found.is_sealed:
                    found.end_offset, found.sealed_s = end, now_s
        return end

    def flush(self, least_pages: int = 0) -> bool:
        """Bring what is readable to disk and end the rounds that waited for it; returns whether
        there was anything. least_pages: do nothing for fewer dirty pages of 4,096 bytes, unless a
        file is full.

        Raises Exhausted for what passes: the puts go on waiting. Raises Unavailable or Corrupt, and
        then ever again, for what does not: those who wait get FLUSH_DISK_TIMEOUT.
        """
        if self.error is not None:
            raise self.error
        is_waited_for = self._sync_flush and self._seal_round()
        if is_waited_for or not least_pages:
            self._log.commit()  # what waits in the pool, if there is one
        if not is_waited_for and not self._has_dirty_pages(least_pages):
            return False
        with self._sync_lock:
            if self.error is not None:
                raise self.error
            try:
                flushed = self._log.flushed_offset
                if flushed < self._log.readable_offset:
                    flushed = self._log.sync()
            except Exhausted:
                raise
            except TieredStoreError as error:
                self._fail(error)
                raise
        if self._sync_flush:
            self._puts.wake.set()  # the dispatch, which had to wait too
            self._end(flushed)
        return True

    def _has_dirty_pages(self, least_pages: int) -> bool:
        begin, end = self._log.flushed_offset, self._log.readable_offset
        if begin >= end:
            return False
        file_size = self._log.file_size
        pages = end // PAGE_BYTES - begin // PAGE_BYTES
        return pages >= least_pages or begin // file_size < end // file_size

    def _seal_round(self) -> bool:
        """Let later puts wait for another round; returns whether a sealed one is not over yet."""
        if self._log.max_offset > self._sealed_offset:
            with self._begin_lock:
                if not self._is_given_up and self._log.max_offset > self._sealed_offset:
                    self._sealed_offset = self._begin_round()
        return len(self._rounds) > 1

    def _end(self, flushed: int, late_s: float | None = None) -> None:
        """End the rounds that are on disk up to an offset; late ones too, by the time at which they
        were sealed."""
        on_disk, late, left = [], [], []
        with self._rounds_lock:
            for found in self._rounds:
                if not found.is_sealed:
                    left.append(found)
                elif found.end_offset <= flushed:
                    on_disk.append(found)
                elif late_s is not None and found.sealed_s <= late_s:
                    late.append(found)
                else:
                    left.append(found)
            self._rounds = left
        for found in on_disk:
            found.future.complete(PutMessageStatus.PUT_OK)
        for found in late:
            found.future.complete(_LATE)

    def expire_rounds(self) -> None:
        """Tell those who have waited for too long: FLUSH_DISK_TIMEOUT. Their messages are stored,
        and go on being flushed."""
        if self.error is None and self._seal_round():
            late_s = self._now_s() - self._timeout_ms() / 1000
            self._end(self._log.flushed_offset, late_s)

    def _fail(self, error: TieredStoreError) -> None:
        self.error = error
        self._on_failure(error)  # refuses puts; those that were let in before get an answer too
        self.give_up()

    def give_up(self) -> None:
        """Let nobody wait any more: what is not on disk gets FLUSH_DISK_TIMEOUT, later puts too."""
        if not self._sync_flush:
            return
        with self._begin_lock:
            self._is_given_up = True
            self._puts.seal(FlushFuture(_LATE))
        with self._rounds_lock:
            rounds, self._rounds = self._rounds, []
        for found in rounds:
            is_on_disk = found.is_sealed and found.end_offset <= self._log.flushed_offset
            found.future.complete(PutMessageStatus.PUT_OK if is_on_disk else _LATE)
