"""Hash chains of both index files: each item has the number of the previous item of its slot.

Item numbers begin at 1, and 0 ends a chain. A slot holds the number of its newest item.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Int32s = npt.NDArray[np.int32]
Int64s = npt.NDArray[np.int64]


class Links(NamedTuple):
    """Links of a batch of items that are added to an index file.

    `previous`: int32[n], the previous item of each item.
    `slots`: the slots that get items, each once.
    `heads`: newest item of each of these slots after the batch.
    `new_slots`: number of slots that were empty before.
    """

    previous: Int32s
    slots: Int64s
    heads: Int32s
    new_slots: int


def link_items(heads: npt.NDArray[Any], slot_ids: Int64s, first_number: int) -> Links:
    """Compute the links of items `first_number`, `first_number + 1`, … in the slots `slot_ids`
    (int64[n]). `heads`: the newest item of each slot so far, a view of the file that is not changed
    here. The caller writes the items first, then `heads[links.slots] = links.heads`, then the
    header. A head that is not below `first_number`, for example after a crash, is treated as
    empty."""
    count = len(slot_ids)
    if count == 0:
        empty = np.zeros(0, dtype=np.int32)
        return Links(empty, np.zeros(0, dtype=np.int64), empty, 0)
    slots, order = _sort_by_slot(slot_ids)
    ends_run = np.empty(count, dtype=np.bool_)
    ends_run[-1] = True
    np.not_equal(slots[1:], slots[:-1], out=ends_run[:-1])
    starts_run = np.empty(count, dtype=np.bool_)
    starts_run[0] = True
    starts_run[1:] = ends_run[:-1]
    numbers = order + first_number
    ordered = np.empty(count, dtype=np.int64)
    ordered[1:] = numbers[:-1]
    used = slots[starts_run]
    old = heads[used].astype(np.int64)
    old[(old < 0) | (old >= first_number)] = 0
    ordered[starts_run] = old
    previous = np.empty(count, dtype=np.int32)
    previous[order] = ordered
    # One assignment per slot: numpy does not define which of several wins.
    last = numbers[ends_run].astype(np.int32)
    return Links(previous, used, last, int(np.count_nonzero(old == 0)))


def link_previous(heads: npt.NDArray[Any], slot_ids: Int64s, numbers: Int32s) -> Int32s:
    """Return the previous item of each new item: int32[n]. `numbers`: numbers of the new items,
    ascending. `slot_ids`: their slots. `heads`: newest item of each slot before the new ones."""
    previous = np.empty(len(slot_ids), dtype=np.int32)
    if len(slot_ids):
        slots, order = _sort_by_slot(slot_ids)
        ordered = np.empty(len(slot_ids), dtype=np.int32)
        ordered[1:] = numbers[order[:-1]]
        starts_run = np.empty(len(slot_ids), dtype=np.bool_)
        starts_run[0] = True
        np.not_equal(slots[1:], slots[:-1], out=starts_run[1:])
        ordered[starts_run] = heads[slots[starts_run]]
        previous[order] = ordered
    return previous


def _sort_by_slot(slot_ids: Int64s) -> tuple[Int64s, Int64s]:
    """Return the slots in ascending order, and the row of each in `slot_ids`. The sort is
    stable."""
    # Sorting slot and row in one number is several times as fast as a stable argsort.
    bits = len(slot_ids).bit_length()
    keys = slot_ids << bits
    keys |= np.arange(len(slot_ids), dtype=np.int64)
    keys.sort()
    return keys >> bits, keys & ((1 << bits) - 1)
