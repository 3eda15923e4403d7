"""Plans what to read for some keys: messages that index files name, and those that none names."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from threading import Lock

import numpy as np

from tieredstore.contracts.segment import SegmentProvider
from tieredstore.errors import Corrupt
from tieredstore.message.index.tiered import COMPACTED_ITEM_DTYPE
from tieredstore.scan.ahead import map_ahead
from tieredstore.scan.catalogue import QueueFiles, SegmentExtent
from tieredstore.scan.extents import QueueReader
from tieredstore.scan.intervals import Interval, add_interval
from tieredstore.scan.keys.coverage import find_indexed
from tieredstore.scan.keys.index_files import IndexFiles, Items, is_indexable
from tieredstore.scan.keys.places import Places, find_places
from tieredstore.scan.plan import ScanBounds, ScanRange, narrow_to, plan
from tieredstore.scan.selection import ScanQuery

_log = logging.getLogger(__name__)

INDEX_LAG_MS = 3_600_000
"""Index files of one broker follow one another in less than this, or nothing was stored between
them, or it was not indexed."""
SMALL_QUEUE_BYTES = 256 << 10
"""Commit log bytes that are read in less time than the index is asked about them."""
_GAP_BYTES = 512 << 10
"""Bytes between two hits that are read along rather than skipped."""
_MOST_RANGES = 4096
"""Of one queue: with more hits than that, more is read along."""


def plan_by_keys(
    provider: SegmentProvider,
    broker: str,
    index: Sequence[SegmentExtent],
    queues: Sequence[QueueFiles],
    query: ScanQuery,
) -> Iterator[ScanRange]:
    """Yield ranges that hold every message with one of the keys in the queues of a broker, and
    others. A warning says where its index files do not name all messages. Raises Corrupt for
    damaged queues, Unavailable."""
    if not index:
        _log.warning("broker %s has no index files: keys are looked for in all messages", broker)
        yield from query.plan_all(provider, queues)
        return
    with IndexFiles(provider, index) as files:
        try:
            gaps = files.find_gaps(INDEX_LAG_MS)
        except Corrupt as error:
            _warn_of_damage(broker, error)
            yield from query.plan_all(provider, queues)
            return
        planner = _Planner(provider, files, gaps, query)
        for ranges in map_ahead(provider, planner.plan_queue, queues):
            yield from ranges
    if planner.unindexed:
        _log.warning(
            "broker %s: the index is not complete: no index file names %d messages of %d queues "
            "(%s, …) from before its begin or from its gaps; they were looked at; `rebuild index` "
            "makes it anew",
            broker, sum(planner.unindexed.values()), len(planner.unindexed),
            min(planner.unindexed),
        )  # fmt: skip


class _Planner:
    """Plans queue by queue, from several threads. unindexed: messages by queue that no index file
    names, those behind the newest file aside."""

    def __init__(
        self,
        provider: SegmentProvider,
        index: IndexFiles,
        gaps: list[tuple[int, int]],
        query: ScanQuery,
    ) -> None:
        self._provider = provider
        self._index = index
        self._gaps = gaps
        self._query = query
        self._lock = Lock()
        self._items: dict[str, tuple[Lock, list[Items]]] = {}
        self.unindexed: dict[str, int] = {}

    def plan_queue(self, queue: QueueFiles) -> list[ScanRange]:
        query, provider = self._query, self._provider
        if sum(extent.size_bytes for extent in queue.commit_log) <= SMALL_QUEUE_BYTES:
            return list(query.plan_all(provider, [queue]))
        whole = list(query.plan_all(provider, [queue], cut=False))
        is_small = sum(one.size_bytes for one in whole) <= SMALL_QUEUE_BYTES
        if whole and not is_small and all(is_indexable(queue.topic, key) for key in query.keys):
            try:
                with QueueReader(provider, queue) as reader:
                    return [found for one in whole for found in self._plan_piece(reader, one)]
            except Corrupt as error:
                _warn_of_damage(queue.path, error)
        return list(query.plan_all(provider, [queue])) if whole else []

    def _plan_piece(self, reader: QueueReader, whole: ScanRange) -> list[ScanRange]:
        """Ranges of one run of units, or of lost ones: these may have had any key."""
        if whole.is_lost:
            return [whole]
        low, high = whole.from_offset, whole.until_offset
        first, until = find_indexed(reader, self._index, low, high)
        gaps = self._find_gaps(reader.queue, first, until)
        unindexed = sum(end - start for start, end in [(low, first), *gaps])
        if first == until:
            unindexed, first, until = high - low, high, high
        if unindexed:
            with self._lock:
                path = reader.queue.path
                self.unindexed[path] = self.unindexed.get(path, 0) + unindexed
        read = _join([(low, first), *gaps, (until, high)])
        if read == [(low, high)]:
            return self._plan_offsets(reader.queue, low, high)
        found: list[tuple[Interval, ScanRange | None]] = [(interval, None) for interval in read]
        for hits in _group(self._find_hits(reader, first, until), read):
            start, end = int(hits.numbers[0]), int(hits.numbers[-1]) + 1
            begin, finish = int(hits.starts.min()), int(hits.ends.max())
            one = None
            if finish - begin <= self._query.range_bytes:
                queue = narrow_to(reader.queue, start, end, begin, finish)
                one = replace(
                    whole, queue=queue, from_offset=start, until_offset=end,
                    size_bytes=finish - begin,
                )  # fmt: skip
            found.append(((start, end), one))
        found.sort(key=lambda pair: pair[0])
        ranges: list[ScanRange] = []
        for (start, end), one in found:
            ranges += [one] if one else self._plan_offsets(reader.queue, start, end)
        return ranges

    def _plan_offsets(self, queue: QueueFiles, start: int, end: int) -> list[ScanRange]:
        chosen = self._query.selection
        bounds = ScanBounds(start, end, range_bytes=self._query.range_bytes, narrow=True)
        found = plan(self._provider, [queue], bounds)
        return [replace(one, since_ms=chosen.since_ms, until_ms=chosen.until_ms) for one in found]

    def _find_gaps(self, queue: QueueFiles, first: int, until: int) -> list[Interval]:
        """Messages that were stored between two index files."""
        found: list[Interval] = []
        chosen = self._query.selection
        for since_ms, until_ms in self._gaps:
            low = max(since_ms, chosen.since_ms or 0)
            high = until_ms if chosen.until_ms is None else min(until_ms, chosen.until_ms)
            if low < high and first < until:
                between = replace(
                    chosen, from_offset=first, until_offset=until, since_ms=low, until_ms=high
                )
                query = replace(self._query, selection=between)
                planned = query.plan_all(self._provider, [queue], cut=False)
                found += [(one.from_offset, one.until_offset) for one in planned]
        return _join(found)

    def _find_hits(self, reader: QueueReader, first: int, until: int) -> Places:
        items = self._find_items(reader.queue.topic)
        items = items[items["queue_id"] == reader.queue.queue_id]
        starts, rows = np.unique(items["offset"].astype(np.int64), return_index=True)
        ends = starts + items["size"][rows]
        return find_places(reader, first, until, starts, ends)

    def _find_items(self, topic: str) -> Items:
        """All items of the keys in a topic, looked up once."""
        with self._lock:
            lock, found = self._items.setdefault(topic, (Lock(), []))
        with lock:
            if not found:
                blocks = [
                    items for key in self._query.keys for items in self._index.find(topic, key)
                ]
                found.append(np.concatenate([np.empty(0, COMPACTED_ITEM_DTYPE), *blocks]))
            return found[0]


def _join(intervals: Iterable[Interval]) -> list[Interval]:
    """Ascending intervals that do not touch one another, none of them empty."""
    found: list[Interval] = []
    for start, end in sorted(one for one in intervals if one[0] < one[1]):
        add_interval(found, start, end)
    return found


def _group(hits: Places, read: list[Interval]) -> list[Places]:
    """Hits that are read together: those near one another; what is read anyway left out."""
    borders = np.array([border for interval in read for border in interval], dtype=np.int64)
    regions = np.searchsorted(borders, hits.numbers, side="right")
    outside = regions % 2 == 0
    hits, regions = hits.take(outside), regions[outside]
    if not len(hits.numbers):
        return []
    gaps = hits.starts[1:] - hits.ends[:-1]
    other = (regions[1:] != regions[:-1]) | (gaps < 0)
    most = _GAP_BYTES
    while True:
        cuts = np.flatnonzero(other | (gaps > most)) + 1
        if len(cuts) < _MOST_RANGES or not (gaps > most).any():
            break
        most = 4 * most + 64
    edges = [0, *cuts.tolist(), len(hits.numbers)]
    return [hits.take(np.arange(low, high)) for low, high in pairwise(edges)]


def _warn_of_damage(where: str, error: Corrupt) -> None:
    _log.warning("%s: the index is damaged, all messages are looked at: %s", where, error)
