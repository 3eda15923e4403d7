"""Conversion of whole batches to rows. For many messages it is several times faster than
`rows.message_row`, with the same rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise, repeat
from typing import Any

import pyarrow as pa

from tieredstore.scan.arrow.columns import NUMBERS, ArrowColumns, find_compressed_rows
from tieredstore.scan.read.batch import MessageBatch
from tieredstore.scan.rows import BODY_ERROR, COLUMNS, BodyForm, message_row, show_body


def batch_rows(
    batch: MessageBatch, body_form: BodyForm, names: tuple[str, ...] = COLUMNS
) -> Iterator[dict[str, object]]:
    """Yield the rows of all messages of a batch with the given fields, as `message_row` would."""
    if find_compressed_rows(batch).any():
        for message in batch.messages():
            row = message_row(message, batch.queue.broker, body_form)
            yield {name: row[name] for name in (*names, BODY_ERROR) if name in row}
        return
    names = tuple(name for name in names if name != BODY_ERROR)
    columns = ArrowColumns(batch)
    values = [_values(name, batch, columns, body_form) for name in names]
    for row_values in zip(range(len(batch)), *values, strict=False):
        yield dict(zip(names, row_values[1:], strict=True))


def _bodies(batch: MessageBatch, form: BodyForm) -> Iterator[str | bytes | None]:
    starts, lengths = batch.columns.body_offsets.tolist(), batch.columns.body_lengths.tolist()
    for start, length in zip(starts, lengths, strict=True):
        yield show_body(batch.buffer[start : start + length], form)


def _texts(values: pa.Array) -> list[str | None]:
    found: list[str | None] = values.to_numpy(zero_copy_only=False).tolist()
    return found


def _keys(columns: ArrowColumns) -> Iterator[list[Any]]:
    keys = columns.properties.keys()
    texts = _texts(keys.values)
    for start, end in pairwise(keys.offsets.to_numpy().tolist()):
        yield texts[start:end]


def _properties(columns: ArrowColumns) -> Iterator[dict[object, object]]:
    maps = columns.properties.maps()
    names, values = _texts(maps.keys), _texts(maps.items)
    for start, end in pairwise(maps.offsets.to_numpy().tolist()):
        yield dict(zip(names[start:end], values[start:end], strict=True))


_LISTS = {
    **NUMBERS,
    "born_timestamp": "born_timestamps",
    "store_timestamp": "store_timestamps",
    "body_length": "body_lengths",
    "stored_length": "body_lengths",
}
"""Fields whose values are copied unchanged from the records. For each field, its name in
`RecordColumns`."""


def _values(
    name: str, batch: MessageBatch, columns: ArrowColumns, form: BodyForm
) -> Iterable[object]:
    if name in _LISTS:
        found: list[object] = getattr(batch.columns, _LISTS[name]).tolist()
        return found
    match name:
        case "topic" | "broker":
            return repeat(getattr(batch.queue, name))
        case "body":
            return _bodies(batch, form)
        case "keys":
            return _keys(columns)
        case "properties":
            return _properties(columns)
        case _:
            return _texts(columns.column(name))
