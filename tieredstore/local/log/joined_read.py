"""Records that lie near each other in the commit log, copied in one piece."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from tieredstore.errors import TieredStoreError

if TYPE_CHECKING:
    from tieredstore.local.log.commit_log import CommitLogReader

MAX_WASTE: Final = 4
"""How many times as many bytes may be copied as were asked for: a copy of what is near costs less
than the calls for each record."""
MAX_JOINED_BYTES: Final = 1 << 20


class JoinedRecords:
    """Bytes of the commit log from an offset on; none when there is nothing to gain."""

    __slots__ = ("_data", "_size", "_start")

    def __init__(self, start: int = 0, data: memoryview | None = None) -> None:
        self._start = start
        self._data = data if data is not None else memoryview(b"")
        self._size = len(self._data)

    def find(self, offset: int, size: int) -> memoryview | None:
        """Return a record's bytes, None when it is not among them."""
        inside = offset - self._start
        if 0 <= inside <= inside + size <= self._size and size:
            return self._data[inside : inside + size]
        return None


NOTHING_JOINED: Final = JoinedRecords()


def read_joined(log: CommitLogReader, units: Sequence[Sequence[int]]) -> JoinedRecords:
    """Read the records of units (physical offset, size, …) in one piece where they lie close by.
    What cannot be read is left to the reader of each record, who says why."""
    if len(units) < 2:
        return NOTHING_JOINED
    start = units[0][0]
    size = units[-1][0] + units[-1][1] - start
    wanted = sum(unit[1] for unit in units)
    if not wanted <= size <= min(MAX_WASTE * wanted, MAX_JOINED_BYTES):
        return NOTHING_JOINED
    try:
        data = log.get(start, size)
    except TieredStoreError:
        return NOTHING_JOINED
    return NOTHING_JOINED if data is None else JoinedRecords(start, data)
