"""Compaction of a tiered index file: sorts its items by slot.

Slot and item are packed into one number, `slot << bits | (last - item)`. A plain sort then gives
ascending slots, with the newest item first in each slot.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
import numpy.typing as npt

from tieredstore.message.index.chains import Int64s

_SCAN_ITEMS: Final = 1 << 20
_KEY_BYTES: Final = 8


def compact_items(
    items: npt.NDArray[np.void],
    slots: int,
    *,
    first_position: int,
    block_items: int,
    memory_bytes: int,
) -> Iterator[bytes]:
    """Yield the slot table and then the items of a compacted file, as blocks of bytes. `items`: of
    the unsealed file from item 1 on, with a field `hash` and the chain link last. `first_position`:
    position of the first item in the new file."""
    counts = _count(items["hash"], slots)
    yield _slot_table(counts, items.dtype.itemsize - 4, first_position)
    rows = _view_without_link(items)
    for order in _orders(items["hash"], slots, counts, memory_bytes):
        for start in range(0, len(order), block_items):
            yield rows[order[start : start + block_items]].tobytes()


def _view_without_link(items: npt.NDArray[np.void]) -> npt.NDArray[np.void]:
    """View the items without their last four bytes (the chain link), as rows of raw bytes."""
    view: npt.NDArray[np.void] = np.ndarray(
        items.shape,
        np.dtype((np.void, items.dtype.itemsize - 4)),
        buffer=items.data if items.flags.c_contiguous and len(items) else b"",
        strides=(items.dtype.itemsize,),
    )
    return view


def _slots_of(hashes: npt.NDArray[np.int32], slots: int) -> Int64s:
    return hashes.astype(np.int64) % slots


def _count(hashes: npt.NDArray[np.int32], slots: int) -> Int64s:
    counts = np.zeros(slots, dtype=np.int64)
    step = max(_SCAN_ITEMS, slots)
    for start in range(0, len(hashes), step):
        counts += np.bincount(_slots_of(hashes[start : start + step], slots), minlength=slots)
    return counts


def _slot_table(counts: Int64s, item_size: int, first_position: int) -> bytes:
    table = np.empty((len(counts), 2), dtype=">i4")
    lengths = counts * item_size
    # An empty slot gets the current position and length 0, as Java writes it.
    table[:, 0] = np.cumsum(lengths) - lengths + first_position
    table[:, 1] = lengths
    return table.tobytes()


def _orders(
    hashes: npt.NDArray[np.int32], slots: int, counts: Int64s, memory_bytes: int
) -> Iterator[Int64s]:
    """Yield the row numbers of the items in the order of the compacted file, one range of slots at
    a time."""
    total = len(hashes)
    if total == 0:
        return
    bits = np.uint64(total.bit_length())
    mask = np.uint64((1 << total.bit_length()) - 1)
    for low, high in _slot_ranges(counts, max(memory_bytes // _KEY_BYTES, 1)):
        keys = np.empty(int(counts[low:high].sum()), dtype=np.uint64)
        filled = 0
        for start in range(0, total, _SCAN_ITEMS):
            ids = _slots_of(hashes[start : start + _SCAN_ITEMS], slots)
            newest_first = np.arange(
                total - 1 - start, total - 1 - start - len(ids), -1, dtype=np.int64
            )
            packed = (ids << int(bits) | newest_first).view(np.uint64)
            if high - low < slots:
                packed = packed[(ids >= low) & (ids < high)]
            keys[filled : filled + len(packed)] = packed
            filled += len(packed)
        keys.sort()
        keys &= mask
        order = keys.view(np.int64)
        np.subtract(total - 1, order, out=order)
        yield order


def _slot_ranges(counts: Int64s, most_items: int) -> Iterator[tuple[int, int]]:
    """Yield consecutive ranges of slots with at most `most_items` items each. A range of one slot
    may have more."""
    ends = np.cumsum(counts)
    low = 0
    while low < len(counts):
        before = int(ends[low - 1]) if low else 0
        high = int(np.searchsorted(ends, before + most_items, side="right"))
        high = max(high, low + 1)
        yield low, high
        low = high
