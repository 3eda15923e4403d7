"""Index items, and what they say of messages: hashes of keys, and times."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tieredstore.message.columns.records import RecordColumns, index_keys
from tieredstore.message.hashes import index_hashes, java_string_hashes
from tieredstore.message.index.tiered import time_diff_seconds
from tieredstore.scan.read.batch import Bools, Int64s

Rows = npt.NDArray[np.intp]


@dataclass(frozen=True, slots=True)
class Items:
    """Items of an index segment, and their positions there."""

    items: npt.NDArray[np.void]
    positions: Int64s

    def __len__(self) -> int:
        return len(self.items)

    def take(self, rows: Rows | slice | Bools) -> Items:
        return Items(self.items[rows], self.positions[rows])


@dataclass(frozen=True, slots=True)
class ItemGroup:
    """Items of one topic id and queue id, sorted by offset and size.

    start, end: the bytes [start, end) of the queue's log that they name; smallest: the smallest
    size that one of them says.
    """

    items: Items
    topic_id: int
    queue_id: int
    start: int
    end: int
    smallest: int


def group_items(items: npt.NDArray[np.void], positions: Int64s) -> Iterator[ItemGroup]:
    """Yield the items of each topic id and queue id, the largest groups first (they teach the topic
    ids)."""
    if not len(items):
        return
    order = np.lexsort((items["size"], items["offset"], items["queue_id"], items["topic_id"]))
    items, positions = items[order], positions[order]
    topic_ids, queue_ids = items["topic_id"], items["queue_id"]
    changes = (topic_ids[1:] != topic_ids[:-1]) | (queue_ids[1:] != queue_ids[:-1])
    firsts = np.concatenate(([0], np.flatnonzero(changes) + 1))
    offsets, sizes = items["offset"].astype(np.int64), items["size"].astype(np.int64)
    described = zip(
        firsts.tolist(),
        [*firsts[1:].tolist(), len(items)],
        topic_ids[firsts].tolist(),
        queue_ids[firsts].tolist(),
        offsets[firsts].tolist(),
        np.maximum.reduceat(offsets + sizes, firsts).tolist(),
        np.minimum.reduceat(sizes, firsts).tolist(),
        strict=True,
    )
    for low, high, *rest in sorted(described, key=lambda one: one[0] - one[1]):
        yield ItemGroup(Items(items[low:high], positions[low:high]), *rest)


def find_right_hashes(
    buffer: memoryview, columns: RecordColumns, topics: Sequence[str], hashes: Int64s, rows: Rows
) -> Bools:
    """Tell whether each item has the hash of a key of its message. topics: of each message; rows:
    for each item, the row of its message."""
    key_rows, keys = index_keys(buffer, columns)
    named = zip(key_rows.tolist(), keys, strict=True)
    java = java_string_hashes([f"{topics[row]}#{key}" for row, key in named])
    shifted = key_rows << 32
    known = np.concatenate((shifted | index_hashes(java), shifted | (java & 0x7FFFFFFF)))
    found: Bools = np.isin(rows.astype(np.int64) << 32 | (hashes & 0xFFFFFFFF), known)
    return found


def find_right_times(found: Int64s, ours: Int64s, java: Int64s, begin_timestamp_ms: int) -> Bools:
    """Tell whether each item has the time of its message, in seconds from the begin of its file.
    ours, java: the times of the messages, as we and as Java read them (epoch ms)."""
    right: Bools = found == time_diff_seconds(ours, begin_timestamp_ms)
    for times in (ours, java):
        # Java drops the high bits of a difference that 32 bits cannot hold.
        millis = times - begin_timestamp_ms
        seconds = np.where(millis < 0, -(-millis // 1000), millis // 1000)
        right |= found == ((seconds + 2**31) & 0xFFFFFFFF) - 2**31
        right |= found == time_diff_seconds(times, begin_timestamp_ms)
    return right
