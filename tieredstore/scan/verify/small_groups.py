"""Checks the index items of many small queues at once.

What is wrong with an item, a check of its queue alone tells: here it is only found which queues
need one. Sound queues, nearly all of a tier, then cost a read each and a share of a few columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from tieredstore.contracts.segment import SegmentProvider
from tieredstore.errors import Corrupt
from tieredstore.message.columns.records import gather_headers, record_columns
from tieredstore.message.layout import MAGIC_V1, MAGIC_V2, MIN_RECORD_SIZE
from tieredstore.scan.catalogue import QueueFiles, extent_at
from tieredstore.scan.read.batch import Bools, Int64s
from tieredstore.scan.read.record_checks import find_right_topics
from tieredstore.scan.verify.item_contents import (
    ItemGroup,
    find_right_hashes,
    find_right_times,
)
from tieredstore.scan.verify.java_times import java_store_times

MOST_BYTES = 256 << 10
"""Commit log bytes that items name, up to which their queue is checked together with others."""
BATCH_BYTES = 2 << 20
"""Commit log bytes of the queues that are checked together, about."""
_Piece: TypeAlias = tuple[QueueFiles, ItemGroup, memoryview]
"""A queue, its items, and the bytes that they name."""


@dataclass(frozen=True, slots=True)
class QueueItems:
    """The items of one queue."""

    queue: QueueFiles
    group: ItemGroup

    @property
    def small_bytes(self) -> int:
        """Bytes of the commit log that the items name; 0 where they are not checked together with
        others."""
        group = self.group
        is_small = group.smallest >= MIN_RECORD_SIZE and 0 < group.end - group.start <= MOST_BYTES
        return group.end - group.start if is_small else 0


def find_sound_queues(
    provider: SegmentProvider, queues: Sequence[QueueItems], begin_timestamp_ms: int
) -> tuple[list[bool], list[Int64s]]:
    """Find of which queues all items name a good message with their key and time. Only small ones
    are looked at. Returns that for each, and the store times of the messages of the sound ones, as
    we and as Java read them (epoch ms). Raises Unavailable."""
    data = [_read(provider, one) if one.small_bytes else None for one in queues]
    sound = np.array([piece is not None for piece in data], np.bool_)
    pieces = [
        (one.queue, one.group, piece)
        for one, piece in zip(queues, data, strict=True)
        if piece is not None
    ]
    found, times = _check(pieces, begin_timestamp_ms)
    sound[sound] = found
    return sound.tolist(), times


def _read(provider: SegmentProvider, one: QueueItems) -> memoryview | None:
    """The bytes that the items name; None where not all are in one segment."""
    start, end = one.group.start, one.group.end
    extent = extent_at(one.queue.commit_log, start)
    if extent is None or end > extent.end_offset:
        return None
    segment = provider.open(extent.id, extent.listing)
    try:
        return segment.read(start - extent.base_offset, end - start)
    except Corrupt:
        return None
    finally:
        segment.close()


def _check(pieces: list[_Piece], begin_timestamp_ms: int) -> tuple[Bools, list[Int64s]]:
    """Which pieces are sound, and the times of their messages."""
    if not pieces:
        return np.zeros(0, np.bool_), []
    queues, groups, data = zip(*pieces, strict=True)
    buffer = memoryview(b"".join(data))
    items = np.concatenate([group.items.items for group in groups])
    counts = np.array([len(group.items) for group in groups])
    firsts, owners = np.cumsum(counts) - counts, np.repeat(np.arange(len(pieces)), counts)
    lengths = np.array([len(piece) for piece in data])
    # From an offset in a queue's log to the place in the buffer.
    shifts = np.cumsum(lengths) - lengths - np.array([group.start for group in groups])
    offsets, sizes = items["offset"].astype(np.int64), items["size"].astype(np.int64)
    # Several keys of one message follow each other.
    is_new = np.ones(len(items), np.bool_)
    is_new[1:] = (offsets[1:] != offsets[:-1]) | (sizes[1:] != sizes[:-1])
    is_new[firsts] = True
    rows, new = np.cumsum(is_new) - 1, np.flatnonzero(is_new)
    offsets, sizes, owner = offsets[new], sizes[new], owners[new]
    headers = gather_headers(buffer, offsets + shifts[owner])
    magic = headers["magic"]
    right: Bools = (headers["size"] == sizes) & ((magic == MAGIC_V1) | (magic == MAGIC_V2))
    right &= headers["physical_offset"] == offsets
    right &= headers["queue_id"] == np.array([queue.queue_id for queue in queues])[owner]
    sound = np.ones(len(pieces), np.bool_)
    if not right.all():
        sound[owner[~right]] = False
        left = np.flatnonzero(sound)
        sound[left], times = _check([pieces[number] for number in left], begin_timestamp_ms)
        return sound, times
    try:
        columns = record_columns(buffer, offsets + shifts[owner], headers)
    except Corrupt:
        return np.zeros(len(pieces), np.bool_), []
    topics = [queue.topic for queue in queues]
    sound[owner[~find_right_topics(buffer, columns, topics, owner)]] = False
    hashes = items["hash"].astype(np.int64)
    named = [topics[number] for number in owner.tolist()]
    sound[owners[~find_right_hashes(buffer, columns, named, hashes, rows)]] = False
    ours, java = columns.store_timestamps, java_store_times(buffer, columns.positions)
    seconds = items["time_diff_seconds"].astype(np.int64)
    in_time = find_right_times(seconds, ours[rows], java[rows], begin_timestamp_ms)
    sound[owners[~in_time]] = False
    kept = sound[owner]
    return sound, [ours[kept], java[kept]]
