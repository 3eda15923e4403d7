"""What the put path hands to the dispatch: rows about the messages that were appended."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from operator import call
from typing import Final, NamedTuple, Self

from tieredstore.contracts.durability import FlushFuture
from tieredstore.contracts.message_store import DURABLE
from tieredstore.local.log.commit_log import CommitLog
from tieredstore.message.encoding import V4_HEADER, Message
from tieredstore.message.properties import find_text
from tieredstore.service_thread import WakeEvent

ROW_FIELDS: Final = 3
"""A row: queue number, head, properties. The queue number is SPECIAL for records that the dispatch
has to look at themselves; the head is the 88 bytes in front of a body, as in a record with IPv4
hosts, of which size, offsets and store time count."""
SPECIAL: Final = -1
MAX_ROWS: Final = 65_536
"""Rows kept for the dispatch; past it they are dropped and it reads the log instead."""
HELP_ROWS: Final = 8_192
"""Rows from which on a producer runs a pass of the dispatch itself."""
MAX_ROW_PROPERTIES_BYTES: Final = 4_096
"""Larger properties are not kept in a row: they would make MAX_ROWS no bound."""

Rows = list[int | bytes]


def make_head(size: int, queue_offset: int, position: int, timestamp_ms: int) -> bytes:
    """Make the head of a row for a record that does not have it in this form."""
    return V4_HEADER.pack(
        size, 0, 0, 0, 0, queue_offset, position, 0, 0, b"", timestamp_ms, b"", 0, 0, 0
    )


def waits_for_nothing(properties: bytes) -> bool:
    """Tell whether a message's producer does not wait for a flush (Java's isWaitStoreMsgOK): WAIT
    is there and not true."""
    if b"WAIT\x01" not in properties:
        return False
    text = find_text(properties, b"WAIT")
    return text is not None and text.lower() != "true"


class WaitingRows(NamedTuple):
    """What was appended between two offsets of the log: ROW_FIELDS values for each record. What is
    in front of it and was not dispatched yet has to be read in the log. is_cut: rows were dropped,
    so the log has to be read up to `end_offset`."""

    rows: Rows
    begin_offset: int
    end_offset: int
    is_cut: bool


class NoRows(list[int | bytes]):
    """Takes rows and keeps none, while the dispatch reads the log."""

    def __iadd__(self, rows: object) -> Self:  # type: ignore[override,misc]
        return self


class RowBuffer:
    """The side of the put path that the dispatch sees.

    `last_timestamp_ms` is the store time of the last message. `help_dispatch` is called by a
    producer that finds HELP_ROWS rows waiting; `wake` is set when rows come after none were left.
    durability: of the messages that are put now, read with the put lock held; the flush swaps it.
    holds_rows: whether the dispatch waits for a flush or a commit (`confirm_offset`), which then
    sets `wake`.

    What a message changes (`_rows`, the log's `max_offset`, its queue's `next_offset`,
    `last_timestamp_ms`) changes in one stretch of code without a call into Python, which is where
    signal handlers run, and behind `_rows` without new memory: an interrupt or a MemoryError leaves
    all of it or nothing. For the same reason the lock is taken by `with` alone (behind `acquire()`
    a handler may raise before a `try` begins), and those who wait for a put are woken in C.
    """

    __slots__ = (  # that the compiled core knows; the rest is not that hot
        "__dict__",
        "__weakref__",
        "_help_values",
        "_is_idle",
        "_lock",
        "_log",
        "_rows",
        "_wakes",
        "durability",
        "last_timestamp_ms",
    )

    def __init__(self, log: CommitLog, *, holds_rows: bool = False) -> None:
        self.last_timestamp_ms = 0
        self.wake = WakeEvent()
        self.durability: FlushFuture = DURABLE
        self.help_dispatch: Callable[[], object] = lambda: None
        self._log = log
        self._lock = threading.RLock()  # the put lock
        self._rows: Rows = []  # of what lies behind `_begin_offset`
        self._begin_offset = 0
        self._sealed: list[WaitingRows] = []  # before that
        self._holds_rows = holds_rows
        self._marked = (-1, 0)
        self._is_idle = False  # whether somebody waits for the next put
        self._idle: list[threading.Event] = []
        self._wakes: Iterator[object] = iter(())  # wakes them in C as it is iterated
        self._help_values = HELP_ROWS * ROW_FIELDS

    @contextmanager
    def hold_puts(self) -> Iterator[None]:
        """Hold the puts of others within the block."""
        with self._lock:
            yield

    def _publish(
        self,
        new_rows: Iterable[int | bytes],
        end: int,
        timestamp: int,
        moves: Iterable[object] = (),
    ) -> int:
        """What was copied into the log becomes part of it; returns how many row values wait.

        moves: what moves the queues on, in C as it is iterated (`map` of `setattr`): by `in`, which
        takes no memory and lets no signal handler run.
        """
        self._rows += new_rows
        self._log.max_offset = end
        self.last_timestamp_ms = timestamp
        _ = 0 in moves
        if self._is_idle:
            self._is_idle = False
            _ = 0 in self._wakes
        return len(self._rows)

    def wake_at_put(self, event: threading.Event, offset: int) -> None:
        """Set `event` at the next put; at once when the log has grown beyond `offset` already. A
        WakeEvent is set whatever interrupts the put."""
        with self._lock:
            idle = self._idle if self._is_idle else []
            if self._log.max_offset > offset:
                event.set()
            elif event not in idle:
                idle = [*idle, event]
                wakes = map(call, [waiting.set for waiting in idle])
                self._idle, self._wakes, self._is_idle = idle, wakes, True

    def _durability_of(self, messages: Sequence[Message]) -> FlushFuture:
        """What the result of a put carries; the caller holds the put lock."""
        durable = self.durability
        if durable is not DURABLE and all(waits_for_nothing(it.properties) for it in messages):
            return DURABLE
        return durable

    def seal(self, durability: FlushFuture) -> tuple[FlushFuture, int]:
        """Give the messages that are put from now on another durability; returns the one before,
        and where the log ends for it."""
        with self._lock:
            before, self.durability = self.durability, durability
            if self._holds_rows:
                self._seal_rows()
            return before, self._log.max_offset

    def mark_end(self) -> tuple[int, int]:
        """Return where the log ends, and the store time that its last message has; later ones have
        a later time, whatever the clock says."""
        with self._lock:
            if self._log.max_offset != self._marked[0]:
                self._marked = (self._log.max_offset, self.last_timestamp_ms)
                self.last_timestamp_ms += 1
            return self._marked

    def _help(self) -> None:
        """Run a pass of the dispatch, which is behind; called without the lock."""
        self.help_dispatch()
        with self._lock:
            if len(self._rows) > MAX_ROWS * ROW_FIELDS:
                self._rows, self._sealed = NoRows(), []

    def take_rows(self) -> WaitingRows:
        """Take what the dispatch has not seen yet and may see; an empty answer makes the next put
        set `wake`, or the next flush where that decides."""
        with self._lock:
            log = self._log
            end = log.confirm_offset
            if isinstance(self._rows, NoRows):
                return WaitingRows([], end, end, True)
            if end >= log.max_offset:
                self._seal_rows()
            taken = 0
            while taken < len(self._sealed) and self._sealed[taken].end_offset <= end:
                taken += 1
            pieces, self._sealed = self._sealed[:taken], self._sealed[taken:]
            if not pieces:
                first = self._sealed[0].begin_offset if self._sealed else self._begin_offset
                begin = min(first, end)
                if not self._holds_rows:
                    self.wake_at_put(self.wake, end)
                return WaitingRows([], begin, begin, False)
            rows = pieces[0].rows
            for piece in pieces[1:]:
                rows += piece.rows
            return WaitingRows(rows, pieces[0].begin_offset, pieces[-1].end_offset, False)

    def _seal_rows(self) -> None:
        """Let the rows so far end where the log does, with the put lock held."""
        end = self._log.max_offset
        if end > self._begin_offset and not isinstance(self._rows, NoRows):
            sealed = [*self._sealed, WaitingRows(self._rows, self._begin_offset, end, False)]
            self._sealed, self._rows, self._begin_offset = sealed, [], end
            if sum(len(piece.rows) for piece in self._sealed) > MAX_ROWS * ROW_FIELDS:
                self._rows, self._sealed = NoRows(), []

    def resume_rows(self, offset: int) -> bool:
        """Hand rows over again if all that may be dispatched ends at an offset, up to which the
        dispatch has read."""
        with self._lock:
            if self._log.confirm_offset != offset:
                return False
            self._rows, self._begin_offset = [], self._log.max_offset
            return True

    def drop_rows(self) -> None:
        """Hand over nothing until `resume_rows`: the dispatch has to read the log."""
        with self._lock:
            self._rows, self._sealed = NoRows(), []
            self.wake.set()
