"""Messages to dispatch, as columns."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tieredstore.local.put.rows import ROW_FIELDS, Rows
from tieredstore.message.columns.records import HEADER_DTYPE

Int64s = npt.NDArray[np.int64]


class RowColumns(NamedTuple):
    """Messages to dispatch, one a row: queue number or SPECIAL, physical offset, size, store time,
    queue offset, properties."""

    numbers: Int64s
    offsets: Int64s
    sizes: Int64s
    timestamps: Int64s
    queue_offsets: Int64s
    properties: list[bytes]

    def select(self, first: int, stop: int) -> RowColumns:
        """Return the rows [first, stop)."""
        return RowColumns(*[column[first:stop] for column in self])  # type: ignore[arg-type]


def read_rows(rows: Rows) -> RowColumns:
    """Read rows of the put path: their heads as one buffer."""
    numbers: Any = rows[0::ROW_FIELDS]
    joined: Any = rows[1::ROW_FIELDS]
    properties: Any = rows[2::ROW_FIELDS]
    heads = np.frombuffer(b"".join(joined), dtype=HEADER_DTYPE)
    return RowColumns(
        np.array(numbers, dtype=np.int64),
        heads["physical_offset"].astype(np.int64),
        heads["size"].astype(np.int64),
        heads["store_timestamp"].astype(np.int64),
        heads["queue_offset"].astype(np.int64),
        properties,
    )
