"""Rows of whole batches, made column by column: for many messages several times faster than
`rows.message_row`, with the same rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise, repeat
from typing import Any

import pyarrow as pa

from tieredstore.scan.arrow.columns import ArrowColumns, find_compressed_rows
from tieredstore.scan.read.batch import MessageBatch
from tieredstore.scan.rows import COLUMNS, BodyForm, message_row, show_body


def batch_rows(
    batch: MessageBatch, body_form: BodyForm, names: tuple[str, ...] = COLUMNS
) -> Iterator[dict[str, object]]:
    """Yield the rows of all messages of a batch, with these fields of `rows.COLUMNS`. Raises as
    `message_row` does."""
    if find_compressed_rows(batch).any():
        for message in batch.messages():
            row = message_row(message, batch.queue.broker, body_form)
            yield {name: row[name] for name in names}
        return
    columns = ArrowColumns(batch)
    values = [_VALUES[name](batch, columns, body_form) for name in names]
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
    keys = columns.keys()
    texts = _texts(keys.values)
    for start, end in pairwise(keys.offsets.to_numpy().tolist()):
        yield texts[start:end]


def _properties(columns: ArrowColumns) -> Iterator[dict[Any, Any]]:
    maps = columns.properties_map()
    names, values = _texts(maps.keys), _texts(maps.items)
    for start, end in pairwise(maps.offsets.to_numpy().tolist()):
        yield dict(zip(names[start:end], values[start:end], strict=True))


_Values = Callable[[MessageBatch, ArrowColumns, BodyForm], Iterable[object]]


def _number(attribute: str) -> _Values:
    return lambda batch, _columns, _form: getattr(batch.columns, attribute).tolist()


def _text(name: str) -> _Values:
    return lambda _batch, columns, _form: _texts(columns.column(name))


_VALUES: dict[str, _Values] = {
    "topic": lambda batch, _columns, _form: repeat(batch.queue.topic),
    "queue_id": _number("queue_ids"),
    "queue_offset": _number("queue_offsets"),
    "msg_id": _text("msg_id"),
    "offset_msg_id": _text("offset_msg_id"),
    "keys": lambda _batch, columns, _form: _keys(columns),
    "tags": _text("tags"),
    "born_timestamp": _number("born_timestamps"),
    "store_timestamp": _number("store_timestamps"),
    "body": lambda batch, _columns, form: _bodies(batch, form),
    "body_length": _number("body_lengths"),
    "properties": lambda _batch, columns, _form: _properties(columns),
    "stored_length": _number("body_lengths"),
    "body_crc": _number("body_crcs"),
    "broker": lambda batch, _columns, _form: repeat(batch.queue.broker),
    "physical_offset": _number("physical_offsets"),
    "sys_flag": _number("sys_flags"),
    "flag": _number("flags"),
    "reconsume_times": _number("reconsume_times"),
    "born_host": _text("born_host"),
    "store_host": _text("store_host"),
}
