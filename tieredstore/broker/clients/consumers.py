"""ConsumerManager: which consumers are connected, by group, and what they subscribed to."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from tieredstore.broker.clients.session import SILENCE_LIMIT_MS, ClientSession
from tieredstore.broker.clients.subscription import Subscription
from tieredstore.clock import SYSTEM_CLOCK, Clock


class ConsumerSettings(msgspec.Struct, frozen=True):
    """How a group consumes, in RocketMQ's words."""

    consume_type: str = "CONSUME_PASSIVELY"
    message_model: str = "CLUSTERING"
    consume_from_where: str = "CONSUME_FROM_LAST_OFFSET"


class Consumer(msgspec.Struct, eq=False):
    """A session in a group; began_ms: when it came, epoch ms; heard_ms: when a heartbeat came last,
    monotonic."""

    session: ClientSession
    began_ms: int
    heard_ms: int = 0


class ConsumerGroup:
    """A group: its members, and the subscriptions that they share.

    Members of one group are meant to subscribe to the same. Where they do not, the last heartbeat
    wins, as with Java's broker.
    """

    def __init__(self, name: str, settings: ConsumerSettings) -> None:
        self.name = name
        self.settings = settings
        self.subscriptions: dict[str, Subscription] = {}
        self.consumers: dict[ClientSession, Consumer] = {}
        self.updated_ms = 0

    @property
    def sessions(self) -> list[ClientSession]:
        """The members, those that came first in front."""
        return list(self.consumers)

    def find_client(self, client_id: str) -> ClientSession | None:
        """Find a member by its client id."""
        for session in self.consumers:
            if session.client_id == client_id:
                return session
        return None

    def update_subscriptions(self, subscriptions: Mapping[str, Subscription]) -> bool:
        """Take the subscriptions of a heartbeat; returns whether topics came or went."""
        changed = subscriptions.keys() != self.subscriptions.keys()
        for topic in self.subscriptions.keys() - subscriptions.keys():
            del self.subscriptions[topic]
        for topic, subscription in subscriptions.items():
            known = self.subscriptions.get(topic)
            if known is None or subscription.version >= known.version:
                self.subscriptions[topic] = subscription
        return changed

    def notify_changed(self) -> None:
        """Tell all members to rebalance."""
        for session in self.consumers:
            session.notify_consumers_changed(self.name)


class ConsumerManager:
    """Consumer groups, as heartbeats say. Members are told of each change. Used on the loop
    only."""

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock
        self._groups: dict[str, ConsumerGroup] = {}
        self._groups_of_session: dict[ClientSession, set[str]] = {}
        self._silenced: set[str] = set()  # groups whose members are not told

    def register(
        self,
        group: str,
        session: ClientSession,
        settings: ConsumerSettings,
        subscriptions: Mapping[str, Subscription],
        *,
        notify: bool = True,
    ) -> bool:
        """Take a heartbeat of a consumer; returns whether the group changed.

        notify: whether its members are told of changes, now and later (the subscription group's
        notifyConsumerIdsChangedEnable).
        """
        found = self._groups.get(group)
        if found is None:
            found = self._groups[group] = ConsumerGroup(group, settings)
        (self._silenced.discard if notify else self._silenced.add)(group)
        found.settings = settings
        found.updated_ms = self._clock.now_ms()
        consumer = found.consumers.get(session)
        changed = consumer is None
        if consumer is None:
            # A client that has connected anew is one member, not two.
            former = found.find_client(session.client_id)
            if former is not None:
                self._drop(found, former)
            consumer = found.consumers[session] = Consumer(session, found.updated_ms)
            self._groups_of_session.setdefault(session, set()).add(group)
        consumer.heard_ms = self._clock.monotonic_ms()
        changed |= found.update_subscriptions(subscriptions)
        if changed:
            self._notify(found)
        return changed

    def unregister(self, group: str, session: ClientSession) -> None:
        """Take a consumer out of a group, and tell those who stay."""
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
        """Take a session that was closed out of all groups."""
        for group in list(self._groups_of_session.get(session, ())):
            self.unregister(group, session)

    def remove_silent(self) -> set[ClientSession]:
        """Take out the consumers that have been silent for too long; returns their sessions."""
        limit_ms = self._clock.monotonic_ms() - SILENCE_LIMIT_MS
        silent: set[ClientSession] = set()
        for group, found in list(self._groups.items()):
            for consumer in list(found.consumers.values()):
                if consumer.heard_ms < limit_ms:
                    self.unregister(group, consumer.session)
                    silent.add(consumer.session)
        return silent

    def find_group(self, group: str) -> ConsumerGroup | None:
        """Find a group that has members."""
        return self._groups.get(group)

    def list_groups(self) -> Mapping[str, ConsumerGroup]:
        """List the groups that have members."""
        return self._groups

    def list_client_ids(self, group: str) -> list[str]:
        """List the client ids of a group's members; empty without any."""
        found = self._groups.get(group)
        return [] if found is None else [session.client_id for session in found.consumers]

    def list_groups_of_topic(self, topic: str) -> set[str]:
        """List the groups whose members subscribed to a topic."""
        return {name for name, group in self._groups.items() if topic in group.subscriptions}

    def find_subscription(self, group: str, topic: str) -> Subscription | None:
        """Find what a group subscribed to in a topic, as its last heartbeat said."""
        found = self._groups.get(group)
        return None if found is None else found.subscriptions.get(topic)

    def _drop(self, group: ConsumerGroup, session: ClientSession) -> None:
        group.consumers.pop(session, None)
        groups = self._groups_of_session.get(session)
        if groups is not None:
            groups.discard(group.name)
            if not groups:
                del self._groups_of_session[session]

    def _notify(self, group: ConsumerGroup) -> None:
        if group.name not in self._silenced:
            group.notify_changed()
