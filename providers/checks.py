"""Checks of arguments and results that all providers share."""

from __future__ import annotations

from collections.abc import Sequence

from tieredstore.contracts.segment import Buffer, SegmentId
from tieredstore.errors import Corrupt, Invalid
from tieredstore.providers.naming import MAX_OFFSET


def total_bytes(buffers: Sequence[Buffer]) -> int:
    """Return the length of the concatenation of `buffers` (bytes)."""
    return sum(
        [buffer.nbytes if isinstance(buffer, memoryview) else len(buffer) for buffer in buffers]
    )


def check_range(id: SegmentId, position: int, length: int) -> None:
    """Raise Invalid for a position or length that no segment can have."""
    if position < 0 or length < 0:
        raise Invalid(
            f"segment {id}: position {position} and length {length} must not be negative",
            path=id.path,
            offset=position,
        )
    if position + length > MAX_OFFSET:
        raise Invalid(
            f"segment {id}: position {position} and length {length} are past 2^63-1",
            path=id.path,
            offset=position,
        )


def make_hole_error(id: SegmentId, position: int, size_bytes: int) -> Invalid:
    """Return the error for a write that would leave a hole."""
    return Invalid(
        f"segment {id}: write at position {position}, but the segment ends at {size_bytes}",
        path=id.path,
        offset=position,
    )


def make_short_read_error(id: SegmentId, position: int, length: int, found: int) -> Corrupt:
    """Return the error for a read past the end. `found`: number of available bytes."""
    return Corrupt(
        f"segment {id}: expected {length} bytes at position {position}, found {found} before "
        "the end",
        path=id.path,
        offset=position,
    )


def make_sealed_error(id: SegmentId, position: int) -> Invalid:
    """Return the error for a write to a segment that the same handle has sealed."""
    return Invalid(
        f"segment {id}: write at position {position} of a sealed segment",
        path=id.path,
        offset=position,
    )
