"""Putting uploaded messages into the key index, and putting again what a crash kept from it (D21).

The index knows for each queue up to which commit log offset its keys are in (`find_indexed_end`).
That mark is on disk before a queue gets its first byte from us, so what lies above it after a
crash is exactly what has to be put again; it is read back from the tier.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from tieredstore.errors import Corrupt, TieredStoreError
from tieredstore.message.columns import records as columns
from tieredstore.message.columns.keys import key_hashes
from tieredstore.tier.flat.batch import RecordBatch
from tieredstore.tier.flat.message_file import FlatMessageFile
from tieredstore.tier.reading import run

_UNITS_AT_ONCE = 4096
_READ_BYTES = 16 << 20
_log = logging.getLogger(__name__)


class KeyIndex(Protocol):
    """What the dispatcher needs of the index service."""

    def put_hashes(
        self,
        topic_id: int,
        queue_id: int,
        hashes: npt.NDArray[np.int32],
        offsets: npt.NDArray[np.int64],
        sizes: npt.NDArray[np.int32],
        store_timestamps: npt.NDArray[np.int64],
        indexed_until: int,
    ) -> int: ...

    def mark_indexed(self, topic_id: int, queue_id: int, commit_log_offset: int) -> None: ...

    def find_indexed_end(self, topic_id: int, queue_id: int) -> int | None: ...

    def checkpoint(self) -> None: ...

    def check_takes_keys(self) -> None:
        """Raise Unavailable or Invalid while keys that are put would be refused."""
        ...


def mark_first(index: KeyIndex, files: Iterable[FlatMessageFile]) -> None:
    """Set the mark of queues that this index never saw to what the tier has of them (whoever
    wrote it has indexed it), on disk when the call returns."""
    unknown = [
        file for file in files if index.find_indexed_end(file.topic_id, file.queue_id) is None
    ]
    for file in unknown:
        index.mark_indexed(file.topic_id, file.queue_id, file.commit_log_commit_offset)
    if unknown:
        index.checkpoint()


def put_batch(index: KeyIndex, file: FlatMessageFile, batch: RecordBatch) -> None:
    """Index the messages of a committed batch."""
    if batch.count:
        _put_rows(
            index,
            file,
            batch.buffer,
            batch.starts,
            batch.offsets,
            batch.sizes,
            batch.store_timestamps,
        )


def takes_keys(index: KeyIndex) -> bool:
    """Tell whether keys would be taken, as far as the index knows."""
    try:
        index.check_takes_keys()
    except TieredStoreError:
        return False
    return True


def put_missing(index: KeyIndex, file: FlatMessageFile, max_bytes: int) -> bool:
    """Index committed messages above the queue's mark, from the tier, up to about `max_bytes`.
    Returns whether all is indexed now. Raises as `read_missing`, and what the index raises."""
    left = max_bytes
    while left > 0:
        found = read_missing(index, file)
        if found is None:
            return True
        put_found(index, file, found)
        left -= len(found.buffer)
    return False


def read_missing(index: KeyIndex, file: FlatMessageFile) -> Found | None:
    """Read the next committed messages above the queue's mark back from the tier, up to about
    16 MiB; None when all is indexed.

    Where bytes are lost, what lies above the mark is left out, for `rebuild index` to put as far as
    it can be read: new keys go on. Raises Unavailable.
    """
    mark = index.find_indexed_end(file.topic_id, file.queue_id)
    if mark is not None and mark >= file.commit_log_commit_offset:
        return None  # as of nearly all queues after a start: nothing is read to find that out
    start = max(mark if mark is not None else 0, file.commit_log_min_offset)
    try:
        offset = run(file.offset_of_position(start))
        if offset is not None:
            return _read_from_tier(file, offset)
    except Corrupt as error:
        _log.error(
            "%s: the keys behind commit log offset %d are not indexed: %s",
            file.path,
            start,
            error,
        )
    if mark is None or mark < file.commit_log_commit_offset:
        index.mark_indexed(file.topic_id, file.queue_id, file.commit_log_commit_offset)
    return None


def put_found(index: KeyIndex, file: FlatMessageFile, found: Found) -> None:
    """Index messages that were read back. Raises what the index raises."""
    _put_rows(index, file, *found)


class Found(NamedTuple):
    """Messages read back: their starts in the buffer, places in the commit log, sizes, times."""

    buffer: memoryview
    starts: npt.NDArray[np.int64]
    offsets: npt.NDArray[np.int64]
    sizes: npt.NDArray[np.int64]
    times: npt.NDArray[np.int64]


def _read_from_tier(file: FlatMessageFile, offset: int) -> Found:
    units = run(file.read_units(offset, _UNITS_AT_ONCE))
    positions = units["physical_offset"].astype(np.int64)
    sizes = units["size"].astype(np.int64)
    first = int(positions[0])
    count = max(int(np.searchsorted(positions + sizes, first + _READ_BYTES, side="right")), 1)
    positions, sizes = positions[:count], sizes[:count]
    behind = int(positions[-1] + sizes[-1])
    data = run(file.read_commit_log_as_found(first, behind - first))
    if len(data) < behind - first:
        raise Corrupt(
            f"{file.path}: the commit log ends {behind - first - len(data)} bytes before the "
            f"message of queue offset {offset + count - 1}",
            offset=offset,
            path=file.path,
        )
    starts = positions - first
    return Found(data, starts, positions, sizes, columns.store_timestamps(data, starts))


def _put_rows(
    index: KeyIndex,
    file: FlatMessageFile,
    buffer: bytearray | memoryview,
    starts: npt.NDArray[np.int64],
    offsets: npt.NDArray[np.int64],
    sizes: npt.NDArray[np.int64],
    times: npt.NDArray[np.int64],
) -> None:
    rows, hashes = _find_hashes(buffer, starts, file)
    index.put_hashes(
        file.topic_id,
        file.queue_id,
        hashes,
        offsets[rows],
        sizes[rows].astype(np.int32),
        times[rows],
        int(offsets[-1] + sizes[-1]),
    )


def _find_hashes(
    buffer: bytearray | memoryview, starts: npt.NDArray[np.int64], file: FlatMessageFile
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int32]]:
    """Hashes of the keys of the messages at `starts`; a message that cannot be decoded has none."""
    try:
        return key_hashes(buffer, starts, file.topic)
    except Corrupt as error:
        _log.warning("%s: %s; its keys are not indexed", file.path, error)
    rows: list[int] = []
    hashes: list[int] = []
    for row in range(len(starts)):
        try:
            _, found = key_hashes(buffer, starts[row : row + 1], file.topic)
        except Corrupt:
            continue
        rows += [row] * len(found)
        hashes += found.tolist()
    return np.array(rows, dtype=np.int64), np.array(hashes, dtype=np.int32)
