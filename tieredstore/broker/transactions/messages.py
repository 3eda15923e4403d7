"""The messages of transactions: half messages, what becomes of them, and op messages."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import msgspec

from tieredstore.broker.send.rebuilding import rebuild
from tieredstore.message.encoding import Message, encode_record
from tieredstore.message.properties import find_property, remove_property, set_property
from tieredstore.message.record import decode_record
from tieredstore.message.sysflag import TRANSACTION_COMMIT, TRANSACTION_MASK, TRANSACTION_ROLLBACK

if TYPE_CHECKING:
    from tieredstore.contracts.message_store import PutMessageResult
    from tieredstore.message.record import StoredMessage

HALF_TOPIC: Final = "RMQ_SYS_TRANS_HALF_TOPIC"
OP_TOPIC: Final = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
DISCARDED_TOPIC: Final = "TRANS_CHECK_MAX_TIME_TOPIC"
"""Half messages of which nobody could say what became of them."""
MAX_OP_BYTES: Final = 4096
"""Java's transactionOpMsgMaxSize: the largest body of an op message."""
_OP_PROPERTIES: Final = b"TAGS\x01d\x02"


class CommitOrRollback(enum.IntEnum):
    """How a transaction ends: the numbers are those of remoting. UNKNOWN: ask again later."""

    UNKNOWN = 0
    COMMIT = TRANSACTION_COMMIT
    ROLLBACK = TRANSACTION_ROLLBACK


def make_half(message: Message) -> Message:
    """Make the half message of one whose queue is chosen: it waits in a queue of the broker's
    own."""
    properties = message.properties
    unique_key = find_property(properties, b"UNIQ_KEY")
    if unique_key is not None:
        properties = set_property(properties, b"__transactionId__", unique_key)
    properties = set_property(properties, b"REAL_TOPIC", message.topic.encode())
    properties = set_property(properties, b"REAL_QID", b"%d" % message.queue_id)
    return msgspec.structs.replace(
        message,
        topic=HALF_TOPIC,
        queue_id=0,
        properties=properties,
        sys_flag=message.sys_flag & ~TRANSACTION_MASK,
    )


def find_real_queue(half: StoredMessage) -> tuple[str, int] | None:
    """Return where a half message is to go; None for one that does not say it."""
    topic, queue_id = half.get_property("REAL_TOPIC"), half.get_property("REAL_QID")
    if topic is None or queue_id is None or not queue_id.isdecimal():
        return None
    return topic, int(queue_id)


def make_committed(half: StoredMessage, topic: str, queue_id: int) -> Message:
    """Make the message that a commit delivers."""
    properties = remove_property(half.properties_bytes, b"REAL_TOPIC")
    properties = remove_property(properties, b"REAL_QID")
    message = rebuild(half, topic, queue_id, properties)
    message.sys_flag = message.sys_flag & ~TRANSACTION_MASK | TRANSACTION_COMMIT
    message.prepared_transaction_offset = half.physical_offset
    return message


def make_renewed(half: StoredMessage, check_times: int) -> Message:
    """Make the half message again, with how often its producer was asked."""
    properties = set_property(
        half.properties_bytes, b"TRANSACTION_CHECK_TIMES", b"%d" % check_times
    )
    return rebuild(half, HALF_TOPIC, 0, properties)


def show_to_producer(
    half: Message, result: PutMessageResult, store_host: bytes, queue: tuple[str, int]
) -> StoredMessage:
    """Return a half message that was just put as its producer knows it, topic and queue its own;
    its offsets are those of the half message."""
    topic, queue_id = queue
    record = encode_record(
        msgspec.structs.replace(half, topic=topic, queue_id=queue_id),
        result.queue_offset,
        result.physical_offset,
        result.store_timestamp_ms,
        store_host=store_host,
    )
    return decode_record(record)


def make_op(half_offsets: Sequence[int], now_ms: int) -> tuple[Message, int]:
    """Make the message that says which half messages have ended, by their queue offsets; returns
    how many of them fit in it too."""
    body, count = b"", 0
    for offset in half_offsets:
        word = b"%d," % offset
        if len(body) + len(word) > MAX_OP_BYTES:
            break
        body += word
        count += 1
    return Message(OP_TOPIC, body, 0, _OP_PROPERTIES, born_timestamp_ms=now_ms), count


def parse_op(op: StoredMessage) -> set[int]:
    """Return the queue offsets of the half messages that an op message names."""
    return {int(word) for word in bytes(op.body).split(b",") if word.isdigit()}
