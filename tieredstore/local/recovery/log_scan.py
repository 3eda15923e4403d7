"""Where a log ends: each record from a position on is checked, as columns, and what lies behind the
first bad one is looked at too.

Reads by position only: the same code plans the recovery of a store and serves one that is left as
it is.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Final

import numpy as np

from tieredstore.contracts.dispatch_source import QueueKey
from tieredstore.errors import Corrupt
from tieredstore.local.log.commit_log import CommitLogReader
from tieredstore.local.log.foreign_log import ForeignCommitLog
from tieredstore.local.log.record_check import check_stored_record
from tieredstore.message.columns.property_crcs import check_property_crcs, have_property_crcs
from tieredstore.message.columns.records import (
    RecordColumns,
    Stop,
    check_bodies,
    check_text_ends,
    record_columns,
    topics,
    walk_records,
)
from tieredstore.message.crc import property_crc_matches
from tieredstore.message.layout import MAGIC_V1, MAGIC_V2, PHYSICAL_OFFSET_POSITION
from tieredstore.message.sysflag import (
    TRANSACTION_MASK,
    TRANSACTION_PREPARED,
    TRANSACTION_ROLLBACK,
)

CHUNK_BYTES: Final = 8 << 20
SECTOR_BYTES: Final = 512
"""What a disk writes whole: where a write was lost, whole sectors are zeros."""
_ROWS: Final = 8192
_MIN_HOLE_BYTES: Final = 8
_MAGIC_START: Final = MAGIC_V1.to_bytes(4, "big")[:3]
_LAST_BYTES: Final = (MAGIC_V1 & 0xFF, MAGIC_V2 & 0xFF)


class EndCause(enum.Enum):
    """Why the valid part of a log ends where it does."""

    FILES = "the last file is full"
    UNWRITTEN = "nothing was written behind it"
    TORN = "a record that was not written to its end"
    NO_RECORD = "bytes that are no record"
    DAMAGED = "a damaged record"


@dataclass(frozen=True, slots=True)
class LogEnd:
    """offset: byte of the log behind the last valid record; detail: what is there, for people."""

    offset: int
    cause: EndCause
    detail: str = ""


@dataclass(slots=True)
class QueueSpan:
    """Queue offsets of the records of a queue: from the first to behind the last."""

    first_offset: int
    end_offset: int


class LogScan:
    """Checks the records of a log from a byte on, which must be where one begins.

    The result: `end`, `records`, `last_timestamp_ms` (store time of the last one) and `queues`,
    what the records say of their queues (with_queues). force_prop_crc: whether each record must
    carry a CRC of the whole record; one that is there is checked always.
    """

    def __init__(
        self,
        log: CommitLogReader,
        start: int,
        *,
        force_prop_crc: bool = False,
        with_queues: bool = False,
    ) -> None:
        self.records = 0
        self.last_timestamp_ms = 0
        self.queues: dict[QueueKey, QueueSpan] = {}
        self._log = log
        self._force_prop_crc = force_prop_crc
        self._with_queues = with_queues
        self.end = self._scan(start)

    def _scan(self, start: int) -> LogEnd:
        log, offset = self._log, start
        while offset < log.readable_offset:
            file_end = offset - offset % log.file_size + log.file_size
            found = self._scan_file(offset, file_end)
            if found is not None:
                return found
            offset = file_end
        return LogEnd(offset, EndCause.FILES)

    def _scan_file(self, offset: int, file_end: int) -> LogEnd | None:
        """Check the records up to the end of a file; None when it is reached."""
        wanted = CHUNK_BYTES
        while offset < file_end:
            chunk = self._log.get(offset, min(wanted, file_end - offset))
            if chunk is None:
                return LogEnd(offset, EndCause.FILES)
            wanted = CHUNK_BYTES
            walk = walk_records(chunk)
            fault = self._check(chunk, walk.positions, offset)
            if fault is not None:
                return fault
            is_rest = offset + len(chunk) == file_end
            offset += walk.next_position
            rest = bytes(chunk[walk.next_position : walk.next_position + 8])
            match walk.stop:
                case Stop.END:
                    continue
                case Stop.BLANK:
                    return None
                case Stop.EMPTY:
                    return LogEnd(offset, EndCause.UNWRITTEN)
                case Stop.CUT:
                    size = int.from_bytes(rest[:4], "big", signed=True)
                    if is_rest or (len(rest) == 8 and size > file_end - offset):
                        return _describe_overlong(offset, rest, file_end)
                    wanted = max(CHUNK_BYTES, size)
                case _:
                    return LogEnd(
                        offset,
                        EndCause.NO_RECORD,
                        f"expected a record's size and magic, found {rest.hex()}",
                    )
        return None

    def _check(self, chunk: memoryview, positions: np.ndarray, base: int) -> LogEnd | None:
        for first in range(0, len(positions), _ROWS):
            rows = positions[first : first + _ROWS]
            columns = self._check_columns(chunk, rows, base)
            if columns is None:
                return self._find_first_bad(chunk, rows, base)
            self._count(chunk, columns)
        return None

    def _check_columns(
        self, chunk: memoryview, positions: np.ndarray, base: int
    ) -> RecordColumns | None:
        """The columns of records that are all valid, None when one is not."""
        try:
            columns = record_columns(chunk, positions)
        except Corrupt:
            return None
        if not (columns.physical_offsets == columns.positions + base).all():
            return None
        if not check_text_ends(chunk, columns).all():
            return None
        if self._force_prop_crc and not have_property_crcs(chunk, columns).all():
            return None
        if not check_property_crcs(chunk, columns).all():
            return None
        return columns if check_bodies(chunk, columns).all() else None

    def _find_first_bad(self, chunk: memoryview, positions: np.ndarray, base: int) -> LogEnd | None:
        for row, position in enumerate(positions.tolist()):
            size = int.from_bytes(chunk[position : position + 4], "big")
            reason = find_record_fault(
                chunk[position : position + size], base + position, force=self._force_prop_crc
            )
            if reason is not None:
                if row:
                    self._count(chunk, record_columns(chunk, positions[:row]))
                return LogEnd(base + position, EndCause.DAMAGED, reason)
        self._count(chunk, record_columns(chunk, positions))
        return None

    def _count(self, chunk: memoryview, columns: RecordColumns) -> None:
        self.records += len(columns)
        self.last_timestamp_ms = int(columns.store_timestamps[-1])
        if not self._with_queues:
            return
        kinds = columns.sys_flags & TRANSACTION_MASK
        counted = (kinds != TRANSACTION_PREPARED) & (kinds != TRANSACTION_ROLLBACK)
        if not counted.all():
            columns = columns.take(counted)
        if not len(columns):
            return
        names = topics(chunk, columns)
        numbers = {name: number for number, name in enumerate(dict.fromkeys(names))}
        found = list(numbers)
        codes = np.array([numbers[name] for name in names], dtype=np.int64) << 32
        codes |= columns.queue_ids.astype(np.int64) & 0xFFFFFFFF
        offsets = columns.queue_offsets
        kinds_of, first = np.unique(codes, return_index=True)
        last = len(codes) - 1 - np.unique(codes[::-1], return_index=True)[1]
        for code, begin, end in zip(
            kinds_of.tolist(), offsets[first].tolist(), offsets[last].tolist(), strict=True
        ):
            queue_id = (code & 0xFFFFFFFF) - ((code & 0x80000000) << 1)
            key = QueueKey(found[code >> 32], queue_id)
            span = self.queues.setdefault(key, QueueSpan(begin, end + 1))
            span.end_offset = end + 1


def _describe_overlong(offset: int, rest: bytes, file_end: int) -> LogEnd:
    if not any(rest):
        return LogEnd(offset, EndCause.UNWRITTEN)
    size = int.from_bytes(rest[:4], "big", signed=True)
    return LogEnd(
        offset,
        EndCause.TORN,
        f"expected a record that ends before {file_end}, found one of {size} bytes",
    )


def find_record_fault(record: memoryview, offset: int, *, force: bool = False) -> str | None:
    """Tell what is wrong with the record at a byte of the log, None when it is valid. force:
    whether it must carry a CRC of the whole record."""
    try:
        check_stored_record(record, offset)
    except Corrupt as error:
        return str(error)
    if force and property_crc_matches(record, 0, len(record)) is None:
        return "CRC of the whole record: expected one (forceVerifyPropCRC), found none"
    return None


@dataclass(frozen=True, slots=True)
class RecordsBehind:
    """Valid records behind the end of a log: how many, their bytes, where the first begins and its
    store time (epoch ms)."""

    records: int = 0
    size_bytes: int = 0
    first_offset: int = -1
    first_timestamp_ms: int = 0


def find_records_behind(log: ForeignCommitLog, offset: int) -> RecordsBehind:
    """Look for valid records from the byte on at which a scan has ended. One that lacks nothing but
    a CRC of the whole record counts: the store may have acknowledged it, whatever it asks for now.
    """
    records = size_bytes = 0
    first, first_timestamp_ms = -1, 0
    at = offset
    while True:
        place = _find_record(log, at)
        if place < 0:
            return RecordsBehind(records, size_bytes, first, first_timestamp_ms)
        scan = LogScan(log, place)
        at = max(scan.end.offset, place + 1)
        if not scan.records:
            continue
        if first < 0:
            first, first_timestamp_ms = place, _store_time(log, place)
        records += scan.records
        size_bytes += scan.end.offset - place


def _store_time(log: CommitLogReader, offset: int) -> int:
    size = log.get(offset, 4)
    record = None if size is None else log.get(offset, int.from_bytes(size, "big"))
    return 0 if record is None else check_stored_record(record, offset).store_timestamp_ms


def _find_record(log: ForeignCommitLog, offset: int) -> int:
    """The first byte from an offset on that looks like the beginning of the record that belongs
    there: magic, and its own physical offset; -1 without one."""
    while offset < log.readable_offset:
        file_end = offset - offset % log.file_size + log.file_size
        while (offset := log.skip_hole(offset)) < file_end:
            length = min(CHUNK_BYTES, file_end - offset)
            chunk = log.get(offset, length)
            if chunk is None:
                return -1
            data = bytes(chunk)
            at = data.find(_MAGIC_START, 4)
            while at >= 0:
                begin = at - 4
                if data[at + 3 : at + 4] and data[at + 3] in _LAST_BYTES:
                    head = log.get(offset + begin, PHYSICAL_OFFSET_POSITION + 8)
                    if head is not None and offset + begin == int.from_bytes(head[-8:], "big"):
                        return offset + begin
                at = data.find(_MAGIC_START, at + 1)
            if length < CHUNK_BYTES:
                break
            offset += length - 8  # a magic may lie across the border
        offset = file_end
    return -1


def has_lost_sector(log: CommitLogReader, start: int, end: int) -> bool:
    """Tell whether a sector within [start, end) is all zeros there, as it is where a write that was
    never synced got lost with the power; other damage leaves none."""
    file_end = start - start % log.file_size + log.file_size
    end = min(end, file_end, start + CHUNK_BYTES)
    data = log.get(start, end - start)
    if data is None:
        return False
    position = 0
    while position < len(data):
        length = min(SECTOR_BYTES - (start + position) % SECTOR_BYTES, len(data) - position)
        piece = data[position : position + length]
        if length >= _MIN_HOLE_BYTES and not any(piece):
            return True
        position += length
    return False
