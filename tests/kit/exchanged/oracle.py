"""The messages that consumers must find in a store and its tier."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field


@dataclass
class Queue:
    """One queue of the oracle. `bodies` maps queue offsets to bodies. `end` is the offset of the
    next message."""

    bodies: dict[int, bytes] = field(default_factory=dict)
    end: int = 0


@dataclass
class Life:
    """One generation of a topic, from its first message to its deletion."""

    number: int
    queues: dict[int, Queue] = field(default_factory=dict)

    def queue(self, queue_id: int) -> Queue:
        return self.queues.setdefault(queue_id, Queue())


@dataclass
class Part:
    """Content of a store or a tier. `deleted` lists the generations of topics that are recorded as
    deleted."""

    topics: dict[str, Life] = field(default_factory=dict)
    deleted: set[int] = field(default_factory=set)

    def copy(self) -> Part:
        return copy.deepcopy(self)

    def begin(self, topic: str, number: int) -> Life:
        """Begin a new generation of a topic."""
        life = self.topics.get(topic)
        if life is None or life.number != number:
            life = self.topics[topic] = Life(number)
        return life

    def find_queue(self, topic: str, queue_id: int) -> Queue:
        life = self.topics.get(topic)
        return Queue() if life is None else life.queues.get(queue_id, Queue())


class Mixed(Exception):
    """Two histories assigned the same offset to different messages."""


def join(local: Part, tier: Part) -> dict[str, Life]:
    """Return by topic the messages that consumers must find in a store and its tier. Raises
    Mixed."""
    deleted = local.deleted | tier.deleted
    joined: dict[str, Life] = {}
    for topic in sorted({*local.topics, *tier.topics}):
        found = [part.topics[topic] for part in (local, tier) if topic in part.topics]
        lives = [life for life in found if life.number not in deleted]
        if not lives:
            continue
        newest = joined[topic] = Life(max(life.number for life in lives))
        for life in lives:
            if life.number == newest.number:
                for queue_id, queue in life.queues.items():
                    _join_queue(f"{topic}/{queue_id}", newest.queue(queue_id), queue)
    return joined


def _join_queue(name: str, into: Queue, queue: Queue) -> None:
    into.end = max(into.end, queue.end)
    for offset, body in queue.bodies.items():
        if into.bodies.setdefault(offset, body) != body:
            raise Mixed(f"{name}@{offset}: {into.bodies[offset]!r} and {body!r}")
