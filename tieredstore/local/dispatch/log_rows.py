"""Rows to dispatch, as columns. They come from the put path or are read from the log."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import KW_ONLY, dataclass
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from tieredstore.contracts.dispatch_source import QueueKey
from tieredstore.errors import Corrupt
from tieredstore.local.log.commit_log import CommitLog
from tieredstore.local.put.appender import MessageAppender
from tieredstore.local.put.rows import ROW_FIELDS, SPECIAL, Rows
from tieredstore.message.columns.records import (
    HEADER_DTYPE,
    RecordColumns,
    properties_of,
    record_columns,
    topics,
)
from tieredstore.message.columns.walk import walk_records
from tieredstore.message.layout import is_blank_record
from tieredstore.message.names import DELETION_TOPIC, SCHEDULE_TOPIC
from tieredstore.message.sysflag import TRANSACTION_MASK

PASS_ROWS: Final = 4_096
"""Maximum number of rows in one pass of the dispatch."""


@dataclass(eq=False)
class LogRows:
    """Reads the log for the dispatch when no rows are in memory. `find_fault`: returns why a queue
    name is invalid, or None. `has_light_queues`: whether messages may also be in light queues."""

    log: CommitLog
    appender: MessageAppender
    find_fault: Callable[[QueueKey], str | None]
    _: KW_ONLY
    has_light_queues: bool

    def read(self, offset: int, end: int) -> Iterator[tuple[RowColumns, int]]:
        """Yield the rows of the records from `offset` to `end` (bytes of the log), in parts of up
        to PASS_ROWS. Each part comes with the log offset of its end. Raises Corrupt if a position
        has no record."""
        while offset < end:
            chunk = self.log.rest_of_file(offset)[: end - offset]
            walk = walk_records(chunk)
            for first in range(0, len(walk.positions), PASS_ROWS):
                records = record_columns(chunk, walk.positions[first : first + PASS_ROWS])
                self._check_places(records, offset)
                yield (
                    self._columns_of(chunk, records),
                    offset + int(records.positions[-1] + records.sizes[-1]),
                )
            file_end = offset - offset % self.log.file_size + self.log.file_size
            offset += walk.next_position
            if offset < min(file_end, end):
                if not is_blank_record(chunk, walk.next_position):
                    raise Corrupt(
                        f"{self.log.path_of(offset)}: expected a record at {offset}",
                        path=str(self.log.path_of(offset)),
                        offset=offset,
                    )
                offset = file_end

    def _check_places(self, records: RecordColumns, base: int) -> None:
        right = records.positions + base == records.physical_offsets
        if not right.all():
            place = base + int(records.positions[int(right.argmin())])
            raise Corrupt(
                f"{self.log.path_of(place)}: the record at {place} says that it is at "
                f"{int(records.physical_offsets[int(right.argmin())])}",
                path=str(self.log.path_of(place)),
                offset=place,
            )

    def _columns_of(self, chunk: memoryview, records: RecordColumns) -> RowColumns:
        properties = properties_of(chunk, records)
        special = (records.sys_flags & TRANSACTION_MASK) != 0
        if self.has_light_queues:
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
        special_topics = {SCHEDULE_TOPIC, DELETION_TOPIC, *self.appender.refused_topics}
        rows = list(zip(topics_of, queue_ids, special, strict=True))
        known = {
            row: SPECIAL
            if row[2] or row[0] in special_topics or self.find_fault(QueueKey(*row[:2]))
            else self.appender.register(row[0], row[1]).number
            for row in set(rows)
        }
        return [known[row] for row in rows]


Int64s = npt.NDArray[np.int64]


class RowColumns(NamedTuple):
    """Columns with one row per message: queue number or SPECIAL, physical offset, size, store time,
    queue offset, properties."""

    numbers: Int64s
    offsets: Int64s
    sizes: Int64s
    timestamps: Int64s
    queue_offsets: Int64s
    properties: list[bytes]

    def select(self, first: int, stop: int) -> RowColumns:
        """Return the rows [first, stop)."""
        return RowColumns(*[column[first:stop] for column in self])  # type: ignore[arg-type]


def read_rows(rows: Rows) -> RowColumns:
    """Decode rows that the put path has passed on."""
    numbers: object = rows[0::ROW_FIELDS]
    joined: Any = rows[1::ROW_FIELDS]
    properties: Any = rows[2::ROW_FIELDS]
    heads = np.frombuffer(b"".join(joined), dtype=HEADER_DTYPE)
    return RowColumns(
        np.array(numbers, dtype=np.int64),
        heads["physical_offset"].astype(np.int64),
        heads["size"].astype(np.int64),
        heads["store_timestamp"].astype(np.int64),
        heads["queue_offset"].astype(np.int64),
        properties,
    )
