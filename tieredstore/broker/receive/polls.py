"""ParkedPolls: waiting receives, by group, topic and queue."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from typing import Final, NamedTuple

from tieredstore.broker.clients.assignment import ALL_QUEUES
from tieredstore.broker.hosts import HOST, HostShares
from tieredstore.broker.pull import PullHold, Watch
from tieredstore.contracts.dispatch_source import QueueKey
from tieredstore.contracts.message_store import ArrivedMessages
from tieredstore.errors import Busy


class PollKey(NamedTuple):
    """Queues that a receive waits for. `queue_id`: a queue, or ALL_QUEUES. `client_id`: client that
    waits for its lite topics and is woken by `LiteQueues`, or empty."""

    group: str
    topic: str
    queue_id: int = ALL_QUEUES
    client_id: str = ""


MAX_WAITING: Final = 100_000
"""Maximum number of receives of all groups that wait at the same time."""
MAX_WAITING_OF_QUEUE: Final = 1_024
"""Maximum number of receives that wait with the same key, as in Java."""
_NEVER: Final = float("inf")


class ParkedPolls:
    """Wakes one waiting receive of a group when new messages arrive. It takes as many messages as
    it can and wakes the next receive if any are left."""

    def __init__(self, hold: PullHold) -> None:
        self._hold = hold
        self._groups: dict[PollKey, _Group] = {}
        self._topics = Counter[tuple[str, str]]()
        self._shares = HostShares(MAX_WAITING)

    @property
    def count(self) -> int:
        """Number of waiting receives."""
        return self._shares.total

    def has_room(self, key: PollKey) -> bool:
        """Return whether the current host may have another receive waiting with this key."""
        group, host = self._groups.get(key), HOST.get()
        return self._shares.has_room(host) and (group is None or group.shares.has_room(host))

    def count_parked(self, key: PollKey) -> int:
        """Return how many receives wait with the same key."""
        group = self._groups.get(key)
        return 0 if group is None else len(group.polls)

    def waits_for(self, group: str, topic: str) -> bool:
        """Return whether a receive of a group waits for a topic or one of its queues."""
        return (group, topic) in self._topics

    def has_parked(self, key: PollKey) -> bool:
        """Return whether a receive with this key waits and has not been woken yet."""
        group = self._groups.get(key)
        return group is not None and any(not poll.done() for poll in group.polls)

    @contextmanager
    def park(self, key: PollKey) -> Iterator[asyncio.Future[None]]:
        """Return a future that completes when messages may be available. Inside the `with` block,
        read again before awaiting it. Raises Busy if too many receives wait, in total or for the
        current host."""
        host = HOST.get()
        if not self.has_room(key):
            raise Busy(
                f"{self.count} receives wait, {self.count_parked(key)} of them for {key.topic}: no "
                "further one of this host"
            )
        group = self._groups.get(key)
        if group is None:
            group = _Group(self._hold, _watched(key))
            self._hold.add(_watched(key), group)
            self._groups[key] = group
        poll = asyncio.get_running_loop().create_future()
        group.polls[poll] = None
        for shares in (self._shares, group.shares):
            shares.add(host)
        self._topics[key.group, key.topic] += 1
        try:
            yield poll
        finally:
            del group.polls[poll]
            for shares in (self._shares, group.shares):
                shares.give_back(host)
            self._topics[key.group, key.topic] -= 1
            if not self._topics[key.group, key.topic]:
                del self._topics[key.group, key.topic]
            if not group.polls:
                self._hold.discard(_watched(key), group)
                group.cancel_timer()
                del self._groups[key]

    def wake(self, key: PollKey) -> None:
        group = self._groups.get(key)
        if group is not None:
            group.release()

    def wake_in(self, key: PollKey, delay_ms: int) -> None:
        """Wake one receive within `delay_ms`."""
        group = self._groups.get(key)
        if group is not None:
            group.release_in(delay_ms / 1000)

    def list_parked(self) -> list[PollKey]:
        """Return the keys of all waiting receives."""
        return list(self._groups)

    def stop(self) -> None:
        """Wake all waiting receives."""
        for group in self._groups.values():
            for poll in group.polls:
                if not poll.done():
                    poll.set_result(None)


def _watched(key: PollKey) -> tuple[Hashable, ...]:
    if key.client_id:
        return ()
    return (key.topic,) if key.queue_id < 0 else (QueueKey(key.topic, key.queue_id),)


class _Group(Watch):
    """Waiting receives with the same key, which share a watch."""

    __slots__ = ("_timer", "_timer_at", "polls", "shares")

    def __init__(self, hold: PullHold, keys: tuple[Hashable, ...]) -> None:
        super().__init__(hold, keys, None)
        self.polls: dict[asyncio.Future[None], None] = {}  # in the order of their arrival
        self.shares = HostShares(MAX_WAITING_OF_QUEUE)
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = _NEVER

    def wake(self, arrived: ArrivedMessages | None = None) -> None:  # noqa: ARG002
        self.release()

    def release(self) -> None:
        for poll in self.polls:
            if not poll.done():
                poll.set_result(None)
                return

    def release_in(self, delay_s: float) -> None:
        loop = asyncio.get_running_loop()
        at = loop.time() + delay_s
        if at < self._timer_at:
            self.cancel_timer()
            self._timer_at = at
            self._timer = loop.call_at(at, self._ring)

    def cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._timer_at = None, _NEVER

    def _ring(self) -> None:
        self._timer, self._timer_at = None, _NEVER
        self.release()
