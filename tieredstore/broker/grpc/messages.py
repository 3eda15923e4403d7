"""Messages of the protocol and messages of the store: one is the other with other names.

What a gRPC producer says apart (tag, keys, message group, …) becomes the properties that RocketMQ's
other protocol uses, so that a message sent by one is right in the other. The store holds no gzip: a
GZIP body is kept as the same deflate stream in a zlib frame, and a compressed body is inflated on
its way to a gRPC client, for not all of those can inflate what remoting clients compress.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterable
from typing import Any, Final

from tieredstore.broker.grpc.conversion import (
    read_duration_ms,
    read_timestamp_ms,
    read_topic,
    write_duration_ms,
    write_timestamp_ms,
)
from tieredstore.broker.grpc.statuses import Code, Rejected
from tieredstore.broker.grpc.stubs import Message, Resource, list_values
from tieredstore.errors import Corrupt, Invalid
from tieredstore.message import properties as props
from tieredstore.message import sysflag
from tieredstore.message.encoding import Message as StoreMessage
from tieredstore.message.hosts import LOCALHOST, parse_host
from tieredstore.message.record import StoredMessage

MAX_USER_PROPERTIES: Final = 128
MAX_USER_PROPERTIES_BYTES: Final = 16 << 10
MAX_MESSAGE_GROUP_BYTES: Final = 64
MAX_DELAY_MS: Final = 24 * 3_600_000
TRACE_CONTEXT: Final = "TRACE_CONTEXT"

_TYPES: Final = list_values("MessageType")
_ENCODINGS: Final = list_values("Encoding")
_DIGESTS: Final = list_values("DigestType")
_GZIP_MAGIC: Final = b"\x1f\x8b"
_GZIP_WBITS: Final = 31
_GZIP_PIECE: Final = 64 << 10
MAX_GZIP_MEMBERS: Final = 1_024
"""Of one body; a member may be 20 bytes that inflate to nothing."""
_MAX_TIME_DIGITS: Final = 15
RESERVED_NAMES: Final = frozenset(
    value
    for name, value in vars(props).items()
    if name.isupper() and isinstance(value, str) and name != "KEY_SEPARATOR"
) | {
    TRACE_CONTEXT,
    "BUYER_ID",
    "TRANSFER_FLAG",
    "CORRECTION_FLAG",
    "MQ2_FLAG",
    "CONSUME_START_TIME",
    "INSTANCE_ID",
    "CORRELATION_ID",
    "REPLY_TO_CLIENT",
    "TTL",
    "ARRIVE_TIME",
    "PUSH_REPLY_TIME",
    "__redirected",
    "PROPERTY_TRANSACTION_CHECK_TIMES",
    "EXTEND_UNIQ_INFO",
    "MSG_TYPE",
    "CLUSTER",
    "INNER_MULTI_DISPATCH",
    "__LITE_TOPIC",
    "__PRIORITY",
}
"""Properties that are RocketMQ's own: producers may not set them, consumers do not see them."""


def convert_sent_message(message: Any, topic: str, peer: str, now_ms: int, max_body: int) -> Any:
    """Make the store's message of one that is sent. Raises Rejected for what no message may be."""
    system = message.system_properties
    if not system.message_id:
        raise Rejected(Code.ILLEGAL_MESSAGE_ID, "message_id is missing")
    table = _check_user_properties(message.user_properties)
    table[props.UNIQ_KEY] = system.message_id
    _add_system_properties(table, system, now_ms)
    if is_transactional(system):
        # A producer has no group in this protocol: the topic stands for it, as in Java's proxy.
        table[props.PGROUP] = topic
    body, sys_flag = _convert_body(message.body, system, max_body)
    try:
        encoded = props.encode_properties(table)
    except Invalid as error:
        raise Rejected(Code.MESSAGE_PROPERTIES_TOO_LARGE, str(error)) from error
    return StoreMessage(
        topic,
        body,
        -1,
        encoded,
        sys_flag=sys_flag,
        born_timestamp_ms=read_timestamp_ms(system.born_timestamp) or now_ms,
        born_host=_parse_peer(peer),
    )


def _check_user_properties(given: Any) -> dict[str, str]:
    if len(given) > MAX_USER_PROPERTIES:
        raise Rejected(
            Code.MESSAGE_PROPERTIES_TOO_LARGE,
            f"properties: at most {MAX_USER_PROPERTIES}, found {len(given)}",
        )
    table = dict(given)
    size = 0
    for name, value in table.items():
        if name in RESERVED_NAMES:
            raise Rejected(Code.ILLEGAL_MESSAGE_PROPERTY_KEY, f"property {name!r} is reserved")
        if not name or _has_control_character(name) or _has_control_character(value):
            raise Rejected(
                Code.ILLEGAL_MESSAGE_PROPERTY_KEY,
                f"property {name!r}: names are not empty, nothing has control characters",
            )
        size += len(name.encode()) + len(value.encode())
    if size > MAX_USER_PROPERTIES_BYTES:
        raise Rejected(
            Code.MESSAGE_PROPERTIES_TOO_LARGE,
            f"properties: at most {MAX_USER_PROPERTIES_BYTES} bytes, found {size}",
        )
    return table


def _add_system_properties(table: dict[str, str], system: Any, now_ms: int) -> None:
    if system.HasField("tag"):
        tag = system.tag
        if not tag.strip() or "|" in tag or _has_control_character(tag):
            raise Rejected(Code.ILLEGAL_MESSAGE_TAG, f"tag {tag!r} is blank or has | in it")
        table[props.TAGS] = tag
    for key in system.keys:
        if not key.strip() or props.KEY_SEPARATOR in key or _has_control_character(key):
            raise Rejected(Code.ILLEGAL_MESSAGE_KEY, f"key {key!r} is blank or has a space in it")
    if system.keys:
        table[props.KEYS] = props.KEY_SEPARATOR.join(system.keys)
    if system.HasField("message_group"):
        group = system.message_group
        size = len(group.encode())
        if not group.strip() or size >= MAX_MESSAGE_GROUP_BYTES or _has_control_character(group):
            raise Rejected(
                Code.ILLEGAL_MESSAGE_GROUP,
                f"message group {group!r}: expected text of less than "
                f"{MAX_MESSAGE_GROUP_BYTES} bytes",
            )
        table[props.SHARDING_KEY] = group
    if system.HasField("delivery_timestamp"):
        deliver_ms = read_timestamp_ms(system.delivery_timestamp)
        if deliver_ms - now_ms > MAX_DELAY_MS:
            raise Rejected(
                Code.ILLEGAL_DELIVERY_TIME, f"delivery time is more than {MAX_DELAY_MS} ms ahead"
            )
        table[props.TIMER_DELIVER_MS] = str(deliver_ms)
    if is_transactional(system):
        if system.HasField("delivery_timestamp") or system.HasField("message_group"):
            raise Rejected(
                Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE,
                "a transactional message has neither delivery time nor message group",
            )
        table[props.TRAN_MSG] = "true"
        if system.HasField("orphaned_transaction_recovery_duration"):
            wait_ms = read_duration_ms(system.orphaned_transaction_recovery_duration)
            table[props.CHECK_IMMUNITY_TIME_IN_SECONDS] = str(max(1, wait_ms // 1000))
    if system.HasField("trace_context") and system.trace_context:
        table[TRACE_CONTEXT] = system.trace_context
    if system.born_host:
        table[props.BORN_HOST] = system.born_host
    if system.HasField("born_timestamp"):
        table[props.BORN_TIMESTAMP] = str(read_timestamp_ms(system.born_timestamp))


def is_transactional(system: Any) -> bool:
    """Tell whether a message is the first half of a transaction, by its system properties."""
    return bool(system.message_type == _TYPES["TRANSACTION"])


def _convert_body(body: bytes, system: Any, max_body: int) -> tuple[bytes, int]:
    if not body:
        raise Rejected(Code.MESSAGE_BODY_EMPTY, "the body is empty")
    if len(body) > max_body:
        raise Rejected(
            Code.MESSAGE_BODY_TOO_LARGE, f"body: at most {max_body} bytes, found {len(body)}"
        )
    _check_digest(body, system.body_digest)
    if system.body_encoding != _ENCODINGS["GZIP"]:
        return body, 0
    flag = sysflag.set_compression(0, sysflag.CompressionType.ZLIB)
    if body.startswith(_GZIP_MAGIC):
        body = zlib.compress(_inflate(body, max_body), 1)
    return body, flag


def _inflate(body: bytes, max_body: int) -> bytes:
    """Inflate a gzip body with all its members, one byte beyond the limit at most. What stands
    behind the last one and is none does not count, as in Java."""
    parts: list[bytes] = []
    room, position = max_body, 0
    for _ in range(MAX_GZIP_MEMBERS):
        inflater = zlib.decompressobj(_GZIP_WBITS)
        while not inflater.eof:
            piece = body[position : position + _GZIP_PIECE]
            if not piece:
                raise Rejected(Code.MESSAGE_CORRUPTED, "body: the gzip stream is cut off")
            try:
                parts.append(inflater.decompress(piece, room + 1))
            except zlib.error as error:
                raise Rejected(Code.MESSAGE_CORRUPTED, f"body: no gzip: {error}") from error
            room -= len(parts[-1])
            if room < 0:
                raise Rejected(
                    Code.MESSAGE_BODY_TOO_LARGE, f"body: inflates to more than {max_body} bytes"
                )
            position += len(piece) - len(inflater.unused_data)
        if not body.startswith(_GZIP_MAGIC, position):
            return b"".join(parts)
    raise Rejected(
        Code.MESSAGE_CORRUPTED, f"body: expected {MAX_GZIP_MEMBERS} gzip members at most"
    )


def _check_digest(body: bytes, digest: Any) -> None:
    if not digest.checksum:
        return
    if digest.type == _DIGESTS["MD5"]:
        found = hashlib.md5(body, usedforsecurity=False).hexdigest()
    elif digest.type == _DIGESTS["SHA1"]:
        found = hashlib.sha1(body, usedforsecurity=False).hexdigest()
    else:
        return  # the languages write a CRC-32 differently
    if found != digest.checksum.lower():
        raise Rejected(
            Code.MESSAGE_CORRUPTED, f"body: expected digest {digest.checksum}, found {found}"
        )


def make_received_message(
    stored: StoredMessage,
    topic: Any,
    handle: str,
    attempt: int,
    invisible_ms: int,
) -> Any:
    """Make the message that a consumer gets. topic: the resource that it asked for."""
    message = _make_message(stored, topic)
    system = message.system_properties
    system.receipt_handle = handle
    system.delivery_attempt = attempt
    write_duration_ms(system.invisible_duration, invisible_ms)
    return message


def make_message(stored: StoredMessage) -> Any:
    """Make the message of a store as it is, which nobody has to acknowledge. Raises Corrupt for a
    body that cannot be inflated."""
    message = _make_message(stored, Resource(name=stored.topic))
    message.system_properties.delivery_attempt = stored.reconsume_times + 1
    return message


def make_transaction_message(stored: StoredMessage, topics: Iterable[Any]) -> Any:
    """Make the message that a producer is asked about. stored: its half message. topics: resources
    that the producer named, the message's among them if possible: it answers with that."""
    real_topic = stored.get_property(props.REAL_TOPIC) or stored.topic
    named = (topic for topic in topics if read_topic(topic) == real_topic)
    message = _make_message(stored, next(named, Resource(name=real_topic)))
    message.system_properties.message_type = _TYPES["TRANSACTION"]
    return message


def _make_message(stored: StoredMessage, topic: Any) -> Any:
    table = stored.properties
    body = _read_body(stored)
    message = Message(body=body)
    message.topic.CopyFrom(topic)
    for name, value in table.items():
        if name not in RESERVED_NAMES:
            message.user_properties[name] = value
    system = message.system_properties
    system.message_id = stored.msg_id
    # Upper case, as clients compare the text; no CRC-32, which each language writes its own way.
    system.body_digest.type = _DIGESTS["MD5"]
    system.body_digest.checksum = hashlib.md5(body, usedforsecurity=False).hexdigest().upper()
    system.body_encoding = _ENCODINGS["IDENTITY"]
    system.message_type = _find_type(table)
    if props.TAGS in table:
        system.tag = table[props.TAGS]
    system.keys.extend(props.split_keys(table.get(props.KEYS)))
    write_timestamp_ms(system.born_timestamp, stored.born_timestamp_ms)
    system.born_host = table.get(props.BORN_HOST) or stored.born_host
    write_timestamp_ms(system.store_timestamp, stored.store_timestamp_ms)
    system.store_host = stored.store_host
    system.queue_id = stored.queue_id
    system.queue_offset = stored.queue_offset
    if props.SHARDING_KEY in table:
        system.message_group = table[props.SHARDING_KEY]
    if TRACE_CONTEXT in table:
        system.trace_context = table[TRACE_CONTEXT]
    deliver_ms = table.get(props.TIMER_DELIVER_MS) or table.get(props.TIMER_OUT_MS)
    # Anybody may have written anything there: a message that cannot be made is in the way for good.
    if deliver_ms is not None and deliver_ms.isdecimal() and len(deliver_ms) <= _MAX_TIME_DIGITS:
        write_timestamp_ms(system.delivery_timestamp, int(deliver_ms))
    if props.DLQ_ORIGIN_TOPIC in table:
        origin = system.dead_letter_queue
        origin.topic = table[props.DLQ_ORIGIN_TOPIC]
        origin.message_id = table.get(props.DLQ_ORIGIN_MESSAGE_ID, "")
    return message


def _read_body(stored: StoredMessage) -> bytes:
    """The body as the producer gave it; as it is stored where that cannot be found out: a message
    that nobody could receive would be in the way for good."""
    try:
        return bytes(stored.decode_body())
    except Corrupt:
        return bytes(stored.body)


def _find_type(table: dict[str, str]) -> int:
    if table.get(props.TRAN_MSG) == "true":
        return _TYPES["TRANSACTION"]
    if props.DELAY in table or props.TIMER_DELIVER_MS in table or props.TIMER_DELAY_SEC in table:
        return _TYPES["DELAY"]
    if props.SHARDING_KEY in table:
        return _TYPES["FIFO"]
    return _TYPES["NORMAL"]


def _parse_peer(peer: str) -> bytes:
    try:
        return parse_host(peer)
    except Invalid:
        return LOCALHOST


def _has_control_character(text: str) -> bool:
    return not text.isprintable() and any(
        ord(char) < 0x20 or 0x7F <= ord(char) < 0xA0 for char in text
    )
