"""What the functions of this package read from, and unaligned views over it."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Buffer: TypeAlias = bytes | bytearray | memoryview
"""Contiguous bytes; a memoryview has format B."""


def view_unaligned(
    buffer: Buffer, dtype: npt.DTypeLike, *, end: int | None = None
) -> npt.NDArray[Any]:
    """View a buffer so that element i is the value that starts at byte i (stride 1), for gathers
    and scatters at any position. Element numbers run while the value ends within [0, end).

    The view keeps the buffer exported: drop it before a mapped file is closed.
    """
    kind = np.dtype(dtype)
    limit = len(buffer) if end is None else end
    count = max(limit - kind.itemsize + 1, 0)
    return np.ndarray((count,), kind, buffer=buffer, strides=(1,))
