"""Consume queue units: where the messages of a queue are (`docs/formats/consume-queue.md`).

The same 20 bytes in local files and in the tier; there the offset is that of the queue's own tiered
commit log. Units of a batch consume queue have 46 bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from tieredstore.errors import Corrupt, Invalid
from tieredstore.message.buffers import Buffer

UNIT_SIZE: Final = 20
UNIT_DTYPE: Final = np.dtype([("physical_offset", ">i8"), ("size", ">i4"), ("tags_code", ">i8")])

UNKNOWN_TAGS_CODE: Final = 1 << 62
"""In place of the tags code of a unit that is not to be trusted, in memory only: no tag has it, and
no filter of tags leaves out what has it."""

BATCH_UNIT_SIZE: Final = 46
BATCH_UNIT_DTYPE: Final = np.dtype(
    [
        ("physical_offset", ">i8"),
        ("size", ">i4"),
        ("tags_code", ">i8"),
        ("store_timestamp", ">i8"),
        ("base_offset", ">i8"),
        ("batch_size", ">i2"),
        ("compacted_offset", ">i4"),
        ("reserved", ">i4"),
    ]
)

BLANK_SIZE_FIELD: Final = 0x7FFFFFFF
_UNITS_AT_ONCE: Final = 4096
_UNIT: Final = struct.Struct(">qiq")
_BATCH_UNIT: Final = struct.Struct(">qiqqqhii")
BLANK_UNIT: Final = _UNIT.pack(0, BLANK_SIZE_FIELD, 0)
"""Fills a queue's first file up to the offset at which the queue begins."""

MIN_EXTENDED_ADDRESS: Final = -(2**31) - 1
"""A tags code at or below this is an address in a consume queue extension, not a hash."""
EXTENDED_ADDRESS_SIGN: Final = -(2**63)
"""An address is this bit and the place (bytes) of the extended unit."""
EXTENDED_UNIT_DTYPE: Final = np.dtype(
    [
        ("size", ">i2"),
        ("tags_code", ">i8"),
        ("store_timestamp", ">i8"),
        ("bitmap_size", ">i2"),
    ]
)
"""An extended unit; `bitmap_size` bytes follow, which `size` counts too."""
EXTENDED_UNIT_SIZE: Final = 20


class Unit(NamedTuple):
    """physical_offset and size in bytes."""

    physical_offset: int
    size: int
    tags_code: int

    @property
    def is_blank(self) -> bool:
        return self.size == BLANK_SIZE_FIELD and self.physical_offset == 0


class BatchUnit(NamedTuple):
    """One record with `batch_size` messages from queue offset `base_offset` on."""

    physical_offset: int
    size: int
    tags_code: int
    store_timestamp_ms: int
    base_offset: int
    batch_size: int
    compacted_offset: int = -1
    reserved: int = 0


def pack_unit(physical_offset: int, size: int, tags_code: int) -> bytes:
    """Pack a unit: 20 bytes. Raises Invalid for a value that does not fit."""
    try:
        return _UNIT.pack(physical_offset, size, tags_code)
    except struct.error as error:
        raise Invalid(f"unit ({physical_offset}, {size}, {tags_code}): {error}") from error


def unpack_unit(buffer: Buffer, position: int = 0) -> Unit:
    """Unpack the unit at a byte of a buffer. Raises Corrupt when it is not whole."""
    _check_bounds(buffer, position, UNIT_SIZE)
    return Unit(*_UNIT.unpack_from(buffer, position))


def pack_batch_unit(unit: BatchUnit) -> bytes:
    """Pack a unit: 46 bytes. Raises Invalid for a value that does not fit."""
    try:
        return _BATCH_UNIT.pack(*unit)
    except struct.error as error:
        raise Invalid(f"{unit}: {error}") from error


def unpack_batch_unit(buffer: Buffer, position: int = 0) -> BatchUnit:
    """Unpack the unit at a byte of a buffer. Raises Corrupt when it is not whole."""
    _check_bounds(buffer, position, BATCH_UNIT_SIZE)
    return BatchUnit(*_BATCH_UNIT.unpack_from(buffer, position))


def _check_bounds(buffer: Buffer, position: int, size: int) -> None:
    if position < 0 or position + size > len(buffer):
        raise Corrupt(
            f"consume queue unit at {position}: expected {size} bytes, "
            f"found {max(len(buffer) - position, 0)}",
            offset=position,
        )


def view_units(buffer: Buffer) -> npt.NDArray[np.void]:
    """View whole units as UNIT_DTYPE. Raises Corrupt when the last one is cut."""
    return _view(buffer, UNIT_DTYPE)


def view_batch_units(buffer: Buffer) -> npt.NDArray[np.void]:
    """View whole units as BATCH_UNIT_DTYPE. Raises Corrupt when the last one is cut."""
    return _view(buffer, BATCH_UNIT_DTYPE)


def _view(buffer: Buffer, dtype: np.dtype[np.void]) -> npt.NDArray[np.void]:
    if len(buffer) % dtype.itemsize:
        raise Corrupt(
            f"consume queue units: expected a multiple of {dtype.itemsize} bytes, "
            f"found {len(buffer)}",
            offset=len(buffer) - len(buffer) % dtype.itemsize,
        )
    return np.frombuffer(buffer, dtype=dtype)


def make_units(
    physical_offsets: npt.ArrayLike, sizes: npt.ArrayLike, tags_codes: npt.ArrayLike
) -> npt.NDArray[np.void]:
    """Make UNIT_DTYPE[n] from columns; `.tobytes()` is what a file holds."""
    offsets = np.asarray(physical_offsets, dtype=np.int64)
    units = np.empty(len(offsets), dtype=UNIT_DTYPE)
    units["physical_offset"] = offsets
    units["size"] = sizes
    units["tags_code"] = tags_codes
    return units


def pack_units(units: Sequence[tuple[int, int, int]]) -> bytes:
    """Pack rows (physical offset, size, tags code) as bytes. Raises Invalid."""
    try:
        return b"".join([_UNIT.pack(*unit) for unit in units])
    except struct.error as error:
        raise Invalid(f"consume queue units: {error}") from error


def find_last_message(
    first: int,
    until: int,
    read_units: Callable[[int, int], npt.NDArray[np.void]],
    find_candidates: Callable[[npt.NDArray[np.void]], npt.NDArray[np.bool_]],
    is_message: Callable[[int, int, int], bool],
) -> tuple[int, int] | None:
    """Find the last message that is there of the queue offsets [first, until). Returns the queue
    offset behind it and the commit log offset behind it (bytes); None without one.

    Goes backwards, one unit first: the last one is nearly always good. Raises what the calls raise.

    read_units: of (queue offset, count), UNIT_DTYPE from that offset on, or none where they are
    not there; find_candidates: bool[n], the units whose bytes may be there; is_message: of (queue
    offset, physical offset, size), asked for candidates only.
    """
    count = 1
    while until > first:
        start = max(first, until - count)
        units = read_units(start, until - start)
        candidates = np.flatnonzero(find_candidates(units)) if len(units) else ()
        for index in reversed(candidates):
            offset, size = int(units["physical_offset"][index]), int(units["size"][index])
            if is_message(start + int(index), offset, size):
                return start + int(index) + 1, offset + size
        until, count = start, _UNITS_AT_ONCE
    return None
