"""Tasks of `compact index`: gather the items of index files to merge. The time of an item is
relative to its file and in whole seconds, so the store times are read from the messages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tieredstore.contracts.segment import FileSegmentType, SegmentId, SegmentProvider
from tieredstore.errors import Corrupt
from tieredstore.jobs.index.collect import Collected, Complaints
from tieredstore.jobs.index.rows import ROW_DTYPE, KeyRows, stage_rows
from tieredstore.jobs.index.staging import Staging
from tieredstore.jobs.index.tier import IndexSummary
from tieredstore.message.columns.records import gather_headers, store_timestamps
from tieredstore.message.index.tiered import (
    COMPACTED_ITEM_DTYPE,
    COMPACTED_ITEM_SIZE,
    compacted_size,
)
from tieredstore.message.names import index_path
from tieredstore.scan.catalogue import QueueFiles
from tieredstore.scan.extents import QueueReader
from tieredstore.scan.listing import list_again
from tieredstore.scan.location import TierLocation
from tieredstore.scan.read.batch import find_whole_records
from tieredstore.scan.read.batches import cut_runs
from tieredstore.scan.read.record_checks import find_right_heads


@dataclass(frozen=True, slots=True)
class MergeTask:
    """Index files to merge. `topics`: topics by id. `most_block_rows`: see `stage_rows`."""

    key: str
    size_bytes: int
    location: TierLocation
    broker: str
    files: tuple[IndexSummary, ...]
    topics: Mapping[int, str]
    staging: Staging
    most_block_rows: int


def merge(task: MergeTask) -> Collected:
    """Stage each distinct item of the files, with the exact time of its message. Items of lost
    messages and deleted topics are omitted. Raises Unavailable, Corrupt."""
    complaints = Complaints()
    parts: list[KeyRows] = []
    dangling = messages = 0
    with closing(task.location.connect()) as provider:
        for rows in _by_queue(
            np.concatenate([_rows(provider, task.broker, f) for f in task.files])
        ):
            topic = task.topics.get(int(rows["topic_id"][0]))
            if topic is None:
                dangling += len(rows)
                continue
            queue = list_again(provider, QueueFiles(task.broker, topic, int(rows["queue_id"][0])))
            expired = rows["offset"] < queue.commit_log_min_offset
            if not queue.commit_log:
                expired[:] = True
            dangling += int(np.count_nonzero(expired))
            with QueueReader(provider, queue) as reader:
                for part in _with_times(reader, rows[~expired], complaints):
                    parts.append(part)
                    messages += len(np.unique(part.rows["offset"]))
    with closing(task.staging.location.connect()) as provider:
        staged = stage_rows(task.staging, provider, task.key, parts, task.most_block_rows)
    return Collected(staged, messages, complaints.count, dangling, tuple(complaints.texts))


def _rows(provider: SegmentProvider, broker: str, file: IndexSummary) -> npt.NDArray[np.void]:
    """Return the items of a file in native byte order: ROW_DTYPE[n]."""
    path = index_path(broker)
    with closing(
        provider.open(SegmentId(path, FileSegmentType.INDEX, file.base_offset))
    ) as segment:
        start = compacted_size(file.slots, 0)
        data = segment.read(start, file.items * COMPACTED_ITEM_SIZE)
    items = np.frombuffer(data, COMPACTED_ITEM_DTYPE)
    rows = np.empty(len(items), _NATIVE)
    for name in _NATIVE.names or ():
        rows[name] = items[name]
    return rows


_NATIVE = ROW_DTYPE.newbyteorder("=")


def _by_queue(rows: npt.NDArray[np.void]) -> Iterator[npt.NDArray[np.void]]:
    """Remove duplicate rows, and yield the rows of each queue, sorted by commit log offset."""
    order = np.lexsort(tuple(rows[name] for name in _SORTED))
    rows = rows[order]
    new = np.ones(len(rows), np.bool_)
    new[1:] = rows[1:] != rows[:-1]
    rows = rows[new]
    changes = np.diff(rows["topic_id"]) != 0
    changes |= np.diff(rows["queue_id"]) != 0
    if len(rows):
        yield from np.split(rows, np.flatnonzero(changes) + 1)


_SORTED = ("hash", "size", "offset", "queue_id", "topic_id")
"""Fields by which rows are sorted: first by the last of these fields."""


def _with_times(
    reader: QueueReader, rows: npt.NDArray[np.void], complaints: Complaints
) -> Iterator[KeyRows]:
    """Yield the rows that refer to a message of the queue, with the message's store time."""
    queue = reader.queue
    offsets, sizes = rows["offset"].astype(np.int64), rows["size"].astype(np.int64)
    whole = find_whole_records(queue, offsets, sizes)
    _complain(queue, rows[~whole], "bytes that no segment has", complaints)
    rows, offsets, sizes = rows[whole], offsets[whole], sizes[whole]
    for part in cut_runs(queue, offsets, sizes) if len(rows) else ():
        start = int(offsets[part][0])
        positions = offsets[part] - start
        try:
            buffer = reader.commit_log.read(start, int((positions + sizes[part]).max()))
        except Corrupt as error:
            _complain(queue, rows[part], str(error), complaints)
            continue
        headers = gather_headers(buffer, positions)
        good = find_right_heads(headers, offsets[part], sizes[part], queue.queue_id)
        _complain(queue, rows[part][~good], "no message of the queue", complaints)
        if good.any():
            stored = rows[part][good].astype(ROW_DTYPE)
            yield KeyRows(stored, store_timestamps(buffer, positions[good]))


def _complain(
    queue: QueueFiles, rows: npt.NDArray[np.void], what: str, complaints: Complaints
) -> None:
    if len(rows):
        first = rows[0]
        complaints.add(
            f"{queue.path}: {len(rows)} index items name {what}, the first at commit log offset "
            f"{int(first['offset'])}, {int(first['size'])} bytes",
            len(rows),
        )
