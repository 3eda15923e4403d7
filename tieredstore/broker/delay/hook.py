"""DelayHook: a put hook that stores delayed messages in another topic first. Messages with a delay
level go to the queue of that level in SCHEDULE_TOPIC_XXXX. Messages with a delivery time of their
own (`TIMER_…` properties) go to the timer topic. A property keeps the name of the real topic."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from tieredstore.clock import SYSTEM_CLOCK, Clock
from tieredstore.contracts.durability import PutMessageStatus
from tieredstore.contracts.message_store import DURABLE, HostedStore, PutMessageResult
from tieredstore.message.encoding import DueMessage, Message, OwnMessage
from tieredstore.message.names import SCHEDULE_TOPIC, TIMER_TOPIC, is_closed_topic
from tieredstore.message.properties import (
    find_integer,
    find_property,
    remove_property,
    set_property,
)
from tieredstore.message.sysflag import TRANSACTION_COMMIT, TRANSACTION_NONE, transaction_type

TIMER_PRECISION_MS: Final = 1000
"""Java's timerPrecisionMs, in ms. Delivery times are rounded to a multiple of this value."""
TIMER_MAX_DELAY_MS: Final = 259_200_000
"""Java's timerMaxDelaySec, in ms: three days."""
_OWN_TOPICS: Final = frozenset(
    {SCHEDULE_TOPIC, TIMER_TOPIC, "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC"}
)
_TIMES: Final = (
    (b"TIMER_DELAY_SEC", 1000, True),
    (b"TIMER_DELAY_MS", 1, True),
    (b"TIMER_DELIVER_MS", 1, False),
)
"""Properties that set a delivery time, in order of precedence. Each has a name, a factor that
converts its value to ms, and a flag that is True for a delay."""
_ILLEGAL: Final = PutMessageStatus.WHEEL_TIMER_MSG_ILLEGAL


class DelayHook:
    """Stores delayed messages in other topics until they are due. `delays_ms`: delay of each level,
    starting with level 1. `is_open`: returns whether clients' messages may be delivered to a topic.
    `find_queue`: maps the topic and queue id of an accepted message to the queue that will receive
    it."""

    def __init__(
        self,
        delays_ms: Sequence[int],
        clock: Clock = SYSTEM_CLOCK,
        is_open: Callable[[str], bool] = lambda topic: not is_closed_topic(topic),
        find_queue: Callable[[str, int], int] = lambda _, queue_id: queue_id,
    ) -> None:
        self._max_level = len(delays_ms)
        self._clock = clock
        self.is_open = is_open
        self.find_queue = find_queue
        self._delivers = False

    def install(self, store: HostedStore) -> None:
        """Install the hook in a store."""
        store.add_put_message_hook(self)

    def put_now(self, store: HostedStore, message: Message) -> PutMessageResult:
        """Put a due message into its topic immediately, ignoring the delay in its properties."""
        self._delivers = True
        try:
            return store.put_message(message)
        finally:
            self._delivers = False

    def __call__(self, message: Message) -> Message | PutMessageResult | None:
        """Return the message to store instead of a delayed message, or None if the message is not
        delayed."""
        properties = message.properties
        # Each of the properties contains these letters, and few others do.
        if properties.find(b"DEL") < 0 or self._delivers or message.topic in _OWN_TOPICS:
            return None
        if transaction_type(message.sys_flag) not in (TRANSACTION_NONE, TRANSACTION_COMMIT):
            return None
        level = find_integer(properties, b"DELAY") or 0
        if level > 0:
            return self._put_aside_by_level(message, level)
        if isinstance(message, DueMessage) or find_property(properties, b"TIMER_OUT_MS"):
            return None
        return self._put_aside_by_time(message)

    def _put_aside_by_level(self, message: Message, level: int) -> Message:
        properties = message.properties
        for name in (b"TIMER_DELIVER_MS", b"TIMER_DELAY_SEC", b"TIMER_DELAY_MS"):
            properties = remove_property(properties, name)
        if level > self._max_level:
            level = self._max_level
            properties = set_property(properties, b"DELAY", b"%d" % level)
        return _readdress(message, properties, SCHEDULE_TOPIC, level - 1)

    def _put_aside_by_time(self, message: Message) -> Message | PutMessageResult | None:
        properties = message.properties
        now_ms = self._clock.now_ms()
        deliver_ms = find_delivery_ms(properties, now_ms)
        # The broker's own messages were checked before.
        if not isinstance(message, OwnMessage):
            fault = find_timer_fault(properties, now_ms)
            if fault is not None:
                return _refuse(fault)
        if deliver_ms is None or deliver_ms <= now_ms:
            if find_property(properties, b"TIMER_DEL_UNIQKEY") is not None:
                return _refuse("the message to recall is due already")
            return None
        # Round down to the step, and one more step if it is exact.
        out_ms = (deliver_ms - 1) // TIMER_PRECISION_MS * TIMER_PRECISION_MS
        properties = set_property(properties, b"TIMER_OUT_MS", b"%d" % out_ms)
        return _readdress(message, properties, TIMER_TOPIC, 0)


def find_delivery_ms(properties: bytes, now_ms: int) -> int | None:
    """Return the delivery time (epoch ms) from the TIMER properties of a message. Returns None if
    they have no valid number."""
    for name, factor, is_delay in _TIMES:
        if find_property(properties, name) is not None:
            number = find_integer(properties, name)
            return None if number is None else number * factor + (now_ms if is_delay else 0)
    return None


def find_timer_fault(properties: bytes, now_ms: int) -> str | None:
    """Return why the delivery time in the TIMER properties is not allowed for producers, or None if
    it is allowed or missing."""
    named = [name for name, _, _ in _TIMES if find_property(properties, name) is not None]
    if not named:
        return None
    deliver_ms = find_delivery_ms(properties, now_ms)
    if deliver_ms is None:
        return f"{named[0].decode()}: expected a number"
    if deliver_ms - now_ms > TIMER_MAX_DELAY_MS:
        return f"expected a delay of at most {TIMER_MAX_DELAY_MS} ms, found {deliver_ms - now_ms}"
    return None


def _readdress(message: Message, properties: bytes, topic: str, queue_id: int) -> Message:
    properties = set_property(properties, b"REAL_TOPIC", message.topic.encode())
    properties = set_property(properties, b"REAL_QID", b"%d" % message.queue_id)
    return msgspec.structs.replace(message, topic=topic, queue_id=queue_id, properties=properties)


def _refuse(reason: str) -> PutMessageResult:
    return PutMessageResult(_ILLEGAL, -1, -1, 0, 0, 0, DURABLE, f"timer message: {reason}")
