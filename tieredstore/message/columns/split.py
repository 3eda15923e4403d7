"""Decodes messages from consume queue units and the commit log bytes that they point to
(`docs/formats/consume-queue.md`)."""

from __future__ import annotations

import struct
from itertools import repeat
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from tieredstore.message.buffers import Buffer, view_unaligned
from tieredstore.message.layout import (
    CODA_SIZE,
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    MAGICS,
    MIN_RECORD_SIZE,
)
from tieredstore.message.record import StoredMessage

_SIZE_AND_MAGIC: Final = struct.Struct(">iI")


class SplitMessages(NamedTuple):
    """Result of `split_messages`.

    `messages`: the decoded messages.
    `indexes`: row of each message's unit, int64[len(messages)].
    `units_seen`: number of units that were checked before the buffer ended. Messages of the other
    units need another read of the commit log.
    """

    messages: list[StoredMessage]
    indexes: npt.NDArray[np.int64]
    units_seen: int

    @property
    def is_complete(self) -> bool:
        """Whether a message was found for each checked unit."""
        return len(self.messages) == self.units_seen


def split_messages(
    units: npt.NDArray[np.void], buffer: Buffer, *, buffer_offset: int | None = None
) -> SplitMessages:
    """Decode the messages of `units` in `buffer`, whose first byte is at commit log offset
    `buffer_offset` (default: the offset of the first unit). A unit that does not point to a record
    of its size is skipped, without a change of the other indexes. A coda before a record is
    skipped."""
    if not len(units) or not len(buffer):
        return SplitMessages([], np.zeros(0, dtype=np.int64), 0)
    offsets = units["physical_offset"].astype(np.int64)
    base = int(offsets[0]) if buffer_offset is None else buffer_offset
    sizes = units["size"].astype(np.int64)
    seen = len(units)
    if _are_all_present(buffer, base, offsets, sizes):
        indexes = np.arange(seen, dtype=np.int64)
        where = (offsets - base).tolist()
    else:
        where, chosen, seen = _split_scalar(buffer, base, offsets.tolist(), sizes.tolist())
        indexes = np.array(chosen, dtype=np.int64)
        sizes = sizes[indexes]
        units = units[indexes]
    tags = units["tags_code"].tolist()
    messages = list(map(StoredMessage, repeat(buffer), where, sizes.tolist(), tags))
    return SplitMessages(messages, indexes, seen)


def _are_all_present(
    buffer: Buffer, base: int, offsets: npt.NDArray[np.int64], sizes: npt.NDArray[np.int64]
) -> bool:
    # Compare before subtracting: offsets of damaged units can have any value.
    if (
        int(offsets.min()) < base
        or int(offsets.max()) > base + len(buffer)
        or int(sizes.min()) < MIN_RECORD_SIZE
    ):
        return False
    positions = offsets - base
    if int((positions + sizes).max()) > len(buffer):
        return False
    heads = view_unaligned(buffer, ">u8")[positions]
    magics = heads & np.uint64(0xFFFFFFFF)
    good = (heads >> np.uint64(32) == sizes.astype(np.uint64)) & (
        (magics == MAGIC_V1) | (magics == MAGIC_V2)
    )
    return bool(good.all())


def _split_scalar(
    buffer: Buffer, base: int, offsets: list[int], sizes: list[int]
) -> tuple[list[int], list[int], int]:
    """Return the positions of the messages in the buffer, the rows of their units, and the number
    of checked units."""
    found: list[int] = []
    indexes: list[int] = []
    end = len(buffer)
    for index, (offset, size) in enumerate(zip(offsets, sizes, strict=True)):
        position = offset - base
        if position < 0 or size < MIN_RECORD_SIZE:
            continue
        if position + size > end:
            return found, indexes, index
        stored_size, magic = _SIZE_AND_MAGIC.unpack_from(buffer, position)
        if magic == MAGIC_BLANK and stored_size == CODA_SIZE:
            position += CODA_SIZE
            if position + size > end:
                return found, indexes, index
            stored_size, magic = _SIZE_AND_MAGIC.unpack_from(buffer, position)
        if magic not in MAGICS or stored_size != size:
            continue
        found.append(position)
        indexes.append(index)
    return found, indexes, len(offsets)
