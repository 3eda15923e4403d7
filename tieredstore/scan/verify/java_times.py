"""Store times as a Java broker reads them."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tieredstore.message.buffers import view_unaligned
from tieredstore.message.layout import STORE_TIMESTAMP_POSITION


def java_store_times(buffer: memoryview, positions: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return int64[n]: what is at byte 56 of each record, where Java's tier looks for the store
    time. For an IPv6 born host that is inside the address (`docs/differences.md`, D14)."""
    longs = view_unaligned(buffer, ">i8")
    return longs[positions + STORE_TIMESTAMP_POSITION].astype(np.int64)
