"""SendBack: retries messages that a consumer failed to consume, or moves them to the dead
letters."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field
from typing import Final

from tieredstore.broker.refused import Reason, Refused
from tieredstore.broker.send import fitting
from tieredstore.broker.settings import BrokerSettings
from tieredstore.broker.state.groups import SubscriptionGroupConfig, SubscriptionGroupManager
from tieredstore.broker.state.topics import TopicConfigManager
from tieredstore.broker.state.traffic import TrafficCounts
from tieredstore.contracts.durability import PutMessageStatus
from tieredstore.contracts.message_store import MessageStore, wait_until_durable
from tieredstore.errors import Corrupt, Invalid
from tieredstore.message.names import DLQ_PREFIX, RETRY_PREFIX
from tieredstore.message.properties import find_property, remove_property, set_property
from tieredstore.message.record import StoredMessage

_FIRST_LEVEL: Final = 3
"""Delay level of the first retry. Each later retry has a delay level that is higher by one."""
MAX_ATTEMPTS: Final = 2**31 - 1
"""Maximum number of deliveries that a record can store."""
_MAX_CANDIDATES: Final = 32
_FOREVER_MS: Final = (1 << 63) - 1
_DELIVERY_PROPERTIES: Final = (
    b"REAL_TOPIC",
    b"REAL_QID",
    b"TIMER_OUT_MS",
    b"TIMER_ENQUEUE_MS",
    b"TIMER_DELAY_SEC",
    b"TIMER_DELAY_MS",
    b"TIMER_DELIVER_MS",
    b"TIMER_DEL_UNIQKEY",
)
"""Properties of an earlier delay. They are removed so that they do not delay the message again."""


@dataclass(eq=False)
class SendBack:
    """Puts messages into a group's retry topic with a delay, or into its dead letters."""

    store: MessageStore
    settings: BrokerSettings
    topics: TopicConfigManager
    groups: SubscriptionGroupManager
    _: KW_ONLY
    is_read_only: bool = False
    traffic: TrafficCounts = field(default_factory=TrafficCounts)

    def __post_init__(self) -> None:
        self._turn = 0

    async def send_back(
        self,
        group: str,
        message: StoredMessage | int,
        delay_level: int = 0,
        max_reconsume_times: int | None = None,
        origin: tuple[str, str] | None = None,
        check: Callable[[StoredMessage], None] | None = None,
    ) -> bool:
        """Redeliver a message to a group after a delay. Returns True if it became a dead letter
        instead.

        `message`: the message, or its commit log offset. `delay_level`: 0 means three plus the
        number of earlier retries, a negative level means dead letter. A message without room for
        the properties of a retry also becomes a dead letter. `max_reconsume_times`: None means the
        group's setting. `origin`: topic and id (UNIQ_KEY, or offset message id) of the message. A
        message from the tier has no commit log offset and is found by its id. `check`: called with
        the message that was found, and may raise to refuse the request. Raises Refused."""
        config = self._find_group(group)
        if config.retry_queue_nums <= 0:
            return False
        topic = RETRY_PREFIX + group
        made = self.topics.create_on_send_back(topic, config.retry_queue_nums)
        if not made.perm & 2:
            raise Refused(Reason.NO_PERMISSION, f"the topic[{topic}] sending message is forbidden")
        stored = await self._find(message, origin) if isinstance(message, int) else message
        if check is not None:
            check(stored)
        most = config.retry_max_times if max_reconsume_times is None else max_reconsume_times
        if delay_level < 0 or stored.reconsume_times >= most:
            await self._put_dead_letter(group, stored, stored.reconsume_times + 1)
            return True
        self._turn += 1
        is_put = await self._put(
            stored,
            topic,
            self._turn % config.retry_queue_nums,
            delay_level or _FIRST_LEVEL + max(stored.reconsume_times, 0),
            stored.reconsume_times + 1,
        )
        if not is_put:
            await self._put_dead_letter(group, stored, stored.reconsume_times + 1)
        return not is_put

    async def send_to_dead_letters(self, group: str, message: StoredMessage, attempts: int) -> None:
        """Put a message into the dead letters of a group after `attempts` failed deliveries. Raises
        Refused."""
        self._find_group(group)
        await self._put_dead_letter(group, message, attempts)

    async def _put_dead_letter(self, group: str, stored: StoredMessage, attempts: int) -> None:
        topic = DLQ_PREFIX + group
        self.topics.create_on_send_back(topic, 1)
        if not await self._put(stored, topic, 0, 0, attempts):
            raise Refused(
                Reason.MESSAGE_ILLEGAL, f"the dead letter of message {stored.msg_id} does not fit"
            )

    async def _put(
        self, stored: StoredMessage, topic: str, queue_id: int, level: int, attempts: int
    ) -> bool:
        """Put a message. Returns False if its properties are too long even after removing some."""
        is_dead = topic.startswith(DLQ_PREFIX)
        properties = _complete(stored, level, is_dead=is_dead)
        message = fitting.rebuild(stored, topic, queue_id, properties)
        message.reconsume_times = min(attempts, MAX_ATTEMPTS)
        more = fitting.DROPPED_OF_DEAD_LETTERS if is_dead else ()
        result = await wait_until_durable(
            fitting.put_fitting(self.store.put_message, message, more)
        )
        if result.status is PutMessageStatus.PROPERTIES_SIZE_EXCEEDED:
            return False
        if result.status not in fitting.STORED:
            raise fitting.make_refusal(result)
        await self.topics.wait_until_persisted(topic)
        origin = stored.get_property("RETRY_TOPIC") or stored.topic
        if self.topics.find_topic(origin) is None:  # a producer may write any name there
            origin = stored.topic
        group = topic.removeprefix(DLQ_PREFIX if is_dead else RETRY_PREFIX)
        self.traffic.send_backs[origin, group] += 1
        return True

    def _find_group(self, group: str) -> SubscriptionGroupConfig:
        if self.is_read_only or not self.settings.broker_permission & 2:
            raise Refused(
                Reason.NO_PERMISSION,
                f"the broker[{self.settings.broker_ip1}] sending message is forbidden",
            )
        config = self.groups.find_group(group)
        if config is None:
            raise Refused(
                Reason.SUBSCRIPTION_GROUP_NOT_EXIST, f"subscription group not exist, {group}"
            )
        return config

    async def _find(self, physical_offset: int, origin: tuple[str, str] | None) -> StoredMessage:
        reason = "no message starts there"
        try:
            found = await self.store.look_message_by_offset_async(physical_offset)
        except (Corrupt, Invalid) as error:
            found, reason = None, str(error)
        if found is not None and (origin is None or _has_id(found, origin[1])):
            return found
        if origin is not None:
            topic, message_id = origin
            # The lookup may read the tier.
            candidates = await asyncio.to_thread(
                self.store.query_message, topic, message_id, _MAX_CANDIDATES, 0, _FOREVER_MS
            )
            for candidate in candidates:
                if _has_id(candidate, message_id):
                    return candidate
            reason = f"nor is there a message {message_id} of {topic}"
        raise Refused(
            Reason.SYSTEM_ERROR, f"look message by offset failed, {physical_offset}: {reason}"
        )


def _has_id(message: StoredMessage, message_id: str) -> bool:
    return message_id in (message.uniq_key, message.offset_message_id)


def _complete(stored: StoredMessage, level: int, *, is_dead: bool) -> bytes:
    """Return the properties of a message that is sent back, with its original topic and id and its
    delay."""
    properties = stored.properties_bytes
    if properties.find(b"REAL_") >= 0 or properties.find(b"TIMER_") >= 0:
        for name in _DELIVERY_PROPERTIES:
            properties = remove_property(properties, name)
    if find_property(properties, b"RETRY_TOPIC") is None:
        properties = set_property(properties, b"RETRY_TOPIC", stored.topic.encode())
    if find_property(properties, b"ORIGIN_MESSAGE_ID") is None:
        properties = set_property(
            properties, b"ORIGIN_MESSAGE_ID", stored.offset_message_id.encode()
        )
    if is_dead:
        properties = fitting.make_dead_letter_properties(properties, stored.msg_id)
    properties = set_property(properties, b"WAIT", b"false")
    return set_property(properties, b"DELAY", b"%d" % level)
