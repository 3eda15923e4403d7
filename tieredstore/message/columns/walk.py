"""Finds the records of a buffer by following their sizes (`docs/formats/record.md`)."""

from __future__ import annotations

import enum
import struct
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from tieredstore.errors import Invalid
from tieredstore.message.buffers import Buffer
from tieredstore.message.core import IS_COMPILED
from tieredstore.message.layout import MAGIC_BLANK, MAGICS, MIN_RECORD_SIZE

if IS_COMPILED:
    from tieredstore.message import _core

SCALAR_LIMIT: Final = 16
"""Number of records below which a loop over the records is faster than numpy's columns."""

_SIZE_AND_MAGIC: Final = struct.Struct(">iI")
_RUN_LIMIT: Final = 4096

Positions = npt.NDArray[np.int64]


class Stop(enum.Enum):
    """Reason why a walk over records ended."""

    END = "end"  # exactly at the end of the last record
    BLANK = "blank"  # a blank record, which ends the file
    EMPTY = "empty"  # zeros: nothing was written here
    CUT = "cut"  # a record that continues after the end
    BAD = "bad"  # not a record


class Walk(NamedTuple):
    """Result of a walk. `positions`: positions of the records. `next_position`: end of the last
    record (bytes)."""

    positions: Positions
    next_position: int
    stop: Stop


def walk_records(buffer: Buffer, start: int = 0, end: int | None = None) -> Walk:
    """Follow the record sizes from `start` on, as long as records end within [0, end). Only sizes
    and magics are checked. For speed, the function guesses that the next records have equal sizes,
    and checks many at once. Records after a wrong guess are not accepted."""
    limit = _find_limit(buffer, start, end)
    if IS_COMPILED:
        found, position = _core.walk_records(buffer, start, limit)
        positions = np.frombuffer(found, dtype=np.int64)
    else:
        positions, position = _walk_in_python(buffer, start, limit)
    return Walk(positions, position, _find_stop(buffer, position, limit))


def _walk_in_python(buffer: Buffer, position: int, limit: int) -> tuple[Positions, int]:
    found: list[Positions] = []
    single: list[int] = []
    last_size, run = -1, SCALAR_LIMIT
    while position + MIN_RECORD_SIZE <= limit:
        size, magic = _SIZE_AND_MAGIC.unpack_from(buffer, position)
        if magic not in MAGICS or not MIN_RECORD_SIZE <= size <= limit - position:
            break
        if size != last_size:
            single.append(position)
            position += size
            last_size, run = size, SCALAR_LIMIT
            continue
        count = _run_length(buffer, position, size, magic, min(run, (limit - position) // size))
        if single:
            found.append(np.array(single, dtype=np.int64))
            single = []
        found.append(np.arange(position, position + count * size, size, dtype=np.int64))
        position += count * size
        # Extend the guess after a full run, and use a cheaper method after a broken one.
        last_size, run = (size, min(run * 4, _RUN_LIMIT)) if count >= run else (-1, SCALAR_LIMIT)
    if single or not found:
        found.append(np.array(single, dtype=np.int64))
    return found[0] if len(found) == 1 else np.concatenate(found), position


def _find_stop(buffer: Buffer, position: int, limit: int) -> Stop:
    """Return the reason why no record of the buffer follows at `position`."""
    if position >= limit:
        return Stop.END
    if position + _SIZE_AND_MAGIC.size > limit:
        return Stop.CUT
    size, magic = _SIZE_AND_MAGIC.unpack_from(buffer, position)
    if magic == MAGIC_BLANK:
        return Stop.BLANK
    if magic in MAGICS and size >= MIN_RECORD_SIZE:
        return Stop.CUT
    return Stop.EMPTY if size == 0 and magic == 0 else Stop.BAD


def _run_length(buffer: Buffer, position: int, size: int, magic: int, count: int) -> int:
    heads = np.ndarray((count,), ">u8", buffer=buffer, offset=position, strides=(size,))
    equal = heads == (size << 32 | magic)
    return count if equal.all() else int(equal.argmin())


def _find_limit(buffer: Buffer, start: int, end: int | None) -> int:
    limit = len(buffer) if end is None else end
    if not 0 <= start <= limit <= len(buffer):
        raise Invalid(f"records from {start} to {limit}: expected a range of {len(buffer)} bytes")
    return limit
