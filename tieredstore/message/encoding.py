"""Messages to put and their records (`docs/formats/record.md`).

The commit log calls `RecordEncoder.append` once per message, and copies the parts of many messages
together. A message costs one header struct, no dictionary and no copy of the body.
"""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from tieredstore.errors import Invalid
from tieredstore.message import properties as props
from tieredstore.message import sysflag
from tieredstore.message.buffers import Buffer
from tieredstore.message.core import IS_COMPILED
from tieredstore.message.crc import CRC_BLOCK_SIZE, CRC_MASK, crc_block, large_crc32, raw_crc32
from tieredstore.message.hashes import tags_code
from tieredstore.message.hosts import LOCALHOST, V4_SIZE, V6_SIZE, encode_host
from tieredstore.message.layout import HOSTLESS_SIZE, MAGIC_V1, MAGIC_V2

DEFAULT_MAX_BODY_BYTES = 4 * 1024 * 1024
"""Default limit of a body: Java's maxMessageSize."""
RECORD_SLACK_BYTES = 64 * 1024
"""Number of bytes by which a whole record may exceed the largest body."""
DIRECT_COPY_BYTES = 32 * 1024
"""Minimum size of parts that are copied straight to their position. Below this size, one join and
one copy are faster than three copies (measured)."""

_TOPICS_KEPT: Final = 65_536
_MAX_PROPERTIES: Final = props.MAX_PROPERTIES_BYTES
_LOCALHOST: Final = ("127.0.0.1", 0)
_NUMBERS: Final = (
    ("queue_id", 32),
    ("flag", 32),
    ("sys_flag", 32),
    ("born_timestamp_ms", 64),
    ("reconsume_times", 32),
    ("prepared_transaction_offset", 64),
)
_V6_FLAGS: Final = sysflag.BORN_HOST_V6 | sysflag.STORE_HOST_V6


class BodyTooLarge(Invalid):
    """Error for a body or record above the size limit (MESSAGE_ILLEGAL)."""


class PropertiesTooLarge(Invalid):
    """Error for properties above the limit of their i16 length (PROPERTIES_SIZE_EXCEEDED)."""


def _join_keys(keys: str | Sequence[str]) -> str:
    """Return the value of KEYS. Raises Invalid for a key that contains a space."""
    if isinstance(keys, str):
        return " ".join([key for key in keys.split(" ") if key])
    if len(keys) == 1 and " " not in keys[0]:
        return keys[0]
    joined = " ".join(keys)
    if joined.count(" ") != len(keys) - 1 or "" in keys:
        words = [key for key in keys if key]
        joined = " ".join(words)
        if words and joined.count(" ") != len(words) - 1:
            raise Invalid(f"keys of a message: expected texts without spaces, found {words!r}")
    return joined


class Message(msgspec.Struct, gc=False):
    """Message to put.

    `properties`: encoded as in the record (`encode_properties`). `born_host`: as in the record
    (`encode_host`). `prepared_transaction_offset`: position in the commit log (bytes). The host
    bits of `sys_flag` are set from the hosts when the record is made.
    """

    topic: str
    body: Buffer
    queue_id: int = 0
    properties: bytes = b""
    flag: int = 0
    sys_flag: int = 0
    born_timestamp_ms: int = 0
    born_host: bytes = LOCALHOST
    reconsume_times: int = 0
    prepared_transaction_offset: int = 0

    @classmethod
    def create(
        cls,
        topic: str,
        body: Buffer,
        *,
        queue_id: int = 0,
        tags: str | None = None,
        keys: str | Sequence[str] = (),
        uniq_key: str | None = None,
        properties: Mapping[str, str] | None = None,
        flag: int = 0,
        sys_flag: int = 0,
        born_timestamp_ms: int = 0,
        born_host: tuple[str, int] = _LOCALHOST,
        reconsume_times: int = 0,
        prepared_transaction_offset: int = 0,
    ) -> Message:
        """Create a message from ordinary values. Raises Invalid for a body of type str, and for
        text that properties cannot contain, such as a key with a space."""
        given: object = body
        if isinstance(given, str):
            raise Invalid("body of a message: expected bytes, found a str: encode it first")
        table = {**properties} if properties else {}
        if keys:
            # Most messages have one key in a tuple: skip the call.
            if keys.__class__ is tuple and len(keys) == 1 and " " not in keys[0]:
                joined = keys[0]
            else:
                joined = _join_keys(keys)
            if joined:
                table["KEYS"] = joined
        if uniq_key:
            table["UNIQ_KEY"] = uniq_key
        if tags:
            table["TAGS"] = tags
        return cls(
            topic,
            body,
            queue_id,
            (IS_COMPILED and _core.encode_properties(table)) or props.encode_properties(table),
            flag,
            sys_flag,
            born_timestamp_ms,
            LOCALHOST if born_host is _LOCALHOST else encode_host(*born_host),
            reconsume_times,
            prepared_transaction_offset,
        )

    @property
    def tags(self) -> str | None:
        return props.find_text(self.properties, b"TAGS")

    @property
    def tags_code(self) -> int:
        """Tags code for the consume queue unit, except for delayed messages."""
        return tags_code(self.tags)

    @property
    def keys(self) -> list[str]:
        return props.split_keys(props.find_text(self.properties, b"KEYS"))

    @property
    def uniq_key(self) -> str | None:
        return props.find_text(self.properties, b"UNIQ_KEY")


class OwnMessage(Message, gc=False):
    """Message that the broker itself puts: a delivery, a retry, a dead letter, a half or op
    message, or a topic deletion. Limits of producers do not apply, because the message was accepted
    before or does not come from a client. Its topic may be a system topic."""


class DueMessage(Message, gc=False):
    """Message whose delivery time has passed. Any delay in its TIMER properties is ignored."""


create_in_python: Final = Message.create
"""`Message.create` without the compiled core."""

if IS_COMPILED:
    from tieredstore.message import _core

    # The core appends nothing until it has messages that it can read. Python does all the work
    # until then.
    with contextlib.suppress(TypeError):
        _core.configure(Message, raw_crc32, large_crc32, create_in_python, LOCALHOST)
        Message.create = _core.create_message  # type: ignore[method-assign]


def _header(born_size: int, store_size: int) -> struct.Struct:
    return struct.Struct(f">iIIiiqqiq{born_size}sq{store_size}siqi")


V4_HEADER: Final = _header(V4_SIZE, V4_SIZE)
"""Header for records with IPv4 hosts: the 88 bytes before the body."""


class PlainTemplate(NamedTuple):
    """Constant parts of a topic's plain records, which have IPv4 hosts and no property CRC. A
    record is `pack(size, magic, body CRC, queue id, flag, queue offset, physical offset, sys flag
    (no host bits), born timestamp, born host (8 bytes), store timestamp, store_host, reconsume
    times, prepared transaction offset, body length)`, body, topic_field, i16 length of the
    properties, properties. Its size is `fixed_bytes` plus the lengths of body and properties."""

    pack: Callable[..., bytes]
    magic: int
    fixed_bytes: int
    topic_field: bytes
    store_host: bytes

    def make_record(self, queue_id: int) -> bytes:
        """Return the head and the topic field of a queue's records. Fields that differ between
        messages are zero, and the compiled core fills them in."""
        head = V4_HEADER.pack(
            0, self.magic, 0, queue_id, 0, 0, 0, 0, 0, b"", 0, self.store_host, 0, 0, 0
        )
        return head + self.topic_field


def topic_field(topic: str, *, auto_version: bool = True) -> tuple[int, bytes]:
    """Return the magic of a topic's records and the encoded topic field, including its length.
    Raises Invalid for more than 127 bytes (32,767 with `auto_version`)."""
    encoded = topic.encode("utf-8", "replace")
    length = len(encoded)
    if length <= 127:
        return MAGIC_V1, length.to_bytes(1, "big") + encoded
    if auto_version and length <= 32_767:
        return MAGIC_V2, length.to_bytes(2, "big") + encoded
    most = 32_767 if auto_version else 127
    raise Invalid(f"topic: expected at most {most} bytes, found {length}", topic=topic)


def find_unfit_number(*messages: Message) -> str:
    """Describe a numeric field of one of the messages whose value does not fit into the record."""
    for message in messages:
        for name, bits in _NUMBERS:
            value = getattr(message, name)
            if not isinstance(value, int) or not -(1 << bits - 1) <= value < 1 << bits - 1:
                return (
                    f"message of topic {message.topic!r}: {name}: expected a number of {bits} "
                    f"bits, found {value!r}"
                )
    return "a message has a number that its field cannot hold"


class RecordEncoder:
    """Encoder for the records of one store. Threads that share it need a lock.

    `store_host`: address of this store as in the record. `append_prop_crc`: add the `__CRC32#`
    property. `auto_message_version`: write V2 records for topics of more than 127 bytes, instead of
    raising Invalid. `max_body_bytes`: limit for messages of clients, not for an `OwnMessage`.
    """

    __slots__ = (
        "_auto_version",
        "_headers",
        "_max_properties",
        "_max_record",
        "_prop_crc",
        "_store_host",
        "_topics",
        "max_body_bytes",
    )

    def __init__(
        self,
        store_host: bytes = LOCALHOST,
        *,
        append_prop_crc: bool = False,
        auto_message_version: bool = True,
        max_body_bytes: int = DEFAULT_MAX_BODY_BYTES,
    ) -> None:
        store_size = len(store_host)
        if store_size not in (V4_SIZE, V6_SIZE):
            raise Invalid(f"store host: expected 8 or 20 bytes, found {store_size}")
        store_flag = sysflag.STORE_HOST_V6 if store_size == V6_SIZE else 0
        self._store_host = store_host
        self._prop_crc = append_prop_crc
        self._auto_version = auto_message_version
        self.limit_bodies(max_body_bytes)
        self._max_properties = _MAX_PROPERTIES - (CRC_BLOCK_SIZE if append_prop_crc else 0)
        # By size of the born host: header, its sysFlag bits, fixed bytes of the record.
        self._headers = {
            size: (
                _header(size, store_size),
                store_flag | (sysflag.BORN_HOST_V6 if size == V6_SIZE else 0),
                HOSTLESS_SIZE + 2 + size + store_size,
            )
            for size in (V4_SIZE, V6_SIZE)
        }
        self._topics: dict[str, tuple[int, bytes]] = {}

    def limit_bodies(self, max_body_bytes: int) -> None:
        """Set the body limit."""
        self.max_body_bytes = max_body_bytes
        self._max_record = max_body_bytes + RECORD_SLACK_BYTES

    def plain_template(self, topic: str) -> PlainTemplate | None:
        """Return the template for a caller that encodes a topic's plain records itself. Returns
        None if this encoder cannot use one (IPv6 store host, property CRC). Raises Invalid for a
        bad topic."""
        header, host_flags, fixed_bytes = self._headers[V4_SIZE]
        if host_flags or self._prop_crc:
            return None
        magic, topic_field = self._topics.get(topic) or self._add_topic(topic)
        return PlainTemplate(
            header.pack, magic, fixed_bytes + len(topic_field), topic_field, self._store_host
        )

    def append(
        self,
        parts: list[Buffer],
        message: Message,
        queue_offset: int,
        physical_offset: int,
        store_timestamp_ms: int,
    ) -> int:
        """Append the parts of a message's record to `parts`. Their concatenation is the record.
        Returns its size in bytes. Raises Invalid for an invalid value, and then leaves `parts`
        unchanged."""
        body = message.body
        properties = message.properties
        body_length = len(body)
        properties_length = len(properties)
        topic = self._topics.get(message.topic) or self._add_topic(message.topic)
        try:
            header, host_flags, size = self._headers[len(message.born_host)]
        except KeyError:
            raise Invalid(
                f"born host: expected 8 or 20 bytes, found {len(message.born_host)}"
            ) from None
        if self._prop_crc:
            properties = _room_for_crc(properties)
            properties_length = len(properties) + CRC_BLOCK_SIZE
        size += body_length + len(topic[1]) + properties_length
        if properties_length > _MAX_PROPERTIES or (
            (body_length > self.max_body_bytes or size > self._max_record)
            and not isinstance(message, OwnMessage)
        ):
            self._refuse(body_length, properties_length, size)
        try:
            head = header.pack(
                size,
                topic[0],
                raw_crc32(body) & CRC_MASK,
                message.queue_id,
                message.flag,
                queue_offset,
                physical_offset,
                message.sys_flag & ~_V6_FLAGS | host_flags,
                message.born_timestamp_ms,
                message.born_host,
                store_timestamp_ms,
                self._store_host,
                message.reconsume_times,
                message.prepared_transaction_offset,
                body_length,
            )
        except struct.error as error:
            raise Invalid(find_unfit_number(message)) from error
        parts += (head, body, topic[1], properties_length.to_bytes(2, "big"), properties)
        if self._prop_crc:
            crc = 0
            for part in parts[-5:]:
                crc = raw_crc32(part, crc)
            parts.append(crc_block(crc & CRC_MASK))
        return size

    def _add_topic(self, topic: str) -> tuple[int, bytes]:
        entry = topic_field(topic, auto_version=self._auto_version)
        if len(self._topics) >= _TOPICS_KEPT:
            self._topics.clear()
        self._topics[topic] = entry
        return entry

    def _refuse(self, body_length: int, properties_length: int, size: int) -> None:
        if properties_length > _MAX_PROPERTIES:
            raise PropertiesTooLarge(
                f"properties: expected at most {self._max_properties} bytes, found "
                f"{properties_length - _MAX_PROPERTIES + self._max_properties}"
            )
        raise BodyTooLarge(
            f"message: expected a body of at most {self.max_body_bytes} bytes and a record of at "
            f"most {self._max_record}, found {body_length} and {size}"
        )


def _room_for_crc(properties: bytes) -> bytes:
    properties = props.remove_property(properties, b"__CRC32#")
    if properties and not properties.endswith(b"\x02"):
        properties += b"\x02"
    return properties


def encode_record(
    message: Message,
    queue_offset: int,
    physical_offset: int,
    store_timestamp_ms: int,
    *,
    store_host: bytes = LOCALHOST,
    append_prop_crc: bool = False,
) -> bytes:
    """Encode one record. `queue_offset` in messages, `physical_offset` in bytes. Raises Invalid."""
    parts: list[Buffer] = []
    encoder = RecordEncoder(store_host, append_prop_crc=append_prop_crc)
    encoder.append(parts, message, queue_offset, physical_offset, store_timestamp_ms)
    return b"".join(parts)


def copy_parts(parts: Sequence[Buffer], target: memoryview, position: int) -> int:
    """Copy the concatenation of `parts` to `target`, starting at `position`. Large parts are not
    joined first. Returns the end position. `target` must be large enough."""
    joined: list[Buffer] = []
    size = 0
    for part in parts:
        length = len(part)
        if length < DIRECT_COPY_BYTES:
            joined.append(part)
            size += length
            continue
        if joined:
            target[position : position + size] = b"".join(joined)
            position += size
            joined, size = [], 0
        target[position : position + length] = part
        position += length
    if joined:
        target[position : position + size] = b"".join(joined)
        position += size
    return position
