"""Recall handles, and removal of properties that do not fit into a message."""

from __future__ import annotations

import base64
import binascii
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from tieredstore.broker.refused import Reason, Refused
from tieredstore.contracts.durability import PutMessageStatus
from tieredstore.contracts.message_store import PutMessageResult
from tieredstore.errors import Invalid
from tieredstore.message.encoding import Message, OwnMessage
from tieredstore.message.properties import (
    find_property,
    parse_number,
    remove_property,
    set_property,
)
from tieredstore.message.record import StoredMessage

_VERSION: Final = "v1"


class RecallHandle(NamedTuple):
    """Recall handle of a timer message. `deliver_ms`: a time (epoch ms) that rounds to the delivery
    time."""

    topic: str
    broker_name: str
    deliver_ms: int
    message_id: str

    def encode(self) -> str:
        """Encode the handle as Java does, in URL-safe base64."""
        text = " ".join((_VERSION, self.topic, self.broker_name, str(self.deliver_ms)))
        return base64.urlsafe_b64encode(f"{text} {self.message_id}".encode()).decode()


def parse_recall_handle(text: str) -> RecallHandle:
    """Parse a recall handle. Raises Invalid."""
    try:
        decoded = base64.b64decode(text.encode(), altchars=b"-_", validate=True).decode()
        version, topic, broker_name, deliver_ms, message_id = decoded.split(" ")
        if version != _VERSION or len(deliver_ms) > 18:
            raise ValueError(decoded)
        return RecallHandle(topic, broker_name, int(deliver_ms), message_id)
    except (binascii.Error, ValueError) as error:
        raise Invalid(f"recall handle {text!r}: expected one that a send returned") from error


def find_recall_handle(stored: StoredMessage | None, broker_name: str) -> str:
    """Return the recall handle of a stored message, or "" if it is not a timer message."""
    if stored is None:
        return ""
    out_ms = parse_number(stored.get_property("TIMER_OUT_MS"))
    topic = stored.get_property("REAL_TOPIC")
    if out_ms is None or topic is None:
        return ""
    # Times are rounded down to the step, so one more stays within it.
    return RecallHandle(topic, broker_name, out_ms + 1, stored.msg_id).encode()


def make_recall_key(topic: str, unique_key: str) -> str:
    """Return the value of TIMER_DEL_UNIQKEY, which identifies a message to recall within its
    topic."""
    return f"{topic}_{unique_key}"


STORED: Final = frozenset(
    {
        PutMessageStatus.PUT_OK,
        PutMessageStatus.FLUSH_DISK_TIMEOUT,
        PutMessageStatus.FLUSH_SLAVE_TIMEOUT,
        PutMessageStatus.SLAVE_NOT_AVAILABLE,
    }
)
"""Statuses of puts that stored the message."""
_REASONS: Final[Mapping[PutMessageStatus, tuple[Reason, str]]] = {
    PutMessageStatus.SERVICE_NOT_AVAILABLE: (
        Reason.SERVICE_NOT_AVAILABLE,
        "service not available now",
    ),
    PutMessageStatus.CREATE_MAPPED_FILE_FAILED: (
        Reason.SYSTEM_ERROR,
        "create mapped file failed, server is busy or broken",
    ),
    PutMessageStatus.MESSAGE_ILLEGAL: (Reason.MESSAGE_ILLEGAL, "the message is illegal"),
    PutMessageStatus.PROPERTIES_SIZE_EXCEEDED: (Reason.MESSAGE_ILLEGAL, "the message is illegal"),
    PutMessageStatus.OS_PAGE_CACHE_BUSY: (
        Reason.SYSTEM_BUSY,
        "[PC_SYNCHRONIZED]broker busy, start flow control for a while",
    ),
    PutMessageStatus.WHEEL_TIMER_MSG_ILLEGAL: (Reason.MESSAGE_ILLEGAL, "timer message illegal"),
    PutMessageStatus.WHEEL_TIMER_FLOW_CONTROL: (
        Reason.SYSTEM_ERROR,
        "timer message is under flow control",
    ),
    PutMessageStatus.WHEEL_TIMER_NOT_ENABLE: (
        Reason.SYSTEM_ERROR,
        "accurate timer message is not enabled",
    ),
}


def make_refusal(result: PutMessageResult) -> Refused:
    """Return the error for a failed put, with Java's response code."""
    unknown = (Reason.SYSTEM_ERROR, result.status.name)
    reason, text = _REASONS.get(result.status, unknown)
    return Refused(reason, f"{text}: {result.reason}" if result.reason else text)


# fmt: off
DROPPED_FIRST: Final = (
    b"TRACE_ON", b"MSG_REGION", b"CLUSTER", b"WAIT", b"__transactionId__", b"ORIGIN_MESSAGE_ID",
    b"DLQ_ORIGIN_MESSAGE_ID", b"DLQ_ORIGIN_TOPIC",
)
# fmt: on
"""Properties that can be dropped from a message without preventing its delivery, in order."""
DROPPED_OF_DEAD_LETTERS: Final = (b"RETRY_TOPIC", b"DELAY")
"""Further properties that can be dropped from a dead letter, after those in DROPPED_FIRST."""
DROPPED_OF_DELIVERIES: Final = (b"INNER_MULTI_DISPATCH",)
"""Property dropped from a delayed or committed message if its offsets in light queues would make
the properties too long. The message then reaches its topic, but no light queue."""
_log = logging.getLogger(__name__)


def put_fitting(
    put: Callable[[Message], PutMessageResult], message: Message, more: Sequence[bytes] = ()
) -> PutMessageResult:
    """Put a message, removing properties one by one while they are too long. Those in DROPPED_FIRST
    are removed first, then those in `more`."""
    result = put(message)
    for name in (*DROPPED_FIRST, *more):
        if result.status is not PutMessageStatus.PROPERTIES_SIZE_EXCEEDED:
            break
        properties = remove_property(message.properties, name)
        if len(properties) < len(message.properties):
            message.properties = properties
            if name in DROPPED_OF_DELIVERIES:
                _log.error(
                    "a message for %s enters none of its light queues: its offsets there do not "
                    "fit in its properties",
                    message.topic,
                )
            result = put(message)
    return result


def rebuild(
    stored: StoredMessage, topic: str, queue_id: int, properties: bytes | None = None
) -> OwnMessage:
    """Return a copy of a stored message for another queue, with the same body, flags, born time,
    born host and reconsume times. `properties`: new properties, or None to keep them."""
    return OwnMessage(
        topic,
        bytes(stored.body),
        queue_id,
        stored.properties_bytes if properties is None else properties,
        stored.flag,
        stored.sys_flag,
        stored.born_timestamp_ms,
        stored.born_host_bytes,
        stored.reconsume_times,
    )


def make_dead_letter_properties(properties: bytes, message_id: str) -> bytes:
    """Return the properties of a dead letter. Adds the original topic (RETRY_TOPIC) and the message
    id unless present. Removes the names of light queues, on which the failed consumer may have no
    permission."""
    for name in (b"INNER_MULTI_DISPATCH", b"INNER_MULTI_QUEUE_OFFSET"):
        properties = remove_property(properties, name)
    topic = find_property(properties, b"RETRY_TOPIC")
    if topic is None or find_property(properties, b"DLQ_ORIGIN_TOPIC") is not None:
        return properties
    properties = set_property(properties, b"DLQ_ORIGIN_TOPIC", topic)
    return set_property(properties, b"DLQ_ORIGIN_MESSAGE_ID", message_id.encode())
