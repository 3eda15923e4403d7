"""Decodes one commit log record (`docs/formats/record.md`). For many records, see `columns`."""

from __future__ import annotations

import struct

import msgspec

from tieredstore.errors import Corrupt
from tieredstore.message import layout, sysflag
from tieredstore.message import properties as props
from tieredstore.message.buffers import Buffer
from tieredstore.message.compression import DEFAULT_BODY_LIMIT_BYTES, decompress
from tieredstore.message.crc import (
    CRC_BLOCK_SIZE,
    crc32,
    crc_block,
    property_crc,
    stored_property_crc,
)
from tieredstore.message.hosts import format_host, offset_message_id
from tieredstore.message.layout import MAGIC_BLANK, Sections, check_size, locate

_I4 = struct.Struct(">i")
_I8 = struct.Struct(">q")
_SYS_FLAG_AND_TIME = struct.Struct(">i16xq")
"""Fields from the system flags to the store timestamp after an IPv4 born host."""
_BLANK = struct.Struct(">iI")
# Positions relative to the body, for all kinds of hosts.
_RECONSUME_TIMES = layout.RECONSUME_TIMES_POSITION - layout.FIXED_SIZE
_PREPARED_TRANSACTION_OFFSET = layout.PREPARED_TRANSACTION_OFFSET_POSITION - layout.FIXED_SIZE


class StoredMessage(msgspec.Struct, gc=False, eq=False):
    """Record in a buffer, decoded lazily. `position`, `size`: bytes in `buffer`. `tags_code`: from
    the consume queue unit, or 0.

    The object keeps the whole buffer alive. Use `copy_out()` to keep a single message.
    `decode_record` and `split_messages` create it, and check size, magic and bounds. Properties
    that need the variable part raise Corrupt if its lengths are wrong.
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
        """Positions of the fields of variable length: body, topic and properties."""
        sections = self._sections
        if sections is None:
            sections = self._sections = locate(self.buffer, self.position, self.size)
        return sections

    @property
    def raw(self) -> memoryview:
        """Whole record."""
        return memoryview(self.buffer)[self.position : self.position + self.size]

    def copy_out(self) -> StoredMessage:
        """Return the same message with a copy of its bytes."""
        return StoredMessage(bytes(self.raw), 0, self.size, self.tags_code)

    @property
    def magic(self) -> int:
        return self._i4(layout.MAGIC_POSITION) & 0xFFFFFFFF

    @property
    def body_crc(self) -> int:
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
        """Position of the record in its commit log (bytes): the broker's log, or the queue's log in
        the tier."""
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
        """Address of the producer: `ip:port`, or `[ip]:port` for IPv6."""
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
        """Address of the store: `ip:port`, or `[ip]:port` for IPv6."""
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
        """Length of the stored body (bytes)."""
        return self.sections.body_length

    @property
    def body(self) -> memoryview:
        """Stored body, still compressed if the producer compressed it."""
        sections = self.sections
        start = sections.body_offset
        return memoryview(self.buffer)[start : start + sections.body_length]

    def decode_body(self, limit_bytes: int = DEFAULT_BODY_LIMIT_BYTES) -> bytes | memoryview:
        """Decompress the body. Raises Corrupt, for example if it decompresses to more than
        `limit_bytes`."""
        sys_flag = self.sys_flag
        # Java does not decompress an empty body either.
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
        sections = self.sections
        return self._slice(sections.properties_offset, sections.properties_length)

    @property
    def properties(self) -> dict[str, str]:
        """Properties, decoded on each use."""
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
        """UNIQ_KEY, which clients call msgId, or the offset message id if there is none."""
        return self.uniq_key or self.offset_message_id

    def check_body(self) -> None:
        """Raise Corrupt if the body does not match its CRC."""
        found = crc32(self.body)
        if found != self.body_crc:
            raise layout.make_corrupt_error(
                self.position, "body CRC", f"{self.body_crc:08x}", f"{found:08x}"
            )


def decode_record(buffer: Buffer, position: int = 0, *, tags_code: int = 0) -> StoredMessage:
    """Decode the record at `position` in a buffer without checking its CRCs. Raises Corrupt, naming
    the position, for anything but a whole record."""
    size = check_size(buffer, position, len(buffer))
    sections = locate(buffer, position, size)
    return StoredMessage(buffer, position, size, tags_code, sections)


def copy_with_reconsume_times(
    message: StoredMessage, times: int, queue_id: int, queue_offset: int
) -> bytearray:
    """Return a copy of a record with another number of redeliveries, queue id and queue offset. The
    CRC of the whole record is recomputed. The CRC of the body does not cover these numbers and
    stays."""
    record = bytearray(message.raw)
    position = message.sections.body_offset - message.position + _RECONSUME_TIMES
    _I4.pack_into(record, position, times)
    _I4.pack_into(record, layout.QUEUE_ID_POSITION, queue_id)
    _I8.pack_into(record, layout.QUEUE_OFFSET_POSITION, queue_offset)
    if stored_property_crc(record, 0, len(record)) is not None:
        record[-CRC_BLOCK_SIZE:] = crc_block(property_crc(record, 0, len(record)))
    return record


def blank_record(remaining_bytes: int) -> bytes:
    """Return the 8 bytes that end a commit log file. `remaining_bytes`: free bytes in the file,
    including these 8."""
    return _BLANK.pack(remaining_bytes, MAGIC_BLANK)
