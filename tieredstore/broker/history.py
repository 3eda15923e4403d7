"""Topics of a read-only broker, which change as the tier grows."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from tieredstore.broker.operations.health import find_described
from tieredstore.broker.services import BrokerServices
from tieredstore.broker.state.topics import PERM_READ, TopicConfig
from tieredstore.contracts.dispatch_source import QueueKey

FollowTier = Callable[[object], Sequence[QueueKey]]
"""Function that refreshes the tier of a store and returns the queues that changed. Blocks."""


class TierHistory:
    """Makes the topics of a tier readable in a broker. `follow`: function that refreshes the tier,
    or None if it does not grow."""

    def __init__(self, services: BrokerServices, follow: FollowTier | None) -> None:
        self._services = services
        self._follow = follow

    async def follow(self) -> None:
        """Read what was added to the tier since the last call, and wake waiting reads. Raises
        Unavailable."""
        if self._follow is None:
            return
        services = self._services
        changed = await asyncio.to_thread(self._follow, services.store)
        if changed:
            self.update_topics({key.topic for key in changed})
            services.hold.wake(changed)

    def update_topics(self, changed: set[str] | None = None) -> None:
        """Add the topics of the tier with their numbers of queues. Topics in `changed` that the
        tier no longer has are removed."""
        topics = self._services.topics
        described = find_described(self._services.store)
        queues: dict[str, int] = {}
        for key in () if described is None else described.list_tier_queues():
            queues[key.topic] = max(queues.get(key.topic, 0), key.queue_id + 1)
        for topic, count in queues.items():
            topics.update_topic(
                TopicConfig(
                    topic_name=topic, read_queue_nums=count, write_queue_nums=count, perm=PERM_READ
                )
            )
        for topic in (changed or set()) - queues.keys():
            topics.delete_topic(topic)
