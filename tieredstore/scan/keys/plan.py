"""Plan of a read for some keys: indexed messages with a key, and messages that are not indexed."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import chain, pairwise
from threading import Lock

import numpy as np

from tieredstore.contracts.segment import SegmentProvider
from tieredstore.errors import Corrupt
from tieredstore.message.index.tiered import COMPACTED_ITEM_DTYPE
from tieredstore.message.time_records import TimedRange
from tieredstore.scan.ahead import map_ahead
from tieredstore.scan.catalogue import (
    Interval,
    QueueFiles,
    SegmentExtent,
    add_interval,
    subtract_intervals,
)
from tieredstore.scan.expired import open_queue
from tieredstore.scan.extents import QueueReader
from tieredstore.scan.keys.coverage import find_indexed
from tieredstore.scan.keys.index_files import IndexFiles, Items, is_indexable
from tieredstore.scan.keys.places import Places, find_places
from tieredstore.scan.keys.unfinished import settle_files
from tieredstore.scan.plan import ScanBounds, ScanRange, narrow_to, plan
from tieredstore.scan.time_search import search
from tieredstore.scan.time_search.exact import Window
from tieredstore.scan.time_search.modes import SearchTimes

_log = logging.getLogger(__name__)

INDEX_LAG_MS = 3_600_000
"""Maximum time between consecutive index files of one broker that is not searched. In a longer gap
there may be messages that were not indexed."""
SMALL_QUEUE_BYTES = 256 << 10
"""Commit log size below which reading the log is faster than querying the index."""
_GAP_BYTES = 512 << 10
"""Maximum gap between two hits, bytes. The bytes in such a gap are read too, so that one read
covers both hits."""
_WHOLE = 1 << 62
_MOST_RANGES = 4096
"""Maximum number of ranges of one queue. If there are more index hits, the ranges also include
other messages."""


def plan_by_keys(
    provider: SegmentProvider,
    broker: str,
    index: Sequence[SegmentExtent],
    queues: Sequence[QueueFiles],
    keys: Sequence[str],
    bounds: ScanBounds,
) -> Iterator[ScanRange]:
    """Yield ranges of a broker's queues that contain all messages with one of the keys, and
    possibly others. A warning names the parts that the index files do not cover. Raises Corrupt for
    damaged queues, Unavailable."""
    if not index:
        _log.warning("broker %s has no index files: keys are looked for in all messages", broker)
        yield from plan(provider, queues, bounds)
        return
    with IndexFiles(provider, index) as files:
        try:
            gaps = files.find_gaps(INDEX_LAG_MS)
        except Corrupt as error:
            complete = settle_files(
                provider, index, lambda one: _log.warning("broker %s: %s", broker, one)
            )
            if complete is not index:
                yield from plan_by_keys(provider, broker, complete, queues, keys, bounds)
                return
            _warn_of_damage(broker, error)
            yield from plan(provider, queues, bounds)
            return
        planner = _Planner(provider, files, gaps, keys, bounds)
        planner.tell_unrecorded(queues)
        for ranges in map_ahead(provider, planner.plan_queue, queues):
            yield from ranges
    if planner.unindexed:
        _log.warning(
            "broker %s: the index is not complete: no index file names %d messages of %d queues "
            "(%s, …) from before its begin or from its gaps. They were read. `rebuild index` "
            "rebuilds it",
            broker, sum(planner.unindexed.values()), len(planner.unindexed),
            min(planner.unindexed),
        )  # fmt: skip


def plan_unindexed(
    provider: SegmentProvider,
    index: Sequence[SegmentExtent],
    queues: Sequence[QueueFiles],
    keys: Sequence[str],
    bounds: ScanBounds,
) -> Iterator[ScanRange]:
    """Yield the ranges of a broker's queues that its index files lack, and small queues completely.
    If the index is damaged or missing, yield all ranges. Raises Corrupt for damaged queues,
    Unavailable."""
    gaps: list[tuple[int, int]] | None = None
    with IndexFiles(provider, index) as files:
        if index:
            with suppress(Corrupt):  # reported by the query of the index
                gaps = files.find_gaps(INDEX_LAG_MS)
        if gaps is None:
            yield from plan(provider, queues, bounds)
            return
        planner = _Planner(provider, files, gaps, keys, bounds)
        planner.tell_unrecorded(queues)
        for ranges in map_ahead(provider, planner.plan_unindexed, queues):
            yield from ranges


class _Planner:
    """Plans the reads of single queues, from several threads. `unindexed`: number of messages that
    the index files lack, by queue, without messages after the newest index file."""

    def __init__(
        self,
        provider: SegmentProvider,
        index: IndexFiles,
        gaps: list[tuple[int, int]],
        keys: Sequence[str],
        bounds: ScanBounds,
    ) -> None:
        self._provider = provider
        self._index = index
        self._runs = index.split()
        self._windows = list(_clip_gaps(gaps, bounds))
        self._keys = keys
        self._bounds = bounds
        self._recorded: dict[str, list[TimedRange]] = {}
        self._lock = Lock()
        self._items: dict[str, tuple[Lock, list[Items]]] = {}
        self.unindexed: dict[str, int] = {}

    def plan_queue(self, queue: QueueFiles) -> list[ScanRange]:
        if sum(extent.size_bytes for extent in queue.commit_log) <= SMALL_QUEUE_BYTES:
            return self._plan_all(queue)
        whole = self._plan_whole(queue)
        if whole and not self._is_read_without(queue, whole):
            try:
                with open_queue(self._provider, queue) as reader:
                    return [found for one in whole for found in self._plan_piece(reader, one)]
            except Corrupt as error:
                _warn_of_damage(queue.path, error)
        return self._plan_all(queue) if whole else []

    def plan_unindexed(self, queue: QueueFiles) -> list[ScanRange]:
        """Return the ranges of the queue whose messages are not in the index."""
        planned = self._plan_all(queue)
        if self._is_read_without(queue, planned):
            return planned
        found: list[ScanRange] = []
        try:
            with open_queue(self._provider, queue) as reader:
                for one in self._plan_whole(queue):
                    if one.is_lost:
                        found.append(one)
                        continue
                    read, _ = self._find_unindexed(reader, one)
                    for start, end in read:
                        found += self._plan_offsets(queue, start, end)
        except Corrupt:
            return planned
        return found

    def _plan_all(self, queue: QueueFiles) -> list[ScanRange]:
        return list(plan(self._provider, [queue], self._bounds))

    def _plan_whole(self, queue: QueueFiles) -> list[ScanRange]:
        """Plan a queue as one range, to find its size."""
        whole = replace(
            self._bounds, range_bytes=_WHOLE, narrow=False, leave_search=False, has_witness=True
        )
        return list(plan(self._provider, [queue], whole))

    def _is_read_without(self, queue: QueueFiles, ranges: Iterable[ScanRange]) -> bool:
        """Return whether ranges are read completely, without the index, because they are small or a
        key is never indexed."""
        is_small = sum(one.size_bytes for one in ranges) <= SMALL_QUEUE_BYTES
        return is_small or not all(is_indexable(queue.topic, key) for key in self._keys)

    def _find_unindexed(
        self, reader: QueueReader, whole: ScanRange
    ) -> tuple[list[Interval], Interval]:
        """Split a range of units by the index. Return the intervals that the index lacks, and the
        indexed interval."""
        low, high = whole.from_offset, whole.until_offset
        found = [find_indexed(reader, run, low, high) for run in self._runs]
        indexed = [(start, end) for start, end in found if start < end]
        first = min((start for start, _ in indexed), default=low)
        until = max((end for _, end in indexed), default=low)
        of_lost_files = subtract_intervals(first, until, indexed)
        gaps = _join([*of_lost_files, *self._find_gaps(reader.queue, first, until)])
        unindexed = sum(end - start for start, end in [(low, first), *gaps])
        if first == until:
            unindexed, first, until = high - low, high, high
        if unindexed:
            with self._lock:
                path = reader.queue.path
                self.unindexed[path] = self.unindexed.get(path, 0) + unindexed
        return _join([(low, first), *gaps, (until, high)]), (first, until)

    def _plan_piece(self, reader: QueueReader, whole: ScanRange) -> list[ScanRange]:
        """Return the ranges to read in one range of units. Lost units are always included, because
        their messages may have had any key."""
        if whole.is_lost:
            return [whole]
        low, high = whole.from_offset, whole.until_offset
        read, (first, until) = self._find_unindexed(reader, whole)
        if read == [(low, high)]:
            return self._plan_offsets(reader.queue, low, high)
        found: list[tuple[Interval, ScanRange | None]] = [(interval, None) for interval in read]
        for hits in _group(self._find_hits(reader, first, until), read):
            start, end = int(hits.numbers[0]), int(hits.numbers[-1]) + 1
            begin, finish = int(hits.starts.min()), int(hits.ends.max())
            one = None
            if finish - begin <= self._bounds.range_bytes:
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
        wanted = self._bounds
        bounds = ScanBounds(
            start, end, range_bytes=wanted.range_bytes, narrow=True, has_witness=wanted.has_witness
        )
        found = plan(self._provider, [queue], bounds)
        return [replace(one, since_ms=wanted.since_ms, until_ms=wanted.until_ms) for one in found]

    def tell_unrecorded(self, queues: Sequence[QueueFiles]) -> None:
        """Log a warning about large queues without recorded store times, and the number of record
        heads to read. No-op unless the search is exact and covers times between index files. Raises
        Unavailable."""

        def find(queue: QueueFiles) -> list[search.Unrecorded]:
            with open_queue(self._provider, queue) as reader:
                found = list(search.find_unrecorded(reader))
                if reader.recorded_times is not None:
                    self._recorded[queue.path] = reader.recorded_times
            return found

        if self._windows and self._bounds.search_times is SearchTimes.EXACT:
            large = [queue for queue in queues if not search.is_read_whole(queue)]
            search.warn_unrecorded(chain.from_iterable(map_ahead(self._provider, find, large)))

    def _find_gaps(self, queue: QueueFiles, first: int, until: int) -> list[Interval]:
        """Return the intervals of [first, until) whose messages were stored in a gap between two
        index files."""
        if not self._windows or first >= until:
            return []
        with open_queue(self._provider, queue) as reader:
            reader.recorded_times = self._recorded.get(queue.path)
            if self._bounds.search_times is SearchTimes.EXACT:
                return _join(search.find_intervals(reader, first, until, self._windows))
            return _join(
                search.narrow_by_time(
                    reader, first, until,
                    since_ms=one.since_ms, until_ms=one.until_ms, search_times=SearchTimes.SAMPLED,
                )
                for one in self._windows
            )  # fmt: skip

    def _find_hits(self, reader: QueueReader, first: int, until: int) -> Places:
        items = self._find_items(reader.queue.topic)
        items = items[items["queue_id"] == reader.queue.queue_id]
        starts, rows = np.unique(items["offset"].astype(np.int64), return_index=True)
        ends = starts + items["size"][rows]
        return find_places(reader, first, until, starts, ends)

    def _find_items(self, topic: str) -> Items:
        """Return all index items of the wanted keys in a topic. Each topic is looked up only
        once."""
        with self._lock:
            lock, found = self._items.setdefault(topic, (Lock(), []))
        with lock:
            if not found:
                blocks = [items for key in self._keys for items in self._index.find(topic, key)]
                found.append(np.concatenate([np.empty(0, COMPACTED_ITEM_DTYPE), *blocks]))
            return found[0]


def _clip_gaps(gaps: Iterable[tuple[int, int]], bounds: ScanBounds) -> Iterator[Window]:
    """Yield the parts of the time gaps between index files that are within the bounds."""
    for since_ms, until_ms in gaps:
        low = since_ms if bounds.since_ms is None else max(since_ms, bounds.since_ms)
        high = until_ms if bounds.until_ms is None else min(until_ms, bounds.until_ms)
        if low < high:
            yield Window(low, high)


def _join(intervals: Iterable[Interval]) -> list[Interval]:
    """Sort intervals and merge those that touch. Empty intervals are dropped."""
    found: list[Interval] = []
    for start, end in sorted(one for one in intervals if one[0] < one[1]):
        add_interval(found, start, end)
    return found


def _group(hits: Places, read: list[Interval]) -> list[Places]:
    """Divide index hits into groups that are read together. Hits in the intervals `read` are
    skipped, because these are read completely."""
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
