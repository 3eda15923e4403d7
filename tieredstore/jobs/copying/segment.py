"""Copies the bytes of one segment, piece by piece, and reads them back."""

from __future__ import annotations

import threading
from collections.abc import Callable

from tieredstore.contracts.segment import (
    FencedWrite,
    FileSegment,
    SegmentProvider,
)
from tieredstore.errors import Corrupt, Fenced, Invalid, TieredStoreError, Unavailable
from tieredstore.jobs.copying.plan import SegmentCopy
from tieredstore.message.crc import crc32
from tieredstore.tier.sure_writes import write_surely

PIECE_BYTES = 8 << 20
WRITE_ATTEMPTS = 3


class TargetDiffers(Invalid):
    """The target has other bytes than the origin where it should have the same."""


class Stopped(Exception):
    """The run was asked to stop; what was copied stays."""


class SegmentCopier:
    """Copies between two providers. Thread-safe. Memory: two pieces of 8 MiB for each call.

    back: the target again, to read back through; one that keeps what it writes in memory would
    read that. check_writer: raises Fenced once the right to write is lost. on_bytes: told the bytes
    of each piece that is copied.
    """

    def __init__(
        self,
        origin: SegmentProvider,
        target: SegmentProvider,
        back: SegmentProvider,
        check_writer: Callable[[], None],
        stop: threading.Event,
        on_bytes: Callable[[int], None],
        *,
        piece_bytes: int = PIECE_BYTES,
    ) -> None:
        self._origin = origin
        self._target = target
        self._back = back
        self._check_writer = check_writer
        self._stop = stop
        self._on_bytes = on_bytes
        self._piece_bytes = piece_bytes

    def copy(self, item: SegmentCopy) -> None:
        """Copy [start, end) and read it back, after a seal.

        Raises TargetDiffers when what is there is not the origin's, Corrupt when bytes come back
        otherwise than they were written or the origin has become shorter, Stopped, Fenced,
        Unavailable.
        """
        origin = self._origin.open(item.id, item.extent.listing)
        target = self._target.open(item.id)
        try:
            sums = self._copy(origin, target, item)
            if item.seal:
                self._check_writer()
                target.seal()
        finally:
            origin.close()
            target.close()
        if sums:
            self._read_back(item, sums)

    def _copy(
        self, origin: FileSegment, target: FileSegment, item: SegmentCopy
    ) -> list[tuple[int, int, int]]:
        """(position, length, CRC) of the pieces that were written."""
        sums = []
        position, there = item.start, target.size()
        rewritable = self._target.capabilities.rewritable
        while position < item.end:
            if self._stop.is_set():
                raise Stopped
            length = min(self._piece_bytes, item.end - position)
            if position < there:
                length = min(length, there - position)
            data = origin.read(position, length)
            if position < there:
                # Of a run that was cut off before it had recorded these bytes.
                found = target.read(position, length)
                if found != data and not rewritable:
                    raise _differs(item, position, data, found)
                if found != data:
                    there = position
                    continue
            else:
                self._write(target, position, data)
                sums.append((position, length, crc32(data)))
                there = position + length
            position += length
            self._on_bytes(length)
        if there > item.end and rewritable:
            self._check_writer()
            target.write(item.end, [])
        return sums

    def _read_back(self, item: SegmentCopy, sums: list[tuple[int, int, int]]) -> None:
        segment = self._back.open(item.id)
        try:
            size = segment.size()  # looks at the backend, whatever was known of the segment
            if size != item.end:
                raise Corrupt(
                    f"{item.id}: expected {item.end} bytes after the copy, found {size}",
                    path=item.id.path,
                    offset=size,
                )
            for position, length, expected in sums:
                found = crc32(segment.read(position, length))
                if found != expected:
                    raise Corrupt(
                        f"{item.id}: {length} bytes at {position} do not come back as they were "
                        f"written: expected CRC {expected:#010x}, found {found:#010x}",
                        path=item.id.path,
                        offset=position,
                    )
        finally:
            segment.close()

    def _write(self, target: FileSegment, position: int, data: memoryview) -> None:
        outcome = write_surely(
            target,
            position,
            [data],
            rewritable=self._target.capabilities.rewritable,
            attempts=WRITE_ATTEMPTS,
            check_writer=self._check_writer,
        )
        if outcome.sure_bytes == len(data):
            return
        if outcome.refused is not None:
            raise _make_fenced_error(target, position, outcome.refused)
        if outcome.differs:
            raise TargetDiffers(
                f"{target.id}: after a write at {position} without a reply other bytes are there",
                path=target.id.path,
                offset=position,
            )
        raise Unavailable(
            f"{target.id}: write of {len(data)} bytes at {position} has no known outcome: "
            f"{outcome.reason}",
            path=target.id.path,
            offset=position,
        )


def _differs(item: SegmentCopy, position: int, data: memoryview, found: memoryview) -> Invalid:
    at = position + first_difference(data, found)
    return TargetDiffers(
        f"{item.id}: byte {at} in the target is not that of the origin: it holds something else",
        path=item.id.path,
        offset=at,
    )


def _make_fenced_error(target: FileSegment, position: int, result: FencedWrite) -> TieredStoreError:
    what = (
        f"{target.id}: expected to write at {position}, found a segment of {result.size_bytes} "
        f"bytes of writer {result.writer}"
    )
    kind = TargetDiffers if result.stale else Fenced
    return kind(what, path=target.id.path, offset=position)


def first_difference(a: memoryview, b: memoryview) -> int:
    """Find where two pieces begin to differ."""
    return next(
        (at for at, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b))
    )
