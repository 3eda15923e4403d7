"""Builds consume queue units and index entries from the log's rows."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from tieredstore.contracts.dispatch_source import ArrivedRuns, QueueKey
from tieredstore.contracts.message_store import ArrivedMessages, MessageArrivingListener
from tieredstore.errors import Corrupt
from tieredstore.local.dispatch.log_rows import RowColumns
from tieredstore.local.index.keys import TopicPrefixes, index_entries, index_keys_of
from tieredstore.local.index.service import IndexService
from tieredstore.local.log.commit_log import CommitLog
from tieredstore.local.put.appender import MessageAppender
from tieredstore.local.put.rows import SPECIAL
from tieredstore.local.queues.interface import ConsumeQueueStoreInterface, QueueUnits
from tieredstore.local.queues.light_queues import find_light_places
from tieredstore.local.queues.record_units import find_record_units
from tieredstore.local.queues.topic_deletion import TopicDeletion
from tieredstore.local.running_flags import RunningFlag, RunningFlags, find_passing
from tieredstore.local.statistics import TopicCounts
from tieredstore.message.consume_queue import make_units
from tieredstore.message.hashes import local_key_hash
from tieredstore.message.names import DELETION_TOPIC, LMQ_PREFIX
from tieredstore.message.record import StoredMessage, decode_record
from tieredstore.message.sysflag import TRANSACTION_MASK, TRANSACTION_ROLLBACK
from tieredstore.skipped_records import SkippedRecords

_log = logging.getLogger(__name__)

Int32s = npt.NDArray[np.int32]
Int64s = npt.NDArray[np.int64]


class IndexBuilder:
    """Writer of index entries. Not thread-safe. After a temporary error, the dispatch later reads
    the log from `behind_from` on. A permanent error sets the flag WRITE_INDEX_FILE_ERROR, and the
    next start of the store adds the missing entries.

    `is_enabled`: returns the current value of `messageIndexEnable`.
    `behind_from`: position in the commit log (bytes) of the first message without entries, or None.
    `error`: reason why the index is behind.
    """

    def __init__(
        self, index: IndexService, flags: RunningFlags, is_enabled: Callable[[], bool]
    ) -> None:
        self.behind_from: int | None = None
        self.error: Exception | None = None
        self.is_broken = False
        self.is_enabled = is_enabled
        self._index = index
        self._flags = flags
        self._off_since: int | None = None  # byte of the log, or None while it takes entries

    def takes_entries(self, begin: int) -> bool:
        """Return whether messages at or after the log offset `begin` get entries. Must be called
        for each batch, so that a gap in the index can be logged with both of its ends."""
        if self.is_enabled():
            if self._off_since is not None:
                _log.warning(
                    "the messages from %d to %d of the commit log have no entries in the index: "
                    "messageIndexEnable was false",
                    self._off_since,
                    begin,
                )
                self._off_since = None
            return True
        if self._off_since is None:
            self._off_since = begin
            if self.behind_from is not None and not self.is_broken:
                # Otherwise the checkpoint and the log's files would wait for entries that never
                # come.
                self._off_since, self.behind_from, self.error = self.behind_from, None, None
            _log.info("no entries in the index from %d on: it is switched off", self._off_since)
        return False

    def put(self, hashes: Int32s, offsets: Int64s, timestamps: Int64s, begin: int) -> None:
        """Put entries, or mark the index as behind if this fails. `offsets`, `timestamps`: physical
        offset and store time of each entry's message. `begin`: position of these messages in the
        log."""
        if self.behind_from is not None:
            return
        try:
            self.put_again(hashes, offsets, timestamps)
        except Exception as error:
            self.fall_behind(begin, error)

    def put_again(self, hashes: Int32s, offsets: Int64s, timestamps: Int64s) -> None:
        """Put entries of the messages that directly follow the last message with entries. Raises
        the errors of the index."""
        if len(hashes):
            self._index.put(hashes, offsets, timestamps)

    def fall_behind(self, begin: int, error: Exception) -> None:
        """Mark the index as behind: messages at or after the log offset `begin` have no entries."""
        if self.behind_from is None:
            _log.warning("no entries in the index from %d on: %s", begin, error)
        passing = find_passing(error)
        self.behind_from, self.error = begin, passing or error
        if passing is None:
            self.is_broken = True
            reason = f"the index cannot be written: {error}"
            self._flags.set(RunningFlag.WRITE_INDEX_FILE_ERROR, reason, lasting=True)

    def catch_up(self) -> None:
        """Mark the index as complete."""
        self.behind_from = self.error = None
        _log.info("the index is complete again")


NO_QUEUE: Final = "(no queue)"
"""Name under which records with an invalid queue are counted."""


class RowDispatcher:
    """Builds consume queues and index from rows, in the order of the log. Not thread-safe.

    `light_queues_from`: position in the log from which messages are put in each light queue that
    they have an offset for, or None.
    `timestamp_ms`: store time of the last message.
    `listener`: called with messages once gets can find them.
    `counts`: counts of the messages that begin at or after byte `counts_from` of the log, each
    counted once. `counts_from` is None until messages are counted.
    """

    def __init__(
        self,
        log: CommitLog,
        appender: MessageAppender,
        queues: ConsumeQueueStoreInterface,
        index: IndexBuilder,
        delays_ms: tuple[int, ...],
    ) -> None:
        self.light_queues_from: int | None = None
        self.timestamp_ms = 0
        self.put_batch: Callable[[StoredMessage, int], object] = lambda *_: None
        """Function that is called for each record of a topic with batch queues, with the record's
        position in the log (bytes)."""
        self.sync_log: Callable[[], object] = lambda: None
        """Function that flushes the log up to its current end."""
        self.note_units: Callable[[Iterable[QueueKey]], object] = lambda _: None
        """Function that is called with the queues with new units, once gets can find the units."""
        self.listener: MessageArrivingListener | None = None
        self.skipped = SkippedRecords()
        self._observer: Callable[[ArrivedRuns], object] | None = None
        self.counts = TopicCounts()
        self.counts_from: int | None = None
        self._log = log
        self._appender = appender
        self._queues = queues
        self._index = index
        self._delays_ms = delays_ms
        self._prefixes = TopicPrefixes()
        self._by_number: dict[int, QueueKey] = {}
        self._deletions: list[TopicDeletion] = []  # of the current rows
        self._is_scanning = False

    def set_observer(self, observer: Callable[[ArrivedRuns], object] | None) -> None:
        """Set the function that gets the messages of each pass after they are in the queues. Each
        message is passed once."""
        self._observer = observer

    def dispatch(self, columns: RowColumns, *, is_scanning: bool = False) -> None:
        """Put messages in queues and index. Existing units are skipped. Raises the errors of the
        queues. After an error, the call may be repeated with the same messages. `is_scanning`:
        whether the messages were read from the log."""
        self._is_scanning = is_scanning
        self._deletions = []
        self._dispatch_in_order(columns)
        # Later rows may have the numbers of queues that are forgotten now. A put finds the position
        # of a recreated queue by the units of the deletions.
        for deletion in self._deletions:
            self._forget_queues(deletion)

    def _dispatch_in_order(self, columns: RowColumns) -> None:
        count = len(columns.numbers)
        if not count:
            return
        special = np.flatnonzero(columns.numbers == SPECIAL).tolist()
        # In the order of the log: runs of plain rows, and single special rows.
        first = 0
        for row in special:
            if first < row:
                self._dispatch_columns(columns.select(first, row))
            self._dispatch_record(int(columns.offsets[row]), int(columns.sizes[row]))
            first = row + 1
        if first < count:
            self._dispatch_columns(columns.select(first, count) if first else columns)

    def _dispatch_columns(self, columns: RowColumns) -> None:
        numbers, offsets, sizes, times, queue_offsets, properties = columns
        order = np.argsort(numbers, kind="stable")
        grouped = numbers[order]
        queue_offsets = queue_offsets[order]
        # A group: messages of one queue with consecutive offsets.
        is_same = grouped[1:] == grouped[:-1]
        jumps = is_same & (queue_offsets[1:] - queue_offsets[:-1] != 1)
        wrong = np.flatnonzero(jumps & (queue_offsets[1:] != 0) if self._is_scanning else jumps)
        if len(wrong):
            raise self._make_jump_error(columns, *order[wrong[0] : wrong[0] + 2].tolist())
        starts = np.flatnonzero(np.append(True, jumps | ~is_same)).tolist()
        for start in starts:
            self._learn_queue(int(grouped[start]))
        entries = index_entries(self._prefixes, numbers, properties)
        units = make_units(offsets, sizes, entries.tags_codes)
        groups: list[QueueUnits] = []
        for start, stop in zip(starts, [*starts[1:], len(order)], strict=True):
            chosen = order[start:stop]
            key = self._by_number[int(grouped[start])]
            first = int(queue_offsets[start])
            if first == 0 and self._is_scanning:
                self._append(groups, int(offsets[0]))
                groups.clear()
                self._begin_again(key, int(offsets[chosen[0]]))
            groups.append(QueueUnits(key, first, units[chosen], times[chosen]))
        self._append(groups, int(offsets[-1] + sizes[-1]))
        self._count(columns, order, starts)
        rows = entries.rows
        if self._index.takes_entries(int(offsets[0])) and len(rows):
            self._index.put(entries.hashes, offsets[rows], times[rows], int(offsets[0]))
        self.timestamp_ms = int(times[-1])
        if self.listener is not None:
            in_order = [properties[row] for row in order.tolist()]
            ends = [*starts[1:], len(order)]
            pieces = [in_order[start:end] for start, end in zip(starts, ends, strict=True)]
            self._call_listener(self.listener, groups, pieces[-len(groups) :])

    def _append(self, groups: Sequence[QueueUnits], dispatched_offset: int) -> None:
        try:
            self._queues.append(groups, dispatched_offset)
        finally:  # an error may leave the first groups there
            self.note_units([group.key for group in groups])

    def _count(self, columns: RowColumns, order: Int64s, starts: Sequence[int]) -> None:
        """Count messages, except those counted before an error. `order`, `starts`: the messages,
        grouped by queue."""
        numbers, offsets, sizes = columns.numbers, columns.offsets, columns.sizes
        counts_from = self.counts_from
        if counts_from is None:
            return
        self.counts_from = max(counts_from, int(offsets[-1] + sizes[-1]))
        messages = np.ones(len(order), dtype=np.int64)
        if int(offsets[0]) < counts_from:
            messages[offsets < counts_from] = 0
            sizes = sizes * messages
        firsts = order[starts]
        queues = [self._by_number[number] for number in numbers[firsts].tolist()]
        counted = np.add.reduceat(messages[order], starts)
        counted_bytes = np.add.reduceat(sizes[order], starts)
        topics = [queue.topic for queue in queues]
        self.counts.add(zip(topics, counted.tolist(), counted_bytes.tolist(), strict=True))
        if self._observer is not None:
            times, queue_offsets = columns.timestamps[firsts], columns.queue_offsets[firsts]
            self._observe(ArrivedRuns(queues, queue_offsets, counted, counted_bytes, times))

    def _observe(self, runs: ArrivedRuns) -> None:
        try:
            if self._observer is not None:
                self._observer(runs)
        except Exception:
            _log.exception("the observer of what arrives failed")

    def _call_listener(
        self,
        listener: MessageArrivingListener,
        groups: Sequence[QueueUnits],
        properties: Sequence[Sequence[bytes]],
    ) -> None:
        arrived = [
            ArrivedMessages(
                group.key.topic,
                group.key.queue_id,
                group.offset,
                group.units["tags_code"].astype(np.int64),
                group.store_timestamps_ms,
                pieces,
            )
            for group, pieces in zip(groups, properties, strict=True)
        ]
        try:
            listener(arrived)
        except Exception:
            _log.exception("the listener for arriving messages failed")

    def _begin_again(self, key: QueueKey, physical_offset: int) -> None:
        """Empty a queue whose offsets restart at 0 in the record at `physical_offset`. This happens
        if a Java broker deleted and recreated the topic."""
        queue = self._queues.get(key)
        unit = None if queue is None or queue.min_offset else queue.unit(0)
        if queue is not None and unit is not None and unit[0] < physical_offset:
            _log.warning(
                "%s/%d: its offsets begin at 0 again at %d of the commit log. Earlier messages "
                "belong to a deleted topic",
                key.topic,
                key.queue_id,
                physical_offset,
            )
            queue.initialize_with_offset(0)

    def _make_jump_error(self, columns: RowColumns, before: int, row: int) -> Corrupt:
        state = self._appender.queues[int(columns.numbers[row])]
        position = int(columns.offsets[row])
        return Corrupt(
            f"the record at {position} of the commit log: expected offset "
            f"{int(columns.queue_offsets[before]) + 1} of {state.topic}/{state.queue_id}, found "
            f"{int(columns.queue_offsets[row])}",
            topic=state.topic,
            queue_id=state.queue_id,
            offset=position,
        )

    def _learn_queue(self, number: int) -> None:
        if number not in self._by_number:
            state = self._appender.queues[number]
            self._prefixes.put(number, state.topic)
            self._by_number[number] = QueueKey(state.topic, state.queue_id)

    def _dispatch_record(self, offset: int, size: int) -> None:
        message = self._read_record(offset, size)
        topic = message.topic
        deletion = TopicDeletion.parse(message, self.skipped) if topic == DELETION_TOPIC else None
        if deletion is not None:
            if self._log.flushed_offset < offset + size:
                # Otherwise a crash might leave a part of the queues without a record of the reason.
                self.sync_log()
            self._drop_units(deletion)
        groups = self._find_groups(message, offset)
        self._append(groups, offset + size)
        if self._index.takes_entries(offset):
            self._index.put(*_record_entries(message, offset), offset)
        if deletion is not None:
            self._deletions.append(deletion)
        self.timestamp_ms = message.store_timestamp_ms
        if self.counts_from is not None and offset >= self.counts_from:
            self.counts.add([(topic, 1, size)])
            self.counts_from = offset + size
            if self._observer is not None:
                self._observe(_make_runs(groups, size, message.store_timestamp_ms))
        if self.listener is not None:
            pieces = [[message.properties_bytes] * len(group.units) for group in groups]
            self._call_listener(self.listener, groups, pieces)

    def _find_groups(self, message: StoredMessage, offset: int) -> list[QueueUnits]:
        """Return the units of a record, grouped by queue. Invalid queues are skipped, because a
        client may have sent them to a Java broker."""
        own = QueueKey(message.topic, message.queue_id)
        fault = self._queues.find_fault(own)
        if fault is not None:
            self.skipped.note(NO_QUEUE, offset, fault)
        elif message.topic in self._appender.refused_topics:  # whose units are of another form
            self.put_batch(message, offset)
            return []
        light_from = self.light_queues_from
        is_light = light_from is not None and offset >= light_from
        groups: dict[QueueKey, QueueUnits] = {}
        for group in find_record_units(message, self._delays_ms, with_light_queues=is_light):
            found: QueueUnits | None = group
            if group.key != own:
                found = find_light_places(
                    self._queues, group, lambda why: self.skipped.note(LMQ_PREFIX, offset, why)
                )
            elif fault is not None:
                continue
            if found is not None:
                groups[found.key] = found
        return list(groups.values())

    def _drop_units(self, deletion: TopicDeletion) -> None:
        for queue_id, end_offset in deletion.end_offsets.items():
            self._queues.drop_units_before(QueueKey(deletion.topic, queue_id), end_offset)

    def _forget_queues(self, deletion: TopicDeletion) -> None:
        self.counts.forget(deletion.topic)
        for queue_id, end_offset in deletion.end_offsets.items():
            number = self._appender.find_number(deletion.topic, queue_id)
            if number is not None:
                self._by_number.pop(number, None)
            self._appender.forget_queue(deletion.topic, queue_id, end_offset)

    def _read_record(self, offset: int, size: int) -> StoredMessage:
        record = self._log.get(offset, size)
        if record is None:
            raise Corrupt(f"expected a record of {size} bytes at {offset}", offset=offset)
        return decode_record(record)

    def index(self, columns: RowColumns) -> None:
        """Add the missing index entries of messages. Raises the errors of the index."""
        count = len(columns.numbers)
        first = 0
        for row in [*np.flatnonzero(columns.numbers == SPECIAL).tolist(), count]:
            if first < row:
                self._index_columns(columns.select(first, row))
            if row < count:
                offset = int(columns.offsets[row])
                record = self._read_record(offset, int(columns.sizes[row]))
                self._index.put_again(*_record_entries(record, offset))
            first = row + 1

    def _index_columns(self, columns: RowColumns) -> None:
        for number in np.unique(columns.numbers).tolist():
            self._learn_queue(number)
        entries = index_entries(self._prefixes, columns.numbers, columns.properties)
        rows = entries.rows
        self._index.put_again(entries.hashes, columns.offsets[rows], columns.timestamps[rows])


def _make_runs(groups: Sequence[QueueUnits], size: int, timestamp_ms: int) -> ArrivedRuns:
    """Return the `ArrivedRuns` of one record whose messages are in several queues, one entry per
    queue."""
    counts = np.array([len(group.units) for group in groups], dtype=np.int64)
    ones = np.ones(len(groups), dtype=np.int64)
    offsets = np.array([group.offset for group in groups], dtype=np.int64)
    keys = [group.key for group in groups]
    return ArrivedRuns(keys, offsets, counts, counts * size, ones * timestamp_ms)


def _record_entries(message: StoredMessage, offset: int) -> tuple[Int32s, Int64s, Int64s]:
    hashes: list[int] = []
    if message.sys_flag & TRANSACTION_MASK != TRANSACTION_ROLLBACK:
        topic, properties = message.topic, message.properties_bytes
        hashes = [local_key_hash(topic, key) for key in index_keys_of(properties)]
    count = len(hashes)
    return (
        np.array(hashes, dtype=np.int32),
        np.full(count, offset, dtype=np.int64),
        np.full(count, message.store_timestamp_ms, dtype=np.int64),
    )
