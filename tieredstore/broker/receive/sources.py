"""QueueSources: the queues that a receive reads, in order."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from tieredstore.broker.clients.assignment import ALL_QUEUES
from tieredstore.broker.receive.polls import PollKey
from tieredstore.broker.receive.progress import QueueProgress
from tieredstore.broker.receive.requests import RETRY_SOURCES, ReceiveRequest, name_source
from tieredstore.broker.receive.state import ReceiveState
from tieredstore.broker.state.groups import PRIORITY_FACTOR, SubscriptionGroupManager
from tieredstore.broker.state.topics import MESSAGE_TYPE, TopicConfig, TopicConfigManager


@dataclass(eq=False)
class QueueSources:
    """Queues that a group's receives read, in order. Each receive starts with the next queue in
    turn. For a topic with priorities it starts with the queue of the highest priority.
    `reads_last_first`: returns True if that is the last queue, False if it is the first."""

    state: ReceiveState
    topics: TopicConfigManager
    groups: SubscriptionGroupManager
    reads_last_first: Callable[[], bool]
    _turns: dict[tuple[str, str], int] = field(default_factory=dict)

    def list_sources(
        self, request: ReceiveRequest, config: TopicConfig
    ) -> Iterator[tuple[str, int]]:
        """Yield topics and queue ids in reading order. Retry topics of a former Java broker come
        first, or last for a topic with priorities. `config`: configuration of the requested
        topic."""
        has_priorities = self._has_priorities(request, config)
        if not request.fifo and not has_priorities:
            yield from self._list_retry_queues(request)
        count = config.read_queue_nums
        if has_priorities:
            step = -1 if self.reads_last_first() else 1
            for queue_id in range(count)[::step]:
                yield request.topic, queue_id
            yield from self._list_retry_queues(request)
            return
        key = request.group, request.topic
        turn = self._turns.get(key, 0)
        self._turns[key] = turn + 1
        for number in range(count):
            yield request.topic, (turn + number) % count

    def list_progress(self, key: PollKey) -> Iterator[QueueProgress]:
        """Yield a group's progress in each queue that a receive reads."""
        queues = self.state.find_queues(key.group, key.topic)
        if key.queue_id == ALL_QUEUES:
            yield from queues.values()
        elif (progress := queues.get(key.queue_id)) is not None:
            yield progress
        for name in self._list_retry_topics(key.group, key.topic):
            yield from self.state.find_queues(key.group, name).values()

    def _has_priorities(self, request: ReceiveRequest, config: TopicConfig) -> bool:
        if request.fifo or config.attributes.get(MESSAGE_TYPE, "").upper() != "PRIORITY":
            return False
        group = self.groups.find_group(request.group)
        factor = 100 if group is None else int(group.attributes.get(PRIORITY_FACTOR, 100))
        return random.randrange(100) < factor  # noqa: S311

    def _list_retry_queues(self, request: ReceiveRequest) -> Iterator[tuple[str, int]]:
        for retry_topic in self._list_retry_topics(request.group, request.topic):
            found = self.topics.find_topic(retry_topic)
            for queue_id in range(0 if found is None else found.read_queue_nums):
                yield retry_topic, queue_id

    def _list_retry_topics(self, group: str, topic: str) -> list[str]:
        """Return the existing retry topics to which a Java broker copied messages. A name in the
        older form may also belong to another group. Such a topic is omitted."""
        names = []
        for source in RETRY_SOURCES:
            name = name_source(group, topic, source)
            if self.topics.find_topic(name) is not None and not self.groups.is_retry_topic(name):
                names.append(name)
        return names
