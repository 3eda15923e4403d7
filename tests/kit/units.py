"""Units of consume queues, single or in arrays, and lookups in local index files."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from tests.kit.index_chains import walk_local_chain as walk_chain
from tieredstore.errors import Corrupt
from tieredstore.message.batch import decode_batch
from tieredstore.message.buffers import Buffer
from tieredstore.message.consume_queue import (
    BATCH_UNIT_DTYPE,
    BATCH_UNIT_SIZE,
    BLANK_SIZE_FIELD,
    UNIT_DTYPE,
    UNIT_SIZE,
    BatchUnit,
    pack_unit,
)
from tieredstore.message.encoding import Message
from tieredstore.message.index.local import LocalIndexHeader, time_range_ms


class Unit(NamedTuple):
    """Fields of a unit. `physical_offset` and `size` are in bytes."""

    physical_offset: int
    size: int
    tags_code: int

    @property
    def is_blank(self) -> bool:
        return self.size == BLANK_SIZE_FIELD and self.physical_offset == 0


def unpack_unit(buffer: Buffer, position: int = 0) -> Unit:
    """Unpack the unit at a position of a buffer. Raises Corrupt if the unit is truncated."""
    _check_bounds(buffer, position, UNIT_SIZE)
    return Unit(*struct.unpack_from(">qiq", buffer, position))


def unpack_batch_unit(buffer: Buffer, position: int = 0) -> BatchUnit:
    """Unpack the batch unit at a position of a buffer. Raises Corrupt if the unit is truncated."""
    _check_bounds(buffer, position, BATCH_UNIT_SIZE)
    return BatchUnit(*struct.unpack_from(">qiqqqhii", buffer, position))


def _check_bounds(buffer: Buffer, position: int, size: int) -> None:
    if position < 0 or position + size > len(buffer):
        raise Corrupt(
            f"consume queue unit at {position}: expected {size} bytes, "
            f"found {max(len(buffer) - position, 0)}",
            offset=position,
        )


def view_units(buffer: Buffer) -> npt.NDArray[np.void]:
    """View whole units as UNIT_DTYPE. Raises Corrupt if the last unit is truncated."""
    return _view(buffer, UNIT_DTYPE)


def view_batch_units(buffer: Buffer) -> npt.NDArray[np.void]:
    """View whole units as BATCH_UNIT_DTYPE. Raises Corrupt if the last unit is truncated."""
    return _view(buffer, BATCH_UNIT_DTYPE)


def _view(buffer: Buffer, dtype: np.dtype[np.void]) -> npt.NDArray[np.void]:
    if len(buffer) % dtype.itemsize:
        raise Corrupt(
            f"consume queue units: expected a multiple of {dtype.itemsize} bytes, "
            f"found {len(buffer)}",
            offset=len(buffer) - len(buffer) % dtype.itemsize,
        )
    return np.frombuffer(buffer, dtype=dtype)


def pack_units(units: Sequence[tuple[int, int, int]]) -> bytes:
    """Pack rows of (physical offset, size, tags code) into bytes. Raises Invalid."""
    return b"".join(pack_unit(*unit) for unit in units)


def expand_batch(message: Message) -> list[Message]:
    """Return the messages of an uncompressed batch. Raises Corrupt if the batch is damaged."""
    return [
        msgspec.structs.replace(message, body=item.body, flag=item.flag, properties=item.properties)
        for item in decode_batch(message.body)
    ]


def lookup(
    buffer: Buffer, slots: int, key_hash: int, begin_ms: int, end_ms: int, max_count: int
) -> list[int]:
    """Return the physical offsets of at most `max_count` index items with this hash, newest first.
    The items' store times may lie in [begin, end]."""
    header = LocalIndexHeader.unpack(buffer)
    found: list[int] = []
    for item in walk_chain(buffer, slots, key_hash, header):
        if len(found) >= max_count:
            break
        earliest, latest = time_range_ms(header, item)
        if latest >= begin_ms and earliest <= end_ms:
            found.append(item.physical_offset)
    return found
