"""What a broker that only reads a tier knows of it: its topics, and what comes while it runs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from tieredstore.broker.operations.health import find_described
from tieredstore.broker.services import BrokerServices
from tieredstore.broker.state.topics import PERM_READ, TopicConfig
from tieredstore.contracts.dispatch_source import QueueKey

FollowTier = Callable[[Any], Sequence[QueueKey]]
"""Looks at the tier of the store that it is given, lets the store read what there is now, and
returns the queues that have changed. Blocks."""


class TierHistory:
    """Makes the topics of a tier those of a broker. follow: None where the tier stays as it is."""

    def __init__(self, services: BrokerServices, follow: FollowTier | None) -> None:
        self._services = services
        self._follow = follow

    async def follow(self) -> None:
        """Take in what the tier has got since the last call, and wake who waits for it. Raises
        Unavailable."""
        if self._follow is None:
            return
        services = self._services
        changed = await asyncio.to_thread(self._follow, services.store)
        if changed:
            self.update_topics({key.topic for key in changed})
            services.hold.wake(changed)

    def update_topics(self, changed: set[str] | None = None) -> None:
        """Make the topics of the tier known, to be read, each with its number of queues; of
        `changed`, those that it has no more are forgotten."""
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
