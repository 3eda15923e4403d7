"""Bytes get into a segment for sure, also when the outcome of a write is not known.

Equal size never proves that bytes are ours. After a write of unknown outcome a rewritable segment
gets the same bytes again at the same place (what a failed sync left in a cache proves nothing);
of any other the bytes that are there are compared, and only those that are missing are written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from tieredstore.contracts.segment import Buffer, FencedWrite, FileSegment, Written

_COMPARE_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class WriteOutcome:
    """sure_bytes: how many of the bytes, from the first on, are surely in the segment.
    size_bytes: of the segment, as last seen; -1 when nobody looked. refused: the answer of a
    segment that another writer holds. differs: behind the sure bytes are others, which cannot be
    replaced. reason: why the rest is not known to be there.
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
    """Write `buffers` at `position`, at most `attempts` times.

    shared: another attempt at the same bytes may run beside this one, so what is there is looked at
    before anything is written again, and a refusal is not the end. look_first: something may be at
    the position already. check_writer: called before each write; raises Fenced. Bytes of a writer
    that has lost the right are ours when they are equal. Raises what the segment raises; a segment
    that ends before `position` is left alone, `size_bytes` tells.
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
    """Count how many of the first `length` bytes of `views` are in the segment from `position` on.

    Where they begin to differ, it is counted in whole views: a segment must not end inside a
    message. Raises as `read`.
    """
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
    """The views without their first `count` bytes."""
    rest = []
    for view in views:
        if count < view.nbytes:
            rest.append(view[count:])
        count = max(count - view.nbytes, 0)
    return rest
