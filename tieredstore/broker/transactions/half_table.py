"""HalfTable: which half messages wait for the end of their transaction, in memory.

Two offsets of the group CID_RMQ_SYS_TRANS say what of it is needed again after a restart: the first
half message that waits, and the first op message that names one at or behind it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import NamedTuple


class HalfEntry(NamedTuple):
    """A half message that waits. check_from_ms: when its producer may be asked first; check_times:
    how often it was."""

    physical_offset: int
    store_timestamp_ms: int
    check_from_ms: int
    check_times: int


class HalfTable:
    """Half messages by queue offset."""

    def __init__(self) -> None:
        self.position = 0
        """Up to where the queue of half messages was read."""
        self.op_position = 0
        """The offset behind the last op message."""
        self._waiting: dict[int, HalfEntry] = {}
        self._ended: set[int] = set()
        self._renewed: dict[int, int] = {}
        self._ops: deque[tuple[int, int]] = deque()  # offset, largest half offset in it

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, offset: int, entry: HalfEntry) -> None:
        """Note a half message that was read from its queue."""
        if offset not in self._ended:
            self._waiting[offset] = entry
        self.position = offset + 1

    def list_waiting(self) -> Iterator[tuple[int, HalfEntry]]:
        """Give those that wait, the oldest first; it may change meanwhile."""
        for offset in sorted(self._waiting):
            entry = self._waiting.get(offset)
            if entry is not None:
                yield offset, entry

    def find_latest(self, offset: int) -> int:
        """Return under which offset a half message is now."""
        while (renewed := self._renewed.get(offset)) is not None:
            offset = renewed
        return offset

    def has_ended(self, offset: int) -> bool:
        """Tell whether the transaction of a half message is over."""
        return offset in self._ended or (offset < self.position and offset not in self._waiting)

    def end(self, offset: int) -> None:
        """Note that a transaction is over."""
        self._ended.add(offset)
        self._waiting.pop(offset, None)

    def renew(self, offset: int, new_offset: int) -> None:
        """Note that a half message was put again, behind the others."""
        self._renewed[offset] = new_offset
        self.end(offset)

    def add_op(self, op_offset: int, largest_half_offset: int) -> None:
        """Note an op message."""
        self._ops.append((op_offset, largest_half_offset))
        self.op_position = op_offset + 1

    def find_offsets(self) -> tuple[int, int]:
        """Return from where on half and op messages are needed again, and forget what is not."""
        first = min(self._waiting, default=self.position)
        while self._ops and self._ops[0][1] < first:
            self._ops.popleft()
        self._ended = {offset for offset in self._ended if offset >= first}
        self._renewed = {
            offset: new for offset, new in self._renewed.items() if self.find_latest(new) >= first
        }
        return first, self._ops[0][0] if self._ops else self.op_position
