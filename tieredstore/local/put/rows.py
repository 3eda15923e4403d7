"""Rows of appended messages. The put path passes them to the dispatch."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import call
from typing import Final, NamedTuple, Self

from tieredstore.contracts.durability import FlushFuture
from tieredstore.contracts.message_store import DURABLE
from tieredstore.local.log.commit_log import CommitLog
from tieredstore.message.encoding import V4_HEADER, Message
from tieredstore.message.properties import find_text
from tieredstore.service_thread import WakeEvent

ROW_FIELDS: Final = 3
"""Number of values of a row: queue number, head, properties. The queue number is SPECIAL for
records that the dispatch must parse. The head is the 88 bytes that precede a body in a record with
IPv4 hosts. Of the head, only the record's size, offsets and store time are used."""
SPECIAL: Final = -1
MAX_ROWS: Final = 65_536
"""Maximum number of rows to keep for the dispatch. If there are more, rows are dropped, and the
dispatch reads the log."""
HELP_ROWS: Final = 8_192
"""Minimum number of rows at which a producer runs a pass of the dispatch itself."""
MAX_ROW_PROPERTIES_BYTES: Final = 4_096
"""Maximum size of properties in a row. Larger properties are not kept in a row, so that MAX_ROWS
bounds the memory."""

Rows = list[int | bytes]


def make_head(size: int, queue_offset: int, position: int, timestamp_ms: int) -> bytes:
    """Return the head of a row for a record whose own head has another format, for example because
    of IPv6 hosts."""
    return V4_HEADER.pack(
        size, 0, 0, 0, 0, queue_offset, position, 0, 0, b"", timestamp_ms, b"", 0, 0, 0
    )


def waits_for_nothing(properties: bytes) -> bool:
    """Return whether the producer of a message does not wait for a flush: the property WAIT exists
    and is not true (Java's isWaitStoreMsgOK)."""
    if b"WAIT\x01" not in properties:
        return False
    text = find_text(properties, b"WAIT")
    return text is not None and text.lower() != "true"


class WaitingRows(NamedTuple):
    """Rows of messages between two offsets of the log: ROW_FIELDS values per record. Undispatched
    messages before the first of these rows must be read from the log. `is_cut`: whether rows were
    dropped, so that the log must be read up to `end_offset`."""

    rows: Rows
    begin_offset: int
    end_offset: int
    is_cut: bool


class NoRows(list[int | bytes]):
    """Buffer that drops all rows. Used while the dispatch reads the log."""

    def __iadd__(self, rows: object) -> Self:  # type: ignore[override,misc]
        return self


class RowBuffer:
    """Part of the put path that the dispatch uses.

    `last_timestamp_ms`: store time of the last message. `help_dispatch`: called by a producer that
    finds HELP_ROWS rows waiting. `wake`: set when rows arrive after all rows were taken.
    `durability`: future for messages that are put now, read while the put lock is held. The flush
    replaces it. `holds_rows`: whether the dispatch waits for a flush or a commit
    (`confirm_offset`), which then sets `wake`.

    An interrupt or a MemoryError must not split the changes that a message makes: `_rows`, the
    log's `max_offset`, its queue's `next_offset`, `last_timestamp_ms`. So no Python function is
    called between them, because signal handlers run there, and no memory is allocated after
    `_rows`. For the same reason, the lock is only taken with `with`, and waiting threads are woken
    in C.
    """

    __slots__ = (  # known to the compiled core. The rest is not that hot
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
        self._rows: Rows = []  # of the bytes after `_begin_offset`
        self._begin_offset = 0
        self._sealed: list[WaitingRows] = []  # before that
        self._holds_rows = holds_rows
        self._marked = (-1, 0)
        self._is_idle = False  # whether a thread waits for the next put
        self._idle: list[threading.Event] = []
        self._wakes: Iterator[object] = iter(())  # wakes them in C as it is iterated
        self._help_values = HELP_ROWS * ROW_FIELDS

    def _publish(
        self,
        new_rows: Iterable[int | bytes],
        end: int,
        timestamp: int,
        moves: Iterable[object] = (),
    ) -> int:
        """Make the copied bytes part of the log. Returns the number of waiting row values. `moves`:
        iterator (`map` of `setattr`) that advances the queues when it is consumed. The operator
        `in` consumes it in C, without new memory and without running signal handlers."""
        self._rows += new_rows
        self._log.max_offset = end
        self.last_timestamp_ms = timestamp
        _ = 0 in moves
        if self._is_idle:
            self._is_idle = False
            _ = 0 in self._wakes
        return len(self._rows)

    def wake_at_put(self, event: threading.Event, offset: int) -> None:
        """Set `event` at the next put, or immediately if the log is already longer than `offset`. A
        WakeEvent is set even if a signal interrupts the put."""
        with self._lock:
            idle = self._idle if self._is_idle else []
            if self._log.max_offset > offset:
                event.set()
            elif event not in idle:
                idle = [*idle, event]
                wakes = map(call, [waiting.set for waiting in idle])
                self._idle, self._wakes, self._is_idle = idle, wakes, True

    def _durability_of(self, messages: Sequence[Message]) -> FlushFuture:
        """Return `durable` for the result of a put. The caller must hold the put lock."""
        durable = self.durability
        if durable is not DURABLE and all(waits_for_nothing(it.properties) for it in messages):
            return DURABLE
        return durable

    def seal(self, durability: FlushFuture) -> tuple[FlushFuture, int]:
        """Set the future (`durability`) that later puts wait for. Returns the future of the earlier
        puts and the current end of the log."""
        with self._lock:
            before, self.durability = self.durability, durability
            if self._holds_rows:
                self._seal_rows()
            return before, self._log.max_offset

    def mark_end(self) -> tuple[int, int]:
        """Return the end of the log and the store time of its last message. Later messages get a
        later time, even if the clock does not advance."""
        with self._lock:
            if self._log.max_offset != self._marked[0]:
                self._marked = (self._log.max_offset, self.last_timestamp_ms)
                self.last_timestamp_ms += 1
            return self._marked

    def _help(self) -> None:
        self.help_dispatch()
        with self._lock:
            if len(self._rows) > MAX_ROWS * ROW_FIELDS:
                self._rows, self._sealed = NoRows(), []

    def take_rows(self) -> WaitingRows:
        """Take the rows that the dispatch may see now. If there are none, `wake` is set by the next
        put, or with `holds_rows` by the next flush or commit."""
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
        """End the current group of rows at the end of the log. The caller must hold the put
        lock."""
        end = self._log.max_offset
        if end > self._begin_offset and not isinstance(self._rows, NoRows):
            sealed = [*self._sealed, WaitingRows(self._rows, self._begin_offset, end, False)]
            self._sealed, self._rows, self._begin_offset = sealed, [], end
            if sum(len(piece.rows) for piece in self._sealed) > MAX_ROWS * ROW_FIELDS:
                self._rows, self._sealed = NoRows(), []

    def resume_rows(self, offset: int) -> bool:
        """Pass rows to the dispatch again, once it has read the log up to `offset`, the end of the
        bytes that may be dispatched. Returns whether rows are passed again."""
        with self._lock:
            if self._log.confirm_offset != offset:
                return False
            self._rows, self._begin_offset = [], self._log.max_offset
            return True

    def drop_rows(self) -> None:
        """Stop passing rows until `resume_rows`. The dispatch must read the log instead."""
        with self._lock:
            self._rows, self._sealed = NoRows(), []
            self.wake.set()
