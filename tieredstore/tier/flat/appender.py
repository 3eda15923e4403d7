"""Writes to one segment of any provider. Appended buffers wait in memory until `store` writes them.
The stored position only advances over bytes that are in the segment and were written by this
process. An equal size does not prove this. The flat file decides when stored bytes are committed
(`Confirmation`).

If the outcome of a write is unknown, a rewritable provider writes the same bytes again, because a
failed sync may have left unsynced bytes in a cache. On other providers the appender reads the bytes
back and compares them. Bytes are never sent to another position (`docs/differences.md`, D8).

If a position already has equal bytes, they are adopted. They come from a lost reply or an earlier
run. If it has different bytes of a writer that lost its epoch, the segment ends there
(`TailDiffers`), and the flat file continues in a new segment. Different bytes of the epoch's owner
end this writer (`Fenced`).
"""

from __future__ import annotations

import enum
import threading
from collections import deque
from collections.abc import Sequence

from tieredstore.contracts.segment import (
    Buffer,
    Capabilities,
    Companion,
    FencedWrite,
    FileSegment,
    PairedSegment,
    UnknownWrite,
    WriteResult,
    Written,
)
from tieredstore.errors import Corrupt, Fenced, Invalid, Unavailable
from tieredstore.tier.sure_writes import count_same_bytes


class AppendResult(enum.Enum):
    """Results of an append, with RocketMQ's names."""

    SUCCESS = 0
    FILE_CLOSED = 1
    FILE_FULL = 2
    BUFFER_FULL = 3


class TailDiffers(Fenced):
    """Raised if the backend has unexpected bytes or a seal after the stored position that do not
    come from the current owner of the epoch. `stale`: whether they come from a fenced writer."""

    stale = False


class SegmentDamaged(Corrupt):
    """Raised if the provider cannot append to a segment because stored bytes are lost. The
    remaining bytes can be read. A new segment can continue at the stored position."""


class SegmentAppender:
    """Appends to one open segment and stores the appended bytes. Positions are bytes from the start
    of the segment. `unsure`: whether the backend may hold bytes after `stored_position`. The next
    `store` then checks this before it writes. Only one thread at a time may append, which the flat
    file's lock ensures. One `store` may run at the same time as an append."""

    __slots__ = (
        "_capabilities",
        "_closed",
        "_pending",
        "_store_lock",
        "_unsure",
        "append_position",
        "max_pending_count",
        "max_size_bytes",
        "pending_count",
        "segment",
        "stored_position",
        "write_size_bytes",
    )

    def __init__(
        self,
        segment: FileSegment,
        capabilities: Capabilities,
        *,
        max_size_bytes: int,
        stored_position: int = 0,
        unsure: bool = False,
        write_size_bytes: int = 4 << 20,
        max_pending_count: int = 10_000,
    ) -> None:
        self.segment = segment
        """Segment that is being written."""
        self._capabilities = capabilities
        self._closed = False
        self._store_lock = threading.Lock()
        self._pending: deque[tuple[memoryview, int]] = deque()
        self._unsure = unsure
        self.max_size_bytes = max_size_bytes
        self.write_size_bytes = write_size_bytes
        self.max_pending_count = max_pending_count
        self.pending_count = 0
        self.append_position = stored_position
        self.stored_position = stored_position

    @property
    def pending_bytes(self) -> int:
        """Number of bytes that are appended but not stored."""
        return self.append_position - self.stored_position

    @property
    def room_bytes(self) -> int:
        """Number of bytes that still fit. An empty segment accepts one buffer of any size, so that
        a large message does not block its queue."""
        return max(self.max_size_bytes - self.append_position, 0)

    @property
    def room_count(self) -> int:
        """Number of messages (units, files) that may still be appended before a `store`."""
        return max(self.max_pending_count - self.pending_count, 0)

    def append(self, buffer: Buffer, count: int = 1) -> AppendResult:
        """Keep a buffer of `count` messages, by reference, for the next `store`. Returns
        FILE_CLOSED, FILE_FULL or BUFFER_FULL, checked in this order, if the buffer is not accepted.
        The first buffer of a segment may exceed the size limit, and the only buffer in memory may
        exceed the count."""
        view = memoryview(buffer).cast("B")
        if self._closed:
            return AppendResult.FILE_CLOSED
        end = self.append_position + view.nbytes
        if end > self.max_size_bytes and self.append_position > 0:
            return AppendResult.FILE_FULL
        if self.pending_count and self.pending_count + count > self.max_pending_count:
            return AppendResult.BUFFER_FULL
        if view.nbytes:
            self.pending_count += count
            self._pending.append((view, count))
            self.append_position = end
        return AppendResult.SUCCESS

    def store(self, companion: SegmentAppender | None = None, *, may_wait: bool = False) -> bool:
        """Store the bytes appended before the call, in writes of at most `write_size_bytes` (a
        larger single buffer is one write). If the provider prefers large writes, each write has at
        least that size while enough bytes wait.

        `companion`: the appender of another file, whose bytes must not be stored before these. They
        may be stored together with the last of these bytes, unless the bytes after either stored
        position are unsure. The companion's stored position shows whether they were. `may_wait`:
        bytes that are stored together may be stored as late as `WriterEpoch.confirm`.

        Returns True if all bytes are stored, False if the appender is closed or another thread is
        storing. After Unavailable, the remaining bytes stay pending for the next call. Raises
        Fenced if another writer holds the position, and Corrupt if stored bytes are lost. This is
        SegmentDamaged if a new segment can continue.
        """
        if self._closed:
            return False
        target = self.append_position
        if target <= self.stored_position:
            return True
        if not self._store_lock.acquire(blocking=False):
            return False
        try:
            while self.stored_position < target:
                self._write_some(companion, may_wait=may_wait)
        finally:
            self._store_lock.release()
        return True

    def rollback(self, stored_position: int | None = None) -> None:
        """Drop the bytes that are not stored. If `stored_position` is given and below the current
        one, the bytes after it no longer count as stored. The next `store` checks them."""
        with self._store_lock:
            self._pending.clear()
            self.pending_count = 0
            if stored_position is not None and stored_position != self.stored_position:
                if not 0 <= stored_position < self.stored_position:
                    raise Invalid(
                        f"{self.segment.id}: rollback to {stored_position}, beyond the stored "
                        f"position {self.stored_position}"
                    )
                self.stored_position = stored_position
                self._unsure = True
            self.append_position = self.stored_position

    def trim(self) -> None:
        """Remove bytes that a failed write may have left after the stored position, if the provider
        supports it. Call this before moving on to another segment. Raises Unavailable."""
        if self._unsure and self._capabilities.rewritable:
            with self._store_lock:
                result = self.segment.write(self.stored_position, [b""])
                if not isinstance(result, Written):
                    raise Unavailable(
                        f"{self.segment.id}: cannot be cut at {self.stored_position}: {result}",
                        offset=self.stored_position,
                        path=str(self.segment.id),
                    )
                self._unsure = False

    @property
    def pending(self) -> list[tuple[memoryview, int]]:
        """Buffers that are not stored, each with its number of messages."""
        return list(self._pending)

    def close(self) -> None:
        """Reject further appends and drop the pending bytes."""
        self._closed = True
        self._pending.clear()
        self.pending_count = 0

    def _write_some(self, companion: SegmentAppender | None, *, may_wait: bool) -> None:
        was_unsure = self._unsure
        if was_unsure:
            self._settle()
        buffers, length = self._next_write()
        if not buffers:
            return
        position = self.stored_position
        try:
            if companion is not None and not was_unsure:
                result = self._write_with(companion, position, buffers, length, may_wait=may_wait)
            else:
                result = self.segment.write(position, buffers)
        except (Corrupt, Invalid) as error:
            self._unsure = True
            self._raise_if_damaged(error)
            raise
        except BaseException:
            # Unavailable wrote nothing, but an interrupt or a provider's bug may have.
            self._unsure = True
            raise
        if isinstance(result, Written):
            if result.size_bytes < position + length:
                self._unsure = True
                raise Corrupt(
                    f"{self.segment.id}: after writing {length} bytes at {position} the backend "
                    f"reports a size of {result.size_bytes}",
                    offset=position,
                    path=str(self.segment.id),
                )
            self._advance(length)
            return
        self._unsure = True
        if isinstance(result, FencedWrite):
            self._settle_fenced_write(result)
        else:
            self._settle_unknown_write(result, position + length)

    def _write_with(
        self,
        companion: SegmentAppender,
        position: int,
        buffers: Sequence[Buffer],
        length: int,
        *,
        may_wait: bool,
    ) -> WriteResult:
        """Write `buffers`, together with all pending bytes of the companion (the queue's other
        file) if possible."""
        segment = self.segment
        if not isinstance(segment, PairedSegment) or not companion.begin_going_along():
            return segment.write(position, buffers)
        other: WriteResult | None = None
        views = [view for view, _ in companion.pending]
        try:
            # Checked after the copy, so that everything appended before it is in this write.
            if position + length != self.append_position:
                return segment.write(position, buffers)
            other = UnknownWrite("the write was interrupted")
            place = Companion(companion.segment, companion.stored_position, views, may_wait)
            result, other = segment.write_with(position, buffers, place)
        finally:
            companion.end_going_along(other, sum(view.nbytes for view in views))
        return result

    def begin_going_along(self) -> bool:
        """Prepare to store all pending bytes in the same request as the queue's other file. Returns
        False if no bytes are pending, a `store` is running, or the bytes after the stored position
        must be checked first. If it returns True, `end_going_along` must be called."""
        if self._closed or self._unsure or not self._pending:
            return False
        return self._store_lock.acquire(blocking=False)

    def end_going_along(self, result: WriteResult | None, length: int) -> None:
        """Record the result of a write that included `length` bytes of this file. `result` is None
        if they were not sent."""
        if isinstance(result, Written):
            self._advance(length)
        elif result is not None:
            self._unsure = True
        self._store_lock.release()

    def _raise_if_damaged(self, error: Corrupt | Invalid) -> None:
        """Raise SegmentDamaged if a write failed because the segment has lost bytes. Also raises
        the errors of `FileSegment.size`."""
        if self._capabilities.rewritable:
            return  # lost bytes are written again, or the file's end is requested
        if isinstance(error, Invalid) and self.segment.size() >= self.stored_position:
            return
        raise SegmentDamaged(str(error), offset=error.offset, path=error.path) from error

    def _settle_fenced_write(self, result: FencedWrite) -> None:
        """Handle a write whose position is held by another writer. If that writer does not own the
        epoch and its bytes equal those to write, they count as stored. Otherwise raise Fenced."""
        position = self.stored_position
        if result.stale or not result.writer:
            self._adopt()
            if self.stored_position > position:
                return
        message = (
            f"{self.segment.id}: writer {result.writer or 'unknown'} holds position {position} "
            f"(size {result.size_bytes})"
        )
        if not result.stale:
            raise Fenced(message, offset=position, path=str(self.segment.id))
        tail = TailDiffers(message, offset=position, path=str(self.segment.id))
        tail.stale = True
        raise tail

    def _settle_unknown_write(self, result: UnknownWrite, end: int) -> None:
        if not self._capabilities.rewritable and not self._adopt():
            raise self._make_differs_error()
        if self.stored_position < end:
            raise Unavailable(
                f"{self.segment.id}: outcome of the write up to {end} is unknown "
                f"({result.reason}); {self.stored_position} bytes are certainly there",
                offset=self.stored_position,
                path=str(self.segment.id),
            )

    def _next_write(self) -> tuple[list[memoryview], int]:
        buffers: list[memoryview] = []
        length = 0
        at_least = self._capabilities.preferred_batch_bytes
        for view, _ in self.pending:
            if at_least and length >= at_least:
                break
            if not at_least and buffers and length + view.nbytes > self.write_size_bytes:
                break
            buffers.append(view)
            length += view.nbytes
        return buffers, length

    def _settle(self) -> None:
        """Check which pending bytes the backend already has. Called before a write if the backend
        may have bytes after the stored position."""
        if self._capabilities.rewritable:
            self._extra_bytes()
            # Everything after the stored position is rewritten, or cut off by that write.
            self._unsure = False
        elif not self._adopt() and not self._capabilities.conditional:
            raise self._make_differs_error()
        # Otherwise the next write reports the holder of the position.

    def _adopt(self) -> bool:
        """Count pending bytes as stored if the backend already has them. Returns False if it has
        different bytes after the stored position."""
        extra = self._extra_bytes()
        length = min(extra, self.pending_bytes)
        views = (view for view, _ in self.pending)
        same = count_same_bytes(self.segment, self.stored_position, views, length)
        self._advance(same)
        self._unsure = extra > same
        return same == length

    def _extra_bytes(self) -> int:
        size = self.segment.size()
        if size < self.stored_position:
            kind = Corrupt if self._capabilities.rewritable else SegmentDamaged
            raise kind(
                f"{self.segment.id}: {self.stored_position} bytes were stored, {size} are "
                "left in the backend",
                offset=size,
                path=str(self.segment.id),
            )
        return size - self.stored_position

    def _make_differs_error(self) -> TailDiffers:
        return TailDiffers(
            f"{self.segment.id}: the bytes behind position {self.stored_position} are not those "
            "of this writer",
            offset=self.stored_position,
            path=str(self.segment.id),
        )

    def _advance(self, length: int) -> None:
        self.stored_position += length
        while length:
            view, count = self._pending[0]
            if view.nbytes > length:
                self._pending[0] = (view[length:], count)
                return
            length -= view.nbytes
            self._pending.popleft()
            self.pending_count -= count
