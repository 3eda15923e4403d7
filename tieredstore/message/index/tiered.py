"""The index files of the tier, unsealed and compacted (`docs/formats/tiered-index.md`).

slots is always the capacity S of the file; item numbers begin at 1. Functions that take the whole
file take any buffer, a mapped one too: their views are dropped before they return.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from tieredstore.errors import Corrupt, Invalid
from tieredstore.message.buffers import Buffer
from tieredstore.message.core import IS_COMPILED
from tieredstore.message.index.chains import Int32s, Int64s, Links, link_items, link_previous
from tieredstore.message.index.compaction import compact_items

if IS_COMPILED:
    from tieredstore.message import _core

__all__ = [
    "COMPACTED_ITEM_DTYPE",
    "COMPACTED_ITEM_SIZE",
    "COMPACTED_SLOT_DTYPE",
    "HEADER_SIZE",
    "ITEM_DTYPE",
    "ITEM_SIZE",
    "MAGIC_BEGIN",
    "MAGIC_END",
    "SLOT_DTYPE",
    "SLOT_SIZE",
    "IndexHeader",
    "Links",
    "TieredIndexItem",
    "compact",
    "compacted_size",
    "infer_slots",
    "item_position",
    "items_view",
    "link_items",
    "link_previous",
    "pack_header",
    "put_few_items",
    "put_item",
    "put_items",
    "slots_view",
    "time_diff_seconds",
    "unpack_compacted_slot",
    "unpack_header",
    "unpack_item",
    "unsealed_size",
    "walk_chain",
]

MAGIC_BEGIN: Final = 0xBCC50289
"""A file that takes items."""
MAGIC_END: Final = 0xBCC50285
"""A full or a compacted file."""

HEADER_SIZE: Final = 28
SLOT_SIZE: Final = 8
ITEM_SIZE: Final = 32
COMPACTED_ITEM_SIZE: Final = 28
SCALAR_LIMIT: Final = 16
"""Below this number of items the loop is faster than the columns."""

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
    """begin_timestamp_ms: the file's name, to which item times are relative; end_timestamp_ms:
    largest store time put, 0 for none; slots_used: slots that hold items; items: how many."""

    begin_timestamp_ms: int
    end_timestamp_ms: int = 0
    slots_used: int = 0
    items: int = 0
    magic: int = MAGIC_BEGIN


class TieredIndexItem(NamedTuple):
    """One item. offset and size: bytes, in the queue's tiered commit log; time_diff_seconds: from
    the begin of the file; previous: item number, 0 for none."""

    hash: int
    topic_id: int
    queue_id: int
    offset: int
    size: int
    time_diff_seconds: int
    previous: int = 0


def pack_header(header: IndexHeader) -> bytes:
    """Pack a header: 28 bytes."""
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
    """Compute the bytes of a file that takes items numbered 1 to `max_items` - 1."""
    return HEADER_SIZE + slots * SLOT_SIZE + max_items * ITEM_SIZE


def compacted_size(slots: int, items: int) -> int:
    """Compute the bytes of a compacted file."""
    return HEADER_SIZE + slots * SLOT_SIZE + items * COMPACTED_ITEM_SIZE


def check_capacity(slots: int, items: int) -> None:
    """Raise Invalid for files that would be too large once they are compacted."""
    size = compacted_size(slots, items)
    if size >= 1 << 31:
        raise Invalid(
            "tieredStoreIndexFileMaxHashSlotNum and tieredStoreIndexFileMaxIndexNum: expected a "
            f"compacted file below 2 GiB, found {size} bytes"
        )


def infer_slots(file_size: int, items: int) -> int | None:
    """Compute S of a compacted file of that many bytes; None when no S fits (the file is
    damaged)."""
    slots, rest = divmod(file_size - compacted_size(0, items), SLOT_SIZE)
    return slots if slots > 0 and rest == 0 and items >= 0 else None


def item_position(slots: int, number: int) -> int:
    """Compute where an item of an unsealed file is, bytes from its start."""
    return HEADER_SIZE + slots * SLOT_SIZE + number * ITEM_SIZE


def unpack_compacted_slot(buffer: Buffer, position: int = 0) -> tuple[int, int]:
    """Unpack position in the file and length of a slot's items, bytes; the length is 0 for an empty
    slot, whose position says nothing. Raises Corrupt for fewer than 8 bytes."""
    if position < 0 or position + SLOT_SIZE > len(buffer):
        raise Corrupt(
            f"index slot at {position}: expected {SLOT_SIZE} bytes, "
            f"found {max(len(buffer) - position, 0)}",
            offset=position,
        )
    start, length = _SLOT.unpack_from(buffer, position)
    return start, length


def time_diff_seconds(store_timestamps: npt.ArrayLike, begin_timestamp_ms: int) -> Int32s:
    """Compute what items keep of their store times (epoch ms): whole seconds since the begin of the
    file, cut toward zero, held within an i32: int32[n]."""
    times = np.atleast_1d(np.asarray(store_timestamps, dtype=np.int64))
    farthest = -_INT32_MIN * 1000
    # Held near the begin before the subtraction, which could not hold any two i64.
    low = max(begin_timestamp_ms - farthest, _INT64_MIN)
    high = min(begin_timestamp_ms + farthest, _INT64_MAX)
    millis = np.clip(times, low, high) - begin_timestamp_ms
    seconds = np.where(millis < 0, -(-millis // 1000), millis // 1000)
    return np.clip(seconds, _INT32_MIN, _INT32_MAX).astype(np.int32)


def _time_diff(store_timestamp_ms: int, begin_timestamp_ms: int) -> int:
    millis = store_timestamp_ms - begin_timestamp_ms
    seconds = -(-millis // 1000) if millis < 0 else millis // 1000
    return max(_INT32_MIN, min(seconds, _INT32_MAX))


def unpack_item(buffer: Buffer, slots: int, number: int) -> TieredIndexItem:
    """Unpack an item of an unsealed file. Raises Corrupt when it is not within the buffer."""
    position = item_position(slots, number)
    if number < 1 or position + ITEM_SIZE > len(buffer):
        raise Corrupt(
            f"index item {number} at {position}: expected {ITEM_SIZE} bytes of a file of "
            f"{len(buffer)}",
            offset=position,
        )
    return TieredIndexItem(*_ITEM.unpack_from(buffer, position))


def slots_view(buffer: Buffer, slots: int) -> npt.NDArray[np.int32]:
    """View the newest item of each slot of an unsealed file, writable if the buffer is."""
    view: npt.NDArray[np.int32] = np.ndarray(
        (slots,), ">i4", buffer=buffer, offset=HEADER_SIZE, strides=(SLOT_SIZE,)
    )
    return view


def items_view(buffer: Buffer, slots: int, count: int) -> npt.NDArray[np.void]:
    """View items 0 (never used) to `count` - 1 of an unsealed file: ITEM_DTYPE[count]."""
    return np.frombuffer(buffer, ITEM_DTYPE, count=count, offset=item_position(slots, 0))


def put_item(
    buffer: bytearray | memoryview,
    slots: int,
    key_hash: int,
    topic_id: int,
    queue_id: int,
    offset: int,
    size: int,
    store_timestamp_ms: int,
) -> IndexHeader:
    """Put one item into an unsealed file; returns the header, which is written as well.

    Raises Invalid when the file is full: a file with room for N items takes N - 1.
    """
    rows = [(key_hash, offset, size, store_timestamp_ms)]
    return put_few_items(buffer, slots, topic_id, queue_id, rows)


def put_few_items(
    buffer: bytearray | memoryview,
    slots: int,
    topic_id: int,
    queue_id: int,
    rows: Sequence[tuple[int, int, int, int]],
) -> IndexHeader:
    """Put items of one queue as `put_item` does, the header once. rows: hash, offset, size and
    store time of each. Raises Invalid, and puts nothing, when there is no room for all."""
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
    """Put columns of n rows (or single values for all): the same bytes as `put_item` for each.

    Raises Invalid, and puts nothing, when there is no room for all.
    """
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


def walk_chain(
    buffer: Buffer, slots: int, key_hash: int, items: int | None = None
) -> Iterator[TieredIndexItem]:
    """Yield the items of a slot of an unsealed file that have that hash, newest first.

    items: how many the file holds (default: what its header says). Ends at a link that does not
    lead to an older item, so a damaged chain is finite.
    """
    newest = unpack_header(buffer).items if items is None else items
    slot = HEADER_SIZE + key_hash % slots * SLOT_SIZE
    if slot + SLOT_SIZE > len(buffer):
        raise Corrupt(f"index slot at {slot}: expected a file of {slots} slots", offset=slot)
    number = _HEAD.unpack_from(buffer, slot)[0]
    limit = newest + 1
    while 0 < number < limit:
        item = unpack_item(buffer, slots, number)
        if item.hash == key_hash:
            yield item
        number, limit = item.previous, number


def compact(
    buffer: Buffer, slots: int, *, block_items: int = 1 << 18, memory_bytes: int = 256 << 20
) -> Iterator[bytes]:
    """Yield the compacted form of an unsealed file, in blocks that follow one another: header,
    slots, then items in blocks of at most `block_items`, newest first within a slot.

    memory_bytes: about what sorting may take. Raises Corrupt when the buffer does not hold the
    items that its header names, Invalid when positions would pass 2^31.
    """
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
