"""Small batches joined: of queues with few messages each, a batch a queue costs more than its
rows."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator

import pyarrow as pa

from tieredstore.scan.read.batches import BATCH_BYTES, BATCH_ROWS

_PART = 16
"""A batch of fewer rows and bytes than this part of the most is joined with its neighbours."""


def join_small_batches(
    batches: Iterable[pa.RecordBatch], batch_bytes: int = BATCH_BYTES
) -> Generator[pa.RecordBatch]:
    """Yield the same rows of batches with one schema, in their order; small neighbours as one batch
    of about 8,192 rows and `batch_bytes` at most."""
    small: list[pa.RecordBatch] = []
    rows, size_bytes = 0, 0
    for batch in batches:
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


def _join(batches: list[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    if len(batches) < 2:
        yield from batches
        return
    yield from pa.Table.from_batches(batches).combine_chunks().to_batches()
