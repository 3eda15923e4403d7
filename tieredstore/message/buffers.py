"""Contiguous buffers: their type, unaligned views, and minimum, maximum and sum of columns."""

from __future__ import annotations

from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

Buffer: TypeAlias = bytes | bytearray | memoryview
"""Contiguous bytes. If it is a memoryview, its format is B."""


def view_unaligned(
    buffer: Buffer, dtype: npt.DTypeLike, *, end: int | None = None
) -> npt.NDArray[Any]:
    """Return a view of a buffer whose element i is the value that starts at byte i (stride 1). It
    can read or write values at any position. The view has elements for all values within [0, end).
    A mapped file cannot be closed as long as a view of it exists."""
    kind = np.dtype(dtype)
    limit = len(buffer) if end is None else end
    count = max(limit - kind.itemsize + 1, 0)
    return np.ndarray((count,), kind, buffer=buffer, strides=(1,))


_FEW_ROWS: Final = 32


def find_least(column: npt.NDArray[Any]) -> int:
    """Return the minimum of at least one integer."""
    return min(column.tolist()) if len(column) < _FEW_ROWS else int(column.min())


def find_greatest(column: npt.NDArray[Any]) -> int:
    """Return the maximum of at least one integer."""
    return max(column.tolist()) if len(column) < _FEW_ROWS else int(column.max())


def add_up(column: npt.NDArray[Any]) -> int:
    """Return the sum of integers, which must fit into 64 bits."""
    return sum(column.tolist()) if len(column) < _FEW_ROWS else int(column.sum())
