"""Copy of one segment: write the bytes piece by piece and read them back."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass

import numpy as np

from tieredstore.contracts.segment import FileSegment, SegmentProvider
from tieredstore.errors import Corrupt, Fenced, Invalid, Unavailable
from tieredstore.jobs.copying.plan import SegmentCopy
from tieredstore.message.crc import crc32
from tieredstore.tier.sure_writes import write_surely

PIECE_BYTES = 8 << 20
WRITE_ATTEMPTS = 3


class TargetDiffers(Invalid):
    """The target has other bytes than the origin."""


class Stopped(Exception):
    """The run was asked to stop. Copied bytes stay."""


@dataclass
class SegmentCopier:
    """Copier between two providers. Thread-safe. Memory: two pieces of 8 MiB per call. `back`:
    second provider of the target for reading the bytes back, because `target` may return them from
    memory. `check_writer`: raises Fenced if epoch ownership is lost. `on_bytes`: receives the size
    of each copied piece."""

    origin: SegmentProvider
    target: SegmentProvider
    back: SegmentProvider
    check_writer: Callable[[], None]
    stop: threading.Event
    on_bytes: Callable[[int], None]
    piece_bytes: int = PIECE_BYTES

    def copy(self, item: SegmentCopy) -> None:
        """Copy [start, end), seal it, and read it back. Raises TargetDiffers if existing bytes
        differ from the origin's, Corrupt if the copy cannot be read back unchanged or the origin
        has become shorter, Stopped, Fenced, Unavailable."""
        origin = self.origin.open(item.id, item.extent.listing)
        target = self.target.open(item.id)
        try:
            sums = self._copy(origin, target, item)
            if item.seal:
                self.check_writer()
                target.seal()
        finally:
            origin.close()
            target.close()
        if sums:
            self._read_back(item, sums)

    def _copy(
        self, origin: FileSegment, target: FileSegment, item: SegmentCopy
    ) -> list[tuple[int, int, int]]:
        """Copy the bytes. Returns (position, length, CRC) of the written pieces."""
        sums = []
        position, there = item.start, target.size()
        rewritable = self.target.capabilities.rewritable
        while position < item.end:
            if self.stop.is_set():
                raise Stopped
            length = min(self.piece_bytes, item.end - position)
            if position < there:
                length = min(length, there - position)
            data = origin.read(position, length)
            if position < there:
                # Bytes of an interrupted run that it had not recorded.
                found = target.read(position, length)
                if found != data and not (rewritable and _is_torn(found, data)):
                    at = position + first_difference(data, found)
                    raise TargetDiffers(
                        f"{item.id}: byte {at} in the target is not that of the origin: it holds "
                        "something else. --force replaces it",
                        path=item.id.path,
                        offset=at,
                    )
                if found != data:
                    there = position
                    continue
            else:
                self._write(target, position, data)
                sums.append((position, length, crc32(data)))
                there = position + length
            position += length
            self.on_bytes(length)
        if there > item.end and rewritable:
            self.check_writer()
            target.write(item.end, [])
        return sums

    def _read_back(self, item: SegmentCopy, sums: list[tuple[int, int, int]]) -> None:
        with closing(self.back.open(item.id)) as segment:
            size = segment.size()  # Asks the backend, regardless of cached state.
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

    def _write(self, target: FileSegment, position: int, data: memoryview) -> None:
        outcome = write_surely(
            target,
            position,
            [data],
            rewritable=self.target.capabilities.rewritable,
            attempts=WRITE_ATTEMPTS,
            check_writer=self.check_writer,
        )
        if outcome.sure_bytes == len(data):
            return
        if (refused := outcome.refused) is not None:
            raise (TargetDiffers if refused.stale else Fenced)(
                f"{target.id}: expected to write at {position}, found a segment of "
                f"{refused.size_bytes} bytes of writer {refused.writer}",
                path=target.id.path,
                offset=position,
            )
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


def _is_torn(found: memoryview, data: memoryview) -> bool:
    """Return whether a power cut has torn the write of `data`, so that parts of `found` are
    zeros."""
    bytes_found = np.frombuffer(found, np.uint8)
    return bool(np.all((bytes_found == 0) | (bytes_found == np.frombuffer(data, np.uint8))))


def first_difference(a: memoryview, b: memoryview) -> int:
    """Return the first position at which two buffers differ."""
    return next(
        (at for at, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b))
    )
