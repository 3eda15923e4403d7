"""Producers, consumers, and their queue locks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple

import msgspec

from tieredstore.broker.clients.session import SILENCE_LIMIT_MS, ClientSession, Subscription
from tieredstore.broker.hosts import HOST, HostShares
from tieredstore.clock import SYSTEM_CLOCK, Clock
from tieredstore.contracts.dispatch_source import QueueKey
from tieredstore.errors import Invalid
from tieredstore.message.names import MAX_NAME_BYTES

MAX_SUBSCRIPTIONS: Final = 10_000
"""Maximum number of groups and topics of a client, over all its heartbeats."""
MAX_CHARACTERS: Final = 4 << 20
"""Maximum number of characters in all subscriptions of one client."""


def _check_count(group: str, count: int) -> None:
    if len(group) > MAX_NAME_BYTES:
        raise Invalid(f"group: expected at most {MAX_NAME_BYTES} characters, found {len(group)}")
    if count > MAX_SUBSCRIPTIONS:
        raise Invalid(
            f"group {group}: expected at most {MAX_SUBSCRIPTIONS} groups and topics of one client, "
            f"found {count}"
        )


class ProducerManager:
    """Producer groups and their sessions, as reported in heartbeats. Use only on the event
    loop."""

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock
        self._groups: dict[str, dict[ClientSession, int]] = {}  # time of the last heartbeat
        self._groups_of_session: dict[ClientSession, set[str]] = {}
        self._turns: dict[str, int] = {}

    def register(self, group: str, session: ClientSession) -> None:
        """Handle a heartbeat of a producer. Raises Invalid for too many groups of one client."""
        groups = self._groups_of_session.get(session)
        if groups is None or group not in groups:
            _check_count(group, 1 + len(groups or ()))
            self._groups_of_session.setdefault(session, set()).add(group)
        self._groups.setdefault(group, {})[session] = self._clock.monotonic_ms()

    def unregister(self, group: str, session: ClientSession) -> None:
        sessions = self._groups.get(group)
        if sessions is None or sessions.pop(session, None) is None:
            return
        groups = self._groups_of_session[session]
        groups.discard(group)
        if not groups:
            del self._groups_of_session[session]
        if not sessions:
            del self._groups[group]
            self._turns.pop(group, None)

    def remove_session(self, session: ClientSession) -> None:
        for group in list(self._groups_of_session.get(session, ())):
            self.unregister(group, session)

    def remove_silent(self) -> set[ClientSession]:
        """Remove the sessions whose heartbeats stopped, and return them."""
        limit_ms = self._clock.monotonic_ms() - SILENCE_LIMIT_MS
        silent: set[ClientSession] = set()
        for group, sessions in list(self._groups.items()):
            for session in [found for found, heard_ms in sessions.items() if heard_ms < limit_ms]:
                self.unregister(group, session)
                silent.add(session)
        return silent

    def find_session(
        self, group: str, may_see: Callable[[ClientSession], bool] = lambda _: True
    ) -> ClientSession | None:
        """Return a connected producer of a group to ask about a message, or None. Successive calls
        rotate through the producers. `may_see`: returns whether a client may see the message. This
        check is needed because any client can join any producer group."""
        sessions = [session for session in self._groups.get(group, ()) if may_see(session)]
        if not sessions:
            return None
        turn = self._turns.get(group, 0)
        self._turns[group] = turn + 1
        return sessions[turn % len(sessions)]

    def find_client(self, client_id: str) -> ClientSession | None:
        """Return the session of a producer by its client id. Returns None if several users share
        the id, because messages for one user must not reach another. Sessions that logged in with
        an old password are ignored."""
        found = {
            session: None
            for sessions in self._groups.values()
            for session in sessions
            if session.client_id == client_id and session.caller.is_current
        }
        users = {session.caller.username for session in found}
        return next(iter(found)) if len(users) == 1 else None

    def list_groups(self) -> Mapping[str, list[ClientSession]]:
        return {group: list(sessions) for group, sessions in self._groups.items()}


class ConsumerSettings(msgspec.Struct, frozen=True):
    """Settings of a consumer group, with RocketMQ's names."""

    consume_type: str = "CONSUME_PASSIVELY"
    message_model: str = "CLUSTERING"
    consume_from_where: str = "CONSUME_FROM_LAST_OFFSET"


class Consumer(msgspec.Struct, eq=False):
    """Member of a consumer group. `began_ms`: time when the session joined, epoch ms. `heard_ms`:
    time of the last heartbeat, monotonic ms."""

    session: ClientSession
    began_ms: int
    heard_ms: int = 0


class ConsumerGroup:
    """Consumer group with its members and their subscriptions. All members should have the same
    subscriptions. If they differ, the last heartbeat wins, as in Java."""

    def __init__(self, name: str, settings: ConsumerSettings) -> None:
        self.name = name
        self.settings = settings
        self.subscriptions: dict[str, Subscription] = {}
        self.consumers: dict[ClientSession, Consumer] = {}
        self.updated_ms = 0

    @property
    def sessions(self) -> list[ClientSession]:
        """Members, in the order they joined."""
        return list(self.consumers)

    def find_client(self, client_id: str) -> ClientSession | None:
        for session in self.consumers:
            if session.client_id == client_id:
                return session
        return None

    def update_subscriptions(self, subscriptions: Mapping[str, Subscription]) -> bool:
        """Store the subscriptions from a heartbeat. Returns whether topics were added or
        removed."""
        changed = subscriptions.keys() != self.subscriptions.keys()
        for topic in self.subscriptions.keys() - subscriptions.keys():
            del self.subscriptions[topic]
        for topic, subscription in subscriptions.items():
            known = self.subscriptions.get(topic)
            if known is None or subscription.version >= known.version:
                self.subscriptions[topic] = subscription
        return changed

    def notify_changed(self) -> None:
        """Ask all members to rebalance."""
        for session in self.consumers:
            session.notify_consumers_changed(self.name)


class _Size(NamedTuple):
    """Size of a client's subscriptions. `names`: number of groups and topics. `characters`: total
    length of the subscriptions."""

    names: int = 0
    characters: int = 0


class _GroupsOfSession:
    """Sizes of one client's subscriptions, by group and in total."""

    __slots__ = ("sizes", "total")

    def __init__(self) -> None:
        self.sizes: dict[str, _Size] = {}
        self.total = _Size()

    def sum_with(self, group: str, size: _Size) -> _Size:
        """Return the client's total size if its subscriptions in `group` had the given size."""
        before = self.sizes.get(group, _Size())
        return _Size(
            self.total.names + size.names - before.names,
            self.total.characters + size.characters - before.characters,
        )

    def put(self, group: str, size: _Size) -> None:
        self.total = self.sum_with(group, size)
        self.sizes[group] = size

    def remove(self, group: str) -> None:
        self.total = self.sum_with(group, _Size())
        self.sizes.pop(group, None)


class ConsumerManager:
    """Consumer groups, as reported in heartbeats. Notifies members of changes. Use only on the
    event loop."""

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock
        self._groups: dict[str, ConsumerGroup] = {}
        self._groups_of_session: dict[ClientSession, _GroupsOfSession] = {}
        self._silenced: set[str] = set()  # groups whose members are not notified

    def register(
        self,
        group: str,
        session: ClientSession,
        settings: ConsumerSettings,
        subscriptions: Mapping[str, Subscription],
        *,
        notify: bool = True,
    ) -> bool:
        """Handle a heartbeat of a consumer. Returns whether the group changed. `notify`: True to
        notify the members of this and later changes (notifyConsumerIdsChangedEnable of the
        subscription group). Raises Invalid if a client has too many groups or topics, or too long
        subscriptions."""
        size = self._check_size(group, session, settings, subscriptions)
        found = self._groups.get(group)
        if found is None:
            found = self._groups[group] = ConsumerGroup(group, settings)
        (self._silenced.discard if notify else self._silenced.add)(group)
        found.settings = settings
        found.updated_ms = self._clock.now_ms()
        consumer = found.consumers.get(session)
        changed = consumer is None
        if consumer is None:
            # A client that has reconnected is one member, not two.
            former = found.find_client(session.client_id)
            if former is not None:
                self._drop(found, former)
            consumer = found.consumers[session] = Consumer(session, found.updated_ms)
        self._groups_of_session.setdefault(session, _GroupsOfSession()).put(group, size)
        consumer.heard_ms = self._clock.monotonic_ms()
        changed |= found.update_subscriptions(subscriptions)
        if changed:
            self._notify(found)
        return changed

    def unregister(self, group: str, session: ClientSession) -> None:
        """Remove a consumer from a group and notify the other members."""
        found = self._groups.get(group)
        if found is None or session not in found.consumers:
            return
        self._drop(found, session)
        if found.consumers:
            self._notify(found)
        else:
            del self._groups[group]
            self._silenced.discard(group)

    def remove_session(self, session: ClientSession) -> None:
        """Remove a closed session from all groups."""
        known = self._groups_of_session.get(session)
        for group in list(known.sizes) if known is not None else ():
            self.unregister(group, session)

    def remove_silent(self) -> set[ClientSession]:
        """Remove the consumers whose heartbeats stopped, and return their sessions."""
        limit_ms = self._clock.monotonic_ms() - SILENCE_LIMIT_MS
        silent: set[ClientSession] = set()
        for group, found in list(self._groups.items()):
            for consumer in list(found.consumers.values()):
                if consumer.heard_ms < limit_ms:
                    self.unregister(group, consumer.session)
                    silent.add(consumer.session)
        return silent

    def find_group(self, group: str) -> ConsumerGroup | None:
        return self._groups.get(group)

    def list_groups(self) -> Mapping[str, ConsumerGroup]:
        return self._groups

    def list_client_ids(self, group: str) -> list[str]:
        """Return the client ids of a group's members."""
        found = self._groups.get(group)
        return [] if found is None else [session.client_id for session in found.consumers]

    def list_groups_of_topic(self, topic: str) -> set[str]:
        """Return the groups with a member that subscribes to a topic."""
        return {name for name, group in self._groups.items() if topic in group.subscriptions}

    def find_subscription(self, group: str, topic: str) -> Subscription | None:
        """Return a group's subscription to a topic from its last heartbeat."""
        found = self._groups.get(group)
        return None if found is None else found.subscriptions.get(topic)

    def _check_size(
        self,
        group: str,
        session: ClientSession,
        settings: ConsumerSettings,
        subscriptions: Mapping[str, Subscription],
    ) -> _Size:
        """Return the size of a client's subscriptions in a group. Raises Invalid if the client
        would exceed a limit with its subscriptions in all groups."""
        texts = [*msgspec.structs.astuple(settings)]
        for topic, subscription in subscriptions.items():
            texts += (topic, subscription.expression, subscription.expression_type)
        size = _Size(1 + len(subscriptions), sum(map(len, texts)))
        known = self._groups_of_session.get(session)
        total = size if known is None else known.sum_with(group, size)
        _check_count(group, total.names)
        if total.characters > MAX_CHARACTERS:
            raise Invalid(
                f"group {group}: expected subscriptions of at most {MAX_CHARACTERS} characters in "
                f"all groups of one client, found {total.characters}"
            )
        return size

    def _drop(self, group: ConsumerGroup, session: ClientSession) -> None:
        group.consumers.pop(session, None)
        groups = self._groups_of_session.get(session)
        if groups is not None:
            groups.remove(group.name)
            if not groups.sizes:
                del self._groups_of_session[session]

    def _notify(self, group: ConsumerGroup) -> None:
        if group.name not in self._silenced:
            group.notify_changed()


LEASE_MS: Final = 60_000
"""Lifetime of a lock that is not renewed, in ms. Clients renew their locks every 20 s."""
MAX_LOCKS: Final = 500_000
"""Maximum number of locks of all groups together. At the limit, no more queues are locked."""


class _Lock(NamedTuple):
    client_id: str
    until_ms: int
    host: str


class RebalanceLocks:
    """Queue locks of orderly consumers, by group. A lock is held until its lease expires or
    `unlock` is called. It survives a lost connection, so a client that reconnects within the lease
    keeps it. Use only on the event loop."""

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock
        self._groups: dict[str, dict[QueueKey, _Lock]] = {}
        self._shares = HostShares(MAX_LOCKS)

    def lock(self, group: str, queues: Iterable[QueueKey], client_id: str) -> set[QueueKey]:
        """Lock queues or renew their locks. Returns the queues that the client has locked."""
        locks = self._groups.get(group, {})
        now_ms = self._clock.monotonic_ms()
        host = HOST.get()
        held = set()
        for queue in queues:
            lock = locks.get(queue)
            if lock is None:
                if not self._shares.take(host):
                    continue
            elif lock.client_id != client_id and lock.until_ms > now_ms:
                continue
            else:
                self._shares.give_back(lock.host)
                self._shares.add(host)
            locks[queue] = _Lock(client_id, now_ms + LEASE_MS, host)
            held.add(queue)
        if locks:
            self._groups[group] = locks
        return held

    def unlock(self, group: str, queues: Iterable[QueueKey], client_id: str) -> None:
        """Release the client's locks on these queues. Locks held by other clients are kept."""
        locks = self._groups.get(group, {})
        for queue in queues:
            lock = locks.get(queue)
            if lock is not None and lock.client_id == client_id:
                del locks[queue]
                self._shares.give_back(lock.host)
        if not locks:
            self._groups.pop(group, None)

    def has_locks(self, group: str) -> bool:
        """Return whether any client holds a queue lock for a group. Such a group consumes in
        order."""
        now_ms = self._clock.monotonic_ms()
        return any(lock.until_ms > now_ms for lock in self._groups.get(group, {}).values())

    def remove_expired(self) -> None:
        now_ms = self._clock.monotonic_ms()
        for group, locks in list(self._groups.items()):
            for queue in [queue for queue, lock in locks.items() if lock.until_ms <= now_ms]:
                self._shares.give_back(locks.pop(queue).host)
            if not locks:
                del self._groups[group]
