"""Making slots and chains of a local index file right again after a crash.

Items are the truth, chains follow from their order: a slot's head is its last item, an item's
previous one is the item before it in the same slot. Items of which a lost page took a part have no
size or another hash; the former are left out, the latter are found by nobody.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tieredstore.message.index.tiered import link_previous

_BLOCK_ITEMS = 1 << 20


def valid_items(items: npt.NDArray[np.void]) -> npt.NDArray[np.bool_]:
    """Find which items can be real: a message has bytes, a stored hash is not negative."""
    valid: npt.NDArray[np.bool_] = (items["size"] > 0) & (items["hash"] >= 0)
    return valid


def relink(
    heads: npt.NDArray[np.int32],
    items: npt.NDArray[np.void],
    count: int,
    trusted: int,
) -> int:
    """Rebuild slot heads and chains for items above `trusted`, up to `count`.

    heads: the slots' item numbers, items: by item number, both views of the file; only what
    differs is written. Items up to `trusted` and their links are on disk, so a head that names one
    of them is right: had it been newer, it would name a newer one. Returns the number of slots in
    use.
    """
    right = heads.astype(np.int32)
    unsure = (right > trusted) | (right < 0)
    right[unsure] = 0
    if trusted and unsure.any():
        _find_heads(right, unsure, items, trusted)
    for start in range(trusted + 1, count + 1, _BLOCK_ITEMS):
        block = items[start : min(start + _BLOCK_ITEMS, count + 1)]
        rows = np.flatnonzero(valid_items(block))
        numbers = (rows + start).astype(np.int32)
        slot_ids = block["hash"][rows].astype(np.int64) % len(right)
        previous = link_previous(right, slot_ids, numbers)
        wrong = block["previous"][rows] != previous
        block["previous"][rows[wrong]] = previous[wrong]
        np.maximum.at(right, slot_ids, numbers)
    wrong_slots = np.flatnonzero(heads != right)
    heads[wrong_slots] = right[wrong_slots]
    return int(np.count_nonzero(right))


def _find_heads(
    right: npt.NDArray[np.int32],
    unsure: npt.NDArray[np.bool_],
    items: npt.NDArray[np.void],
    last: int,
) -> None:
    """Set the heads of some slots to their newest item among 1 to `last`."""
    for start in range(1, last + 1, _BLOCK_ITEMS):
        block = items[start : min(start + _BLOCK_ITEMS, last + 1)]
        slot_ids = block["hash"].astype(np.int64) % len(right)
        rows = np.flatnonzero(unsure[slot_ids] & valid_items(block))
        np.maximum.at(right, slot_ids[rows], (rows + start).astype(np.int32))
