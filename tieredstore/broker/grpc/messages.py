"""Conversion between gRPC messages and stored messages. Fields of a gRPC message (tag, keys,
message group, …) become properties of the remoting protocol, so that consumers of both protocols
can read them. The store does not support gzip, so a GZIP body is stored with zlib compression
instead. Bodies are decompressed for gRPC clients, because some of them cannot read the formats of
remoting clients."""

from __future__ import annotations

import hashlib
import itertools
import re
import zlib
from collections.abc import Iterable, Mapping
from typing import Final

from tieredstore.broker.grpc.message_types import (
    Digest,
    DigestType,
    Encoding,
    Message,
    MessageType,
    Resource,
    SystemProperties,
)
from tieredstore.broker.grpc.protocol import (
    Code,
    Rejected,
    read_duration_ms,
    read_timestamp_ms,
    read_topic,
    write_duration_ms,
    write_timestamp_ms,
)
from tieredstore.broker.send.door import BROKER_PROPERTIES
from tieredstore.broker.send.message_type import find_message_type
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
MAX_TRANSACTION_RECOVERY_S: Final = 3_600
TRACE_CONTEXT: Final = "TRACE_CONTEXT"
MESSAGE_TYPES: Final = {
    "NORMAL": MessageType.NORMAL,
    "FIFO": MessageType.FIFO,
    "DELAY": MessageType.DELAY,
    "TRANSACTION": MessageType.TRANSACTION,
    "PRIORITY": MessageType.PRIORITY,
    "LITE": MessageType.LITE,
}
"""Type of a message, by the value of a topic's attribute `message.type`."""
MAX_LITE_TOPIC_BYTES: Final = 64
_LITE_TOPIC: Final = re.compile(r"[a-zA-Z0-9_-]+")

_GZIP_MAGIC: Final = b"\x1f\x8b"
_GZIP_WBITS: Final = 31
_GZIP_PIECE: Final = 64 << 10
MAX_GZIP_MEMBERS: Final = 1_024
"""Maximum number of gzip members in a body. Members may be empty, so the limit on the body size
does not limit their number."""
_MAX_TIME_DIGITS: Final = 15
# fmt: off
RESERVED_NAMES: Final = frozenset({
    "KEYS", "TAGS", "WAIT", "DELAY", "RETRY_TOPIC", "REAL_TOPIC", "REAL_QID", "TRAN_MSG",
    "PGROUP", "MIN_OFFSET", "MAX_OFFSET", "ORIGIN_MESSAGE_ID", "RECONSUME_TIME", "MSG_REGION",
    "TRACE_ON", "UNIQ_KEY", "MAX_RECONSUME_TIMES", "INNER_NUM", "INNER_BASE", "DUP_INFO",
    "CHECK_IMMUNITY_TIME_IN_SECONDS", "TRAN_PREPARED_QUEUE_OFFSET", "__transactionId__",
    "TRANSACTION_CHECK_TIMES", "POP_CK", "1ST_POP_TIME", "__SHARDINGKEY",
    "INNER_MULTI_QUEUE_OFFSET", "TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_DELIVER_MS",
    "TIMER_OUT_MS", "TIMER_ENQUEUE_MS", "TIMER_DEQUEUE_MS", "TIMER_ROLL_TIMES",
    "TIMER_DEL_UNIQKEY", "__BORNHOST", "BORN_TIMESTAMP", "DLQ_ORIGIN_TOPIC",
    "DLQ_ORIGIN_MESSAGE_ID", "__CRC32#", TRACE_CONTEXT, "BUYER_ID", "TRANSFER_FLAG",
    "CORRECTION_FLAG", "MQ2_FLAG", "CONSUME_START_TIME", "INSTANCE_ID", "CORRELATION_ID",
    "REPLY_TO_CLIENT", "TTL", "ARRIVE_TIME", "PUSH_REPLY_TIME", "__redirected",
    "PROPERTY_TRANSACTION_CHECK_TIMES", "EXTEND_UNIQ_INFO", "MSG_TYPE", "CLUSTER",
    "INNER_MULTI_DISPATCH", "__LITE_TOPIC", "_SYS_MSG_PRIORITY_", "TIMER_DELAY_LEVEL",
    "POP_CK_OFFSET",
})
# fmt: on
"""RocketMQ's own properties. Producers may not set them, and consumers do not see them."""
_BROKER_NAMES: Final = frozenset(name.decode() for name in BROKER_PROPERTIES)
"""Properties that only a broker sets. They are removed from a producer's message."""


def convert_sent_message(
    message: Message, topic: str, born_host: bytes, now_ms: int, max_body: int
) -> tuple[StoreMessage, MessageType]:
    """Convert a sent message for the store, and return it with its type. `born_host`: address of
    the producer, encoded as in a record. `max_body`: maximum size of the body, bytes. Raises
    Rejected for an invalid message."""
    system = message.system_properties
    if not system.message_id.strip():
        raise Rejected(Code.ILLEGAL_MESSAGE_ID, "message id cannot be empty")
    table = _check_user_properties(message.user_properties)
    _check_properties_size(table, system)
    table[props.UNIQ_KEY] = system.message_id
    _add_system_properties(table, system, now_ms)
    if system.message_type == MessageType.TRANSACTION:
        _add_transaction_properties(table, system)
        # A producer has no group in this protocol. The topic replaces it, as in Java's proxy.
        table[props.PGROUP] = topic
    body, sys_flag = _convert_body(message.body, system, max_body)
    try:
        encoded = props.encode_properties(table)
    except Invalid as error:
        raise Rejected(Code.MESSAGE_PROPERTIES_TOO_LARGE, str(error)) from error
    sent = StoreMessage(
        topic,
        body,
        -1,
        encoded,
        sys_flag=sys_flag,
        born_timestamp_ms=read_timestamp_ms(system.born_timestamp) or now_ms,
        born_host=born_host,
    )
    return sent, MESSAGE_TYPES[find_message_type(table)]


def _check_user_properties(given: Mapping[str, str]) -> dict[str, str]:
    if not given:
        return {}
    if len(given) > MAX_USER_PROPERTIES:
        raise Rejected(
            Code.MESSAGE_PROPERTIES_TOO_LARGE,
            f"too many user properties, max is {MAX_USER_PROPERTIES}",
        )
    table = {name: value for name, value in given.items() if name not in _BROKER_NAMES}
    for name, value in table.items():
        if name in RESERVED_NAMES:
            raise Rejected(Code.ILLEGAL_MESSAGE_PROPERTY_KEY, f"property is used by system: {name}")
        if not name:
            raise Rejected(Code.ILLEGAL_MESSAGE_PROPERTY_KEY, "the key of property cannot be empty")
        for what, text in (("key", name), ("value", value)):
            if _has_control_character(text):
                raise Rejected(
                    Code.ILLEGAL_MESSAGE_PROPERTY_KEY,
                    f"the {what} of property cannot contain control character",
                )
    return table


def _check_properties_size(table: Mapping[str, str], system: SystemProperties) -> None:
    """Raise Rejected if user properties, tag and keys are too large together. The size is computed
    as in Java's proxy."""
    texts = itertools.chain(table, table.values(), (system.tag,), system.keys)
    if sum(len(text.encode()) for text in texts) > MAX_USER_PROPERTIES_BYTES:
        raise Rejected(
            Code.MESSAGE_PROPERTIES_TOO_LARGE,
            f"the total size of user property is too large, max is {MAX_USER_PROPERTIES_BYTES}",
        )


def _check_text(code: Code, what: str, text: str) -> None:
    """Raise Rejected for a string that Java's proxy rejects. An empty string counts as missing."""
    if text and not text.strip():
        raise Rejected(code, f"{what} cannot be the char sequence of whitespace")
    if _has_control_character(text):
        raise Rejected(code, f"{what} cannot contain control character")


def check_lite_name(name: str) -> None:
    """Raise Rejected for a lite topic name that Java's proxy rejects."""
    fault = None
    if props.is_blank(name):
        fault = "cannot be the char sequence of whitespace"
    elif len(name.encode()) > MAX_LITE_TOPIC_BYTES:
        fault = f"exceed the max size {MAX_LITE_TOPIC_BYTES}"
    elif _LITE_TOPIC.fullmatch(name) is None:
        fault = "can only contain alphanumeric characters, hyphens(-), and underscores(_)"
    if fault is not None:
        raise Rejected(Code.ILLEGAL_LITE_TOPIC, f"lite topic {fault}")


def _add_system_properties(table: dict[str, str], system: SystemProperties, now_ms: int) -> None:
    _check_text(Code.ILLEGAL_MESSAGE_TAG, "tag", system.tag)
    if "|" in system.tag:
        raise Rejected(Code.ILLEGAL_MESSAGE_TAG, "tag cannot contain '|'")
    if system.tag:
        table[props.TAGS] = system.tag
    for key in system.keys:
        _check_text(Code.ILLEGAL_MESSAGE_KEY, "key", key)
    if any(system.keys):
        table[props.KEYS] = props.KEY_SEPARATOR.join(filter(None, system.keys))
    group = system.message_group
    if len(group.encode()) >= MAX_MESSAGE_GROUP_BYTES:
        raise Rejected(
            Code.ILLEGAL_MESSAGE_GROUP,
            f"message group exceed the max size {MAX_MESSAGE_GROUP_BYTES}",
        )
    _check_text(Code.ILLEGAL_MESSAGE_GROUP, "message group", group)
    if group:
        table[props.SHARDING_KEY] = group
    if system.lite_topic:  # an empty one counts as absent
        check_lite_name(system.lite_topic)
        table[props.LITE_TOPIC] = system.lite_topic
    if system.HasField("priority"):
        if system.priority < 0:
            raise Rejected(
                Code.BAD_REQUEST, f"priority: expected a number from 0, found {system.priority}"
            )
        table[props.PRIORITY] = str(system.priority)
    if system.HasField("delivery_timestamp"):
        deliver_ms = read_timestamp_ms(system.delivery_timestamp)
        if deliver_ms - now_ms > MAX_DELAY_MS:
            raise Rejected(
                Code.ILLEGAL_DELIVERY_TIME,
                f"the max delay time of message is too large, max is {MAX_DELAY_MS}",
            )
        table[props.TIMER_DELIVER_MS] = str(deliver_ms)
    if system.trace_context:
        table[TRACE_CONTEXT] = system.trace_context
    if system.born_host:
        table[props.BORN_HOST] = system.born_host
    if system.HasField("born_timestamp"):
        table[props.BORN_TIMESTAMP] = str(read_timestamp_ms(system.born_timestamp))


def _add_transaction_properties(table: dict[str, str], system: SystemProperties) -> None:
    if system.HasField("delivery_timestamp") or system.message_group:
        raise Rejected(
            Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE,
            "a transactional message has neither delivery time nor message group",
        )
    table[props.TRAN_MSG] = "true"
    if system.HasField("orphaned_transaction_recovery_duration"):
        wait_ms = read_duration_ms(system.orphaned_transaction_recovery_duration)
        if wait_ms // 1000 > MAX_TRANSACTION_RECOVERY_S:
            raise Rejected(
                Code.BAD_REQUEST,
                "the max transaction recovery time of message is too large, max is "
                f"{MAX_TRANSACTION_RECOVERY_S}",
            )
        table[props.CHECK_IMMUNITY_TIME_IN_SECONDS] = str(max(1, wait_ms // 1000))


def _convert_body(body: bytes, system: SystemProperties, max_body: int) -> tuple[bytes, int]:
    if not body:
        raise Rejected(Code.MESSAGE_BODY_EMPTY, "message body cannot be empty")
    if len(body) > max_body:
        raise Rejected(
            Code.MESSAGE_BODY_TOO_LARGE, f"message body cannot exceed the max {max_body}"
        )
    _check_digest(body, system.body_digest)
    if system.body_encoding != Encoding.GZIP:
        return body, 0
    flag = sysflag.set_compression(0, sysflag.CompressionType.ZLIB)
    if body.startswith(_GZIP_MAGIC):
        body = zlib.compress(_inflate(body, max_body), 1)
    return body, flag


def _inflate(body: bytes, max_body: int) -> bytes:
    """Decompress all members of a gzip body, up to one byte more than the limit. As in Java, bytes
    after the last member are ignored."""
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


def _check_digest(body: bytes, digest: Digest) -> None:
    if not digest.checksum:
        return
    if digest.type == DigestType.MD5:
        found = hashlib.md5(body, usedforsecurity=False).hexdigest()
    elif digest.type == DigestType.SHA1:
        found = hashlib.sha1(body, usedforsecurity=False).hexdigest()
    else:
        return  # the languages write a CRC-32 differently
    if found != digest.checksum.lower():
        raise Rejected(
            Code.MESSAGE_CORRUPTED, f"body: expected digest {digest.checksum}, found {found}"
        )


def make_received_message(
    stored: StoredMessage, topic: Resource, handle: str, attempt: int, invisible_ms: int
) -> Message:
    """Convert a stored message for a consumer that must acknowledge it. `topic`: resource from the
    request. `handle`: receipt handle."""
    message = _make_message(stored, topic)
    system = message.system_properties
    system.receipt_handle = handle
    system.delivery_attempt = attempt
    write_duration_ms(system.invisible_duration, invisible_ms)
    return message


def make_message(stored: StoredMessage) -> Message:
    """Convert a stored message for a client that need not acknowledge it. Raises Corrupt if the
    body cannot be decompressed."""
    message = _make_message(stored, Resource(name=stored.topic))
    message.system_properties.delivery_attempt = stored.reconsume_times + 1
    return message


def make_transaction_message(stored: StoredMessage, topics: Iterable[Resource]) -> Message:
    """Return the message to send with a transaction check. `stored`: the half message. `topics`:
    resources the producer named. The topic is returned exactly as the producer wrote it, because
    the producer repeats it in its answer."""
    real_topic = stored.get_property(props.REAL_TOPIC) or stored.topic
    named = (topic for topic in topics if read_topic(topic) == real_topic)
    message = _make_message(stored, next(named, Resource(name=real_topic)))
    message.system_properties.message_type = MessageType.TRANSACTION
    return message


def _make_message(stored: StoredMessage, topic: Resource) -> Message:
    table = stored.properties
    body = _read_body(stored)
    message = Message(body=body)
    message.topic.CopyFrom(topic)
    for name, value in table.items():
        if name not in RESERVED_NAMES:
            message.user_properties[name] = value
    system = message.system_properties
    system.message_id = stored.msg_id
    # Upper case, as clients compare the text. No CRC-32, which each language writes differently.
    system.body_digest.type = DigestType.MD5
    system.body_digest.checksum = hashlib.md5(body, usedforsecurity=False).hexdigest().upper()
    system.body_encoding = Encoding.IDENTITY
    system.message_type = MESSAGE_TYPES[find_message_type(table)]
    priority = props.parse_integer(table.get(props.PRIORITY, "").encode(), 32)
    if priority is not None and priority >= 0:
        system.priority = priority
    if lite_topic := table.get(props.LITE_TOPIC):
        system.lite_topic = lite_topic
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
    # Any client may have written this: an impossible message would block the queue for ever.
    if deliver_ms is not None and deliver_ms.isdecimal() and len(deliver_ms) <= _MAX_TIME_DIGITS:
        write_timestamp_ms(system.delivery_timestamp, int(deliver_ms))
    if props.DLQ_ORIGIN_TOPIC in table:
        origin = system.dead_letter_queue
        origin.topic = table[props.DLQ_ORIGIN_TOPIC]
        origin.message_id = table.get(props.DLQ_ORIGIN_MESSAGE_ID, "")
    return message


def _read_body(stored: StoredMessage) -> bytes:
    """Return the body as the producer sent it. If it cannot be decoded, return the stored body,
    because an unreadable message would block the queue forever."""
    try:
        return bytes(stored.decode_body())
    except Corrupt:
        return bytes(stored.body)


def parse_peer(peer: str) -> bytes:
    """Parse the address of a client into its form in a record. Returns LOCALHOST if it is not an
    address."""
    try:
        return parse_host(peer)
    except Invalid:
        return LOCALHOST


def _has_control_character(text: str) -> bool:
    return not text.isprintable() and any(
        ord(char) < 0x20 or 0x7F <= ord(char) < 0xA0 for char in text
    )
