"""Door: checks every message from a client before it is put, including batch members, replies and
messages sent to a retry topic. It refuses messages for system topics, removes properties that only
the broker may set, and applies the limits for producers. The broker's own puts (`OwnMessage`) are
not checked, so that an accepted message stays deliverable if the limits change. `PutGuard` refuses
messages for system topics also in direct puts, for example by a store plugin."""

from __future__ import annotations

import re
from typing import Final

import msgspec

from tieredstore.broker.refused import Reason, Refused
from tieredstore.broker.settings import BrokerSettings
from tieredstore.contracts.durability import PutMessageStatus
from tieredstore.contracts.message_store import DURABLE, PutMessageResult
from tieredstore.message.encoding import DueMessage, Message, OwnMessage
from tieredstore.message.names import MAX_NAME_BYTES, SYSTEM_TOPICS, is_closed_topic
from tieredstore.message.properties import find_integer, find_property
from tieredstore.message.sysflag import TRANSACTION_MASK

# fmt: off
BROKER_PROPERTIES: Final = (
    b"REAL_TOPIC", b"REAL_QID", b"TIMER_OUT_MS", b"TIMER_ENQUEUE_MS", b"TIMER_DEQUEUE_MS",
    b"TIMER_ROLL_TIMES", b"TIMER_DELAY_LEVEL", b"TIMER_DEL_UNIQKEY",
    b"TRAN_PREPARED_QUEUE_OFFSET", b"TRANSACTION_CHECK_TIMES", b"DLQ_ORIGIN_TOPIC",
    b"DLQ_ORIGIN_MESSAGE_ID", b"INNER_NUM", b"INNER_BASE", b"INNER_MULTI_QUEUE_OFFSET",
    b"POP_CK", b"POP_CK_OFFSET", b"1ST_POP_TIME", b"CLUSTER", b"MSG_REGION", b"TRACE_ON",
    b"__CRC32#",
)
# fmt: on
"""Properties that only the broker sets (`docs/formats/properties.md`)."""
_ADDED: Final = [b"CLUSTER", b"MSG_REGION", b"TRACE_ON"]
_NAMES: Final = frozenset(BROKER_PROPERTIES)
_FOUND: Final = re.compile(rb"\x02(?:%s)\x01" % b"|".join(map(re.escape, BROKER_PROPERTIES)))
_TOPICS_KEPT: Final = 65_536
_ILLEGAL: Final = Reason.MESSAGE_ILLEGAL


class Door:
    """Checks the messages that clients send. Use only on the event loop."""

    def __init__(self, settings: BrokerSettings) -> None:
        self._settings = settings
        self._reply_topic = f"{settings.broker_cluster_name}_REPLY_TOPIC"
        self._open: set[str] = set()  # topics that were found open

    def is_open(self, topic: str, *, is_reply: bool = False) -> bool:
        """Return whether clients may send to a topic. The reply topic is open only to replies."""
        if topic in self._open:
            return True
        if topic == self._reply_topic:
            return is_reply
        is_trace = topic == self._settings.msg_trace_topic_name and topic not in SYSTEM_TOPICS
        if is_closed_topic(topic) and not is_trace:
            return False
        if len(topic) <= MAX_NAME_BYTES:
            if len(self._open) >= _TOPICS_KEPT:
                self._open.clear()
            self._open.add(topic)
        return True

    def check_topic(self, topic: str, *, is_reply: bool = False) -> None:
        """Raise Refused if clients may not send to a topic."""
        if not self.is_open(topic, is_reply=is_reply):
            raise Refused(Reason.NO_PERMISSION, f"Sending message to topic[{topic}] is forbidden.")

    def admit(self, message: Message) -> Message:
        """Check a message's body size and delay, and return the message without the broker's
        properties. A message with TIMER_OUT_MS is a copy of a delivered timer message and is not
        delayed again. Raises Refused."""
        body_size = len(message.body)
        if not body_size:
            raise Refused(_ILLEGAL, "the message has no body")
        limit = self._settings.max_message_size_bytes
        if body_size > limit:
            raise Refused(
                _ILLEGAL,
                "the message is illegal: message: expected a body of at most "
                f"{limit} bytes, found {body_size}",
            )
        properties = message.properties
        if properties.find(b"DELAY\x01") >= 0:
            check_delay(properties)
        kept = remove_broker_properties(properties)
        message.sys_flag &= ~TRANSACTION_MASK
        if kept is not properties:
            message.properties = kept
            if find_property(properties, b"TIMER_OUT_MS") is not None:
                return DueMessage(*msgspec.structs.astuple(message))
        return message


def check_delay(properties: bytes) -> None:
    """Raise Refused if the delay level is not an integer."""
    value = find_property(properties, b"DELAY")
    if value is not None and find_integer(properties, b"DELAY", 32) is None:
        raise Refused(
            _ILLEGAL,
            f"the message is illegal: DELAY: expected an integer of 32 bits, found {value[:64]!r}",
        )


def remove_broker_properties(properties: bytes) -> bytes:
    """Remove properties that only the broker may set, and properties without a value, which count
    as missing. All other bytes are unchanged."""
    if properties.find(b"\x01\x02") < 0 and _FOUND.search(b"\x02" + properties) is None:
        return properties
    kept = []
    for pair in properties.split(b"\x02"):
        name, _, value = pair.partition(b"\x01")
        if name and value and name not in _NAMES:
            kept.append(pair + b"\x02")
    return b"".join(kept)


def was_sent_by_client(properties: bytes) -> bool:
    """Return whether a message is stored as a broker of this project received it from a client.
    Such a broker appends three properties to the client's. If it moves a message to another topic
    itself, it appends the real topic after them. Java's brokers write properties in hash table
    order, in which these three are never last."""
    names = [pair.partition(b"\x01")[0] for pair in properties.split(b"\x02") if pair]
    if names and names[-1] == b"__CRC32#":
        names.pop()
    return names[-3:] == _ADDED


class PutGuard:
    """Put hook that refuses messages for closed topics, except an `OwnMessage`. It runs before
    hooks that change the topic of a message."""

    def __init__(self, door: Door) -> None:
        self._door = door

    def __call__(self, message: Message) -> PutMessageResult | None:
        topic = message.topic
        if self._door.is_open(topic, is_reply=True) or isinstance(message, OwnMessage):
            return None
        return PutMessageResult(
            PutMessageStatus.MESSAGE_ILLEGAL,
            -1,
            -1,
            0,
            0,
            0,
            DURABLE,
            f"topic {topic}: only the broker itself puts messages in it",
        )
