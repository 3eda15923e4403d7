"""Comparison of the items of index files with their messages."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from tieredstore.contracts.segment import SegmentProvider
from tieredstore.errors import Corrupt
from tieredstore.message.columns.records import RecordColumns, gather_headers, properties_of
from tieredstore.message.hashes import tiered_key_hash
from tieredstore.message.index.tiered import time_diff_seconds
from tieredstore.message.properties import find_text, has_empty_key
from tieredstore.scan.catalogue import QueueFiles, SegmentExtent, TierCatalogue
from tieredstore.scan.extents import QueueReader
from tieredstore.scan.findings import OnFinding, damage
from tieredstore.scan.read.batch import Bools, Int64s, find_whole_records
from tieredstore.scan.read.batches import cut_runs
from tieredstore.scan.read.record_checks import decode_columns, find_right_heads, has_topic
from tieredstore.scan.verify.item_groups import (
    BATCH_BYTES,
    ItemGroup,
    Items,
    QueueItems,
    Rows,
    find_right_hashes,
    find_right_times,
    find_sound_queues,
    group_items,
)
from tieredstore.scan.verify.metadata import java_store_times
from tieredstore.scan.verify.topic_probes import TopicProbes

_PROBE_ITEMS = 64
_TRIES = 4096
_TRIES_A_QUEUE = 4
"""Number of searches per queue of the broker, in addition to `_TRIES`. If no probe finds the topic
of a topic id, each search looks in one queue for the messages of items with this id."""


@dataclass(slots=True)
class ItemVerdicts:
    """Result of checking items. `good`: items whose message is intact and has their key.
    `dangling`: items of expired messages, and of deleted topics or queues. `damaged`: wrong items.
    `store_times`: store times of the messages, as this program and as Java read them (epoch ms)."""

    good: int = 0
    dangling: int = 0
    damaged: int = 0
    store_times: list[Int64s] = field(default_factory=list)


class ItemChecker:
    """Checks the items of an index file. Without a state directory, topic ids are resolved by
    probes, or else by a search for the messages."""

    def __init__(
        self,
        provider: SegmentProvider,
        catalogue: TierCatalogue,
        extent: SegmentExtent,
        on_finding: OnFinding,
        probes: TopicProbes,
    ) -> None:
        """Create a checker for one index file. `catalogue`: catalogue of the broker that wrote the
        file."""
        self._provider = provider
        self._extent = extent
        self._on_finding = on_finding
        self._queues = {(queue.topic, queue.queue_id): queue for queue in catalogue.queues}
        self._known_queues = catalogue.known_queues or frozenset()
        self._may_learn = catalogue.topic_ids is None
        self._topics = {number: name for name, number in (catalogue.topic_ids or {}).items()}
        self._named = set(self._topics.values())
        self._probes = probes
        self._by_queue_id: defaultdict[int, list[str]] = defaultdict(list)
        for topic, queue_id in self._queues:
            self._by_queue_id[queue_id].append(topic)
        self._tries_left = _TRIES + _TRIES_A_QUEUE * len(self._queues)
        self._readers: dict[tuple[str, int], QueueReader] = {}
        self._begin_ms: int | None = None
        self._verdicts = ItemVerdicts()

    def close(self) -> None:
        for reader in self._readers.values():
            reader.close()
        self._readers.clear()

    def check(
        self, items: npt.NDArray[np.void], positions: Int64s, begin_ms: int | None
    ) -> ItemVerdicts:
        """Check the items at the given positions of the file. `begin_ms`: base of the times in the
        items. If it is None because their unit is unknown, times are not checked. Raises
        Unavailable."""
        self._begin_ms, self._verdicts = begin_ms, ItemVerdicts()
        if self._may_learn:
            for number, name in self._probes.find_topics(items).items():
                if number not in self._topics and name not in self._named:
                    self._name(number, name)
        known: list[QueueItems] = []
        size_bytes = 0
        for group in group_items(items, positions):
            topic = self._topics.get(group.topic_id) or self._learn(group)
            queue = None if topic is None else self._queues.get((topic, group.queue_id))
            if queue is not None:
                known.append((queue, group))
                size_bytes += group.small_bytes
            if queue is None or size_bytes >= BATCH_BYTES:
                # Before others, so that findings stay in the order of the groups.
                self._check_queues(known)
                known, size_bytes = [], 0
            if queue is None:
                self._explain(topic, group)
        self._check_queues(known)
        return self._verdicts

    def _check_queues(self, queues: list[QueueItems]) -> None:
        sound = [False] * len(queues)
        if self._begin_ms is not None:
            sound, times = find_sound_queues(self._provider, queues, self._begin_ms)
            self._verdicts.store_times += times
        for (queue, group), is_sound in zip(queues, sound, strict=True):
            if is_sound:
                self._verdicts.good += len(group.items)
            else:
                self._check_alone(queue, group)

    def _check_alone(self, queue: QueueFiles, group: ItemGroup) -> None:
        check = _GroupCheck(self._reader(queue.topic, queue.queue_id), self._begin_ms)
        check.run(group.items)
        for wrong in check.wrong:
            self._damage(*wrong)
        self._verdicts.good += check.good
        self._verdicts.dangling += check.dangling
        self._verdicts.store_times += check.times

    def _damage(self, position: int, message: str, expected: object, found: object) -> None:
        self._verdicts.damaged += 1
        one = damage(
            "index-item", message, self._extent.id, position, expected=expected, found=found
        )
        self._on_finding(one)

    def _learn(self, group: ItemGroup) -> str | None:
        """Find the topic of a topic id by the messages that match the items, without a state
        directory. Return None if no topic matches, or if the topic already has another id."""
        if not self._may_learn:
            return None
        # The last ones: those in front may have expired.
        probe = group.items.take(slice(-_PROBE_ITEMS, None))
        topic = self._topic_by_contents(group.queue_id, probe)
        if topic is None or topic in self._named:
            return None
        self._name(group.topic_id, topic)
        return topic

    def _name(self, topic_id: int, topic: str) -> None:
        self._topics[topic_id] = topic
        self._named.add(topic)

    def _topic_by_contents(self, queue_id: int, probe: Items) -> str | None:
        """Return the topic whose messages match most of the given items. Only a limited number of
        topics is tried, because after many deletions many ids belong to no existing topic."""
        best, most = None, 0
        for topic in self._by_queue_id[queue_id]:
            if self._tries_left <= 0:
                break
            self._tries_left -= 1
            check = _GroupCheck(self._reader(topic, queue_id), None)
            check.run(probe)
            if check.good > most:
                best, most = topic, check.good
        return best

    def _explain(self, topic: str | None, group: ItemGroup) -> None:
        """Decide why the topic or queue of items is unknown: it was deleted, or the id is
        damaged."""
        items = group.items
        if (topic, group.queue_id) in self._known_queues:
            self._verdicts.dangling += len(items)  # the queue is there, and all that it had is gone
            return
        ids = {name: number for number, name in self._topics.items()}
        for row in range(len(items)):
            item = items.take(slice(row, row + 1))
            if topic is None:
                named = self._topic_by_contents(group.queue_id, item)
                field, position = "topic_id", 4
                expected = None if named is None else ids.get(named)
            else:
                field, position = "queue_id", 8
                expected = self._queue_by_contents(topic, item)
            # A recreated topic has a higher id, and the same offsets if the metadata was lost in
            # between.
            is_former = topic is None and expected is not None and 0 <= group.topic_id < expected
            if expected is None or is_former:
                # Those that name nothing are alike: do not look for each of a million.
                self._verdicts.dangling += len(items) - row
                return
            text, position = (
                f"{field.replace('_', ' ')} of an item",
                int(item.positions[0]) + position,
            )
            self._damage(position, text, expected, int(item.items[field][0]))

    def _queue_by_contents(self, topic: str, item: Items) -> int | None:
        for name, queue_id in self._queues:
            if name == topic:
                check = _GroupCheck(self._reader(topic, queue_id), None)
                check.run(item)
                if check.good:
                    return queue_id
        return None

    def _reader(self, topic: str, queue_id: int) -> QueueReader:
        reader = self._readers.get((topic, queue_id))
        if reader is None:
            reader = QueueReader(self._provider, self._queues[topic, queue_id])
            self._readers[topic, queue_id] = reader
        return reader


class _GroupCheck:
    """Checker of the items of one queue. `begin_timestamp_ms`: None if times are not checked."""

    def __init__(self, reader: QueueReader, begin_timestamp_ms: int | None) -> None:
        self._reader = reader
        self._queue: QueueFiles = reader.queue
        self._begin = begin_timestamp_ms
        self.good = 0
        self.dangling = 0
        self.wrong: list[tuple[int, str, object, object]] = []
        self.times: list[Int64s] = []

    def run(self, group: Items) -> None:
        offsets = group.items["offset"].astype(np.int64)
        expired = (offsets >= 0) & (offsets < self._queue.commit_log_min_offset)
        self.dangling += int(np.count_nonzero(expired))
        group = group.take(~expired)
        offsets = group.items["offset"].astype(np.int64)
        sizes = group.items["size"].astype(np.int64)
        whole = find_whole_records(self._queue, offsets, sizes)
        if not whole.all() and self._reader.see_growth():
            self._queue = self._reader.queue
            whole = find_whole_records(self._queue, offsets, sizes)
        self._add(group.take(~whole), 12, "an item names bytes that no segment has", "a message")
        group, offsets, sizes = group.take(whole), offsets[whole], sizes[whole]
        if not len(group):
            return
        # Several keys of one message follow each other.
        new = np.concatenate(([True], (np.diff(offsets) != 0) | (np.diff(sizes) != 0)))
        first = np.flatnonzero(new)
        owner = np.cumsum(new) - 1
        for part in cut_runs(self._queue, offsets[first], sizes[first]):
            rows = slice(
                int(np.searchsorted(owner, part.start)), int(np.searchsorted(owner, part.stop))
            )
            self._check_run(
                group.take(rows), owner[rows] - part.start, offsets[first][part], sizes[first][part]
            )

    def _add(self, items: Items, field_position: int, what: str, expected: str) -> None:
        for row in range(len(items)):
            item = items.items[row]
            found = f"offset {int(item['offset'])}, size {int(item['size'])}"
            position = int(items.positions[row]) + field_position
            self.wrong.append((position, what, expected, found))

    def _check_run(self, group: Items, owner: Rows, offsets: Int64s, sizes: Int64s) -> None:
        """Check items against one run of messages. `owner`: row of each item's message in `offsets`
        and `sizes`."""
        start = int(offsets[0])
        try:
            buffer = self._reader.commit_log.read(start, int((offsets + sizes).max()) - start)
        except Corrupt as error:
            if start < self._reader.read_log_start_now():
                self.dangling += len(group)  # expired meanwhile
                return
            self._add(group, 12, f"the message of an item cannot be read: {error}", "a message")
            return
        positions = offsets - start
        headers = gather_headers(buffer, positions)
        good = find_right_heads(headers, offsets, sizes, self._queue.queue_id)
        rows = np.flatnonzero(good)
        columns, kept, _ = decode_columns(buffer, positions[rows], headers[rows])
        rows = rows[kept]
        good[:] = False
        if columns is not None:
            right_topic = has_topic(buffer, columns, self._queue.topic)
            good[rows[right_topic]] = True
        self._add(group.take(~good[owner]), 12, "an item names no message of the queue", "one")
        if columns is None:
            return
        place = np.full(len(offsets), -1, dtype=np.intp)
        place[rows] = np.arange(len(rows))
        group, owner = group.take(good[owner]), owner[good[owner]]
        self._check_keys_and_times(buffer, columns, group, place[owner])

    def _check_keys_and_times(
        self, buffer: memoryview, columns: RecordColumns, group: Items, rows: Rows
    ) -> None:
        hashes = group.items["hash"].astype(np.int64)
        topics = [self._queue.topic] * len(columns)
        has_key = find_right_hashes(buffer, columns, topics, hashes, rows)
        if not has_key.all():
            has_key |= self._is_empty_key(buffer, columns, hashes, rows)
        for i in np.flatnonzero(~has_key).tolist():
            text, at = "hash of an item is that of no key of its message", int(group.positions[i])
            self.wrong.append((at, text, "the hash of a key", int(hashes[i])))
        in_time = self._in_time(buffer, columns, group, rows)
        self.good += int(np.count_nonzero(has_key & in_time))

    def _is_empty_key(
        self, buffer: memoryview, columns: RecordColumns, hashes: Int64s, rows: Rows
    ) -> Bools:
        """Return a mask of the items whose key is the empty text. Java indexes an empty text in
        KEYS that another key follows."""
        parts = (find_text(properties, b"KEYS") for properties in properties_of(buffer, columns))
        has_empty = np.array([part is not None and has_empty_key(part) for part in parts])
        empty: Bools = hashes == tiered_key_hash(self._queue.topic, "")
        empty &= has_empty[rows]
        return empty

    def _in_time(
        self, buffer: memoryview, columns: RecordColumns, group: Items, rows: Rows
    ) -> Bools:
        ours = columns.store_timestamps[rows]
        java = java_store_times(buffer, columns.positions)[rows]
        self.times += [ours, java]
        found = group.items["time_diff_seconds"].astype(np.int64)
        if self._begin is None:
            return np.ones(len(found), dtype=np.bool_)
        right = find_right_times(found, ours, java, self._begin)
        expected = time_diff_seconds(ours, self._begin)
        for i in np.flatnonzero(~right).tolist():
            text, wanted = "time of an item is not that of its message", int(expected[i])
            at = int(group.positions[i]) + 24
            self.wrong.append((at, text, f"{wanted} s after the file's begin", int(found[i])))
        return right
