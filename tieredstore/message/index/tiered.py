"""Index files of the tier, unsealed and compacted (`docs/formats/tiered-index.md`).

`slots` is the capacity S of the file. Item numbers begin at 1. Functions on the whole file take any
buffer, including a mapped one, and drop their views before they return.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import numpy.typing as npt

from tieredstore.errors import Corrupt, Invalid
from tieredstore.message.buffers import Buffer
from tieredstore.message.core import IS_COMPILED
from tieredstore.message.index.chains import Int32s, Int64s, link_items
from tieredstore.message.index.compaction import compact_items

if IS_COMPILED:
    from tieredstore.message import _core


MAGIC_BEGIN: Final = 0xBCC50289
"""Magic of a file that accepts items."""
MAGIC_END: Final = 0xBCC50285
"""Magic of a full or compacted file."""

HEADER_SIZE: Final = 28
SLOT_SIZE: Final = 8
ITEM_SIZE: Final = 32
COMPACTED_ITEM_SIZE: Final = 28
TRAILER_SIZE: Final = 4
"""Size of a second magic after the items of a file of RocketMQ 5.1 or 5.2. In such a file, empty
slots are zeros, and the count of used slots includes the empty slots."""
SCALAR_LIMIT: Final = 16
"""Number of items below which a loop over the items is faster than numpy's columns."""

SLOT_DTYPE: Final = np.dtype([("item", ">i4"), ("unused", ">i4")])
COMPACTED_SLOT_DTYPE: Final = np.dtype([("position", ">i4"), ("length", ">i4")])
COMPACTED_ITEM_DTYPE: Final = np.dtype(
    [
        ("hash", ">i4"),
        ("topic_id", ">i4"),
        ("queue_id", ">i4"),
        ("offset", ">i8"),
        ("size", ">i4"),
        ("time_diff_seconds", ">i4"),
    ]
)
ITEM_DTYPE: Final = np.dtype([*COMPACTED_ITEM_DTYPE.descr, ("previous", ">i4")])

_HEADER: Final = struct.Struct(">Iqqii")
_SLOT: Final = struct.Struct(">ii")
_HEAD: Final = struct.Struct(">i")
_ITEM: Final = struct.Struct(">iiiqiii")
_INT32_MAX: Final = 2**31 - 1
_INT32_MIN: Final = -(2**31)
_INT64_MAX: Final = 2**63 - 1
_INT64_MIN: Final = -(2**63)


@dataclass(frozen=True, slots=True)
class IndexHeader:
    """Header of a file.

    `begin_timestamp_ms`: name of the file, a time that the times of items are relative to.
    `end_timestamp_ms`: largest store time of the items, or 0 without items.
    `slots_used`: number of slots that hold items.
    `items`: number of items.
    """

    begin_timestamp_ms: int
    end_timestamp_ms: int = 0
    slots_used: int = 0
    items: int = 0
    magic: int = MAGIC_BEGIN


def pack_header(header: IndexHeader) -> bytes:
    """Pack a header into 28 bytes."""
    return _HEADER.pack(
        header.magic,
        header.begin_timestamp_ms,
        header.end_timestamp_ms,
        header.slots_used,
        header.items,
    )


def unpack_header(buffer: Buffer) -> IndexHeader:
    """Unpack a header. Raises Corrupt for fewer than 28 bytes, another magic or negative counts."""
    if len(buffer) < HEADER_SIZE:
        raise Corrupt(
            f"index file header: expected {HEADER_SIZE} bytes, found {len(buffer)}", offset=0
        )
    magic, begin, end, slots_used, items = _HEADER.unpack_from(buffer)
    if magic not in (MAGIC_BEGIN, MAGIC_END):
        raise Corrupt(
            f"index file magic at 0: expected {MAGIC_BEGIN:08x} or {MAGIC_END:08x}, "
            f"found {magic:08x}",
            offset=0,
        )
    if slots_used < 0 or items < 0:
        raise Corrupt(
            f"index file header at 20: expected counts of 0 or more, found {slots_used} slots "
            f"and {items} items",
            offset=20,
        )
    return IndexHeader(begin, end, slots_used, items, magic)


def unsealed_size(slots: int, max_items: int) -> int:
    """Return the size in bytes of a file for items numbered 1 to `max_items` - 1."""
    return HEADER_SIZE + slots * SLOT_SIZE + max_items * ITEM_SIZE


def compacted_size(slots: int, items: int) -> int:
    """Return the size of a compacted file in bytes."""
    return HEADER_SIZE + slots * SLOT_SIZE + items * COMPACTED_ITEM_SIZE


def check_capacity(slots: int, items: int) -> None:
    """Raise Invalid if a file would be too large after compaction."""
    size = compacted_size(slots, items)
    if size >= 1 << 31:
        raise Invalid(
            "tieredStoreIndexFileMaxHashSlotNum and tieredStoreIndexFileMaxIndexNum: expected a "
            f"compacted file below 2 GiB, found {size} bytes"
        )


def infer_slots(file_size: int, items: int) -> int | None:
    """Return the slot capacity S of a compacted file from its size in bytes, or None if no S fits,
    because the file is damaged."""
    slots, rest = divmod(file_size - compacted_size(0, items), SLOT_SIZE)
    return slots if slots > 0 and rest == 0 and items >= 0 else None


def find_trailer(file_size: int, items: int) -> int | None:
    """Return the position of a compacted file's trailer, or None if its size leaves no room for
    one. The caller must check with `is_trailer` that it exists."""
    if infer_slots(file_size, items) is not None:
        return None
    place = file_size - TRAILER_SIZE
    return None if infer_slots(place, items) is None else place


def is_trailer(data: Buffer) -> bool:
    """Return whether the last 4 bytes of a compacted file are a trailer."""
    return int.from_bytes(data, "big") in (MAGIC_BEGIN, MAGIC_END)


def find_content_end(file_size: int, items: int, read: Callable[[int, int], Buffer]) -> int:
    """Return the end of the items of a compacted file, without the trailer. `read`: returns bytes
    by position and length."""
    place = find_trailer(file_size, items)
    if place is not None and is_trailer(read(place, TRAILER_SIZE)):
        return place
    return file_size


def item_position(slots: int, number: int) -> int:
    """Return the position of an item in an unsealed file (bytes)."""
    return HEADER_SIZE + slots * SLOT_SIZE + number * ITEM_SIZE


def unpack_compacted_slot(buffer: Buffer, position: int = 0) -> tuple[int, int]:
    """Unpack a slot: the position in the file and the length (bytes) of its items. An empty slot
    has length 0 and any position. Raises Corrupt for fewer than 8 bytes."""
    if position < 0 or position + SLOT_SIZE > len(buffer):
        raise Corrupt(
            f"index slot at {position}: expected {SLOT_SIZE} bytes, "
            f"found {max(len(buffer) - position, 0)}",
            offset=position,
        )
    start, length = _SLOT.unpack_from(buffer, position)
    return start, length


def time_diff_seconds(store_timestamps: npt.ArrayLike, begin_timestamp_ms: int) -> Int32s:
    """Convert store times (epoch ms) to item times: whole seconds since the time in the file's
    name, rounded toward zero and clamped to an i32. Returns int32[n]."""
    times = np.atleast_1d(np.asarray(store_timestamps, dtype=np.int64))
    farthest = -_INT32_MIN * 1000
    # Clamp near the begin before the subtraction, which could overflow an i64.
    low = max(begin_timestamp_ms - farthest, _INT64_MIN)
    high = min(begin_timestamp_ms + farthest, _INT64_MAX)
    millis = np.clip(times, low, high) - begin_timestamp_ms
    seconds = np.where(millis < 0, -(-millis // 1000), millis // 1000)
    return np.clip(seconds, _INT32_MIN, _INT32_MAX).astype(np.int32)


def _time_diff(store_timestamp_ms: int, begin_timestamp_ms: int) -> int:
    millis = store_timestamp_ms - begin_timestamp_ms
    seconds = -(-millis // 1000) if millis < 0 else millis // 1000
    return max(_INT32_MIN, min(seconds, _INT32_MAX))


def slots_view(buffer: Buffer, slots: int) -> npt.NDArray[np.int32]:
    """View the newest item of each slot of an unsealed file. The view is writable if the buffer
    is."""
    view: npt.NDArray[np.int32] = np.ndarray(
        (slots,), ">i4", buffer=buffer, offset=HEADER_SIZE, strides=(SLOT_SIZE,)
    )
    return view


def items_view(buffer: Buffer, slots: int, count: int) -> npt.NDArray[np.void]:
    """View items 0 (never used) to `count` - 1 of an unsealed file: ITEM_DTYPE[count]."""
    return np.frombuffer(buffer, ITEM_DTYPE, count=count, offset=item_position(slots, 0))


def put_few_items(
    buffer: bytearray | memoryview,
    slots: int,
    topic_id: int,
    queue_id: int,
    rows: Sequence[tuple[int, int, int, int]],
) -> IndexHeader:
    """Put items of one queue one by one, and write the header once. `rows`: hash, offset, size and
    store time of each item. Raises Invalid, and puts nothing, if there is no room for all items."""
    header = unpack_header(buffer)
    _check_room(buffer, slots, header, len(rows))
    number, new_slots, latest_ms = header.items, 0, 0
    for key_hash, offset, size, store_timestamp_ms in rows:
        number += 1
        slot = HEADER_SIZE + key_hash % slots * SLOT_SIZE
        previous = _HEAD.unpack_from(buffer, slot)[0]
        if not 0 < previous < number:
            previous = 0
        diff = _time_diff(store_timestamp_ms, header.begin_timestamp_ms)
        position = item_position(slots, number)
        try:
            _ITEM.pack_into(
                buffer, position, key_hash, topic_id, queue_id, offset, size, diff, previous
            )
        except struct.error as error:
            raise Invalid(f"index item {number}: {error}") from error
        _HEAD.pack_into(buffer, slot, number)
        new_slots += previous == 0
        latest_ms = max(latest_ms, store_timestamp_ms)
    return _write_header(buffer, slots, header, len(rows), new_slots, latest_ms)


def put_items(
    buffer: bytearray | memoryview,
    slots: int,
    key_hashes: Int32s,
    topic_ids: int | Int64s,
    queue_ids: int | Int64s,
    offsets: npt.ArrayLike,
    sizes: npt.ArrayLike,
    store_timestamps: Int64s,
) -> IndexHeader:
    """Put n rows of columns as items, with the same bytes as if they were put one by one. A single
    value applies to all rows. Raises Invalid, and puts nothing, if there is no room for all
    rows."""
    if IS_COMPILED and isinstance(topic_ids, int) and isinstance(queue_ids, int):
        compiled = _core.put_tiered_items(
            buffer,
            slots,
            topic_ids,
            queue_ids,
            np.ascontiguousarray(key_hashes, dtype=np.int32),
            np.ascontiguousarray(offsets, dtype=np.int64),
            np.ascontiguousarray(sizes, dtype=np.int32),
            np.ascontiguousarray(store_timestamps, dtype=np.int64),
        )
        if compiled is not None:
            return unpack_header(buffer)
    header = unpack_header(buffer)
    count = len(key_hashes)
    if count == 0:
        return header
    _check_room(buffer, slots, header, count)
    first = header.items + 1
    slot_ids = key_hashes.astype(np.int64) % slots
    heads = slots_view(buffer, slots)
    links = link_items(heads, slot_ids, first)
    items = items_view(buffer, slots, first + count)[first:]
    items["hash"] = key_hashes
    items["topic_id"] = topic_ids
    items["queue_id"] = queue_ids
    items["offset"] = offsets
    items["size"] = sizes
    items["time_diff_seconds"] = time_diff_seconds(store_timestamps, header.begin_timestamp_ms)
    items["previous"] = links.previous
    heads[links.slots] = links.heads
    latest = int(np.max(store_timestamps))
    return _write_header(buffer, slots, header, count, links.new_slots, latest)


def _max_items(buffer: Buffer, slots: int) -> int:
    return (len(buffer) - HEADER_SIZE - slots * SLOT_SIZE) // ITEM_SIZE


def _check_room(buffer: Buffer, slots: int, header: IndexHeader, count: int) -> None:
    room = _max_items(buffer, slots) - 1 - header.items
    if count > room:
        raise Invalid(f"index file: expected room for {count} items, found {max(room, 0)}")


def _write_header(
    buffer: bytearray | memoryview,
    slots: int,
    header: IndexHeader,
    count: int,
    new_slots: int,
    latest_ms: int,
) -> IndexHeader:
    items = header.items + count
    header = IndexHeader(
        header.begin_timestamp_ms,
        max(header.end_timestamp_ms, latest_ms),
        header.slots_used + new_slots,
        items,
        MAGIC_END if items + 1 == _max_items(buffer, slots) else header.magic,
    )
    buffer[:HEADER_SIZE] = pack_header(header)
    return header


def compact(
    buffer: Buffer, slots: int, *, block_items: int = 1 << 18, memory_bytes: int = 256 << 20
) -> Iterator[bytes]:
    """Yield the compacted form of an unsealed file in consecutive blocks: header, slots, then items
    in blocks of at most `block_items`, newest first within a slot. `memory_bytes`: approximate
    memory limit for sorting. Raises Corrupt if the buffer lacks items that its header names, and
    Invalid if positions would exceed 2^31."""
    header = unpack_header(buffer)
    if item_position(slots, header.items + 1) > len(buffer):
        raise Corrupt(
            f"index file: expected {header.items} items in {slots} slots, found "
            f"{len(buffer)} bytes",
            offset=24,
        )
    if compacted_size(slots, header.items) > _INT32_MAX:
        raise Invalid(
            f"compacted index file: expected at most {_INT32_MAX} bytes, found "
            f"{compacted_size(slots, header.items)}"
        )
    yield pack_header(replace(header, magic=MAGIC_END))
    yield from compact_items(
        items_view(buffer, slots, header.items + 1)[1:],
        slots,
        first_position=compacted_size(slots, 0),
        block_items=block_items,
        memory_bytes=memory_bytes,
    )
