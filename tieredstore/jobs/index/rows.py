"""Rows of an index, one per key of a message, and their staged form. A staged file has the store
times of all rows (int64 each), then the rows (24 bytes each, the first fields of an item). Both are
in time order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from tieredstore.contracts.segment import SegmentProvider
from tieredstore.jobs.index.staging import StagedFile, Staging, read_staged
from tieredstore.message.index.tiered import COMPACTED_ITEM_DTYPE

ROW_DTYPE: Final = np.dtype(COMPACTED_ITEM_DTYPE.descr[:-1])
_ROW_BYTES: Final = np.dtype((np.void, ROW_DTYPE.itemsize))
TIME_DTYPE: Final = np.dtype("<i8")
BLOCKS: Final = 128
"""Approximate number of blocks of one staged file. Index files are built from blocks."""


class KeyRows(NamedTuple):
    """Index rows, one for each key of a message. `rows`: ROW_DTYPE[n]. `times`: store times of
    their messages, epoch ms, int64[n]."""

    rows: npt.NDArray[np.void]
    times: npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class StagedRows:
    """Staged file of index rows in blocks of `block_rows` rows. `rows`: total number of rows.
    `first_ms`: earliest store time of each block."""

    file: StagedFile
    rows: int
    block_rows: int
    first_ms: tuple[int, ...]


def key_rows(
    hashes: npt.NDArray[np.int32],
    topic_id: int,
    queue_id: int,
    offsets: npt.NDArray[np.int64],
    sizes: npt.NDArray[np.int64],
    times: npt.NDArray[np.int64],
) -> KeyRows:
    """Return rows of one queue. Offsets and sizes are in bytes of its commit log."""
    rows = np.empty(len(hashes), ROW_DTYPE)
    rows["hash"] = hashes
    rows["topic_id"] = topic_id
    rows["queue_id"] = queue_id
    rows["offset"] = offsets
    rows["size"] = sizes
    return KeyRows(rows, times)


def stage_rows(
    staging: Staging,
    provider: SegmentProvider,
    name: str,
    parts: Sequence[KeyRows],
    most_block_rows: int,
) -> StagedRows | None:
    """Write rows in time order. Returns None without rows. Raises Unavailable."""
    count = sum(len(part.times) for part in parts)
    if not count:
        return None
    times = np.concatenate([part.times for part in parts])
    order = np.argsort(times, kind="stable")
    times = times[order]
    # As bytes, since numpy would convert fields to native numbers.
    rows = np.concatenate([part.rows.view(_ROW_BYTES) for part in parts])[order]
    block_rows = max(1, min(-(-count // BLOCKS), most_block_rows))
    blocks = (times.astype(TIME_DTYPE).tobytes(), rows.tobytes())
    file = staging.write(provider, name, blocks)
    return StagedRows(file, count, block_rows, tuple(times[::block_rows].tolist()))


def read_times(
    provider: SegmentProvider, file: StagedFile, first: int, count: int
) -> npt.NDArray[np.int64]:
    """Read the store times of rows [first, first + count) from a staged file (int64, epoch ms).
    Raises Invalid, Unavailable."""
    size = TIME_DTYPE.itemsize
    data = read_staged(provider, file, first * size, count * size)
    return np.frombuffer(data, TIME_DTYPE).astype(np.int64)


def read_rows(
    provider: SegmentProvider, file: StagedFile, rows: int, first: int, count: int
) -> npt.NDArray[np.void]:
    """Read rows [first, first + count) from a staged file, as ROW_DTYPE[count]. `rows`: number of
    rows in the file. Raises Invalid, Unavailable."""
    size = ROW_DTYPE.itemsize
    start = rows * TIME_DTYPE.itemsize + first * size
    return np.frombuffer(read_staged(provider, file, start, count * size), ROW_DTYPE)
