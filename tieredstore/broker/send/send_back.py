"""SendBack: messages that a consumer could not consume, for a later try or the dead letters."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from tieredstore.broker.refused import RefusalReason, Refused
from tieredstore.broker.send.outcome import STORED, make_refusal
from tieredstore.broker.send.rebuilding import rebuild, set_dead_letter_origin
from tieredstore.contracts.message_store import wait_until_durable
from tieredstore.errors import Corrupt, Invalid
from tieredstore.message.names import DLQ_PREFIX, RETRY_PREFIX
from tieredstore.message.properties import find_property, remove_property, set_property

if TYPE_CHECKING:
    from tieredstore.broker.settings import BrokerSettings
    from tieredstore.broker.state.groups import SubscriptionGroupConfig, SubscriptionGroupManager
    from tieredstore.broker.state.topics import TopicConfigManager
    from tieredstore.contracts.message_store import MessageStore
    from tieredstore.message.record import StoredMessage

_FIRST_LEVEL: Final = 3
"""Delay level of the first retry; each further one waits one level longer."""
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
)
"""Of a delay that is over: it must not begin again."""


class SendBack:
    """Puts messages into the retry topic of a group, delayed, or into its dead letters."""

    def __init__(
        self,
        store: MessageStore,
        settings: BrokerSettings,
        topics: TopicConfigManager,
        groups: SubscriptionGroupManager,
        *,
        is_read_only: bool = False,
    ) -> None:
        self.store = store
        self._settings = settings
        self._topics = topics
        self._groups = groups
        self._is_read_only = is_read_only
        self._turn = 0

    async def send_back(
        self,
        group: str,
        message: StoredMessage | int,
        delay_level: int = 0,
        max_reconsume_times: int | None = None,
        origin: tuple[str, str] | None = None,
    ) -> bool:
        """Deliver a message to a group once more, after a delay; returns whether it became a dead
        letter instead.

        message: or the byte of the commit log where it starts; delay_level: 0: three and one more
        for each time that it was consumed, below 0: dead letter; max_reconsume_times: None: the
        group's; origin: topic and id (UNIQ_KEY, or offset message id) of the message that is meant.
        A message from the tier names a place in it, not in the commit log: it is found by its id
        then. Raises Refused.
        """
        config = self._find_group(group)
        if config.retry_queue_nums <= 0:
            return False
        topic = RETRY_PREFIX + group
        made = self._topics.create_on_send_back(topic, config.retry_queue_nums)
        if not made.perm & 2:
            raise Refused(
                RefusalReason.NO_PERMISSION,
                f"the topic[{topic}] sending message is forbidden",
                topic=topic,
            )
        stored = await self._find(message, origin) if isinstance(message, int) else message
        most = config.retry_max_times if max_reconsume_times is None else max_reconsume_times
        if delay_level < 0 or stored.reconsume_times >= most:
            await self._put_dead_letter(group, stored, stored.reconsume_times + 1)
            return True
        self._turn += 1
        await self._put(
            stored,
            topic,
            self._turn % config.retry_queue_nums,
            delay_level or _FIRST_LEVEL + stored.reconsume_times,
            stored.reconsume_times + 1,
        )
        return False

    async def send_to_dead_letters(self, group: str, message: StoredMessage, attempts: int) -> None:
        """Put a message into the dead letters of a group, consumed `attempts` times. Raises
        Refused."""
        self._find_group(group)
        await self._put_dead_letter(group, message, attempts)

    async def _put_dead_letter(self, group: str, stored: StoredMessage, attempts: int) -> None:
        topic = DLQ_PREFIX + group
        self._topics.create_on_send_back(topic, 1)
        await self._put(stored, topic, 0, 0, attempts)

    async def _put(
        self, stored: StoredMessage, topic: str, queue_id: int, level: int, attempts: int
    ) -> None:
        properties = _complete(stored, level, is_dead=topic.startswith(DLQ_PREFIX))
        message = rebuild(stored, topic, queue_id, properties)
        message.reconsume_times = attempts
        result = await wait_until_durable(self.store.put_message(message))
        if result.status not in STORED:
            raise make_refusal(result)
        await self._topics.wait_until_persisted(topic)

    def _find_group(self, group: str) -> SubscriptionGroupConfig:
        if self._is_read_only or not self._settings.broker_permission & 2:
            raise Refused(
                RefusalReason.NO_PERMISSION,
                f"the broker[{self._settings.broker_ip1}] sending message is forbidden",
            )
        config = self._groups.find_group(group)
        if config is None:
            raise Refused(
                RefusalReason.SUBSCRIPTION_GROUP_NOT_EXIST, f"subscription group not exist, {group}"
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
            # It may be a look into the tier.
            candidates = await asyncio.to_thread(
                self.store.query_message, topic, message_id, _MAX_CANDIDATES, 0, _FOREVER_MS
            )
            for candidate in candidates:
                if _has_id(candidate, message_id):
                    return candidate
            reason = f"nor is there a message {message_id} of {topic}"
        raise Refused(
            RefusalReason.SYSTEM_ERROR,
            f"look message by offset failed, {physical_offset}: {reason}",
        )


def _has_id(message: StoredMessage, message_id: str) -> bool:
    return message_id in (message.uniq_key, message.offset_message_id)


def _complete(stored: StoredMessage, level: int, *, is_dead: bool) -> bytes:
    """The properties of a message that goes back: where it came from first, and the delay."""
    properties = stored.properties_bytes
    if properties.find(b"REAL_TOPIC\x01") >= 0:
        for name in _DELIVERY_PROPERTIES:
            properties = remove_property(properties, name)
    if find_property(properties, b"RETRY_TOPIC") is None:
        properties = set_property(properties, b"RETRY_TOPIC", stored.topic.encode())
    if find_property(properties, b"ORIGIN_MESSAGE_ID") is None:
        properties = set_property(
            properties, b"ORIGIN_MESSAGE_ID", stored.offset_message_id.encode()
        )
    if is_dead:
        properties = set_dead_letter_origin(properties, stored.msg_id)
    properties = set_property(properties, b"WAIT", b"false")
    return set_property(properties, b"DELAY", b"%d" % level)
