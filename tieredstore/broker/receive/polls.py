"""ParkedPolls: receives that found nothing and wait, by group and topic."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from tieredstore.broker.pull.hold import PullHold, Watch
from tieredstore.contracts.message_store import ArrivedMessages

_GroupTopic = tuple[str, str]
_NEVER: Final = float("inf")


class ParkedPolls:
    """Wakes one receive of a group for what comes, not all: it takes what there is, and whoever
    leaves something wakes the next one."""

    def __init__(self, hold: PullHold) -> None:
        self._hold = hold
        self._groups: dict[_GroupTopic, _Group] = {}

    def has_parked(self, key: _GroupTopic) -> bool:
        """Tell whether a receive of the group and topic waits."""
        group = self._groups.get(key)
        return group is not None and any(not poll.done() for poll in group.polls)

    @contextmanager
    def park(self, key: _GroupTopic) -> Iterator[asyncio.Future[None]]:
        """Give a future that is done when there may be messages; the block looks once more before
        it waits. Raises Busy when too many reads wait."""
        group = self._groups.get(key)
        if group is None:
            group = _Group(self._hold, key[1])
            self._hold.add((key[1],), group)
            self._groups[key] = group
        poll = asyncio.get_running_loop().create_future()
        group.polls[poll] = None
        try:
            yield poll
        finally:
            del group.polls[poll]
            if not group.polls:
                self._hold.discard((key[1],), group)
                group.cancel_timer()
                del self._groups[key]

    def wake(self, key: _GroupTopic) -> None:
        """Let one receive look again."""
        group = self._groups.get(key)
        if group is not None:
            group.release()

    def wake_in(self, key: _GroupTopic, delay_ms: int) -> None:
        """Let one receive look again after a while, at the latest."""
        group = self._groups.get(key)
        if group is not None:
            group.release_in(delay_ms / 1000)

    def list_parked(self) -> list[_GroupTopic]:
        """List the groups and topics of which a receive waits."""
        return list(self._groups)

    def stop(self) -> None:
        """Let all go."""
        for group in self._groups.values():
            for poll in group.polls:
                if not poll.done():
                    poll.set_result(None)


class _Group(Watch):
    """The receives of one group and topic: one watch of the topic for all of them."""

    __slots__ = ("_timer", "_timer_at", "polls")

    def __init__(self, hold: PullHold, topic: str) -> None:
        super().__init__(hold, (topic,), None)
        self.polls: dict[asyncio.Future[None], None] = {}  # in the order of their coming
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
