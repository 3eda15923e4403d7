"""Requests to `ReceiveService` and their results."""

from __future__ import annotations

import enum
import re
from typing import Final, NamedTuple

import msgspec

from tieredstore.broker.clients.assignment import ALL_QUEUES
from tieredstore.broker.clients.session import Subscription
from tieredstore.message.lite import LiteTopic, parse_lite_topic
from tieredstore.message.names import RETRY_PREFIX
from tieredstore.message.record import StoredMessage

MIN_INVISIBLE_MS: Final = 1_000
"""Minimum invisible time (ms). Lower values are raised to it. Otherwise a client that returns
messages with a time of 0 would get them again in a busy loop."""
MAX_INVISIBLE_MS: Final = 12 * 3_600_000
"""Maximum invisible time (ms), as in RocketMQ's proxy."""
AUTO_RENEW_MS: Final = 60_000
"""Invisible time (ms) of a message that the broker renews."""
MAX_ATTEMPT_ID: Final = 256
"""Maximum length of an attempt id in characters. Clients send UUIDs."""
MAX_BATCH_BYTES: Final = 64 << 20
"""Maximum size of one answer (bytes). The first message may exceed this size."""


def limit_invisible_ms(asked_ms: int) -> int:
    """Clamp an invisible time (ms) to the limits. Java has no limits over remoting."""
    return min(max(asked_ms, MIN_INVISIBLE_MS), MAX_INVISIBLE_MS)


class ReceiveRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Request of a consumer for messages of a topic. `subscription`: filter. `max_count`: maximum
    number of messages. `invisible_ms`: how long the messages are hidden from other consumers.
    `auto_renew`: True if the broker renews this time while the client is connected. `attempt_id`:
    id of the call. A repeated call gets the same messages. `fifo`: True to deliver the messages of
    a message group in order. `deadline_ms`: end of the wait, epoch ms. `queue_id`: queue to read,
    or ALL_QUEUES. `from_first`: True if a new group starts at the first message. `is_lite`: True to
    read the lite topics of `topic` to which the client subscribes. `max_bytes`: size limit of the
    response. The first message may exceed it."""

    group: str
    topic: str
    subscription: Subscription
    max_count: int = 32
    invisible_ms: int = AUTO_RENEW_MS
    auto_renew: bool = False
    attempt_id: str = ""
    fifo: bool = False
    client_id: str = ""
    deadline_ms: int = 0
    queue_id: int = ALL_QUEUES
    from_first: bool = False
    is_lite: bool = False
    max_bytes: int = MAX_BATCH_BYTES


class Source(enum.IntEnum):
    """Kind of topic that a message was read from. The numbers are those in Java's receipt
    handles."""

    TOPIC = 0
    RETRY_V1 = 1
    """`%RETRY%<group>_<topic>`, to which a Java broker copied messages for redelivery."""
    RETRY_V2 = 2
    """`%RETRY%<group>+<topic>`, to which a Java broker copied messages if `enableRetryTopicV2` was
    set."""
    LITE = 3
    """A lite topic below the requested topic. Java's receipt handles do not have this source."""


_SEPARATORS: Final = {Source.RETRY_V1: "_", Source.RETRY_V2: "+"}
RETRY_SOURCES: Final = tuple(_SEPARATORS)


def name_source(group: str, topic: str, source: Source, lite_topic: str = "") -> str:
    """Return the name of the topic that a message was read from. `topic`: the requested topic."""
    if source is Source.TOPIC:
        return topic
    if source is Source.LITE:
        return LiteTopic(topic, lite_topic).queue
    return f"{RETRY_PREFIX}{group}{_SEPARATORS[source]}{topic}"


def split_source(group: str, name: str) -> tuple[str, Source]:
    """Return the requested topic and the source for the topic `name`, the inverse of `name_source`.
    If `name` is not a retry topic of the group, it is the requested topic."""
    if not name.startswith(RETRY_PREFIX):
        lite = parse_lite_topic(name)
        return (name, Source.TOPIC) if lite is None else (lite.parent, Source.LITE)
    start = RETRY_PREFIX + group
    for source, separator in _SEPARATORS.items():
        topic = name.removeprefix(start + separator)
        if topic and topic != name:
            return topic, source
    return name, Source.TOPIC


_GENERATION_BITS: Final = 20
"""Number of low bits of a delivery number (generation) used for a counter. The high bits hold the
delivery time (epoch ms)."""


class Receipt(NamedTuple):
    """Content of a receipt handle. `source`, `queue_id`, `offset`: location of the message.
    `generation`: number of the delivery. Two deliveries of a message always have different values
    of `pop_ms`. `lite_topic`: name of the lite topic, if `source` is Source.LITE."""

    queue_id: int
    offset: int
    generation: int
    source: Source = Source.TOPIC
    lite_topic: str = ""

    @property
    def pop_ms(self) -> int:
        """Time of the delivery (epoch ms), which identifies the delivery over remoting."""
        return find_pop_ms(self.generation)


def find_pop_ms(generation: int) -> int:
    """Return the time (epoch ms) encoded in a delivery number."""
    return generation >> _GENERATION_BITS


def encode_generation(pop_ms: int, number: int) -> int:
    """Return the delivery number (generation) for a time (epoch ms) and a counter. Only the low
    bits of the counter are used."""
    return pop_ms << _GENERATION_BITS | number & (1 << _GENERATION_BITS) - 1


class Received(msgspec.Struct, frozen=True):
    """Delivered message. `receipt`: identifies the delivery. `delivery_attempt`: 1 for the first
    delivery. `invisible_until_ms`: end of the invisible time, epoch ms."""

    message: StoredMessage
    receipt: Receipt
    delivery_attempt: int
    invisible_until_ms: int

    @property
    def handle(self) -> str:
        """Receipt handle of the message, as text for an acknowledgement."""
        return encode_handle(self.receipt)


class AckStatus(enum.Enum):
    """Result of acknowledging a receipt handle."""

    OK = "ok"
    INVALID_RECEIPT_HANDLE = "invalid receipt handle"
    """The handle is unknown, has expired, or was replaced by a newer handle."""


_FORMAT: Final = re.compile(
    r"(?:1|2:([12])):([0-9]{1,9}):([0-9]{1,18}):([0-9a-f]{1,16})"
    r"|3:([0-9]{1,18}):([0-9a-f]{1,16}):(.{1,128})",
    re.DOTALL,
)


def encode_handle(receipt: Receipt) -> str:
    """Encode a receipt handle as text: `1:<queue>:<offset>:<generation>`,
    `2:<source>:<queue>:<offset>:<generation>` for a message of a retry topic, or
    `3:<offset>:<generation>:<lite topic>`. The first number is the format version. Clients treat
    the handle as opaque."""
    if receipt.source is Source.LITE:
        return f"3:{receipt.offset}:{receipt.generation:x}:{receipt.lite_topic}"
    source = f"2:{receipt.source}" if receipt.source else "1"
    return f"{source}:{receipt.queue_id}:{receipt.offset}:{receipt.generation:x}"


def decode_handle(text: str) -> Receipt | None:
    """Parse a receipt handle. Returns None if it is not one of this project."""
    found = _FORMAT.fullmatch(text)
    if found is None:
        return None
    source, queue_id, offset, generation, *lite = found.groups()
    if lite[0] is not None:
        return Receipt(0, int(lite[0]), int(lite[1], 16), Source.LITE, lite[2])
    return Receipt(int(queue_id), int(offset), int(generation, 16), Source(int(source or 0)))
