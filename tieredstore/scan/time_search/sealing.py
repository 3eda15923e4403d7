"""Recording of the store times of queues whose writer kept no records."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from tieredstore.contracts.segment import SegmentProvider
from tieredstore.contracts.time_records import TimesPlace
from tieredstore.errors import Corrupt
from tieredstore.message.time_records import TimedRange, make_ranges
from tieredstore.scan.catalogue import QueueFiles
from tieredstore.scan.extents import QueueReader, skip_last_codas
from tieredstore.scan.time_search.exact import Piece
from tieredstore.scan.time_search.recorded import cut_pieces, load_ranges, make_read
from tieredstore.scan.time_search.search import is_read_whole
from tieredstore.scan.time_search.store_times import read_times
from tieredstore.tier.recorded_times import record_times

_AT_ONCE = 1 << 14


def record_queue(provider: SegmentProvider, place: TimesPlace, queue: QueueFiles) -> int:
    """Record the times of all messages of a large queue without recorded times, from the heads of
    the messages. The caller must hold the writer epoch. Return the number of segments with a new
    record. Raises Unavailable."""
    if is_read_whole(queue):
        return 0
    with QueueReader(provider, queue) as reader:
        pieces = cut_pieces(queue.unit_spans(), load_ranges(reader))
        bases = [extent.base_offset for extent in queue.commit_log]
        new = [
            one
            for piece in pieces
            if piece.times is None
            for one in _read_ranges(reader, piece, bases)
        ]
        return record_times(place, queue.path, bases, new, make_read(reader)) if new else 0


def _read_ranges(reader: QueueReader, piece: Piece, bases: list[int]) -> Iterator[TimedRange]:
    for first in range(piece.start, piece.end, _AT_ONCE):
        count = min(_AT_ONCE, piece.end - first)
        try:
            units = reader.read_units(first, count)
        except Corrupt:
            continue
        known = read_times(reader, first, count)
        starts = skip_last_codas(reader.queue, units["physical_offset"].astype(np.int64))
        ends = starts + units["size"].astype(np.int64)
        breaks = (
            np.isin(starts[1:], bases)
            | (starts[1:] != ends[:-1])
            | ~known.known[1:]
            | ~known.known[:-1]
        )
        for rows in np.split(np.arange(count), np.flatnonzero(breaks) + 1):
            if known.known[rows[0]]:
                low, high = rows[0], rows[-1] + 1
                yield from make_ranges(
                    starts[low:high], ends[low:high], first + int(low), known.times[low:high]
                )


def sweep_records(place: TimesPlace, broker: str, queues: Iterable[QueueFiles]) -> int:
    """Delete a broker's records whose segments no longer exist, and return their number. Raises
    Unavailable."""
    there = {
        queue.path: {extent.base_offset for extent in queue.commit_log}
        for queue in queues
        if queue.broker == broker
    }
    deleted = 0
    for path in place.list_timed_paths(broker):
        bases = there.get(path, set())
        gone = [name for name in place.list_times(path) if name.base_offset not in bases]
        place.delete_times(path, gone)
        deleted += len(gone)
    return deleted
