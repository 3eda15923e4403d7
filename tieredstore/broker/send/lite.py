"""Check the lite topics of sent messages, and name their light queues."""

from __future__ import annotations

from typing import Final

from tieredstore.broker.refused import Reason, Refused
from tieredstore.broker.state.topics import TopicConfig
from tieredstore.clock import Clock
from tieredstore.config import StoreConfig
from tieredstore.contracts.dispatch_source import find_light
from tieredstore.contracts.message_store import MessageStore
from tieredstore.message import properties as props
from tieredstore.message.encoding import Message
from tieredstore.message.lite import (
    LITE_PREFIX,
    LITE_QUEUE_ID,
    LiteTopic,
    find_lite_fault,
    parse_lite_topic,
)
from tieredstore.message.names import DLQ_PREFIX, LMQ_PREFIX, RETRY_PREFIX

RECOUNT_MS: Final = 10_000
"""Minimum time between two counts of all light queues, ms."""
_LITE: Final = props.LITE_TOPIC.encode()
_DISPATCH: Final = props.INNER_MULTI_DISPATCH.encode()
_LITE_MARK: Final = _LITE + b"\x01"


def name_lite_queue(message: Message, config: TopicConfig, *, fills_queues: bool) -> None:
    """Add the name of the light queue (INNER_MULTI_DISPATCH) to a message with a lite topic.
    Messages in retry and dead-letter topics have no light queue. `config`: configuration of the
    message's topic. `fills_queues`: True if the store fills light queues. Raises Refused for a name
    that a Java broker cannot dispatch. Also raises Refused for a topic of type LITE if the store
    fills no light queues."""
    properties = message.properties
    name = props.find_text(properties, _LITE)
    if not name or message.topic.startswith((RETRY_PREFIX, DLQ_PREFIX)):
        _check_named_queues(properties)
        return
    lite = LiteTopic(message.topic, name)
    fault = find_lite_fault(lite)
    if fault is not None:
        raise Refused(
            Reason.MESSAGE_ILLEGAL,
            f"the message is illegal: lite topic of {message.topic}: {fault}",
        )
    if fills_queues:
        message.properties = props.set_property(properties, _DISPATCH, lite.queue.encode())
    elif config.is_lite:
        raise Refused(
            Reason.NO_PERMISSION,
            f"lite topic {name} of {message.topic}: no consumer would get its messages. Set "
            "enableLmq=true, and enableMultiDispatch=true or storeType=defaultRocksDB",
        )


def check_lite_member(properties: bytes, topic: str) -> None:
    """Raise Refused if a batch member has a lite topic, because no consumer would get it."""
    if properties.find(_LITE_MARK) >= 0 and props.find_text(properties, _LITE):
        raise Refused(
            Reason.MESSAGE_ILLEGAL,
            f"the message is illegal: a batch for {topic}: expected no message with a lite topic",
        )


def _check_named_queues(properties: bytes) -> None:
    names = props.find_text(properties, _DISPATCH)
    for name in names.split(",") if names else ():
        if name.startswith(LITE_PREFIX) and parse_lite_topic(name) is None:
            raise Refused(
                Reason.MESSAGE_ILLEGAL,
                "the message is illegal: INNER_MULTI_DISPATCH: expected "
                f"{LITE_PREFIX}parent$lite topic, found {name[:64]!r}",
            )


class LightQuota:
    """Quota of light queues (`enableLmqQuota`). Light queues are counted only when the quota is
    reached, at most once per RECOUNT_MS. In between, each new queue adds one to the count, even if
    several messages arrive before the store has created it."""

    def __init__(self, store: MessageStore, config: StoreConfig, clock: Clock) -> None:
        self._store = store
        self._config = config
        self._clock = clock
        self._count: int | None = None
        self._counted_ms = 0
        self._new: dict[str, None] = {}

    def check(self, properties: bytes) -> None:
        """Raise Refused if a message would create a light queue above the quota."""
        if not self._config.enable_lmq_quota or not self._config.fills_light_queues:
            return
        for name in (props.find_text(properties, _DISPATCH) or "").split(","):
            if not name.startswith(LMQ_PREFIX) or name in self._new:
                continue
            if self._store.get_max_offset_in_queue(name, LITE_QUEUE_ID) > 0:
                continue
            most = self._config.max_lmq_consume_queue_num
            if self._find_count(most) >= most:
                raise Refused(
                    Reason.LMQ_QUOTA_EXCEEDED,
                    f"the quota of {most} light queues (maxLmqConsumeQueueNum) is reached, so "
                    f"{name} is not made",
                )
            self._new[name] = None

    def _find_count(self, most: int) -> int:
        now_ms = self._clock.monotonic_ms()
        is_old = now_ms - self._counted_ms >= RECOUNT_MS
        if self._count is None or (self._count + len(self._new) >= most and is_old):
            source = find_light(self._store.dispatch_source)
            self._count = source.count_light_queues(LMQ_PREFIX)
            self._counted_ms = now_ms
            self._new.clear()
        return self._count + len(self._new)
