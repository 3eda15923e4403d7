"""RebalanceLocks: which client may consume a queue in order."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from tieredstore.clock import SYSTEM_CLOCK, Clock
from tieredstore.contracts.dispatch_source import QueueKey

LEASE_MS: Final = 60_000
"""How long a lock holds unless it is taken again; clients do so every 20 s."""


class _Lock(NamedTuple):
    client_id: str
    until_ms: int


class RebalanceLocks:
    """Locks of queues for orderly consumers, by group. A lock ends with its lease or `unlock`, not
    with the connection: a client that comes back within it goes on. Used on the loop only."""

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock
        self._groups: dict[str, dict[QueueKey, _Lock]] = {}

    def lock(self, group: str, queues: Iterable[QueueKey], client_id: str) -> set[QueueKey]:
        """Take or renew the locks of queues; returns those that the client holds now."""
        locks = self._groups.setdefault(group, {})
        now_ms = self._clock.monotonic_ms()
        held = set()
        for queue in queues:
            lock = locks.get(queue)
            if lock is None or lock.client_id == client_id or lock.until_ms <= now_ms:
                locks[queue] = _Lock(client_id, now_ms + LEASE_MS)
                held.add(queue)
        return held

    def unlock(self, group: str, queues: Iterable[QueueKey], client_id: str) -> None:
        """Give up the locks that the client holds; those of others stay."""
        locks = self._groups.get(group, {})
        for queue in queues:
            lock = locks.get(queue)
            if lock is not None and lock.client_id == client_id:
                del locks[queue]
        if not locks:
            self._groups.pop(group, None)

    def is_locked_by(self, group: str, queue: QueueKey, client_id: str) -> bool:
        """Tell whether a client holds the lock of a queue."""
        lock = self._groups.get(group, {}).get(queue)
        return (
            lock is not None
            and lock.client_id == client_id
            and lock.until_ms > self._clock.monotonic_ms()
        )

    def has_locks(self, group: str) -> bool:
        """Tell whether any queue is locked for a group: it consumes in order."""
        now_ms = self._clock.monotonic_ms()
        return any(lock.until_ms > now_ms for lock in self._groups.get(group, {}).values())

    def remove_expired(self) -> None:
        """Forget the locks whose lease is over."""
        now_ms = self._clock.monotonic_ms()
        for group, locks in list(self._groups.items()):
            for queue in [queue for queue, lock in locks.items() if lock.until_ms <= now_ms]:
                del locks[queue]
            if not locks:
                del self._groups[group]
