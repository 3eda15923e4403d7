"""What is built of the log's rows: the units of consume queues, and the entries of the index."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from tieredstore.contracts.dispatch_source import ArrivedRuns, QueueKey
from tieredstore.contracts.message_store import ArrivedMessages, MessageArrivingListener
from tieredstore.errors import Corrupt
from tieredstore.local.dispatch.index_builder import IndexBuilder, Int32s, Int64s
from tieredstore.local.dispatch.row_columns import RowColumns
from tieredstore.local.index.keys import TopicPrefixes, index_entries, index_keys_of
from tieredstore.local.log.commit_log import CommitLog
from tieredstore.local.put.appender import MessageAppender
from tieredstore.local.put.rows import SPECIAL
from tieredstore.local.queues.interface import ConsumeQueueStoreInterface, QueueUnits
from tieredstore.local.queues.record_units import find_record_units
from tieredstore.local.statistics.topic_counts import TopicCounts
from tieredstore.message.consume_queue import make_units
from tieredstore.message.hashes import local_key_hash
from tieredstore.message.names import DELETION_TOPIC
from tieredstore.message.record import StoredMessage, decode_record
from tieredstore.message.sysflag import (
    TRANSACTION_MASK,
    TRANSACTION_ROLLBACK,
)
from tieredstore.message.topic_deletion import TopicDeletion

_log = logging.getLogger(__name__)


class RowDispatcher:
    """Builds consume queues and index from rows, in the order of the log. One thread at a time.

    light_queues_from: byte of the log from which on messages are put in the light queues of which
    they carry an offset; None: none is. timestamp_ms: store time of the last message. listener: is
    told of messages that gets find from now on. counts: of the messages from the byte `counts_from`
    of the log on, each once; None: of none yet.
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
        """Told of each record of a topic with batch queues, and where it is in the log (bytes)."""
        self.sync_log: Callable[[], object] = lambda: None
        """Brings the log to disk, up to where it ends now."""
        self.note_units: Callable[[Iterable[QueueKey]], object] = lambda _: None
        """Told of the queues that got units, once gets find these."""
        self.listener: MessageArrivingListener | None = None
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
        self._deletions: list[TopicDeletion] = []  # of the rows in hand
        self._is_scanning = False

    def set_observer(self, observer: Callable[[ArrivedRuns], object] | None) -> None:
        """Tell somebody of what `counts` counts, run by run."""
        self._observer = observer

    def dispatch(self, columns: RowColumns, *, is_scanning: bool = False) -> None:
        """Put messages in queues and index; units that a queue has are skipped. Raises what the
        queues raise: then it may be called again with the same messages.

        is_scanning: whether they were read in the log.
        """
        self._is_scanning = is_scanning
        self._deletions = []
        self._dispatch_in_order(columns)
        # Later rows may have had the numbers of the queues that are forgotten now. A put finds by
        # the units of the deletions where a queue that is made again goes on.
        for deletion in self._deletions:
            self._forget_queues(deletion)

    def _dispatch_in_order(self, columns: RowColumns) -> None:
        count = len(columns.numbers)
        if not count:
            return
        special = np.flatnonzero(columns.numbers == SPECIAL).tolist()
        # In the order of the log: runs of plain rows, and the others one by one.
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
            self._tell(self.listener, groups, pieces[-len(groups) :])

    def _append(self, groups: Sequence[QueueUnits], dispatched_offset: int) -> None:
        try:
            self._queues.append(groups, dispatched_offset)
        finally:  # an error may leave the first groups there
            self.note_units([group.key for group in groups])

    def _count(self, columns: RowColumns, order: Int64s, starts: Sequence[int]) -> None:
        """Count messages, but those that were counted before an error. order, starts: their groups,
        each of one queue."""
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

    def _tell(
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
        """Empty a queue whose offsets begin at 0 again at a byte of the log: a Java broker's, of
        which the topic was deleted and made again."""
        queue = self._queues.get(key)
        unit = None if queue is None or queue.min_offset else queue.unit(0)
        if queue is not None and unit is not None and unit[0] < physical_offset:
            _log.warning(
                "%s/%d: its offsets begin at 0 again at %d of the commit log: what was in front is "
                "of a topic that was deleted",
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
        deletion = TopicDeletion.parse(message) if topic == DELETION_TOPIC else None
        if deletion is not None:
            if self._log.flushed_offset < offset + size:
                # Else a crash might leave a part of the queues, and nothing that says why.
                self.sync_log()
            self._drop_units(deletion)
        groups = []
        if topic in self._appender.refused_topics:  # whose units are of another form
            self.put_batch(message, offset)
        else:
            light_from = self.light_queues_from
            is_light = light_from is not None and offset >= light_from
            groups = find_record_units(message, self._delays_ms, with_light_queues=is_light)
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
            pieces = [[message.properties_bytes]] * len(groups)
            self._tell(self.listener, groups, pieces)

    def _drop_units(self, deletion: TopicDeletion) -> None:
        for queue_id, end_offset in deletion.end_offsets.items():
            self._queues.drop_units_before(QueueKey(deletion.topic, queue_id), end_offset)

    def _forget_queues(self, deletion: TopicDeletion) -> None:
        """Keep nothing of the queues, unless something was put in them since."""
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
        """Put the entries of messages in the index, which is behind. Raises what the index
        raises."""
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
    """One message in each of its queues."""
    ones = np.ones(len(groups), dtype=np.int64)
    offsets = np.array([group.offset for group in groups], dtype=np.int64)
    keys = [group.key for group in groups]
    return ArrivedRuns(keys, offsets, ones, ones * size, ones * timestamp_ms)


def _record_entries(message: StoredMessage, offset: int) -> tuple[Int32s, Int64s, Int64s]:
    """Hashes of a record's keys, and its offset and store time for each."""
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
