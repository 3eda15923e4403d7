"""Indexes the keys of uploaded messages, including keys that the index lacks after a crash. The
index has a watermark for each queue: the commit log offset below which its keys are in the index
(`find_indexed_end`). The watermark is on disk before the first byte of a queue is written. After a
crash, the messages above it are read back from the tier and indexed again."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from tieredstore.clock import Clock
from tieredstore.errors import Corrupt, TieredStoreError, Unavailable
from tieredstore.message.columns import records as columns
from tieredstore.message.columns.keys import key_hashes
from tieredstore.metrics import Metrics
from tieredstore.tier.flat.batch import RecordBatch
from tieredstore.tier.flat.message_file import FlatMessageFile
from tieredstore.tier.reading import run
from tieredstore.tier.upload.outcome import Backoff, QueueState

REINDEX_BYTES = 64 << 20
"""Maximum number of bytes that one upload round reads back from the tier for the index."""
INDEX_FAILURES_METRIC = "rocketmq_tiered_store_x_index_failures_total"
_UNITS_AT_ONCE = 4096
_READ_BYTES = 16 << 20
_log = logging.getLogger(__name__)


class KeyIndex(Protocol):
    """Methods of the index service that uploads call."""

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
        """Raise Unavailable or Invalid if the index currently rejects keys."""


def mark_first(index: KeyIndex, files: Iterable[FlatMessageFile]) -> None:
    """Set the watermarks of queues that are new to this index to the ends of their messages in the
    tier. The writer of those messages has already indexed them. The watermarks are on disk on
    return."""
    unknown = [
        file for file in files if index.find_indexed_end(file.topic_id, file.queue_id) is None
    ]
    for file in unknown:
        index.mark_indexed(file.topic_id, file.queue_id, file.commit_log_commit_offset)
    if unknown:
        index.checkpoint()


def put_batch(index: KeyIndex, file: FlatMessageFile, batch: RecordBatch) -> None:
    """Index the messages of a committed batch. Raises the errors of the index."""
    if batch.count:
        rows, hashes = _find_hashes(batch.buffer, batch.starts, file)
        index.put_hashes(
            *(file.topic_id, file.queue_id, hashes),
            *(batch.offsets[rows], batch.sizes[rows].astype(np.int32)),
            batch.store_timestamps[rows],
            int(batch.offsets[-1] + batch.sizes[-1]),
        )


def put_missing(index: KeyIndex, file: FlatMessageFile, max_bytes: int) -> bool:
    """Index committed messages above the queue's watermark, reading about `max_bytes` from the
    tier. Returns whether all messages are indexed. Raises the errors of `read_missing` and of the
    index."""
    left = max_bytes
    while left > 0:
        batch = read_missing(index, file)
        if batch is None:
            return True
        put_batch(index, file, batch)
        left -= len(batch.buffer)
    return False


def read_missing(index: KeyIndex, file: FlatMessageFile) -> RecordBatch | None:
    """Read the next committed messages above the queue's watermark from the tier (about 16 MiB).
    Returns None if all messages are indexed. If bytes are lost, the watermark is moved to the end,
    so that new keys can be indexed. `rebuild index` can index the skipped messages later. Raises
    Unavailable."""
    mark = index.find_indexed_end(file.topic_id, file.queue_id)
    if mark is not None and mark >= file.commit_log_commit_offset:
        return None  # true for nearly all queues after startup, without a read
    start = max(mark if mark is not None else 0, file.commit_log_min_offset)
    try:
        offset = run(file.offset_of_position(start))
        if offset is not None:
            return read_batch(file, offset, _UNITS_AT_ONCE, _READ_BYTES, as_found=True)
    except Corrupt as error:
        _log.error(
            "%s: the keys behind commit log offset %d are not indexed: %s", file.path, start, error
        )
    if mark is None or mark < file.commit_log_commit_offset:
        index.mark_indexed(file.topic_id, file.queue_id, file.commit_log_commit_offset)
    return None


def read_batch(
    file: FlatMessageFile, offset: int, most_units: int, most_bytes: int, *, as_found: bool = False
) -> RecordBatch:
    """Read at least one committed message from the tier. `as_found`: whether to return the bytes of
    damaged blocks unchanged. Raises Corrupt, Unavailable."""
    units = run(file.read_units(offset, most_units))
    if not len(units):
        raise Corrupt(f"{file.path}: no unit at queue offset {offset}", path=file.path)
    positions = units["physical_offset"].astype(np.int64)
    sizes = units["size"].astype(np.int64)
    first = int(positions[0])
    count = max(int(np.searchsorted(positions + sizes, first + most_bytes, side="right")), 1)
    positions, sizes = positions[:count], sizes[:count]
    behind = int(positions[-1] + sizes[-1])
    read = file.read_commit_log_as_found if as_found else file.read_commit_log
    data = run(read(first, behind - first))
    if len(data) < behind - first:
        raise Corrupt(
            f"{file.path}: the commit log ends {behind - first - len(data)} bytes before the "
            f"message of queue offset {offset + count - 1}",
            offset=offset,
            path=file.path,
        )
    starts = positions - first
    tags_codes = units["tags_code"][:count].astype(np.int64)
    times = columns.store_timestamps(data, starts)
    return RecordBatch(offset, data, starts, starts + sizes, sizes, positions, tags_codes, times)


def _find_hashes(
    buffer: memoryview, starts: npt.NDArray[np.int64], file: FlatMessageFile
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int32]]:
    """Return the key hashes of the messages at `starts`. A message that cannot be decoded has no
    keys."""
    try:
        return key_hashes(buffer, starts, file.topic)
    except Corrupt as error:
        _log.warning("%s: %s. Its keys are not indexed", file.path, error)
    rows: list[int] = []
    hashes: list[int] = []
    for row in range(len(starts)):
        try:
            _, of_row = key_hashes(buffer, starts[row : row + 1], file.topic)
        except Corrupt:
            continue
        rows += [row] * len(of_row)
        hashes += of_row.tolist()
    return np.array(rows, dtype=np.int64), np.array(hashes, dtype=np.int32)


class KeyUpload:
    """Puts the keys of a queue's messages into the index, in commit log order. If this fails, the
    messages are later read back from the tier. Because this is expensive, it is tried at growing
    intervals, and never while the index rejects keys."""

    def __init__(self, index: KeyIndex, clock: Clock, metrics: Metrics) -> None:
        self.index = index
        self._clock = clock
        self._metrics = metrics
        self._backoff = Backoff(clock)

    def _takes_keys(self) -> bool:
        try:
            self.index.check_takes_keys()
        except TieredStoreError:
            return False
        return True

    def is_due(self, state: QueueState) -> bool:
        """Return whether missing keys of a queue are due to be read back from the tier."""
        return (
            not state.indexed
            and self._backoff.is_over
            and (state.index_backoff is None or state.index_backoff.is_over)
            and self._takes_keys()
        )

    def put_batches(
        self, file: FlatMessageFile, batches: Sequence[RecordBatch], state: QueueState
    ) -> None:
        """Put the keys of committed messages. All earlier keys must be in the index."""
        try:
            for batch in batches:
                put_batch(self.index, file, batch)
        except TieredStoreError as error:
            self._note_failure(file, state, error)
        else:
            state.indexed = True

    def put_missing(
        self,
        file: FlatMessageFile,
        state: QueueState,
        *,
        force: bool,
        is_ending: Callable[[], bool],
        give_way: Callable[[], None],
    ) -> bool:
        """Put keys that the index lacks, for about REINDEX_BYTES of messages. `force`: whether to
        try even soon after a failure. `give_way`: called between two batches. Returns whether more
        keys can be put immediately."""
        if state.indexed:
            return False
        if not self.is_due(state) and not (force and self._takes_keys()):
            return False
        left = REINDEX_BYTES
        while left > 0 and not is_ending() and not file.is_closed:
            batch: RecordBatch | None = None
            try:
                batch = read_missing(self.index, file)
                if batch is None:
                    state.indexed = True
                    return False
                put_batch(self.index, file, batch)
            except TieredStoreError as error:
                self._note_failure(file, state, error, is_own=batch is None)
                return False
            self._backoff.note_success()
            state.index_backoff = None
            left -= len(batch.buffer)
            give_way()
        return True

    def _note_failure(
        self,
        file: FlatMessageFile,
        state: QueueState,
        error: TieredStoreError,
        *,
        is_own: bool = False,
    ) -> None:
        """Record that keys could not be put. `is_own`: whether the failure concerns only this
        queue. Any error except Unavailable is treated as such."""
        _log.warning("%s: keys not indexed, tried again later: %s", file.path, error)
        self._metrics.count(INDEX_FAILURES_METRIC, 1, topic=file.topic, queue_id=file.queue_id)
        if is_own or not isinstance(error, Unavailable):
            state.index_backoff = state.index_backoff or Backoff(self._clock)
            state.index_backoff.note_failure()
        elif self._takes_keys():
            self._backoff.note_failure()  # an index that accepts no keys reports when it does again
