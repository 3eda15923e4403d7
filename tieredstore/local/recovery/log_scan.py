"""Finds the end of a log: checks each record after a position, in columns, and searches for valid
records after the first bad one.

Files are read by position. The same code plans a recovery and serves a store that is not changed.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from tieredstore.contracts.dispatch_source import QueueKey
from tieredstore.errors import Corrupt
from tieredstore.local.log.commit_log import CommitLogReader
from tieredstore.local.log.file_names import file_name
from tieredstore.local.log.foreign_log import ForeignCommitLog, find_record
from tieredstore.local.log.record_check import check_stored_record, find_topic_of_whole
from tieredstore.local.positional_files import PositionalFiles
from tieredstore.local.recovery.checkpoint import read_checkpoint
from tieredstore.local.recovery.queue_files import has_data
from tieredstore.message.columns.records import (
    RecordColumns,
    check_bodies,
    check_property_crcs,
    check_text_ends,
    have_property_crcs,
    record_columns,
    topics,
)
from tieredstore.message.columns.walk import Stop, walk_records
from tieredstore.message.crc import property_crc_matches
from tieredstore.message.layout import (
    FIXED_SIZE,
    HOSTLESS_SIZE,
    MAGICS,
    MAX_STORE_TIMESTAMP_END,
    MIN_RECORD_SIZE,
    host_sizes,
    size_and_magic,
)
from tieredstore.message.record import StoredMessage, decode_record
from tieredstore.message.sysflag import TRANSACTION_MASK, TRANSACTION_PREPARED, TRANSACTION_ROLLBACK

CHUNK_BYTES: Final = 8 << 20
SECTOR_BYTES: Final = 512
"""Size of a disk sector. A lost write leaves whole sectors of zeros."""
_ROWS: Final = 8192
_MIN_HOLE_BYTES: Final = 8


class EndCause(enum.Enum):
    """Reason why the valid part of a log ends."""

    FILES = "the last file is full"
    UNWRITTEN = "nothing was written after it"
    TORN = "a record that was not written to its end"
    NO_RECORD = "bytes that are no record"
    DAMAGED = "a damaged record"


@dataclass(frozen=True, slots=True)
class LogEnd:
    """End of the valid part of a log. `offset`: end of the last valid record (log offset in bytes).
    `detail`: description of the bytes after it."""

    offset: int
    cause: EndCause
    detail: str = ""


@dataclass(frozen=True, slots=True)
class DoubtfulRecord:
    """Complete record that looks damaged at its end. `offset`: position in the log (bytes).
    `reason`: the apparent fault."""

    topic: str
    offset: int
    reason: str


@dataclass(slots=True)
class QueueSpan:
    """Range [first_offset, end_offset) of the queue offsets in the records of one queue."""

    first_offset: int
    end_offset: int


class LogScan:
    """Checks the records of a log, starting at a position where a record must begin.

    The results are `end`, `records`, `last_timestamp_ms` (store time of the last record) and, with
    `with_queues`, `queues` (the queue offsets in the records). `force_prop_crc`: whether each
    record must have a CRC of the whole record. An existing CRC is always checked. `has_prop_crcs`:
    whether the store currently adds this CRC.

    A record that looks damaged only because of its client (`local.log.record_check`) is valid, and
    is listed in `doubtful`.
    """

    def __init__(
        self,
        log: CommitLogReader,
        start: int,
        *,
        force_prop_crc: bool = False,
        has_prop_crcs: bool = False,
        with_queues: bool = False,
    ) -> None:
        self.records = 0
        self.last_timestamp_ms = 0
        self.queues: dict[QueueKey, QueueSpan] = {}
        self.doubtful: list[DoubtfulRecord] = []
        self._log = log
        self._force_prop_crc = force_prop_crc
        self._has_prop_crcs = has_prop_crcs
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
                record = chunk[position : position + size]
                topic = None
                if not self._force_prop_crc:
                    topic = find_topic_of_whole(
                        self._log, record, base + position, has_crcs=self._has_prop_crcs
                    )
                if topic is not None:
                    self.doubtful.append(DoubtfulRecord(topic, base + position, reason))
                    continue
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
    """Return the fault of the record at the log offset `offset`, or None. `force`: whether the
    record must have a CRC of the whole record."""
    try:
        check_stored_record(record, offset)
    except Corrupt as error:
        return str(error)
    if force and property_crc_matches(record, 0, len(record)) is None:
        return "CRC of the whole record: expected one (forceVerifyPropCRC), found none"
    return None


@dataclass(frozen=True, slots=True)
class RecordsBehind:
    """Valid records after the end of a log: number, bytes, and the position and store time (epoch
    ms) of the first one."""

    records: int = 0
    size_bytes: int = 0
    first_offset: int = -1
    first_timestamp_ms: int = 0


def find_records_behind(log: ForeignCommitLog, offset: int) -> RecordsBehind:
    """Find valid records after `offset`, the end of a scan. A record that lacks only a CRC of the
    whole record is valid, because the store may have acknowledged it while `force_prop_crc` was
    off. Records in the body of a damaged record are ignored, because a client wrote them."""
    records = size_bytes = 0
    first, first_timestamp_ms = -1, 0
    at = offset
    while True:
        place = find_record(log, at)
        if place < 0:
            return RecordsBehind(records, size_bytes, first, first_timestamp_ms)
        scan = LogScan(log, place)
        if not scan.records:
            # Only the end of a scan is certainly the head of a record rather than a client's text.
            at = max(_skip_body(log, place) if place == offset else place, place + 1)
            continue
        at = max(scan.end.offset, place + 1)
        if first < 0:
            first, first_timestamp_ms = place, _store_time(log, place)
        records += scan.records
        size_bytes += scan.end.offset - place


def _skip_body(log: CommitLogReader, offset: int) -> int:
    """Return the end of the body of the record whose head is at `offset`, or `offset` if there is
    no head. The search continues there instead of at the end of the record, so that it skips no
    later record even if a size is wrong."""
    size, magic = 0, 0
    head = log.get(offset, FIXED_SIZE)
    if head is not None:
        size, magic = size_and_magic(head, 0, len(head))
    if head is None or magic not in MAGICS:
        return offset
    message = StoredMessage(head, 0, size)
    if message.physical_offset != offset:
        return offset
    body = HOSTLESS_SIZE + sum(host_sizes(message.sys_flag))
    head = log.get(offset, body)
    if head is None:
        return offset
    length = int.from_bytes(head[-4:], "big", signed=True)
    is_whole = 0 <= length <= size - body - (MIN_RECORD_SIZE - FIXED_SIZE)
    return offset + body + length if is_whole else offset


def _store_time(log: CommitLogReader, offset: int) -> int:
    size = log.get(offset, 4)
    record = None if size is None else log.get(offset, int.from_bytes(size, "big"))
    return 0 if record is None else decode_record(record).store_timestamp_ms


def has_lost_sector(log: CommitLogReader, start: int, end: int) -> bool:
    """Return whether a disk sector within [start, end) contains only zeros. Only a write that was
    not synced before a power failure leaves such a sector."""
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


def find_lost_end(root: Path, log: CommitLogReader, position: int) -> str:
    """Describe the loss if a cleanly stopped store's log ends at `position`, although a whole
    message was on disk there: a record begins there, its last byte is not zero, and its store time
    is not after the checkpoint's. Return an empty text otherwise. Zeros at the end are a torn tail,
    and a Java broker leaves the bytes of a torn write there."""
    head = log.get(position, MAX_STORE_TIMESTAMP_END)
    message = None if head is None else StoredMessage(head, 0, len(head))
    if message is None or message.magic not in MAGICS or message.store_timestamp_ms <= 0:
        return ""
    size, _ = size_and_magic(message.buffer, 0, message.size)
    last_byte = log.get(position + max(size, MIN_RECORD_SIZE) - 1, 1)
    if last_byte is None or not last_byte[0]:
        return ""
    try:
        flushed_ms = read_checkpoint(root).physic_msg_timestamp_ms
    except Corrupt:
        flushed_ms = 0
    if message.store_timestamp_ms > flushed_ms:
        return ""
    return (
        f"{root}: the last message of the commit log, at {position}, was on disk, and is damaged. "
        "A recovery cuts it off, and a later message gets its queue offset again"
    )


def find_rest(
    log: ForeignCommitLog, files: PositionalFiles, end: int
) -> tuple[str, int, tuple[str, ...], int]:
    """Find the bytes after the end of the log. Returns the file to wipe and the position in it, the
    files to delete, and the number of bytes up to the last nonzero byte."""
    wipe_path, position, last_data = "", 0, end
    delete = []
    for offset in log.run.offsets:
        path = str(log.path_of(offset))
        if offset + log.file_size <= end:
            continue
        inside = max(end - offset, 0)
        if has_data(files, path, inside, log.file_size):
            last_data = offset + _last_data(files, path, inside, log.file_size)
            if offset < end or offset == log.min_offset:
                wipe_path, position = path, inside
        if offset >= end and offset > log.min_offset:
            delete.append(path)
    empty = log.directory / file_name(log.run.end)
    if empty.exists():  # a last file of length 0: the listing has left it out
        delete.append(str(empty))
    return wipe_path, position, tuple(delete), last_data - end


def list_log_files(log: ForeignCommitLog, start: int, end: int) -> tuple[str, ...]:
    """List the files that contain bytes of the log range [start, end), or the byte `start` if it is
    empty."""
    return tuple(
        str(log.path_of(offset))
        for offset in log.run.offsets
        if offset + log.file_size > start and offset < max(end, start + 1)
    )


def _last_data(files: PositionalFiles, path: str, position: int, end: int) -> int:
    """Return the position after the last nonzero byte of a file."""
    last = position
    while (position := files.skip_hole(path, position)) < end:
        data = files.read_up_to(path, min(1 << 20, end - position), position)
        if not data:
            break
        kept = len(data.rstrip(b"\0"))
        if kept:
            last = position + kept
        position += len(data)
    return last
