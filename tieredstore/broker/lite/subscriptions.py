"""LiteSubscriptions: in-memory subscriptions of clients to lite topics."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from tieredstore.broker.hosts import HOST, HostShares
from tieredstore.broker.refused import Reason, Refused
from tieredstore.broker.settings import BrokerSettings
from tieredstore.broker.state.groups import (
    LITE_RESETS_EXCLUSIVE,
    LITE_RESETS_UNSUBSCRIBED,
    SubscriptionGroupConfig,
    SubscriptionGroupManager,
)
from tieredstore.clock import Clock
from tieredstore.message.lite import LiteTopic, make_parent_prefix, parse_lite_topic

MAX_NAMES: Final = 100_000
"""Maximum number of lite topics in one call."""


class LiteClient(NamedTuple):
    """Client of a group that consumes lite topics."""

    group: str
    client_id: str


class OffsetOption(NamedTuple):
    """Offset at which a group starts to read a lite topic after a new subscription. `kind` is
    POLICY, OFFSET or TAIL_N, other kinds have no effect. POLICY: `value` 0 means no change, 1 the
    first message, 2 the end. OFFSET: `value` is the offset. TAIL_N: `value` messages before the
    group's current offset."""

    kind: str
    value: int


FIRST_OFFSET = OffsetOption("POLICY", 1)


@dataclass(slots=True)
class Subscription:
    """Subscription of a client to lite topics. `queues`: names of their light queues, or the common
    prefix for all lite topics of a parent. `notify`: called with the name of a lite topic when
    another client takes it over. `updated_ms`: time of the client's last request, epoch ms."""

    notify: Callable[[str], object]
    updated_ms: int
    host: str
    queues: set[str] = field(default_factory=set)


@dataclass(eq=False)
class LiteSubscriptions:
    """Subscriptions of all clients. A subscription expires if its client does not renew it. Use
    only on one event loop. `on_added`: called with a client and a light queue for each new
    subscription. `on_ended`: called with a client when its whole subscription ends. `set_offset`:
    called with a group, a light queue, and the offset at which the group continues."""

    settings: BrokerSettings
    groups: SubscriptionGroupManager
    clock: Clock
    on_added: Callable[[LiteClient, str], object] = lambda *_: None
    on_ended: Callable[[LiteClient], object] = lambda *_: None
    set_offset: Callable[[str, str, OffsetOption], object] = lambda *_: None

    def __post_init__(self) -> None:
        self._names = HostShares()
        self._hosts = HostShares()
        self._clients: dict[LiteClient, Subscription] = {}
        self._by_queue: dict[str, dict[LiteClient, None]] = {}

    @property
    def count(self) -> int:
        """Number of lite topics in all subscriptions."""
        return self._names.total

    def find(self, client: LiteClient) -> Subscription | None:
        return self._clients.get(client)

    def list_members(self, group: str) -> list[LiteClient]:
        return [client for client in self._clients if client.group == group]

    def list_clients(self, queue: str) -> Iterator[LiteClient]:
        """Yield the clients subscribed to a light queue."""
        yield from self._by_queue.get(queue, ())
        lite = parse_lite_topic(queue)
        if lite is not None:
            yield from self._by_queue.get(make_parent_prefix(lite.parent), ())

    def add(
        self,
        client: LiteClient,
        parent: str,
        names: Collection[str],
        notify: Callable[[str], object],
        option: OffsetOption | None = None,
    ) -> None:
        """Subscribe a client to more lite topics. Raises Refused."""
        group = self._find_group(client)
        if group.is_lite_wildcard:
            raise Refused(
                Reason.ILLEGAL_OPERATION,
                f"group {client.group} gets all lite topics and subscribes to none",
            )
        queues = [LiteTopic(parent, name).queue for name in names]
        known = self._clients.get(client)
        new = sum(known is None or queue not in known.queues for queue in queues)
        self._check_quota(client, new)
        subscription = self._renew(client, notify)
        for queue in queues:
            if group.is_lite_exclusive:
                self._exclude(client, group, queue)
            if option is not None:
                self.set_offset(client.group, queue, option)
            self._add(client, subscription, queue)

    def remove(self, client: LiteClient, parent: str, names: Collection[str]) -> None:
        """Unsubscribe a client from lite topics."""
        group = self.groups.list_groups().get(client.group)
        resets = group is not None and group.resets_lite(LITE_RESETS_UNSUBSCRIBED)
        for queue in (LiteTopic(parent, name).queue for name in names):
            if self._remove(client, queue) and resets:
                self.set_offset(client.group, queue, FIRST_OFFSET)

    def replace(
        self,
        client: LiteClient,
        parent: str,
        names: Collection[str],
        notify: Callable[[str], object],
    ) -> None:
        """Replace the lite topics of a client's subscription. Raises Refused."""
        if self._find_group(client).is_lite_wildcard:
            queues = {make_parent_prefix(parent)}
        else:
            queues = {LiteTopic(parent, name).queue for name in names}
        known = self._clients.get(client)
        before = set() if known is None else known.queues
        self._check_quota(client, len(queues) - len(before))
        subscription = self._renew(client, notify)
        for queue in subscription.queues - queues:
            self._remove(client, queue)
        for queue in queues:
            self._add(client, subscription, queue)

    def end(self, client: LiteClient) -> None:
        """End all subscriptions of a client."""
        subscription = self._clients.get(client)
        for queue in () if subscription is None else list(subscription.queues):
            self._remove(client, queue)
        if subscription is not None:
            del self._clients[client]
            self._hosts.give_back(subscription.host)
        self.on_ended(client)

    def end_queue(self, queue: str) -> None:
        """End all subscriptions to a light queue whose lite topic was deleted."""
        for client in list(self._by_queue.get(queue, ())):
            self._remove(client, queue)

    async def end_silent(self) -> None:
        """End the subscriptions not renewed within `lite_subscription_check_timeout_ms`."""
        limit_ms = self.clock.now_ms() - self.settings.lite_subscription_check_timeout_ms
        for client, subscription in list(self._clients.items()):
            if subscription.updated_ms < limit_ms:
                self.end(client)

    def _find_group(self, client: LiteClient) -> SubscriptionGroupConfig:
        group = self.groups.find_group(client.group)
        if group is None or not group.consume_enable:
            raise Refused(
                Reason.ILLEGAL_OPERATION, f"group {client.group} is not allowed to consume"
            )
        return group

    def _check_quota(self, client: LiteClient, new: int) -> None:
        """Raise Refused if there are too many subscriptions or clients. Clients have a limit of
        their own, because they may subscribe to nothing."""
        most = self.settings.max_lite_subscription_count
        known = self._clients.get(client)
        host = HOST.get() if known is None else known.host
        is_full = known is None and not self._hosts.has_room(host, free=most - self._hosts.total)
        if is_full or (new > 0 and not self._names.has_room(host, new, most - self.count)):
            raise Refused(
                Reason.LITE_SUBSCRIPTION_QUOTA_EXCEEDED, f"lite subscription quota exceeded {most}"
            )

    def _renew(self, client: LiteClient, notify: Callable[[str], object]) -> Subscription:
        now_ms = self.clock.now_ms()
        found = self._clients.get(client)
        if found is None:
            found = self._clients[client] = Subscription(notify, now_ms, HOST.get())
            self._hosts.add(found.host)
        found.notify, found.updated_ms = notify, now_ms
        return found

    def _exclude(self, client: LiteClient, group: SubscriptionGroupConfig, queue: str) -> None:
        for other in list(self._by_queue.get(queue, ())):
            if other.group == client.group and other != client:
                notify = self._clients[other].notify
                self._remove(other, queue)
                notify(queue.rpartition("$")[2])
                if group.resets_lite(LITE_RESETS_EXCLUSIVE):
                    self.set_offset(client.group, queue, FIRST_OFFSET)

    def _add(self, client: LiteClient, subscription: Subscription, queue: str) -> None:
        if queue not in subscription.queues:
            subscription.queues.add(queue)
            self._by_queue.setdefault(queue, {})[client] = None
            self._names.add(subscription.host)
            self.on_added(client, queue)

    def _remove(self, client: LiteClient, queue: str) -> bool:
        subscription = self._clients.get(client)
        if subscription is None or queue not in subscription.queues:
            return False
        subscription.queues.discard(queue)
        clients = self._by_queue[queue]
        del clients[client]
        if not clients:
            del self._by_queue[queue]
        self._names.give_back(subscription.host)
        return True
