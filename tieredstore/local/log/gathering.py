"""Copies several records of the commit log at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from tieredstore.contracts.segment import Buffer
from tieredstore.errors import TieredStoreError
from tieredstore.message.buffers import add_up, find_greatest, find_least
from tieredstore.message.core import IS_COMPILED

if TYPE_CHECKING:
    from tieredstore.local.log.commit_log import CommitLogReader

if IS_COMPILED:
    from tieredstore.message import _core

Run = tuple[int, int]
"""Bytes [start, end) of the commit log that are read together."""

MAX_GAP_BYTES: Final = 16 << 10
"""Maximum gap (bytes) between two byte ranges that are read together. Reading such a gap is cheaper
than a second read."""

_EDGE: Final = np.ones(1, np.bool_)


class Runs(NamedTuple):
    """One or more byte ranges ("runs") in one file of the commit log, in the requested order. No
    two contain the same message.

    `starts`, `ends`: int64[n].
    `begin`, `end`: range that contains all runs.
    `size_bytes`: total size of the runs.
    """

    starts: npt.NDArray[np.int64]
    ends: npt.NDArray[np.int64]
    begin: int
    end: int
    size_bytes: int

    @classmethod
    def of(cls, starts: npt.NDArray[np.int64], ends: npt.NDArray[np.int64]) -> Self:
        """Create runs from their start and end positions."""
        return cls(
            np.ascontiguousarray(starts),
            np.ascontiguousarray(ends),
            find_least(starts),
            find_greatest(ends),
            add_up(ends - starts),
        )

    @property
    def breaks(self) -> npt.NDArray[np.bool_]:
        """Return whether a gap follows each run except the last: bool[n - 1]."""
        breaks: npt.NDArray[np.bool_] = self.starts[1:] != self.ends[:-1]
        return breaks

    def list_spans(self) -> list[Run]:
        """Return the starts and ends of the runs. Adjacent runs are merged."""
        breaks = self.breaks
        starts = self.starts[np.concatenate((_EDGE, breaks))]
        ends = self.ends[np.concatenate((breaks, _EDGE))]
        return list(zip(starts.tolist(), ends.tolist(), strict=True))


def copy_runs(view: memoryview, base: int, runs: Runs) -> bytearray:
    """Copy runs from a view of the log, in order. `base`: offset of the view's first byte."""
    if IS_COMPILED:
        copied = _core.copy_runs(view, base, runs.starts, runs.ends)
        if copied is not None:
            return copied
    return bytearray().join([view[start - base : end - base] for start, end in runs.list_spans()])


def gather_runs(runs: Sequence[Run], read: Callable[[int, int], Buffer | None]) -> bytearray | None:
    """Read runs and copy them in order. Runs with small gaps between them are read together.
    `read`: returns the bytes at (offset, size), or None if they do not exist. Returns None if
    `read` does."""
    pieces: list[memoryview] = []
    first = 0
    while first < len(runs):
        stop = first + 1
        while stop < len(runs) and 0 <= runs[stop][0] - runs[stop - 1][1] <= MAX_GAP_BYTES:
            stop += 1
        begin = runs[first][0]
        span = read(begin, runs[stop - 1][1] - begin)
        if span is None:
            return None
        view = memoryview(span)
        pieces += [view[start - begin : end - begin] for start, end in runs[first:stop]]
        first = stop
    return bytearray().join(pieces)


MAX_WASTE: Final = 4
"""Maximum number of copied bytes per requested byte. Copying some unneeded bytes is cheaper than
one call per record."""
MAX_JOINED_BYTES: Final = 1 << 20


class JoinedRecords:
    """Bytes of the commit log that were read at once for several records. Empty if separate reads
    are cheaper."""

    __slots__ = ("_data", "_size", "_start")

    def __init__(self, start: int = 0, data: memoryview | None = None) -> None:
        self._start = start
        self._data = data if data is not None else memoryview(b"")
        self._size = len(self._data)

    def find(self, offset: int, size: int) -> memoryview | None:
        """Return the bytes of the record at a commit log offset, or None if they do not include all
        of it."""
        inside = offset - self._start
        if 0 <= inside <= inside + size <= self._size and size:
            return self._data[inside : inside + size]
        return None


NOTHING_JOINED: Final = JoinedRecords()


def read_joined(log: CommitLogReader, units: Sequence[Sequence[int]]) -> JoinedRecords:
    """Read the records of units (physical offset, size, …) at once if they are close together.
    Unreadable records are omitted. A later read of the single record then reports the error."""
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
