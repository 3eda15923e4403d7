"""Checks a record against its consume queue unit or index entry.

Every read checks as much as the record allows: its lengths, its topic, and its position in the log
and in its queue. It also checks the CRC of the body and, if present, that of the whole record.

A message sent by a client may look damaged at the end of its record, because its properties end in
a zero byte or in the client's own CRC. Such a record is valid if its lengths, its position and its
body are right and another record directly follows. That record was written later.
"""

from __future__ import annotations

import struct
import threading
from bisect import bisect_left, bisect_right
from typing import Final

from tieredstore.errors import Corrupt
from tieredstore.local.log.commit_log import CommitLogReader
from tieredstore.message import layout
from tieredstore.message.crc import CRC_BLOCK_SIZE, CRC_MASK, property_crc_matches, raw_crc32
from tieredstore.message.names import LMQ_PREFIX, MAX_TOPIC_BYTES
from tieredstore.message.record import StoredMessage, decode_record
from tieredstore.message.sysflag import BORN_HOST_V6, STORE_HOST_V6

_CRC_NAME: Final = b"__CRC32#\x01"
_CRC_NAME_END: Final = CRC_BLOCK_SIZE - len(_CRC_NAME)
_V6: Final = BORN_HOST_V6 | STORE_HOST_V6
# Size, magic, body CRC, queue id, flag, queue offset, physical offset, sys flag, hosts and times,
# body length.
_HEAD: Final = struct.Struct(
    f">iIiiiqqi{layout.BODY_LENGTH_POSITION - layout.BORN_TIMESTAMP_POSITION}xi"
)


class QueuePlaces:
    """Values that all records of one queue share."""

    __slots__ = ("is_light", "queue_id", "topic", "topic_field")

    def __init__(self, topic: str, queue_id: int) -> None:
        self.topic = topic
        self.queue_id = queue_id
        # Messages of a light queue belong to another queue: their position there is unknown.
        self.is_light = topic.startswith(LMQ_PREFIX)
        encoded = topic.encode()
        is_short = len(encoded) <= MAX_TOPIC_BYTES and not self.is_light
        self.topic_field = bytes([len(encoded)]) + encoded if is_short else b""


def check_message(
    record: memoryview,
    physical_offset: int,
    tags_code: int,
    places: QueuePlaces,
    offset: int,
    log: CommitLogReader | None = None,
) -> StoredMessage:
    """Decode the record of the message at `offset` of a queue. `log`: as for `check_stored_record`.
    Raises Corrupt if the bytes are no message or another message."""
    size = len(record)
    topic_field = places.topic_field
    if topic_field and size > layout.FIXED_SIZE + len(topic_field) + 2:
        found = _HEAD.unpack_from(record)
        found_size, magic, crc, queue_id, _, queue_offset, own_offset, flag, body_length = found
        body_end = layout.FIXED_SIZE + body_length
        properties = body_end + len(topic_field) + 2
        # The plain case in one comparison: V1, IPv4, all as expected.
        if (
            found_size == size
            and magic == layout.MAGIC_V1
            and queue_id == places.queue_id
            and queue_offset == offset
            and own_offset == physical_offset
            and not flag & _V6
            and body_length >= 0
            and properties < size
            and record[body_end : properties - 2] == topic_field
            and record[properties - 2] << 8 | record[properties - 1] == size - properties
            and record[size - 1]
            and raw_crc32(record[layout.FIXED_SIZE : body_end]) & CRC_MASK == crc
            and bytes(record[size - CRC_BLOCK_SIZE : size - _CRC_NAME_END]) != _CRC_NAME
        ):
            return StoredMessage(record, 0, size, tags_code)
    message = check_stored_record(record, physical_offset, tags_code=tags_code, log=log)
    if not places.is_light and (
        message.queue_offset != offset
        or message.queue_id != places.queue_id
        or message.topic != places.topic
    ):
        raise Corrupt(
            f"expected offset {offset} of {places.topic}/{places.queue_id}, found "
            f"{message.queue_offset} of {message.topic}/{message.queue_id}"
        )
    return message


def check_stored_record(
    record: memoryview,
    physical_offset: int,
    *,
    tags_code: int = 0,
    log: CommitLogReader | None = None,
) -> StoredMessage:
    """Decode and check a record of any queue. Raises Corrupt for a damaged record. `log`: if given,
    a record that only looks damaged at its end is accepted if the store wrote exactly these bytes
    (`is_written_so`)."""
    message = decode_record(record, tags_code=tags_code)
    if message.size != len(record):
        raise Corrupt(f"size: expected {len(record)}, found {message.size}")
    if message.physical_offset != physical_offset:
        raise Corrupt(
            f"physical offset: expected {physical_offset}, found {message.physical_offset}"
        )
    message.check_body()
    fault = _find_fault_at_end(record, message)
    if fault is not None and not (log and is_written_so(log, record, physical_offset)):
        raise Corrupt(fault)
    return message


def _find_fault_at_end(record: memoryview, message: StoredMessage) -> str | None:
    """Describe the apparent damage at the end of a record, or return None."""
    sections = message.sections
    for name, end, length in (
        ("topic", sections.topic_offset + sections.topic_length, sections.topic_length),
        ("properties", len(record), sections.properties_length),
    ):
        # Text does not end in NUL, but a record whose end was not written does.
        if length and record[end - 1] == 0:
            return f"{name}: expected text, found zeros at the end"
    tail = bytes(record[-CRC_BLOCK_SIZE : -CRC_BLOCK_SIZE + len(_CRC_NAME)])
    if tail == _CRC_NAME and property_crc_matches(record, 0, len(record)) is False:
        return "CRC of the whole record: does not match"
    return None


_BLANK_BYTES = 8
_SECTOR_BYTES = 512
"""Size of the unit that a disk writes completely or not at all."""


def is_written_so(log: CommitLogReader, record: memoryview, offset: int) -> bool:
    """Return whether the store wrote exactly these bytes at the log offset `offset`, although the
    record's end may look damaged. This is certain if the next record begins in the disk sector
    where this record ends."""
    if (offset + len(record)) % _SECTOR_BYTES == 0:
        return False
    return find_topic_of_whole(log, record, offset, has_crcs=True) is not None


def find_topic_of_whole(
    log: CommitLogReader, record: memoryview, offset: int, *, has_crcs: bool = False
) -> str | None:
    """Return the topic of the record at the log offset `offset` if it is complete, otherwise None.
    A record with a wrong CRC counts as damaged if the next record has a CRC. If `has_crcs` is set,
    because the store adds a CRC to each record, this includes a record without a CRC."""
    message = _find_whole(record, offset)
    if message is None:
        return None
    matches = property_crc_matches(record, 0, len(record))
    follower = _read_behind(log, offset + message.size)
    if follower is None:
        return None
    is_suspect = matches is False or (has_crcs and matches is None)
    if is_suspect and property_crc_matches(follower, 0, len(follower)) is not None:
        return None
    return message.topic


WALK_STEP_BYTES: Final = 1 << 16


class LogWalk:
    """Finds where records begin in the part of a log that is not dispatched yet. Positions of
    records are cached, so that no part is read twice. Thread-safe."""

    def __init__(self, log: CommitLogReader) -> None:
        self._log = log
        self._lock = threading.Lock()
        self._begins: list[int] = []  # ascending, about a step apart

    def begins_record(self, start: int, offset: int) -> bool:
        """Return whether a record begins at `offset`. `start`: position of a record at or before
        `offset`, which must never decrease between calls."""
        with self._lock:
            del self._begins[: bisect_left(self._begins, start)]
            known = bisect_right(self._begins, offset)
            at = self._begins[known - 1] if known else max(start, self._log.min_offset)
        while at < offset:
            behind = _find_behind(self._log, at)
            if behind is None:
                return False
            at = behind
            with self._lock:
                if at <= offset and at >= (self._begins or (0,))[-1] + WALK_STEP_BYTES:
                    self._begins.append(at)
        return at == offset


def _find_behind(log: CommitLogReader, at: int) -> int | None:
    """Return the end of the record or blank record that begins at `at`, or None."""
    head = log.get(at, _BLANK_BYTES)
    if head is None or layout.is_blank_record(head, 0):
        return at - at % log.file_size + log.file_size
    size, magic = layout.size_and_magic(head, 0, len(head))
    return at + size if magic in layout.MAGICS and size >= layout.FIXED_SIZE else None


def _read_behind(log: CommitLogReader, at: int) -> memoryview | None:
    """Return the record that follows another record, possibly in the next file."""
    size = log.file_size
    if at % size:
        head = log.get(at, min(_BLANK_BYTES, size - at % size))
        if head is None or len(head) < _BLANK_BYTES:
            return None
        if layout.is_blank_record(head, 0):
            at += size - at % size
    head = log.get(at, _BLANK_BYTES)
    length = 0 if head is None else int.from_bytes(head[:4], "big", signed=True)
    record = log.get(at, length) if length > 0 else None
    return None if record is None or _find_whole(record, at) is None else record


def _find_whole(record: memoryview, offset: int) -> StoredMessage | None:
    """Return the message of a record with valid lengths, position, topic and body. The end of its
    properties is not checked."""
    try:
        message = decode_record(record)
        message.check_body()
    except Corrupt:
        return None
    is_whole = message.size == len(record) and message.physical_offset == offset
    return message if is_whole and not message.topic.endswith("\0") else None
