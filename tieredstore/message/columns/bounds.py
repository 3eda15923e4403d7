"""The least, the greatest and the sum of a column, which of a few rows a list tells five times as
soon as an array."""

from __future__ import annotations

from typing import Any, Final

import numpy.typing as npt

_FEW_ROWS: Final = 32


def find_least(column: npt.NDArray[Any]) -> int:
    """Find the least of some integers, one at least."""
    return min(column.tolist()) if len(column) < _FEW_ROWS else int(column.min())


def find_greatest(column: npt.NDArray[Any]) -> int:
    """Find the greatest of some integers, one at least."""
    return max(column.tolist()) if len(column) < _FEW_ROWS else int(column.max())


def add_up(column: npt.NDArray[Any]) -> int:
    """Add integers up, of which the sum has 64 bits at most."""
    return sum(column.tolist()) if len(column) < _FEW_ROWS else int(column.sum())
