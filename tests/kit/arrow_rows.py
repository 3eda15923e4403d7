"""Rows of record batches, and the rows expected for a message."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from tieredstore.message.record import StoredMessage
from tieredstore.scan.rows import BodyForm, message_row

TIMES = ("born_timestamp", "store_timestamp")
MOST_MS = (2**63 - 1) // 1000


def stored_row(message: StoredMessage, broker: str) -> dict[str, Any]:
    """Return the row that a record batch must have for a message."""
    row = dict(message_row(message, broker, BodyForm.NONE))
    row["body"] = bytes(message.decode_body())
    row["body_error"] = None
    for name in TIMES:
        time: Any = row[name]
        row[name] = time * 1000 if abs(time) <= MOST_MS else None
    return row


def rows_of(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    """Return the rows of record batches, with times in µs and properties as dicts. Derived columns
    are left out."""
    columns = {}
    for name in batch.schema.names:
        column = batch.column(name)
        if pa.types.is_timestamp(column.type):
            column = column.cast(pa.int64())
        values = column.to_pylist()
        columns[name] = [dict(pairs) for pairs in values] if name == "properties" else values
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
