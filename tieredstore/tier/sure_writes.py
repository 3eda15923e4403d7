"""Writes whose bytes are certain to be in a segment, even after a write of unknown outcome. An
equal size does not prove that the bytes come from this write. A rewritable segment gets the same
bytes again at the same position, because a failed sync may have left unsynced bytes in a cache. On
other segments, the existing bytes are compared and only the missing ones are written."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from tieredstore.contracts.segment import Buffer, FencedWrite, FileSegment, Written

_COMPARE_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class WriteOutcome:
    """Result of a write.

    `sure_bytes`: number of bytes from the start that are certainly in the segment.
    `size_bytes`: size of the segment when it was last read, or -1.
    `refused`: result of the write if another writer has written at the position.
    `differs`: whether the sure bytes are followed by other bytes that cannot be overwritten.
    `reason`: why the rest may be missing.
    """

    sure_bytes: int
    size_bytes: int
    refused: FencedWrite | None = None
    differs: bool = False
    reason: str = ""


def write_surely(
    segment: FileSegment,
    position: int,
    buffers: Sequence[Buffer],
    *,
    rewritable: bool,
    attempts: int,
    shared: bool = False,
    look_first: bool = False,
    check_writer: Callable[[], None] | None = None,
) -> WriteOutcome:
    """Write `buffers` at `position`, in at most `attempts` attempts. Equal bytes of a fenced writer
    are adopted. If the segment ends before `position`, nothing is written, and `size_bytes` is its
    size.

    `shared`: whether another write of the same bytes may run concurrently. The segment is then read
    before a second attempt, and a refusal is not final.
    `look_first`: whether the segment may already have bytes at the position.
    `check_writer`: called before each write, may raise Fenced.

    Raises the errors of the segment.
    """
    views = [memoryview(buffer).cast("B") for buffer in buffers]
    length, sure, size, reason = sum(view.nbytes for view in views), 0, -1, ""
    refused: FencedWrite | None = None
    look = look_first
    for attempt in range(attempts + 1):
        if look:
            size = segment.size()
            behind = size - position - sure
            if behind < 0:
                return WriteOutcome(sure, size, reason=f"the segment ends at {size}")
            same = count_same_bytes(segment, position + sure, views, behind)
            views, sure = _skip(views, same), sure + same
            if sure == length:
                return WriteOutcome(sure, size)
            differs = behind > same and not rewritable
            if differs or (refused is not None and not shared):
                return WriteOutcome(sure, size, refused, differs, reason)
        if attempt == attempts:
            break
        if check_writer is not None:
            check_writer()
        result = segment.write(position + sure, views)
        if isinstance(result, Written):
            return WriteOutcome(length, result.size_bytes)
        refused = result if isinstance(result, FencedWrite) else None
        if refused is not None and refused.writer and not (refused.stale or shared):
            return WriteOutcome(sure, refused.size_bytes, refused)
        reason = str(result) if isinstance(result, FencedWrite) else result.reason
        look = shared or refused is not None or not rewritable
    return WriteOutcome(sure, size, refused, reason=reason)


def count_same_bytes(
    segment: FileSegment, position: int, views: Iterable[memoryview], length: int
) -> int:
    """Return how many of the first `length` bytes of `views` are in the segment from `position` on.
    Only whole views before the first difference count, because a segment must not end inside a
    message. Raises the errors of `read`."""
    same = 0
    for view in views:
        part = view[: length - same]
        for start in range(0, part.nbytes, _COMPARE_BYTES):
            piece = part[start : start + _COMPARE_BYTES]
            if segment.read(position + same + start, piece.nbytes) != piece:
                return same
        same += part.nbytes
        if same >= length:
            break
    return same


def _skip(views: list[memoryview], count: int) -> list[memoryview]:
    """Return the views without their first `count` bytes."""
    rest = []
    for view in views:
        if count < view.nbytes:
            rest.append(view[count:])
        count = max(count - view.nbytes, 0)
    return rest
