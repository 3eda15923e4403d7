"""DelayHook: messages that are to come later are put aside: the hook on the store's put path.

A message with a delay level goes to the queue of its level in SCHEDULE_TOPIC_XXXX, one with a time
of its own (`TIMER_…` properties) to the timer topic; both carry where they are to go.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import msgspec

from tieredstore.clock import SYSTEM_CLOCK, Clock
from tieredstore.contracts.message_store import DURABLE, PutMessageResult, PutMessageStatus
from tieredstore.message.names import SCHEDULE_TOPIC, TIMER_TOPIC
from tieredstore.message.properties import find_property, remove_property, set_property
from tieredstore.message.sysflag import (
    TRANSACTION_COMMIT,
    TRANSACTION_NONE,
    transaction_type,
)

if TYPE_CHECKING:
    from tieredstore.contracts.message_store import HostedStore
    from tieredstore.message.encoding import Message

TIMER_PRECISION_MS: Final = 1000
"""Java's timerPrecisionMs: timer messages come in steps of it."""
TIMER_MAX_DELAY_MS: Final = 259_200_000
"""Java's timerMaxDelaySec: three days."""
_OWN_TOPICS: Final = frozenset(
    {SCHEDULE_TOPIC, TIMER_TOPIC, "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC"}
)
_ILLEGAL: Final = PutMessageStatus.WHEEL_TIMER_MSG_ILLEGAL


class DelayHook:
    """Puts delayed messages aside. delays_ms: of the levels, level 1 first."""

    def __init__(self, delays_ms: Sequence[int], clock: Clock = SYSTEM_CLOCK) -> None:
        self._max_level = len(delays_ms)
        self._clock = clock
        self._delivers = False

    def install(self, store: HostedStore) -> None:
        """Have the hook called for what is put from now on."""
        store.add_put_message_hook(self)

    def put_now(self, store: HostedStore, message: Message) -> PutMessageResult:
        """Put a message that is due, whatever delay its properties still name."""
        self._delivers = True
        try:
            return store.put_message(message)
        finally:
            self._delivers = False

    def __call__(self, message: Message) -> Message | PutMessageResult | None:
        """Return the message that is put aside instead of one that is delayed, None for any
        other."""
        properties = message.properties
        # Each of the properties has these letters, and few others.
        if properties.find(b"DEL") < 0 or self._delivers or message.topic in _OWN_TOPICS:
            return None
        if transaction_type(message.sys_flag) not in (TRANSACTION_NONE, TRANSACTION_COMMIT):
            return None
        level = _find_number(properties, b"DELAY") or 0
        if level > 0:
            return self._put_aside_by_level(message, level)
        if find_property(properties, b"TIMER_OUT_MS") is not None:
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
        for name, factor, is_delay in (
            (b"TIMER_DELAY_SEC", 1000, True),
            (b"TIMER_DELAY_MS", 1, True),
            (b"TIMER_DELIVER_MS", 1, False),
        ):
            if find_property(properties, name) is None:
                continue
            number = _find_number(properties, name)
            if number is None:
                return _refuse(f"{name.decode()}: expected a number")
            deliver_ms = number * factor + (now_ms if is_delay else 0)
            break
        else:
            return None
        if deliver_ms <= now_ms:
            if find_property(properties, b"TIMER_DEL_UNIQKEY") is not None:
                return _refuse("the message to recall is due already")
            return None
        if deliver_ms - now_ms > TIMER_MAX_DELAY_MS:
            return _refuse(
                f"expected a delay of at most {TIMER_MAX_DELAY_MS} ms, found {deliver_ms - now_ms}"
            )
        # The whole step before it, also where it is one.
        out_ms = (deliver_ms - 1) // TIMER_PRECISION_MS * TIMER_PRECISION_MS
        properties = set_property(properties, b"TIMER_OUT_MS", b"%d" % out_ms)
        return _readdress(message, properties, TIMER_TOPIC, 0)


def _readdress(message: Message, properties: bytes, topic: str, queue_id: int) -> Message:
    properties = set_property(properties, b"REAL_TOPIC", message.topic.encode())
    properties = set_property(properties, b"REAL_QID", b"%d" % message.queue_id)
    return msgspec.structs.replace(message, topic=topic, queue_id=queue_id, properties=properties)


def _find_number(properties: bytes, name: bytes) -> int | None:
    """A value as a number of 64 bits; None without one, or for anything else."""
    value = find_property(properties, name)
    if value is None or len(value) > 20:
        return None
    try:
        number = int(value)
    except ValueError:
        return None
    return number if -(1 << 63) <= number < 1 << 63 else None


def _refuse(reason: str) -> PutMessageResult:
    return PutMessageResult(_ILLEGAL, -1, -1, 0, 0, 0, DURABLE, f"timer message: {reason}")
