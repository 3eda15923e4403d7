"""Rows of what the log holds, as the put path would have handed them over."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from tieredstore.errors import Corrupt
from tieredstore.local.dispatch.row_columns import RowColumns
from tieredstore.local.log.commit_log import CommitLog
from tieredstore.local.put.appender import MessageAppender
from tieredstore.local.put.rows import SPECIAL
from tieredstore.message.columns.records import (
    RecordColumns,
    properties_of,
    record_columns,
    topics,
    walk_records,
)
from tieredstore.message.layout import is_blank_record
from tieredstore.message.names import DELETION_TOPIC, SCHEDULE_TOPIC
from tieredstore.message.sysflag import TRANSACTION_MASK

PASS_ROWS: Final = 4_096
"""Rows that are dispatched at once."""


class LogRows:
    """Reads the log for the dispatch, where no rows are in memory. has_light_queues: whether
    messages may be in light queues too."""

    def __init__(
        self, log: CommitLog, appender: MessageAppender, *, has_light_queues: bool
    ) -> None:
        self._log = log
        self._appender = appender
        self._has_light_queues = has_light_queues

    def read(self, offset: int, end: int) -> Iterator[tuple[RowColumns, int]]:
        """Yield the rows of the records from `offset` to `end` (bytes of the log), up to PASS_ROWS
        at a time, and where they end. Raises Corrupt where there is no record."""
        while offset < end:
            chunk = self._log.rest_of_file(offset)[: end - offset]
            walk = walk_records(chunk)
            for first in range(0, len(walk.positions), PASS_ROWS):
                records = record_columns(chunk, walk.positions[first : first + PASS_ROWS])
                self._check_places(records, offset)
                yield (
                    self._columns_of(chunk, records),
                    offset + int(records.positions[-1] + records.sizes[-1]),
                )
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

    def _columns_of(self, chunk: memoryview, records: RecordColumns) -> RowColumns:
        """What the rows of the put path would have said."""
        properties = properties_of(chunk, records)
        special = (records.sys_flags & TRANSACTION_MASK) != 0
        if self._has_light_queues:
            special |= np.array([b"INNER_MULTI_" in found for found in properties], dtype=np.bool_)
        numbers = self._queue_numbers(
            topics(chunk, records), records.queue_ids.tolist(), special.tolist()
        )
        return RowColumns(
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
