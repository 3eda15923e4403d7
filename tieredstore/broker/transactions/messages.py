"""Table of open half messages, and the messages of a transaction."""

from __future__ import annotations

import enum
import hashlib
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import msgspec

from tieredstore.broker.send.door import was_sent_by_client
from tieredstore.broker.send.fitting import rebuild
from tieredstore.contracts.message_store import PutMessageResult
from tieredstore.message.encoding import DueMessage, Message, OwnMessage, encode_record
from tieredstore.message.properties import (
    find_property,
    parse_number,
    remove_property,
    set_property,
)
from tieredstore.message.record import StoredMessage, decode_record
from tieredstore.message.sysflag import TRANSACTION_COMMIT, TRANSACTION_MASK, TRANSACTION_ROLLBACK


class HalfEntry(NamedTuple):
    """Half message without an outcome. `check_from_ms`: time of its first check (epoch ms).
    `check_times`: how often its producer was asked."""

    physical_offset: int
    store_timestamp_ms: int
    check_from_ms: int
    check_times: int


class HalfTable:
    """Half messages by queue offset, with the progress in their queue and in the queue of op
    messages. An op message lists half messages that have an outcome."""

    def __init__(self) -> None:
        self.position = 0
        """Next queue offset to read in the queue of half messages."""
        self.op_position = 0
        """Queue offset after the last op message."""
        self._waiting: dict[int, HalfEntry] = {}
        self._ended: set[int] = set()
        self._renewed: dict[bytes, int] = {}  # offset of the last one, by transaction
        self._ops: deque[tuple[int, int]] = deque()  # offset, largest half offset in it

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, offset: int, entry: HalfEntry, renewed: bytes | None = None) -> None:
        """Add a half message read from its queue. `renewed`: key of the transaction (`identify`) if
        this is a copy of an earlier half message, otherwise None."""
        if offset not in self._ended:
            self._waiting[offset] = entry
        self.position = offset + 1
        if renewed is not None:
            self._renewed[renewed] = offset

    def list_waiting(self) -> Iterator[tuple[int, HalfEntry]]:
        """Yield the half messages without an outcome, oldest first. The table may change during
        iteration."""
        for offset in sorted(self._waiting):
            entry = self._waiting.get(offset)
            if entry is not None:
                yield offset, entry

    def find_open(self, offset: int, transaction: bytes) -> int | None:
        """Return the queue offset of an open transaction's half message, or None if the transaction
        has ended. `offset`: offset of this half message or of an earlier copy."""
        if not self.has_ended(offset):
            return offset
        latest = self._renewed.get(transaction)
        return None if latest is None or self.has_ended(latest) else latest

    def has_ended(self, offset: int) -> bool:
        return offset in self._ended or (offset < self.position and offset not in self._waiting)

    def end(self, offset: int) -> None:
        self._ended.add(offset)
        self._waiting.pop(offset, None)

    def renew(self, offset: int, new_offset: int, transaction: bytes) -> None:
        """Record that a half message was put again at the end of the queue."""
        self._renewed[transaction] = new_offset
        self.end(offset)

    def add_op(self, op_offset: int, largest_half_offset: int) -> None:
        self._ops.append((op_offset, largest_half_offset))
        self.op_position = op_offset + 1

    def find_offsets(self) -> tuple[int, int]:
        """Return the lowest queue offsets at which half messages and op messages are still needed.
        Drops the entries below."""
        first = min(self._waiting, default=self.position)
        while self._ops and self._ops[0][1] < first:
            self._ops.popleft()
        # Of the offsets that were read, those that do not wait have ended.
        self._ended = {offset for offset in self._ended if offset >= self.position}
        self._renewed = {
            transaction: offset
            for transaction, offset in self._renewed.items()
            if not self.has_ended(offset)
        }
        return first, self._ops[0][0] if self._ops else self.op_position


HALF_TOPIC: Final = "RMQ_SYS_TRANS_HALF_TOPIC"
OP_TOPIC: Final = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
DISCARDED_TOPIC: Final = "TRANS_CHECK_MAX_TIME_TOPIC"
"""Topic of half messages whose outcome no producer reported in time."""
CHECK_TIMES: Final = "TRANSACTION_CHECK_TIMES"
"""Property of a renewed half message: the number of times its producer was asked for the
outcome."""
MAX_OP_BYTES: Final = 4096
"""Maximum body size of an op message in bytes (Java's transactionOpMsgMaxSize)."""
_OP_PROPERTIES: Final = b"TAGS\x01d\x02"
_NOT_OF_OPS: Final = (b"CLUSTER", b"MSG_REGION", b"REAL_TOPIC", b"TIMER_OUT_MS")


class CommitOrRollback(enum.IntEnum):
    """Outcome of a transaction, numbered as in remoting. UNKNOWN: ask the producer again later."""

    UNKNOWN = 0
    COMMIT = TRANSACTION_COMMIT
    ROLLBACK = TRANSACTION_ROLLBACK


def make_half(message: Message) -> OwnMessage:
    """Return the half message for an accepted message. It is stored in a queue of the broker, with
    the original topic and queue in its properties."""
    properties = message.properties
    if isinstance(message, DueMessage):  # its commit would begin the delay again
        for name in (b"TIMER_DELIVER_MS", b"TIMER_DELAY_SEC", b"TIMER_DELAY_MS"):
            properties = remove_property(properties, name)
    unique_key = find_property(properties, b"UNIQ_KEY")
    if unique_key is not None:
        properties = set_property(properties, b"__transactionId__", unique_key)
    properties = set_property(properties, b"REAL_TOPIC", message.topic.encode())
    properties = set_property(properties, b"REAL_QID", b"%d" % message.queue_id)
    half = OwnMessage(*msgspec.structs.astuple(message))
    half.topic, half.queue_id, half.properties = HALF_TOPIC, 0, properties
    half.sys_flag &= ~TRANSACTION_MASK
    return half


def find_real_queue(half: StoredMessage) -> tuple[str, int] | None:
    """Return the real topic and queue id named in a half message. Returns None if it names none or
    was written by a client."""
    if was_sent_by_client(half.properties_bytes):
        return None
    topic = half.get_property("REAL_TOPIC")
    queue_id = parse_number(half.get_property("REAL_QID"), 32)
    return None if topic is None or queue_id is None else (topic, queue_id)


def identify(half: StoredMessage) -> bytes:
    """Return a key that a half message shares with all its copies. It is a 16-byte digest, because
    clients control the size of the properties it is computed from."""
    names = ("REAL_TOPIC", "PGROUP", "UNIQ_KEY")
    parts = [*map(half.get_property, names), half.born_timestamp_ms, half.born_host_bytes.hex()]
    return hashlib.blake2b(msgspec.json.encode(parts), digest_size=16).digest()


def make_committed(half: StoredMessage, topic: str, queue_id: int) -> Message:
    """Return the message to deliver after a commit."""
    properties = remove_property(half.properties_bytes, b"REAL_TOPIC")
    properties = remove_property(properties, b"REAL_QID")
    message = rebuild(half, topic, queue_id, properties)
    message.sys_flag = message.sys_flag & ~TRANSACTION_MASK | TRANSACTION_COMMIT
    message.prepared_transaction_offset = half.physical_offset
    return message


def make_renewed(half: StoredMessage, check_times: int) -> Message:
    """Return a copy of a half message to put again, with its number of checks."""
    properties = set_property(half.properties_bytes, CHECK_TIMES.encode(), b"%d" % check_times)
    return rebuild(half, HALF_TOPIC, 0, properties)


def show_to_producer(
    half: Message, result: PutMessageResult, store_host: bytes, queue: tuple[str, int]
) -> StoredMessage:
    """Return a newly put half message as a stored message, with the topic and queue used by the
    producer. The offsets are those of the half message in the log and in its queue."""
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
    """Return an op message listing half messages that have an outcome, by queue offset. Also
    returns how many of `half_offsets` fit into it."""
    body, count = b"", 0
    for offset in half_offsets:
        word = b"%d," % offset
        if len(body) + len(word) > MAX_OP_BYTES:
            break
        body += word
        count += 1
    return OwnMessage(OP_TOPIC, body, 0, _OP_PROPERTIES, born_timestamp_ms=now_ms), count


def parse_op(op: StoredMessage) -> set[int] | None:
    """Return the queue offsets listed in an op message. Returns None for a message written by a
    client, recognised by the properties that a broker adds to clients' messages."""
    properties = op.properties_bytes
    if any(find_property(properties, name) is not None for name in _NOT_OF_OPS):
        return None
    numbers = {parse_number(word) for word in bytes(op.body).split(b",") if word}
    return None if None in numbers else {number for number in numbers if number is not None}
