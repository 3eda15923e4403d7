"""LiteExpiry: deletes lite topics that have received no message for a long time."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

from tieredstore.broker.background import LookUps
from tieredstore.broker.lite.subscriptions import LiteSubscriptions
from tieredstore.broker.settings import BrokerSettings
from tieredstore.broker.state.groups import LITE_EXPIRATION
from tieredstore.broker.state.offsets import ConsumerOffsetManager
from tieredstore.broker.state.topics import TopicConfig, TopicConfigManager
from tieredstore.clock import RetentionClock
from tieredstore.contracts.message_store import MessageStore
from tieredstore.message.lite import (
    LITE_PREFIX,
    LITE_QUEUE_ID,
    make_parent_prefix,
    parse_lite_topic,
)

_MINUTE_MS: Final = 60_000
_BATCH: Final = 1_000
"""Number of lite topics that one call of the store deletes."""
_log = logging.getLogger(__name__)


@dataclass(eq=False)
class LiteExpiry:
    """Deletes lite topics whose last message is older than their parent's `lite.topic.expiration`,
    even if the messages were not consumed. A step of the wall clock deletes none."""

    store: MessageStore
    settings: BrokerSettings
    topics: TopicConfigManager
    offsets: ConsumerOffsetManager
    subscriptions: LiteSubscriptions
    look_ups: LookUps
    clock: RetentionClock

    def __post_init__(self) -> None:
        self.started_ms = self.clock.now_ms()

    async def expire(self) -> None:
        """Delete the expired lite topics, but none within `min_lite_ttl_ms` after the start. Raises
        the errors of the store."""
        now_ms = self.clock.now_ms()
        self.started_ms = min(self.started_ms, now_ms)
        if now_ms - self.started_ms < self.settings.min_lite_ttl_ms:
            return
        limits_ms = {
            name: max(minutes * _MINUTE_MS, self.settings.min_lite_ttl_ms)
            for name, config in self.topics.list_topics().items()
            if config.is_lite and (minutes := find_expiration(config)) > 0
        }
        if limits_ms:
            expired = await self.look_ups.run(self._find_expired, limits_ms)
            for first in range(0, len(expired), _BATCH):
                some = expired[first : first + _BATCH]  # new messages may have arrived since
                await self.delete([queue for queue, end in some if self._find_end(queue) == end])

    async def delete(self, queues: Collection[str]) -> None:
        """Delete light queues, the offsets of groups in these queues, and the subscriptions to
        these queues. Raises the errors of the store."""
        if not queues:
            return
        for queue in queues:
            self.subscriptions.end_queue(queue)
        self.offsets.remove_topics(queues)
        await self.look_ups.run(self.store.delete_topics, set(queues))
        _log.info("%d lite topics are deleted", len(queues))

    def _find_end(self, queue: str) -> int:
        return self.store.get_max_offset_in_queue(queue, LITE_QUEUE_ID)

    def _find_expired(self, limits_ms: Mapping[str, int]) -> list[tuple[str, int]]:
        """Return the expired light queues, each with its end offset."""
        now_ms = self.clock.now_ms()
        expired = []
        for queue in list_light_queues(self.store, LITE_PREFIX):
            lite = parse_lite_topic(queue)
            limit_ms = None if lite is None else limits_ms.get(lite.parent)
            end = self._find_end(queue)
            if limit_ms is not None and end > 0:
                last_ms = self.store.get_message_store_timestamp(queue, LITE_QUEUE_ID, end - 1)
                if last_ms < 0 and self.store.get_min_offset_in_queue(queue, LITE_QUEUE_ID) < end:
                    continue  # the last record is damaged, others may be there
                if now_ms - last_ms > limit_ms:
                    expired.append((queue, end))
        return expired


def find_expiration(config: TopicConfig) -> int:
    """Return the expiration of this parent's lite topics: minutes without a message, or -1 if they
    never expire."""
    return int(config.attributes.get(LITE_EXPIRATION, -1))


def list_light_queues(store: MessageStore, prefix: str) -> list[str]:
    """Return the names of the light queues in a store that begin with a prefix."""
    names = (key.topic for key in store.dispatch_source.queues())
    return [name for name in names if name.startswith(prefix)]


def list_children(store: MessageStore, parent: str) -> list[str]:
    """Return the names of the light queues that hold the lite topics of a parent."""
    return list_light_queues(store, make_parent_prefix(parent))
