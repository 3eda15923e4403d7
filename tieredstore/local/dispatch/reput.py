"""Dispatch: from what was appended to the log to consume queues and index ("reput").

Live, the rows come from the put path in memory. Where rows are missing (at the start, or when they
were dropped because too many waited) the log itself is read.
"""

from __future__ import annotations

import logging
import threading
from dataclasses import replace
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from tieredstore.contracts.dispatch_source import QueueKey
from tieredstore.errors import Corrupt, TieredStoreError
from tieredstore.local.index.keys import TopicPrefixes, index_entries, index_keys_of
from tieredstore.local.index.service import IndexService
from tieredstore.local.log.commit_log import CommitLog
from tieredstore.local.put.appender import MessageAppender
from tieredstore.local.put.rows import ROW_FIELDS, SPECIAL, Rows
from tieredstore.local.queues.interface import ConsumeQueueStoreInterface, QueueUnits
from tieredstore.local.queues.light_queues import LIGHT_QUEUE_ID, light_queue_offsets
from tieredstore.message.columns.records import (
    HEADER_DTYPE,
    RecordColumns,
    properties_of,
    record_columns,
    topics,
    walk_records,
)
from tieredstore.message.consume_queue import UNIT_DTYPE, make_units, pack_unit
from tieredstore.message.hashes import local_key_hash, tags_code
from tieredstore.message.layout import is_blank_record
from tieredstore.message.names import DELETION_TOPIC, SCHEDULE_TOPIC
from tieredstore.message.properties import find_text
from tieredstore.message.record import StoredMessage, decode_record
from tieredstore.message.sysflag import (
    TRANSACTION_MASK,
    TRANSACTION_PREPARED,
    TRANSACTION_ROLLBACK,
)
from tieredstore.message.topic_deletion import TopicDeletion
from tieredstore.service_thread import ServiceHealth, ServiceState, ServiceThread

PASS_ROWS: Final = 4_096
_log = logging.getLogger(__name__)

Int64s = npt.NDArray[np.int64]


class _Columns(NamedTuple):
    """Messages to dispatch, one a row: queue number or SPECIAL, physical offset, size, store time,
    queue offset, properties."""

    numbers: Int64s
    offsets: Int64s
    sizes: Int64s
    timestamps: Int64s
    queue_offsets: Int64s
    properties: list[bytes]

    def select(self, first: int, stop: int) -> _Columns:
        """Return the rows [first, stop)."""
        return _Columns(*[column[first:stop] for column in self])  # type: ignore[arg-type]


def _read_rows(rows: Rows) -> _Columns:
    """Read rows of the put path: their heads as one buffer."""
    numbers: Any = rows[0::ROW_FIELDS]
    joined: Any = rows[1::ROW_FIELDS]
    properties: Any = rows[2::ROW_FIELDS]
    heads = np.frombuffer(b"".join(joined), dtype=HEADER_DTYPE)
    return _Columns(
        np.array(numbers, dtype=np.int64),
        heads["physical_offset"].astype(np.int64),
        heads["size"].astype(np.int64),
        heads["store_timestamp"].astype(np.int64),
        heads["queue_offset"].astype(np.int64),
        properties,
    )


class Reput:
    """Builds consume queues and index in the order of the log.

    Passes are run by a thread of its own and by producers that find too many rows waiting, one at a
    time. `offset` is the end of what was dispatched. After an error nothing more is dispatched and
    `error` says why: the store must not take messages that nobody could find.
    """

    def __init__(
        self,
        log: CommitLog,
        appender: MessageAppender,
        queues: ConsumeQueueStoreInterface,
        index: IndexService | None,
        delays_ms: tuple[int, ...],
        *,
        dispatch_light_queues: bool,
    ) -> None:
        self.offset = 0
        self.error: TieredStoreError | None = None
        self.timestamp_ms = 0
        self._log = log
        self._appender = appender
        self._queues = queues
        self._index = index
        self._delays_ms = delays_ms
        self._dispatch_light_queues = dispatch_light_queues
        self._lock = threading.RLock()  # taken before the put lock
        self._prefixes = TopicPrefixes()
        self._by_number: dict[int, QueueKey] = {}
        self._deletions: list[TopicDeletion] = []  # of the rows in hand
        # It is woken by the put path, which sets the event itself.
        self._is_scanning = False
        self._loop = ServiceThread("reput", self._run_passes, None, wake_event=appender.wake)

    def start(self) -> None:
        """Begin to dispatch in the background."""
        self._appender.help_dispatch = self.run_pass
        self._loop.start()

    def stop(self) -> None:
        """Dispatch what is left and end the thread."""
        self._loop.stop()
        while self.run_pass():
            pass

    def health(self) -> list[ServiceHealth]:
        """Tell how the dispatch is: FAILED once it has stopped with an error."""
        found = self._loop.health()
        if self.error is not None:
            found = replace(found, state=ServiceState.FAILED, error=self.error)
        return [found]

    def _run_passes(self) -> None:
        while not self._loop.is_stopping and self.run_pass():
            self._loop.report_progress()

    def run_pass(self) -> bool:
        """Dispatch what waits now; returns whether anything did."""
        with self._lock:
            if self.error is not None:
                return False
            try:
                waiting = self._appender.take_rows()
                if waiting.is_cut:
                    if self.offset < waiting.end_offset:
                        self.scan(waiting.end_offset)
                    self._appender.resume_rows(self.offset)
                    return True
                before = self.offset
                if before < waiting.begin_offset:
                    self.scan(waiting.begin_offset)
                rows = waiting.rows
                for start in range(0, len(rows), PASS_ROWS * ROW_FIELDS):
                    self._dispatch(_read_rows(rows[start : start + PASS_ROWS * ROW_FIELDS]))
                # Without a row too: an interrupted put may have begun the next file alone.
                self.offset = max(before, waiting.end_offset)
                return self.offset > before
            except Exception as error:
                _log.exception("dispatch stops at %d", self.offset)
                self.error = (
                    error
                    if isinstance(error, TieredStoreError)
                    else TieredStoreError(f"dispatch stops at {self.offset}: {error!r}")
                )
                self._appender.close(f"no message becomes visible any more: {self.error}")
                self._appender.drop_rows()
                return False
            except BaseException:
                # Interrupted with rows in hand, which nobody has any more: the log has them.
                self._appender.drop_rows()
                raise

    def scan(self, end: int) -> None:
        """Dispatch the records of the log from `offset` to `end`. Raises Corrupt."""
        self._is_scanning = True
        try:
            self._scan(end)
        finally:
            self._is_scanning = False

    def _scan(self, end: int) -> None:
        offset = max(self.offset, self._log.min_offset)
        while offset < end:
            chunk = self._log.rest_of_file(offset)[: end - offset]
            walk = walk_records(chunk)
            for first in range(0, len(walk.positions), PASS_ROWS):
                records = record_columns(chunk, walk.positions[first : first + PASS_ROWS])
                self._check_places(records, offset)
                self._dispatch(self._columns_of(chunk, records))
                self.offset = offset + int(records.positions[-1] + records.sizes[-1])
            file_end = offset - offset % self._log.file_size + self._log.file_size
            offset += walk.next_position
            if offset < min(file_end, end):
                if not is_blank_record(chunk, walk.next_position):
                    raise Corrupt(
                        f"{self._log.path_of(offset)}: expected a record at {offset}",
                        path=str(self._log.path_of(offset)),
                        offset=offset,
                    )
                offset = file_end
        self.offset = end

    def _check_places(self, records: RecordColumns, base: int) -> None:
        right = records.positions + base == records.physical_offsets
        if not right.all():
            place = base + int(records.positions[int(right.argmin())])
            raise Corrupt(
                f"{self._log.path_of(place)}: the record at {place} says that it is at "
                f"{int(records.physical_offsets[int(right.argmin())])}",
                path=str(self._log.path_of(place)),
                offset=place,
            )

    def _columns_of(self, chunk: memoryview, records: RecordColumns) -> _Columns:
        """What the rows of the put path would have said."""
        properties = properties_of(chunk, records)
        special = (records.sys_flags & TRANSACTION_MASK) != 0
        if self._dispatch_light_queues:
            special |= np.array([b"INNER_MULTI_" in found for found in properties], dtype=np.bool_)
        numbers = self._queue_numbers(
            topics(chunk, records), records.queue_ids.tolist(), special.tolist()
        )
        return _Columns(
            np.array(numbers, dtype=np.int64),
            records.physical_offsets,
            records.sizes,
            records.store_timestamps,
            records.queue_offsets,
            properties,
        )

    def _queue_numbers(
        self, topics_of: list[str], queue_ids: list[int], special: list[bool]
    ) -> list[int]:
        special_topics = {SCHEDULE_TOPIC, DELETION_TOPIC, *self._appender.refused_topics}
        rows = list(zip(topics_of, queue_ids, special, strict=True))
        known = {
            row: SPECIAL
            if row[2] or row[0] in special_topics
            else self._appender.register(row[0], row[1]).number
            for row in set(rows)
        }
        return [known[row] for row in rows]

    def _dispatch(self, columns: _Columns) -> None:
        self._deletions = []
        self._dispatch_in_order(columns)
        # Later rows may have had the numbers of the queues that are forgotten now. A put finds by
        # the units of the deletions where a queue that is made again goes on.
        for deletion in self._deletions:
            self._forget_queues(deletion)

    def _dispatch_in_order(self, columns: _Columns) -> None:
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

    def _dispatch_columns(self, columns: _Columns) -> None:
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
                self._queues.append(groups, int(offsets[0]))
                groups.clear()
                self._begin_again(key, int(offsets[chosen[0]]))
            groups.append(QueueUnits(key, first, units[chosen], times[chosen]))
        self._queues.append(groups, int(offsets[-1] + sizes[-1]))
        if self._index is not None and len(entries.rows):
            self._index.put(entries.hashes, offsets[entries.rows], times[entries.rows])
        self.timestamp_ms = int(times[-1])

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

    def _make_jump_error(self, columns: _Columns, before: int, row: int) -> Corrupt:
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
        record = self._log.get(offset, size)
        if record is None:
            raise Corrupt(f"expected a record of {size} bytes at {offset}", offset=offset)
        message = decode_record(record)
        kind = message.sys_flag & TRANSACTION_MASK
        topic, properties = message.topic, message.properties_bytes
        deletion = TopicDeletion.parse(message) if topic == DELETION_TOPIC else None
        if deletion is not None:
            self._drop_units(deletion)
        groups = []
        is_batch = topic in self._appender.refused_topics  # its units are of another form
        if kind not in (TRANSACTION_PREPARED, TRANSACTION_ROLLBACK) and not is_batch:
            packed = pack_unit(offset, size, self._tags_code(message, topic, properties))
            unit = np.frombuffer(packed, dtype=UNIT_DTYPE)
            time = np.array([message.store_timestamp_ms], dtype=np.int64)
            places = [(QueueKey(topic, message.queue_id), message.queue_offset)]
            if self._dispatch_light_queues:
                places += [
                    (QueueKey(name, LIGHT_QUEUE_ID), light_offset)
                    for name, light_offset in light_queue_offsets(topic, properties)
                ]
            groups = [QueueUnits(key, number, unit, time) for key, number in places]
        self._queues.append(groups, offset + size)
        if self._index is not None and kind != TRANSACTION_ROLLBACK:
            hashes = [local_key_hash(topic, key) for key in index_keys_of(properties)]
            count = len(hashes)
            self._index.put(
                np.array(hashes, dtype=np.int32),
                np.full(count, offset, dtype=np.int64),
                np.full(count, message.store_timestamp_ms, dtype=np.int64),
            )
        if deletion is not None:
            self._deletions.append(deletion)
        self.timestamp_ms = message.store_timestamp_ms

    def _drop_units(self, deletion: TopicDeletion) -> None:
        for queue_id, end_offset in deletion.end_offsets.items():
            self._queues.drop_units_before(QueueKey(deletion.topic, queue_id), end_offset)

    def _forget_queues(self, deletion: TopicDeletion) -> None:
        """Keep nothing of the queues, unless something was put in them since."""
        for queue_id, end_offset in deletion.end_offsets.items():
            number = self._appender.find_number(deletion.topic, queue_id)
            if number is not None:
                self._by_number.pop(number, None)
            self._appender.forget_queue(deletion.topic, queue_id, end_offset)

    def _tags_code(self, message: StoredMessage, topic: str, properties: bytes) -> int:
        if topic == SCHEDULE_TOPIC:
            text = find_text(properties, b"DELAY")
            if text is not None and text.isdigit() and int(text) > 0:
                level = min(int(text), len(self._delays_ms))
                return message.store_timestamp_ms + self._delays_ms[level - 1]
        return tags_code(find_text(properties, b"TAGS"))
