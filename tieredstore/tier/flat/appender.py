"""SegmentAppender: how bytes get into one segment, whatever the provider.

Appended buffers wait in memory until `store` writes them. The stored position only moves over
bytes that are surely in the segment and surely ours; equal size never proves it. Whether they
count already is for the flat file to know (`Confirmation`). After a write of
unknown outcome, a rewritable provider gets the same bytes again at the same position (what a
failed sync left in a cache proves nothing either); on any other the appender reads back and
compares. Bytes are never sent to a position other than their own (`docs/differences.md`, D8).

A position that is taken: bytes equal to ours are ours (a lost reply, an earlier run). Others of a
writer that lost its right end the segment there (`TailDiffers`, for the flat file to go on in a new
one); those of a writer that has the right end this writer (`Fenced`).
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
    """RocketMQ's results of an append."""

    SUCCESS = 0
    FILE_CLOSED = 1
    FILE_FULL = 2
    BUFFER_FULL = 3


class TailDiffers(Fenced):
    """The segment holds bytes behind the stored position, or a seal there, that are not the ones to
    be written; nobody who has the right to write is known to have put them there.

    stale: a writer did that is known to have lost the right.
    """

    stale = False


class SegmentDamaged(Corrupt):
    """Bytes that were stored are gone from the segment, so the provider appends nothing to it. What
    is left of it can be read; a new segment can go on at the stored position."""


class SegmentAppender:
    """Append and store state of one open segment. Positions are bytes from the segment's start.

    `unsure` says that the backend may hold bytes behind `stored_position`: the next `store`
    looks before it writes. Appends come from one thread at a time (the flat file's lock);
    `store` may run beside them, and only once at a time.
    """

    __slots__ = (
        "_capabilities",
        "_closed",
        "_pending",
        "_segment",
        "_store_lock",
        "_unsure",
        "append_position",
        "max_pending_count",
        "max_size_bytes",
        "pending_count",
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
        self._segment = segment
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
    def segment(self) -> FileSegment:
        """The segment that is written."""
        return self._segment

    @property
    def pending_bytes(self) -> int:
        """Bytes appended and not stored."""
        return self.append_position - self.stored_position

    @property
    def room_bytes(self) -> int:
        """Bytes that still fit; an empty segment takes one buffer of any size (D1)."""
        return max(self.max_size_bytes - self.append_position, 0)

    @property
    def room_count(self) -> int:
        """Messages (units, files) that may still be appended before a `store`."""
        return max(self.max_pending_count - self.pending_count, 0)

    def append(self, buffer: Buffer, count: int = 1) -> AppendResult:
        """Keep a buffer of `count` messages, by reference, for the next `store`.

        FILE_CLOSED, FILE_FULL and BUFFER_FULL are checked in this order and change nothing. A
        buffer alone in its segment, or alone in memory, is taken whatever its size.
        """
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
        """Write what was appended before the call, in writes of at most `write_size_bytes` (a
        larger single buffer is one write); where the provider prefers large writes, of at least
        what it prefers, as long as that much waits.

        companion: another file's, whose bytes must not be stored before these, and may be together
        with the last of them; whether they were shows its stored position. They are left alone
        where it is not sure what is behind either's. may_wait: what is stored together may be so
        as late as by `WriterEpoch.confirm`.

        Returns True when all of it is stored, False when the appender is closed or another
        thread is storing. Raises Unavailable (what could not be written stays pending, the
        next call goes on), Fenced when another writer holds the position, Corrupt when stored
        bytes are gone (SegmentDamaged where a new segment can go on).
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
        """Forget what is not stored. With a `stored_position` below the present one, the
        bytes behind it are unsure."""
        with self._store_lock:
            self._pending.clear()
            self.pending_count = 0
            if stored_position is not None and stored_position != self.stored_position:
                if not 0 <= stored_position < self.stored_position:
                    raise Invalid(
                        f"{self._segment.id}: rollback to {stored_position}, beyond the stored "
                        f"position {self.stored_position}"
                    )
                self.stored_position = stored_position
                self._unsure = True
            self.append_position = self.stored_position

    def trim(self) -> None:
        """Cut off, before the segment is left for good and where that is possible, what a failed
        write may have put behind the stored position. Raises Unavailable."""
        if self._unsure and self._capabilities.rewritable:
            with self._store_lock:
                result = self._segment.write(self.stored_position, [b""])
                if not isinstance(result, Written):
                    raise Unavailable(
                        f"{self._segment.id}: cannot be cut at {self.stored_position}: {result}",
                        offset=self.stored_position,
                        path=str(self._segment.id),
                    )
                self._unsure = False

    @property
    def pending(self) -> list[tuple[memoryview, int]]:
        """The buffers not stored, with their counts."""
        return list(self._pending)

    def close(self) -> None:
        """Refuse further appends, store nothing more, and drop what is pending."""
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
                result = self._segment.write(position, buffers)
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
                    f"{self._segment.id}: after writing {length} bytes at {position} the backend "
                    f"reports a size of {result.size_bytes}",
                    offset=position,
                    path=str(self._segment.id),
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
        """Write `buffers`, and all that the companion has, together where that can be."""
        segment = self._segment
        if not isinstance(segment, PairedSegment) or not companion.begin_going_along():
            return segment.write(position, buffers)
        other: WriteResult | None = None
        views = [view for view, _ in companion.pending]
        try:
            # Looked at after that copy: all that was appended before it is in this write.
            if position + length != self.append_position:
                return segment.write(position, buffers)
            other = UnknownWrite("the write was interrupted")
            place = Companion(companion.segment, companion.stored_position, views, may_wait)
            result, other = segment.write_with(position, buffers, place)
        finally:
            companion.end_going_along(other, sum(view.nbytes for view in views))
        return result

    def begin_going_along(self) -> bool:
        """Let all that is pending be stored by another file's write; `end_going_along` must follow.
        False where nothing is, or where it is not sure what is behind the stored position."""
        if self._closed or self._unsure or not self._pending:
            return False
        return self._store_lock.acquire(blocking=False)

    def end_going_along(self, result: WriteResult | None, length: int) -> None:
        """Take in what became of so many bytes of it; None when they were not sent."""
        if isinstance(result, Written):
            self._advance(length)
        elif result is not None:
            self._unsure = True
        self._store_lock.release()

    def _raise_if_damaged(self, error: Corrupt | Invalid) -> None:
        """Raise SegmentDamaged for the error of a write that tells a loss. Raises what the look at
        the size raises."""
        if self._capabilities.rewritable:
            return  # what is lost is written again, or the file's end is asked for
        if isinstance(error, Invalid) and self._segment.size() >= self.stored_position:
            return
        raise SegmentDamaged(str(error), offset=error.offset, path=error.path) from error

    def _settle_fenced_write(self, result: FencedWrite) -> None:
        """Take over the bytes there that are the ones to be written, unless they belong to a
        writer that has the right."""
        position = self.stored_position
        if result.stale or not result.writer:
            self._adopt()
            if self.stored_position > position:
                return
        message = (
            f"{self._segment.id}: writer {result.writer or 'unknown'} holds position {position} "
            f"(size {result.size_bytes})"
        )
        if not result.stale:
            raise Fenced(message, offset=position, path=str(self._segment.id))
        tail = TailDiffers(message, offset=position, path=str(self._segment.id))
        tail.stale = True
        raise tail

    def _settle_unknown_write(self, result: UnknownWrite, end: int) -> None:
        if not self._capabilities.rewritable and not self._adopt():
            raise self._make_differs_error()
        if self.stored_position < end:
            raise Unavailable(
                f"{self._segment.id}: outcome of the write up to {end} is unknown "
                f"({result.reason}); {self.stored_position} bytes are surely there",
                offset=self.stored_position,
                path=str(self._segment.id),
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
        """Before a write where something may be behind the stored position."""
        if self._capabilities.rewritable:
            self._extra_bytes()
            # Everything behind the stored position is written again, or cut off by that write.
            self._unsure = False
        elif not self._adopt() and not self._capabilities.conditional:
            raise self._make_differs_error()
        # Otherwise the write that follows is told who holds the position.

    def _adopt(self) -> bool:
        """Count the pending bytes that the backend holds already behind the stored position as
        stored; False when there are others."""
        extra = self._extra_bytes()
        length = min(extra, self.pending_bytes)
        views = (view for view, _ in self.pending)
        same = count_same_bytes(self._segment, self.stored_position, views, length)
        self._advance(same)
        self._unsure = extra > same
        return same == length

    def _extra_bytes(self) -> int:
        size = self._segment.size()
        if size < self.stored_position:
            kind = Corrupt if self._capabilities.rewritable else SegmentDamaged
            raise kind(
                f"{self._segment.id}: {self.stored_position} bytes were stored, {size} are "
                "left in the backend",
                offset=size,
                path=str(self._segment.id),
            )
        return size - self.stored_position

    def _make_differs_error(self) -> TailDiffers:
        return TailDiffers(
            f"{self._segment.id}: the bytes behind position {self.stored_position} are not those "
            "of this writer",
            offset=self.stored_position,
            path=str(self._segment.id),
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
