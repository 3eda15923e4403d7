"""TimerSlots: which messages of the timer topic are due when, in memory."""

from __future__ import annotations

import heapq
from array import array


class TimerSlots:
    """Queue offsets by slot, a time in epoch ms; 8 bytes a message beside what a slot takes."""

    def __init__(self) -> None:
        self._slots: dict[int, array[int]] = {}
        self._times: list[int] = []
        self._recalled: dict[int, set[str]] = {}

    def __len__(self) -> int:
        return sum(len(offsets) for offsets in self._slots.values())

    def add(self, slot_ms: int, offset: int) -> None:
        """Note a message; those of one slot come with rising offsets."""
        offsets = self._slots.get(slot_ms)
        if offsets is None:
            offsets = self._slots[slot_ms] = array("q")
            heapq.heappush(self._times, slot_ms)
        offsets.append(offset)

    def add_recall(self, slot_ms: int, key: str) -> None:
        """Note that a message of a slot is not to be delivered."""
        self._recalled.setdefault(slot_ms, set()).add(key)

    def is_recalled(self, slot_ms: int, key: str) -> bool:
        """Tell whether a message of a slot is not to be delivered."""
        return key in self._recalled.get(slot_ms, ())

    def find_first(self) -> tuple[int, array[int]] | None:
        """Return the earliest slot and its offsets; None when there is none."""
        return (self._times[0], self._slots[self._times[0]]) if self._times else None

    def remove(self, slot_ms: int) -> None:
        """Forget the earliest slot, which is this one."""
        earliest_ms = heapq.heappop(self._times)
        assert earliest_ms == slot_ms, (earliest_ms, slot_ms)
        del self._slots[slot_ms]
        self._recalled.pop(slot_ms, None)

    def find_lowest_offset(self, until_ms: int | None = None) -> int | None:
        """Return the lowest offset of all slots, or of those up to a time; None without any."""
        if until_ms is not None and not (self._times and self._times[0] <= until_ms):
            return None
        return min(
            (
                offsets[0]
                for slot_ms, offsets in self._slots.items()
                if until_ms is None or slot_ms <= until_ms
            ),
            default=None,
        )
