"""Consume queue units: the positions of a queue's messages (`docs/formats/consume-queue.md`).

Local files and the tier use the same 20 bytes. In the tier, a unit has the offset in the queue's
own commit log. Units of a batch consume queue have 46 bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from tieredstore.errors import Invalid

UNIT_SIZE: Final = 20
UNIT_DTYPE: Final = np.dtype([("physical_offset", ">i8"), ("size", ">i4"), ("tags_code", ">i8")])

UNKNOWN_TAGS_CODE: Final = 1 << 62
"""Tags code of a unit that cannot be trusted, used only in memory. No tag has this code, and every
tag filter accepts it."""

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
"""Unit that fills a queue's first file up to the first offset of the queue."""

MIN_EXTENDED_ADDRESS: Final = -(2**31) - 1
"""Maximum tags code that is an address in a consume queue extension, not a hash."""
EXTENDED_ADDRESS_SIGN: Final = -(2**63)
"""Sign bit of a tags code that is an address. Its other bits are the byte position of an extended
unit in the consume queue extension."""
EXTENDED_UNIT_DTYPE: Final = np.dtype(
    [("size", ">i2"), ("tags_code", ">i8"), ("store_timestamp", ">i8"), ("bitmap_size", ">i2")]
)
"""Extended unit. `bitmap_size` bytes follow. `size` includes these bytes."""
EXTENDED_UNIT_SIZE: Final = 20


class BatchUnit(NamedTuple):
    """Unit of one record with `batch_size` messages, starting at queue offset `base_offset`."""

    physical_offset: int
    size: int
    tags_code: int
    store_timestamp_ms: int
    base_offset: int
    batch_size: int
    compacted_offset: int = -1
    reserved: int = 0


def pack_unit(physical_offset: int, size: int, tags_code: int) -> bytes:
    """Pack a unit of 20 bytes. Raises Invalid for a value that does not fit."""
    try:
        return _UNIT.pack(physical_offset, size, tags_code)
    except struct.error as error:
        raise Invalid(f"unit ({physical_offset}, {size}, {tags_code}): {error}") from error


def pack_batch_unit(unit: BatchUnit) -> bytes:
    """Pack a unit of 46 bytes. Raises Invalid for a value that does not fit."""
    try:
        return _BATCH_UNIT.pack(*unit)
    except struct.error as error:
        raise Invalid(f"{unit}: {error}") from error


def make_units(
    physical_offsets: npt.ArrayLike, sizes: npt.ArrayLike, tags_codes: npt.ArrayLike
) -> npt.NDArray[np.void]:
    """Build UNIT_DTYPE[n] from columns. `.tobytes()` returns the bytes of a file."""
    offsets = np.asarray(physical_offsets, dtype=np.int64)
    units = np.empty(len(offsets), dtype=UNIT_DTYPE)
    units["physical_offset"] = offsets
    units["size"] = sizes
    units["tags_code"] = tags_codes
    return units


def find_last_message(
    first: int,
    until: int,
    read_units: Callable[[int, int], npt.NDArray[np.void]],
    find_candidates: Callable[[npt.NDArray[np.void]], npt.NDArray[np.bool_]],
    is_message: Callable[[int, int, int], bool],
) -> tuple[int, int] | None:
    """Find the last stored message with a queue offset in [first, until). Returns (queue offset +
    1, commit log offset of its end), or None.

    Searches backwards. The first step reads only the last unit, which nearly always locates a
    message. Raises the errors of the functions.

    `read_units`: called with (queue offset, count). Returns UNIT_DTYPE[n] from that offset on, or
    no units. `find_candidates`: returns bool[n], the units whose bytes may exist. `is_message`:
    called for candidates, with (queue offset, physical offset, size).
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
