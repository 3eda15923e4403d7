"""Making slots and chains of a local index file right again after a crash.

Items are the truth, chains follow from their order: a slot's head is its last item, an item's
previous one is the item before it in the same slot. Items of which a lost page took a part have no
size or another hash; the former are left out, the latter are found by nobody.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tieredstore.message.tiered_index import link_previous

_BLOCK_ITEMS = 1 << 20


def valid_items(items: npt.NDArray[np.void]) -> npt.NDArray[np.bool_]:
    """Which items can be real: a message has bytes, a stored hash is not negative."""
    valid: npt.NDArray[np.bool_] = (items["size"] > 0) & (items["hash"] >= 0)
    return valid


def relink(
    heads: npt.NDArray[np.int32],
    items: npt.NDArray[np.void],
    count: int,
    trusted: int,
) -> int:
    """Rebuild slot heads for items 1 to `count`, and chains for those above `trusted`.

    heads: the slots' item numbers, items: by item number, both views of the file; only what
    differs is written. Returns the number of slots in use.
    """
    slots = len(heads)
    right = np.zeros(slots, dtype=np.int32)
    for start in range(1, count + 1, _BLOCK_ITEMS):
        stop = min(start + _BLOCK_ITEMS, count + 1)
        block = items[start:stop]
        rows = np.flatnonzero(valid_items(block))
        numbers = (rows + start).astype(np.int32)
        slot_ids = block["hash"][rows].astype(np.int64) % slots
        if stop > trusted:
            previous = link_previous(right, slot_ids, numbers)
            stored = block["previous"][rows]
            wrong = (stored != previous) & (numbers > trusted)
            block["previous"][rows[wrong]] = previous[wrong]
        np.maximum.at(right, slot_ids, numbers)
    wrong_slots = np.flatnonzero(heads != right)
    heads[wrong_slots] = right[wrong_slots]
    return int(np.count_nonzero(right))
