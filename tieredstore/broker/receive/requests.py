"""What is asked of `ReceiveService`, and what it answers."""

from __future__ import annotations

import enum
from typing import Final

import msgspec

from tieredstore.broker.clients import Subscription
from tieredstore.message.record import StoredMessage

MIN_INVISIBLE_MS: Final = 1_000
"""What a client asks less than is this much: one that gives back with 0 would spin."""
MAX_INVISIBLE_MS: Final = 12 * 3_600_000
"""The longest that a message may be invisible at a time, as in RocketMQ's proxy."""
AUTO_RENEW_MS: Final = 60_000
"""How long a message is invisible whose time the broker renews."""


class ReceiveRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One call of a consumer for messages of a topic.

    subscription: what it wants of the topic. max_count: most messages of the answer. invisible_ms:
    how long nobody else gets them; with `auto_renew` the broker renews it while the client lives.
    attempt_id: of the call; the same one again gets the same messages. fifo: messages of a message
    group come one after the other. deadline_ms: until when it may wait for messages, epoch ms.
    """

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


class Received(msgspec.Struct, frozen=True):
    """A message that was given out.

    handle: says which delivery of it is acknowledged. delivery_attempt: 1 for the first.
    invisible_until_ms: epoch ms.
    """

    message: StoredMessage
    handle: str
    delivery_attempt: int
    invisible_until_ms: int


class AckStatus(enum.Enum):
    """What became of a receipt handle."""

    OK = "ok"
    INVALID_RECEIPT_HANDLE = "invalid receipt handle"
    """Nobody gave it out, its time is over, or another one took its place."""
