"""Index files of a local store (`docs/formats/local-index.md`).

`slots` is the slot capacity S of a file, and `max_items` its item capacity N. Item numbers run from
1 to N - 1. Functions on the whole file take any buffer, including a mapped one, and drop their
views before they return.
"""

from __future__ import annotations

import struct
from dataclasses import astuple, dataclass
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from tieredstore.errors import Corrupt, Invalid
from tieredstore.message.buffers import Buffer
from tieredstore.message.core import IS_COMPILED
from tieredstore.message.index.chains import Int32s, Int64s, link_items

if IS_COMPILED:
    from tieredstore.message import _core

HEADER_SIZE: Final = 40
SLOT_SIZE: Final = 4
ITEM_SIZE: Final = 20

ITEM_DTYPE: Final = np.dtype(
    [("hash", ">i4"), ("physical_offset", ">i8"), ("seconds", ">i4"), ("previous", ">i4")]
)

_HEADER: Final = struct.Struct(">qqqqii")
_HEAD: Final = struct.Struct(">i")
_ITEM: Final = struct.Struct(">iqii")
_INT32_MAX: Final = 2**31 - 1
_FAR_MS: Final = 2**62


@dataclass(slots=True)
class LocalIndexHeader:
    """Header of a file. Times (epoch ms) and physical offsets (bytes) are those of the first and
    last item. `hash_slot_count`: number of slots that hold items. `index_count`: number of the next
    item."""

    begin_timestamp_ms: int = 0
    end_timestamp_ms: int = 0
    begin_physical_offset: int = 0
    end_physical_offset: int = 0
    hash_slot_count: int = 0
    index_count: int = 1

    def pack(self) -> bytes:
        """Pack the header into 40 bytes."""
        return _HEADER.pack(*astuple(self))

    @classmethod
    def unpack(cls, buffer: Buffer) -> LocalIndexHeader:
        """Unpack a header. The zeros of a new file are an empty header. Raises Corrupt for fewer
        than 40 bytes or a negative count."""
        if len(buffer) < HEADER_SIZE:
            raise Corrupt(
                f"index file header: expected {HEADER_SIZE} bytes, found {len(buffer)}", offset=0
            )
        header = cls(*_HEADER.unpack_from(buffer))
        if header.hash_slot_count < 0 or header.index_count < 0:
            raise Corrupt(
                f"index file header at 32: expected counts of 0 or more, found "
                f"{header.hash_slot_count} slots and {header.index_count} items",
                offset=32,
            )
        header.index_count = max(header.index_count, 1)
        return header


class LocalIndexItem(NamedTuple):
    """Item of a file. `seconds`: seconds since the first item of the file. `previous`: item number,
    or 0."""

    number: int
    hash: int
    physical_offset: int
    seconds: int
    previous: int


def file_size(slots: int, max_items: int) -> int:
    """Return the size of a file in bytes: 420,000,040 for the defaults of 5,000,000 slots and
    20,000,000 items."""
    return HEADER_SIZE + slots * SLOT_SIZE + max_items * ITEM_SIZE


def _item_position(slots: int, number: int) -> int:
    return HEADER_SIZE + slots * SLOT_SIZE + number * ITEM_SIZE


def _max_items(buffer: Buffer, slots: int) -> int:
    return (len(buffer) - HEADER_SIZE - slots * SLOT_SIZE) // ITEM_SIZE


def _seconds(store_timestamp_ms: int, begin_timestamp_ms: int) -> int:
    if begin_timestamp_ms <= 0:
        return 0
    return max(0, min((store_timestamp_ms - begin_timestamp_ms) // 1000, _INT32_MAX))


def seconds_between(header: LocalIndexHeader) -> int:
    """Return the seconds between first and last item, as stored in the last item."""
    return _seconds(header.end_timestamp_ms, header.begin_timestamp_ms)


def put_item(
    buffer: bytearray | memoryview,
    slots: int,
    key_hash: int,
    physical_offset: int,
    store_timestamp_ms: int,
) -> bool:
    """Put one item and update the header. Returns False and writes nothing if the file is full.
    Raises Invalid for a value that does not fit its field."""
    header = LocalIndexHeader.unpack(buffer)
    number = header.index_count
    if number >= _max_items(buffer, slots):
        return False
    slot = HEADER_SIZE + key_hash % slots * SLOT_SIZE
    previous = _HEAD.unpack_from(buffer, slot)[0]
    if not 0 < previous < number:
        previous = 0
    seconds = _seconds(store_timestamp_ms, header.begin_timestamp_ms)
    position = _item_position(slots, number)
    try:
        _ITEM.pack_into(buffer, position, key_hash, physical_offset, seconds, previous)
    except struct.error as error:
        raise Invalid(f"index item {number}: {error}") from error
    _HEAD.pack_into(buffer, slot, number)
    if number <= 1:
        header.begin_physical_offset = physical_offset
        header.begin_timestamp_ms = store_timestamp_ms
    header.hash_slot_count += previous == 0
    header.index_count = number + 1
    header.end_physical_offset = physical_offset
    header.end_timestamp_ms = store_timestamp_ms
    buffer[:HEADER_SIZE] = header.pack()
    return True


def put_items(
    buffer: bytearray | memoryview,
    slots: int,
    key_hashes: Int32s,
    physical_offsets: Int64s,
    store_timestamps: Int64s,
) -> int:
    """Put n rows of columns, with the same bytes as `put_item`. Returns the number of rows that
    fit."""
    if IS_COMPILED:
        compiled = _core.put_items(
            buffer,
            slots,
            np.ascontiguousarray(key_hashes, dtype=np.int32),
            np.ascontiguousarray(physical_offsets, dtype=np.int64),
            np.ascontiguousarray(store_timestamps, dtype=np.int64),
        )
        if compiled is not None:
            return compiled
    header = LocalIndexHeader.unpack(buffer)
    done = 0
    if len(key_hashes) and header.index_count <= 1:
        # The first item of a file is measured against the begin that it then replaces.
        first = (int(key_hashes[0]), int(physical_offsets[0]), int(store_timestamps[0]))
        if not put_item(buffer, slots, *first):
            return 0
        header = LocalIndexHeader.unpack(buffer)
        done = 1
    number = header.index_count
    count = min(len(key_hashes) - done, _max_items(buffer, slots) - number)
    if count <= 0:
        return done
    chosen = slice(done, done + count)
    hashes, offsets, times = (
        key_hashes[chosen],
        physical_offsets[chosen],
        store_timestamps[chosen],
    )
    heads: npt.NDArray[np.int32] = np.ndarray((slots,), ">i4", buffer=buffer, offset=HEADER_SIZE)
    links = link_items(heads, hashes.astype(np.int64) % slots, number)
    items: npt.NDArray[np.void] = np.ndarray(
        (count,), ITEM_DTYPE, buffer=buffer, offset=_item_position(slots, number)
    )
    items["hash"] = hashes
    items["physical_offset"] = offsets
    if header.begin_timestamp_ms > 0:
        # Clamp to the begin before the subtraction, which could overflow an i64.
        later = np.maximum(times, header.begin_timestamp_ms) - header.begin_timestamp_ms
        items["seconds"] = np.minimum(later // 1000, _INT32_MAX)
    else:
        items["seconds"] = 0
    items["previous"] = links.previous
    header.hash_slot_count += links.new_slots
    header.index_count = number + count
    header.end_physical_offset = int(offsets[-1])
    header.end_timestamp_ms = int(times[-1])
    packed = header.pack()
    # No call between these two lines: an interrupt must not leave a slot with an item above the
    # count.
    heads[links.slots] = links.heads
    buffer[:HEADER_SIZE] = packed
    return done + count


def time_range_ms(header: LocalIndexHeader, item: LocalIndexItem) -> tuple[int, int]:
    """Return the range of store times (epoch ms, inclusive) that an item's time stands for. The
    item stores whole seconds, and 0 for a time before the file's first item. The time of the first
    item is exact."""
    if item.number == 1:
        return header.begin_timestamp_ms, header.begin_timestamp_ms
    start = header.begin_timestamp_ms + item.seconds * 1000
    earliest = -_FAR_MS if item.seconds <= 0 else start
    latest = _FAR_MS if item.seconds == _INT32_MAX else start + 999
    return earliest, latest
