"""Joining of small batches, because a batch costs more than its rows."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator

import pyarrow as pa

from tieredstore.scan.read.batches import BATCH_BYTES, BATCH_ROWS

_PART = 16
"""Divisor of the maximum rows and bytes of a batch. Batches that are smaller than the quotients are
joined with their neighbours."""


def join_small_batches(
    batches: Iterable[pa.RecordBatch], batch_bytes: int = BATCH_BYTES
) -> Generator[pa.RecordBatch]:
    """Yield the rows of `batches` in the same order, with small adjacent batches joined into
    batches of up to about 8,192 rows and `batch_bytes`. All batches must have the same schema. If
    `batches` raises an error, the rows before it are yielded first."""
    small: list[pa.RecordBatch] = []
    rows, size_bytes = 0, 0
    errors: list[Exception] = []
    for batch in _until_error(batches, errors):
        is_small = batch.num_rows < BATCH_ROWS // _PART and batch.nbytes < batch_bytes // _PART
        if not is_small or rows >= BATCH_ROWS or size_bytes >= batch_bytes:
            yield from _join(small)
            small, rows, size_bytes = [], 0, 0
        if is_small:
            small.append(batch)
            rows += batch.num_rows
            size_bytes += batch.nbytes
        else:
            yield batch
    yield from _join(small)
    if errors:
        raise errors[0]


def _until_error(
    batches: Iterable[pa.RecordBatch], errors: list[Exception]
) -> Iterator[pa.RecordBatch]:
    """Yield the batches until an error, and append the error to `errors`."""
    try:
        yield from batches
    except Exception as error:
        errors.append(error)


def _join(batches: list[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    if len(batches) < 2:
        yield from batches
        return
    yield from pa.Table.from_batches(batches).combine_chunks().to_batches()
