"""LiteExpiry: deletes lite topics that have been idle for a long time."""

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
from tieredstore.contracts.dispatch_source import find_light
from tieredstore.contracts.message_store import MessageStore
from tieredstore.message.lite import LITE_QUEUE_ID, make_parent_prefix, parse_lite_topic

_MINUTE_MS: Final = 60_000
_BATCH: Final = 1_000
"""Number of lite topics that one call of the store deletes."""
_log = logging.getLogger(__name__)


@dataclass(eq=False)
class LiteExpiry:
    """Deletes lite topics whose last message is older than `lite.topic.expiration` of their parent,
    whether it was consumed or not. A jump of the wall clock deletes none. The shortest expiration
    is the interval between searches, and each search finds the lite topics that expire before the
    next one."""

    store: MessageStore
    settings: BrokerSettings
    topics: TopicConfigManager
    offsets: ConsumerOffsetManager
    subscriptions: LiteSubscriptions
    look_ups: LookUps
    clock: RetentionClock

    def __post_init__(self) -> None:
        self.started_ms = self.clock.now_ms()
        self._due: list[tuple[int, str, int]] = []  # time, light queue, its end offset
        self._limits_ms: Mapping[str, int] = {}
        self._until_ms = 0

    async def expire(self) -> None:
        """Delete the expired lite topics. Nothing expires within `min_lite_ttl_ms` of the start.
        Raises the errors of the store."""
        now_ms = self.clock.now_ms()
        self.started_ms = min(self.started_ms, now_ms)
        if now_ms - self.started_ms < self.settings.min_lite_ttl_ms:
            return
        limits_ms = {
            name: max(minutes * _MINUTE_MS, self.settings.min_lite_ttl_ms)
            for name, config in self.topics.list_topics().items()
            if config.is_lite and (minutes := find_expiration(config)) > 0
        }
        shortest_ms = min(limits_ms.values(), default=0)
        if limits_ms != self._limits_ms or not 0 < self._until_ms - now_ms <= shortest_ms:
            until_ms = now_ms + shortest_ms  # no later message's lite topic expires before it
            self._due = await self.look_ups.run(self._find_due, limits_ms, until_ms)
            self._limits_ms, self._until_ms = limits_ms, until_ms
        while some := [one for one in self._due[:_BATCH] if one[0] <= now_ms]:
            await self.delete([queue for _, queue, end in some if self._find_end(queue) == end])
            del self._due[: len(some)]  # also those with new messages

    async def delete(self, queues: Collection[str]) -> None:
        """Delete light queues with the consumer offsets and subscriptions for them. Raises the
        errors of the store."""
        if not queues:
            return
        for queue in queues:
            self.subscriptions.end_queue(queue)
        self.offsets.remove_topics(queues)
        await self.look_ups.run(self.store.delete_topics, set(queues))
        _log.info("%d lite topics are deleted", len(queues))

    def _find_end(self, queue: str) -> int:
        return self.store.get_max_offset_in_queue(queue, LITE_QUEUE_ID)

    def _find_due(self, limits_ms: Mapping[str, int], until_ms: int) -> list[tuple[int, str, int]]:
        """Return the lite topics that expire before `until_ms`, sorted, as (expiry in epoch ms,
        light queue, end offset). `limits_ms`: expiration by parent topic."""
        source, due = find_light(self.store.dispatch_source), []
        for parent, limit_ms in limits_ms.items():
            prefix = make_parent_prefix(parent)
            for queue, found_end in source.list_light_queues(prefix):
                end = found_end or self._find_end(queue)  # the latter may be in the tier
                if end <= 0 or parse_lite_topic(queue) is None:
                    continue
                last_ms = self.store.get_message_store_timestamp(queue, LITE_QUEUE_ID, end - 1)
                if last_ms < 0 and self.store.get_min_offset_in_queue(queue, LITE_QUEUE_ID) < end:
                    continue  # the last record is damaged, others may be there
                if last_ms + limit_ms < until_ms:
                    due.append((last_ms + limit_ms + 1, queue, end))
        return sorted(due)


def find_expiration(config: TopicConfig) -> int:
    """Return after how many minutes without a message the lite topics of a parent expire, or -1 for
    never."""
    return int(config.attributes.get(LITE_EXPIRATION, -1))


def list_children(store: MessageStore, parent: str) -> list[str]:
    """Return the names of the light queues for the lite topics of a parent."""
    prefix = make_parent_prefix(parent)
    return [name for name, _ in find_light(store.dispatch_source).list_light_queues(prefix)]
