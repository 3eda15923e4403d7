"""One commit log record at a time (`docs/formats/record.md`); many at once: `columns`."""

from __future__ import annotations

import struct
from typing import NamedTuple

import msgspec

from tieredstore.errors import Corrupt
from tieredstore.message import layout, sysflag
from tieredstore.message import properties as props
from tieredstore.message.buffers import Buffer
from tieredstore.message.compression import DEFAULT_BODY_LIMIT_BYTES, decompress
from tieredstore.message.crc import crc32, property_crc_matches
from tieredstore.message.encoding import (
    BodyTooLarge,
    Message,
    PropertiesTooLarge,
    RecordEncoder,
    copy_parts,
    encode_record,
)
from tieredstore.message.hosts import format_host
from tieredstore.message.ids import offset_message_id
from tieredstore.message.layout import (
    BLANK_SIZE,
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    MIN_RECORD_SIZE,
    Sections,
    check_size,
    locate,
    size_and_magic,
)

__all__ = [
    "BLANK_SIZE",
    "MAGIC_BLANK",
    "MAGIC_V1",
    "MAGIC_V2",
    "MIN_RECORD_SIZE",
    "BodyTooLarge",
    "Message",
    "PropertiesTooLarge",
    "RecordCheck",
    "RecordEncoder",
    "StoredMessage",
    "blank_record",
    "check_record",
    "copy_parts",
    "decode_record",
    "encode_record",
]

_I4 = struct.Struct(">i")
_I8 = struct.Struct(">q")
_SYS_FLAG_AND_TIME = struct.Struct(">i16xq")
"""From the system flags to the store timestamp behind an IPv4 born host."""
_BLANK = struct.Struct(">iI")
# Seen from the body, whatever the hosts.
_RECONSUME_TIMES = layout.RECONSUME_TIMES_POSITION - layout.FIXED_SIZE
_PREPARED_TRANSACTION_OFFSET = layout.PREPARED_TRANSACTION_OFFSET_POSITION - layout.FIXED_SIZE


class StoredMessage(msgspec.Struct, gc=False, eq=False):
    """A record in a buffer, decoded as far as it is asked for.

    position and size: bytes in `buffer`; tags_code: from the consume queue unit, 0 when there was
    none. It keeps the whole buffer alive: `copy_out()` for a message that is kept alone. Made by
    `decode_record` and `split_messages`, which check size, magic and bounds; the properties that
    need the variable part raise Corrupt when its lengths are wrong.
    """

    buffer: Buffer
    position: int
    size: int
    tags_code: int = 0
    _sections: Sections | None = None

    def _i4(self, position: int) -> int:
        value: int = _I4.unpack_from(self.buffer, self.position + position)[0]
        return value

    def _i8(self, position: int) -> int:
        value: int = _I8.unpack_from(self.buffer, self.position + position)[0]
        return value

    def _slice(self, offset: int, length: int) -> bytes:
        return bytes(self.buffer[offset : offset + length])

    @property
    def sections(self) -> Sections:
        """Where the variable parts are."""
        sections = self._sections
        if sections is None:
            sections = self._sections = locate(self.buffer, self.position, self.size)
        return sections

    @property
    def raw(self) -> memoryview:
        """The whole record."""
        return memoryview(self.buffer)[self.position : self.position + self.size]

    def copy_out(self) -> StoredMessage:
        """Return the same message on a copy of its own bytes."""
        return StoredMessage(bytes(self.raw), 0, self.size, self.tags_code)

    @property
    def magic(self) -> int:
        return self._i4(layout.MAGIC_POSITION) & 0xFFFFFFFF

    @property
    def body_crc(self) -> int:
        """Of the stored body."""
        return self._i4(layout.BODY_CRC_POSITION)

    @property
    def queue_id(self) -> int:
        value: int = _I4.unpack_from(self.buffer, self.position + layout.QUEUE_ID_POSITION)[0]
        return value

    @property
    def flag(self) -> int:
        return self._i4(layout.FLAG_POSITION)

    @property
    def queue_offset(self) -> int:
        value: int = _I8.unpack_from(self.buffer, self.position + layout.QUEUE_OFFSET_POSITION)[0]
        return value

    @property
    def physical_offset(self) -> int:
        """Bytes in the commit log that the record was read from: the broker's, or the queue's own
        one in the tier."""
        value: int = _I8.unpack_from(self.buffer, self.position + layout.PHYSICAL_OFFSET_POSITION)[
            0
        ]
        return value

    @property
    def sys_flag(self) -> int:
        return self._i4(layout.SYS_FLAG_POSITION)

    @property
    def born_timestamp_ms(self) -> int:
        return self._i8(layout.BORN_TIMESTAMP_POSITION)

    @property
    def born_host_bytes(self) -> bytes:
        return self._slice(self.position + layout.BORN_HOST_POSITION, self.sections.born_host_size)

    @property
    def born_host(self) -> str:
        """`ip:port`, `[ip]:port` for IPv6."""
        return format_host(self.born_host_bytes)

    @property
    def store_timestamp_ms(self) -> int:
        timestamp_ms: int
        sys_flag, timestamp_ms = _SYS_FLAG_AND_TIME.unpack_from(
            self.buffer, self.position + layout.SYS_FLAG_POSITION
        )
        if sys_flag & sysflag.BORN_HOST_V6:
            return self._i8(layout.store_timestamp_position(sys_flag))
        return timestamp_ms

    @property
    def store_host_bytes(self) -> bytes:
        sections = self.sections
        start = self.position + layout.STORE_TIMESTAMP_POSITION + sections.born_host_size
        return self._slice(start, sections.store_host_size)

    @property
    def store_host(self) -> str:
        """`ip:port`, `[ip]:port` for IPv6."""
        return format_host(self.store_host_bytes)

    @property
    def reconsume_times(self) -> int:
        value: int = _I4.unpack_from(self.buffer, self.sections.body_offset + _RECONSUME_TIMES)[0]
        return value

    @property
    def prepared_transaction_offset(self) -> int:
        value: int = _I8.unpack_from(
            self.buffer, self.sections.body_offset + _PREPARED_TRANSACTION_OFFSET
        )[0]
        return value

    @property
    def body_length(self) -> int:
        """Of the stored body, bytes."""
        return self.sections.body_length

    @property
    def body(self) -> memoryview:
        """The stored body: still compressed if the producer compressed it."""
        sections = self.sections
        start = sections.body_offset
        return memoryview(self.buffer)[start : start + sections.body_length]

    def decode_body(self, limit_bytes: int = DEFAULT_BODY_LIMIT_BYTES) -> bytes | memoryview:
        """Decode the body as the producer gave it. Raises Corrupt, also for one that inflates to
        more than `limit_bytes`."""
        sys_flag = self.sys_flag
        # Java inflates nothing either when there is nothing.
        if not sys_flag & sysflag.COMPRESSED or not self.body_length:
            return self.body
        try:
            return decompress(self.body, sys_flag, limit_bytes)
        except Corrupt as error:
            raise Corrupt(f"record at {self.position}: {error}", offset=self.position) from error

    @property
    def topic(self) -> str:
        sections = self.sections
        return self._slice(sections.topic_offset, sections.topic_length).decode("utf-8", "replace")

    @property
    def properties_bytes(self) -> bytes:
        """The properties as stored."""
        sections = self.sections
        return self._slice(sections.properties_offset, sections.properties_length)

    @property
    def properties(self) -> dict[str, str]:
        """Decoded anew on each use."""
        return props.decode_properties(self.properties_bytes)

    def get_property(self, name: str) -> str | None:
        """Return one property, without decoding the others."""
        return props.find_text(self.properties_bytes, name.encode())

    @property
    def tags(self) -> str | None:
        return props.find_text(self.properties_bytes, b"TAGS")

    @property
    def keys(self) -> list[str]:
        return props.split_keys(props.find_text(self.properties_bytes, b"KEYS"))

    @property
    def uniq_key(self) -> str | None:
        return props.find_text(self.properties_bytes, b"UNIQ_KEY")

    @property
    def offset_message_id(self) -> str:
        return offset_message_id(self.store_host_bytes, self.physical_offset)

    @property
    def msg_id(self) -> str:
        """The UNIQ_KEY, which is what clients call msgId; without one the offset message id."""
        return self.uniq_key or self.offset_message_id

    def check_body(self) -> None:
        """Raise Corrupt when the body does not have its CRC."""
        found = crc32(self.body)
        if found != self.body_crc:
            raise layout.make_corrupt_error(
                self.position, "body CRC", f"{self.body_crc:08x}", f"{found:08x}"
            )


def decode_record(buffer: Buffer, position: int = 0, *, tags_code: int = 0) -> StoredMessage:
    """Decode the record that starts at a byte of a buffer, checked but for its CRCs.

    Raises Corrupt, which names the position, when it is no whole record.
    """
    size = check_size(buffer, position, len(buffer))
    sections = locate(buffer, position, size)
    return StoredMessage(buffer, position, size, tags_code, sections)


class RecordCheck(NamedTuple):
    """What is at a position of a log, as recovery sees it.

    size > 0: bytes to go on by, a good record if `ok`; size 0 and ok: a blank record, the file ends
    here; size -1: no record. `reason` says what is wrong, empty when ok.
    """

    size: int
    ok: bool
    reason: str = ""


_BLANK_FOUND = RecordCheck(0, True)


def check_record(
    buffer: Buffer,
    position: int,
    *,
    end: int | None = None,
    check_crc: bool = True,
    check_property_crc: bool = False,
) -> RecordCheck:
    """Check the record at a position of a log whose readable bytes are [0, end). Never raises for
    bad bytes.

    check_crc: check the body; check_property_crc: check the whole record by its `__CRC32#` property
    in place of the body (a record without one fails).
    """
    limit = len(buffer) if end is None else min(end, len(buffer))
    try:
        size, magic = size_and_magic(buffer, position, limit)
        if magic == MAGIC_BLANK and BLANK_SIZE <= size <= limit - position:
            return _BLANK_FOUND
        size = check_size(buffer, position, limit)
    except Corrupt as error:
        return RecordCheck(-1, False, str(error))
    try:
        message = StoredMessage(buffer, position, size, 0, locate(buffer, position, size))
    except Corrupt as error:
        return RecordCheck(size, False, str(error))
    if check_property_crc:
        if not property_crc_matches(buffer, position, size):
            return RecordCheck(-1, False, f"record at {position}: wrong or missing __CRC32#")
    elif check_crc:
        try:
            message.check_body()
        except Corrupt as error:
            return RecordCheck(-1, False, str(error))
    return RecordCheck(size, True)


def blank_record(remaining_bytes: int) -> bytes:
    """Make the 8 bytes that end a commit log file with `remaining_bytes` left, these included."""
    return _BLANK.pack(remaining_bytes, MAGIC_BLANK)
