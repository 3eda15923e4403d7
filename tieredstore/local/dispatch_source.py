"""Source of a tier's uploads: a local store of this or another process."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from tieredstore.config import StorageLevel
from tieredstore.contracts.dispatch_source import QueueKey, QueueRange
from tieredstore.contracts.message_store import BoundaryType
from tieredstore.errors import Corrupt, Unavailable
from tieredstore.local.log.gathering import Runs
from tieredstore.local.queues.interface import ConsumeQueueReader
from tieredstore.local.queues.unit_search import find_first
from tieredstore.local.store_reads import StoreReads
from tieredstore.local.topic_table import TopicTable
from tieredstore.message.buffers import find_least
from tieredstore.message.columns.records import find_bad_head
from tieredstore.message.consume_queue import MIN_EXTENDED_ADDRESS, UNIT_DTYPE
from tieredstore.message.hashes import tags_code
from tieredstore.message.layout import MIN_RECORD_SIZE
from tieredstore.message.record import decode_record


class LocalDispatchSource:
    """DispatchSource for a local store. Compaction topics are omitted, because their consume queues
    do not show their contents, and so are batch topics.

    `list_queues`: returns the store's queues.
    `topics`: returns its topic table.
    `flush`: flushes the log and the units, so that `queue_range` includes them.
    """

    def __init__(
        self,
        store: StoreReads,
        list_queues: Callable[[], Iterable[QueueKey]],
        topics: Callable[[], TopicTable],
        flush: Callable[[], object] = lambda: None,
    ) -> None:
        self._store = store
        self._list_queues = list_queues
        self._topics = topics
        self._flush = flush
        self._table: TopicTable | None = None
        self._levels: dict[str, StorageLevel] = {}
        self._lite_table: TopicTable | None = None
        self._lite_topics: frozenset[str] = frozenset()
        self._guard: Callable[[QueueKey], int | None] = lambda _: None

    def queues(self) -> list[QueueKey]:
        """Return all queues except those of compaction and batch topics. System topics and light
        queues are included."""
        table = self._topics()
        return [
            key
            for key in self._list_queues()
            if not table.is_compaction(key.topic) and not table.is_batch(key.topic)
        ]

    def queue_range(self, key: QueueKey) -> QueueRange | None:
        """Return the range of messages that may be uploaded now. Only messages on disk are
        included, because a power failure must not put the tier ahead of the log."""
        queue = self._store.find_queue(*key)
        if queue is None:
            return None
        minimum = queue.min_offset
        return QueueRange(minimum, max(self._find_flushed_end(queue), minimum))

    def _find_flushed_end(self, queue: ConsumeQueueReader) -> int:
        """Return the queue offset after the last message whose record is completely flushed."""
        log = self._store.commit_log
        end, flushed = queue.max_offset, log.flushed_offset
        if flushed >= log.readable_offset:
            return end

        def is_flushed(offset: int) -> bool:
            unit = queue.unit(offset)
            return unit is None or unit[0] + unit[1] <= flushed

        if queue.min_offset < end and is_flushed(end - 1):
            return end
        return find_first(queue.min_offset, end, lambda offset: not is_flushed(offset))

    def flush(self) -> None:
        """Flush pending puts, so that `queue_range` includes them. No-op if another process owns
        the store. Raises the errors of the store's flush."""
        self._flush()

    def read_units(self, key: QueueKey, offset: int, count: int) -> npt.NDArray[np.void]:
        """Return a copy of up to `count` units, fewer at the end of a file. The address of an
        extended unit, which is valid only in this store, is replaced by the hash of the message's
        TAGS."""
        queue = self._store.find_queue(*key)
        if queue is None:
            return np.empty(0, dtype=UNIT_DTYPE)
        units = queue.read_units(offset, count)
        if not len(units) or find_least(units["tags_code"]) > MIN_EXTENDED_ADDRESS:
            return units
        return self._fill_tags_codes(units)

    def _fill_tags_codes(self, units: npt.NDArray[np.void]) -> npt.NDArray[np.void]:
        units = units.copy()
        for row in np.flatnonzero(units["tags_code"] <= MIN_EXTENDED_ADDRESS).tolist():
            physical_offset, size, _ = units[row].item()
            record = self._store.commit_log.get(physical_offset, size)
            try:
                units["tags_code"][row] = (
                    0 if record is None else tags_code(decode_record(record).tags)
                )
            except Corrupt:
                continue  # reading the record reports the fault
        return units

    def read_records(self, units: npt.NDArray[np.void]) -> Sequence[memoryview]:
        """Read the records of the units, each byte once. Returns one buffer per log file, owned by
        the caller. Raises Corrupt if a record is missing or does not match its unit, and
        Unavailable if a record is not on disk yet. All records in the latest `queue_range` are on
        disk."""
        if not len(units):
            return []
        offsets = units["physical_offset"].astype(np.int64)
        sizes = units["size"].astype(np.int64)
        ends = offsets + sizes
        runs = Runs.of(offsets, ends)
        self._check_flushed(runs.end)
        file_size = self._store.commit_log.file_size
        if runs.begin // file_size == (runs.end - 1) // file_size:
            return [self._gather(runs, sizes)]
        file_numbers = offsets // file_size
        files = np.flatnonzero(file_numbers[1:] != file_numbers[:-1]) + 1
        return [
            self._gather(Runs.of(offsets[first:stop], ends[first:stop]), sizes[first:stop])
            for first, stop in pairwise([0, *files.tolist(), len(units)])
        ]

    def _gather(self, runs: Runs, sizes: npt.NDArray[np.int64]) -> memoryview:
        """Read records from one file of the log. Records of other queues may be between them."""
        offsets = runs.starts
        if (least := find_least(sizes)) < MIN_RECORD_SIZE:
            raise Corrupt(
                f"units at {offsets[0]} of the commit log: expected at least {MIN_RECORD_SIZE} "
                f"bytes each, found {least}",
                offset=int(offsets[0]),
            )
        log = self._store.commit_log
        begin = int(offsets[0])
        was_held = begin >= log.min_offset
        buffer = log.gather(runs)
        if buffer is None and was_held and begin < log.min_offset:
            raise Unavailable(
                f"the commit log file with {begin} was deleted while it was read", offset=begin
            )
        if buffer is None:
            raise Corrupt(
                f"expected {len(offsets)} messages at {begin} to {int(runs.ends[-1])} of the "
                f"commit log, which holds {log.min_offset} to {log.readable_offset}",
                offset=begin,
            )
        records = memoryview(buffer)
        bad = find_bad_head(records, sizes.cumsum() - sizes, sizes)
        if bad is not None:
            row, size, magic = bad
            position = int(offsets[row])
            raise Corrupt(
                f"record at {position} of the commit log: expected {int(sizes[row])} bytes and a "
                f"record's magic, found {size} bytes and {magic:08x}",
                offset=position,
            )
        return records

    def _check_flushed(self, end: int) -> None:
        log = self._store.commit_log
        flushed = log.flushed_offset
        if flushed < end <= log.readable_offset:
            raise Unavailable(
                f"messages up to {end} of the commit log: expected them on disk, which holds it up "
                f"to {flushed}",
                offset=flushed,
            )

    def is_in_store(self, key: QueueKey, offset: int) -> bool:
        queue = self._store.find_queue(*key)
        unit = None if queue is None else queue.unit(offset)
        log = self._store.commit_log
        return unit is not None and log.min_offset <= unit[0] < log.readable_offset

    def is_in_memory(self, key: QueueKey, offset: int, count: int) -> bool:
        """Return whether the pages of these messages are resident. Returns False for missing
        messages, and True if the system cannot tell."""
        queue = self._store.find_queue(*key)
        units = None if queue is None else queue.read_units(offset, max(count, 1))
        if units is None or not len(units):
            return False
        log = self._store.commit_log
        return all(
            log.is_resident(begin, size)
            for begin, size in zip(
                units["physical_offset"].tolist(), units["size"].tolist(), strict=True
            )
        )

    def offset_by_time(self, key: QueueKey, timestamp_ms: int) -> int:
        return self._store.get_offset_in_queue_by_time(
            key.topic, key.queue_id, timestamp_ms, BoundaryType.LOWER
        )

    def earliest_message_time(self, key: QueueKey | None = None) -> int:
        if key is None:
            return self._store.get_earliest_message_time()
        return self._store.get_earliest_message_time(key.topic, key.queue_id)

    def topic_reserve_hours(self) -> dict[str, int]:
        return self._topics().reserve_hours()

    def topic_storage_levels(self) -> dict[str, StorageLevel]:
        table = self._topics()
        if table is not self._table:
            self._table, self._levels = table, table.storage_levels()
        return self._levels

    def find_lite_topics(self) -> frozenset[str]:
        table = self._topics()
        if table is not self._lite_table:
            self._lite_table, self._lite_topics = table, table.list_lite_topics()
        return self._lite_topics

    def list_light_queues(self, prefix: str, after: str = "") -> Iterable[tuple[str, int]]:
        found = (name for name, _ in self._list_queues() if name.startswith(prefix))
        for name in sorted(name for name in found if name > after):
            yield name, self._store.get_max_offset_in_queue(name, 0)

    def count_light_queues(self, prefix: str) -> int:
        return sum(name.startswith(prefix) for name, _ in self._list_queues())

    def find_excluded_topics(self) -> dict[str, str]:
        table = self._topics()
        topics = {key.topic for key in self._list_queues()}
        found = dict.fromkeys(filter(table.is_compaction, topics), "compaction topic")
        batch = self._store.batch_topics.union(filter(table.is_batch, topics))
        found.update(dict.fromkeys(batch, "batch consume queue (BatchCQ)"))
        return found

    def set_retention_guard(self, guard: Callable[[QueueKey], int | None]) -> None:
        self._guard = guard

    def find_needed_offset(self, key: QueueKey) -> int | None:
        """Return the first offset of a queue that the tier still needs from the local store."""
        return self._guard(key)
