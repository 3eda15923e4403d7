"""Queue offsets by store time.

Store times grow along a queue, so a binary search finds them. LOWER is the first message at or
after the time, UPPER the last at or before it. Where there is none, LOWER is the end of the queue
(max offset) and UPPER its beginning (min offset), as in Java.
"""

from __future__ import annotations

from collections.abc import Callable

from tieredstore.contracts.message_store import BoundaryType


def offset_by_time(
    store_time: Callable[[int], int],
    min_offset: int,
    max_offset: int,
    timestamp_ms: int,
    boundary: BoundaryType,
) -> int:
    """Find the offset in [min_offset, max_offset) for a time.

    store_time: epoch ms of the message at an offset in [min_offset, max_offset); a message that is
    not there any more has -1 and counts as older than all others.
    """
    upper = boundary is BoundaryType.UPPER
    low, high = min_offset, max_offset
    while low < high:
        middle = (low + high) // 2
        time = store_time(middle)
        if time <= timestamp_ms if upper else time < timestamp_ms:
            low = middle + 1
        else:
            high = middle
    # low is the first message that is later (UPPER), or at or after the time (LOWER).
    return max(low - 1, min_offset) if upper else low
