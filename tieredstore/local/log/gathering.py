"""Copying records that lie apart in a commit log file into one buffer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from tieredstore.contracts.segment import Buffer
from tieredstore.message.columns.bounds import add_up, find_greatest, find_least
from tieredstore.message.core import IS_COMPILED

if IS_COMPILED:
    from tieredstore.message import _core

Run = tuple[int, int]
"""Bytes [start, end) of the commit log."""

MAX_GAP_BYTES: Final = 16 << 10
"""Runs with less than this between them are read at once: it costs less than a read of each."""

_EDGE: Final = np.ones(1, np.bool_)


class Runs(NamedTuple):
    """Runs of one file, one at least, in the order in which they are wanted: int64[n] each, of
    which there may be one for each message. begin, end: of all; size_bytes: of them together."""

    starts: npt.NDArray[np.int64]
    ends: npt.NDArray[np.int64]
    begin: int
    end: int
    size_bytes: int

    @classmethod
    def of(cls, starts: npt.NDArray[np.int64], ends: npt.NDArray[np.int64]) -> Self:
        """Make them from where each starts and ends."""
        return cls(
            np.ascontiguousarray(starts),
            np.ascontiguousarray(ends),
            find_least(starts),
            find_greatest(ends),
            add_up(ends - starts),
        )

    @property
    def breaks(self) -> npt.NDArray[np.bool_]:
        """Which of them, but for the last, do not end where the next one starts: bool[n - 1]."""
        breaks: npt.NDArray[np.bool_] = self.starts[1:] != self.ends[:-1]
        return breaks

    def list_spans(self) -> list[Run]:
        """List where they start and end, those that touch each other as one."""
        breaks = self.breaks
        starts = self.starts[np.concatenate((_EDGE, breaks))]
        ends = self.ends[np.concatenate((breaks, _EDGE))]
        return list(zip(starts.tolist(), ends.tolist(), strict=True))


def copy_runs(view: memoryview, base: int, runs: Runs) -> bytearray:
    """Copy runs, one behind the other, out of a view of the log's bytes from `base` on."""
    if IS_COMPILED:
        copied = _core.copy_runs(view, base, runs.starts, runs.ends)
        if copied is not None:
            return copied
    return bytearray().join([view[start - base : end - base] for start, end in runs.list_spans()])


def gather_runs(runs: Sequence[Run], read: Callable[[int, int], Buffer | None]) -> bytearray | None:
    """Read runs that follow one another and copy them, one behind the other.

    read: returns the bytes of (offset, size), None when they are not there; what lies between near
    runs is read with them. Returns None when `read` does.
    """
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
