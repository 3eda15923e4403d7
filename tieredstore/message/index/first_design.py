"""Unsealed index files of RocketMQ 5.1 and 5.2 (`docs/formats/tiered-index.md`).

File `0000` accepts items, and file `1111` is full. Items are numbered from 0. The last 4 bytes show
whether a file is full. Times are in milliseconds, and wrong for messages of IPv6 hosts.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from tieredstore.message.buffers import Buffer
from tieredstore.message.index.tiered import (
    HEADER_SIZE,
    ITEM_DTYPE,
    ITEM_SIZE,
    SLOT_SIZE,
    TRAILER_SIZE,
)

FIRST_DESIGN_NAMES: Final = ("0000", "1111")
UNKNOWN_TIME: Final = -(10 * 366 * 86_400 + 1)
"""Time of an item whose real time is unknown, in seconds from the beginning of its file. The value
is outside the range of any query. The wrong times of IPv6 hosts cannot be recognised."""
_SIZED_HEADER: Final = 40
"""Size of the header (bytes) by which Java computes the size of such a file. The slots begin
earlier, at HEADER_SIZE."""


def first_design_size(slots: int, max_items: int) -> int:
    """Return the size in bytes of a file for items numbered 0 to `max_items` - 1."""
    return _SIZED_HEADER + slots * SLOT_SIZE + max_items * ITEM_SIZE + TRAILER_SIZE


def view_first_design_items(buffer: Buffer, slots: int, count: int) -> npt.NDArray[np.void]:
    """View items 0 to `count` - 1: ITEM_DTYPE[count], with milliseconds in `time_diff_seconds`."""
    return np.frombuffer(buffer, ITEM_DTYPE, count=count, offset=HEADER_SIZE + slots * SLOT_SIZE)
