"""Topic routes of the name-server role, and the key-value table for clients."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType

import msgspec

from tieredstore.broker.namesrv.registered import MASTER_ID, QueueData, RegisteredBrokers
from tieredstore.broker.settings import BrokerSettings
from tieredstore.broker.state.config_manager import ConfigManager
from tieredstore.broker.state.groups import SubscriptionGroupManager
from tieredstore.broker.state.topics import (
    PERM_READ,
    PERM_WRITE,
    TopicConfig,
    TopicConfigManager,
    check_topic_name,
)
from tieredstore.clock import SYSTEM_CLOCK, Clock
from tieredstore.errors import Invalid
from tieredstore.message.names import RETRY_PREFIX


class _Table(msgspec.Struct, rename="camel"):
    config_table: dict[str, dict[str, str]] = {}


class KeyValueManager(ConfigManager):
    """Strings by namespace and key, stored in `config/kvConfig.json` in the format of Java's name
    server."""

    def __init__(self, config_folder: Path, clock: Clock = SYSTEM_CLOCK) -> None:
        super().__init__(config_folder / "kvConfig.json", clock)
        self._table: dict[str, dict[str, str]] = {}

    def put(self, namespace: str, key: str, value: str) -> None:
        self._table.setdefault(namespace, {})[key] = value
        self.mark_changed()

    def find(self, namespace: str, key: str) -> str | None:
        """Return the value of a key, or None for an unknown key."""
        return self._table.get(namespace, {}).get(key)

    def list_namespace(self, namespace: str) -> Mapping[str, str] | None:
        """Return all values of a namespace by key, or None for an unknown namespace."""
        found = self._table.get(namespace)
        return None if found is None else MappingProxyType(found)

    def delete(self, namespace: str, key: str) -> None:
        """Delete the value of a key. Idempotent."""
        if self._table.get(namespace, {}).pop(key, None) is not None:
            self.mark_changed()

    def list_fields(self) -> dict[str, object]:
        return {"configTable": self._table}

    def decode(self, data: bytes) -> None:
        self._table = msgspec.json.decode(data, type=_Table).config_table


class RouteTable:
    """Routes to this broker and to other brokers. Routes to this broker are computed from its
    current topics. `address`: returns the broker's `ip:port` for clients. `is_read_only`: True if
    no topic is writable. `others`: brokers registered with this name server."""

    def __init__(
        self,
        settings: BrokerSettings,
        topics: TopicConfigManager,
        groups: SubscriptionGroupManager,
        address: Callable[[], str],
        *,
        is_read_only: bool = False,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._settings = settings
        self._topics = topics
        self._groups = groups
        self._address = address
        self._is_read_only = is_read_only
        self.others = RegisteredBrokers(clock)
        self.is_write_wiped = False
        """True if an operator removed the write permission from all routes (code 205). Code 327
        restores it."""

    @property
    def address(self) -> str:
        """Address of the broker for clients, `ip:port`."""
        return self._address()

    def find_topic(self, topic: str) -> TopicConfig | None:
        """Return a topic with a route. Creates the retry topic of a group if needed. A consumer
        asks for its route before the first heartbeat, and would ask again only after 30 s."""
        found = self._topics.find_topic(topic)
        if found is not None or not topic.startswith(RETRY_PREFIX) or self._is_of_pop(topic):
            return found
        group = self._groups.find_group(topic.removeprefix(RETRY_PREFIX), creates=False)
        if group is None or (count := group.retry_queue_nums) <= 0:
            return None
        try:
            check_topic_name(topic)
        except Invalid:
            return None
        return TopicConfig(topic_name=topic, read_queue_nums=count, write_queue_nums=count)

    def _is_of_pop(self, topic: str) -> bool:
        """Return whether a topic is named like one of Java's retry topics for pop consumers, which
        combine a group and a topic. This broker has no such topics and must not create them as the
        retry topic of a group."""
        name = topic.removeprefix(RETRY_PREFIX)
        groups = self._groups.list_groups()
        return name not in groups and any(
            name[:end] in groups and self._topics.find_topic(name[end + 1 :]) is not None
            for end, character in enumerate(name)
            if character in "_+"
        )

    def find_permission(self, topic: TopicConfig) -> int:
        """Return the permission bits of a topic: 4 read, 2 write, 1 template for new topics."""
        kept = self._settings.broker_permission | ~(PERM_READ | PERM_WRITE)
        if self._is_read_only or self.is_write_wiped:
            kept &= ~PERM_WRITE
        return topic.perm & kept

    def encode_route(self, topic: str) -> bytes | None:
        """Encode a topic's TopicRouteData as JSON. Returns None for an unknown topic."""
        queues = self.others.find_queues(topic)
        brokers = [self.others.describe(found.broker_name) for found in queues]
        found = self.find_topic(topic)
        if found is not None:
            queues.insert(0, self.describe_queues(found))
            brokers.insert(0, self.describe_broker())
        if not queues:
            return None
        return msgspec.json.encode(
            {"brokerDatas": brokers, "filterServerTable": {}, "queueDatas": queues}
        )

    def describe_queues(self, topic: TopicConfig) -> QueueData:
        """Return this broker's QueueData for a topic."""
        return QueueData(
            self._settings.broker_name,
            topic.read_queue_nums,
            topic.write_queue_nums,
            self.find_permission(topic),
            topic.topic_sys_flag,
        )

    def describe_broker(self) -> dict[str, object]:
        """Return this broker's BrokerData."""
        return {
            "brokerAddrs": {str(MASTER_ID): self.address},
            "brokerName": self._settings.broker_name,
            "cluster": self._settings.broker_cluster_name,
            "enableActingMaster": False,
        }

    def encode_clusters(self) -> bytes:
        """Encode Java's ClusterInfo as JSON: this broker and the registered brokers."""
        brokers = [self.describe_broker(), *self.others.list_brokers()]
        clusters: dict[str, list[object]] = {}
        for broker in brokers:
            clusters.setdefault(str(broker["cluster"]), []).append(broker["brokerName"])
        table = {str(broker["brokerName"]): broker for broker in brokers}
        return msgspec.json.encode({"brokerAddrTable": table, "clusterAddrTable": clusters})

    def encode_member_group(self, cluster: str, name: str) -> bytes:
        """Encode the addresses of the brokers that share a name as JSON. Empty for an unknown
        name."""
        members: object = {}
        if name == self._settings.broker_name:
            members = self.describe_broker()["brokerAddrs"]
        elif name in self.others:
            members = self.others.describe(name)["brokerAddrs"]
        group = {"brokerAddrs": members, "brokerName": name, "cluster": cluster}
        return msgspec.json.encode({"brokerMemberGroup": group})

    def list_topics(self, cluster: str | None = None) -> dict[str, int]:
        """Return the topics of a cluster, or of all clusters, with their system flags."""
        topics = self.others.list_topics(cluster)
        if cluster in {None, self._settings.broker_cluster_name}:
            topics |= {
                name: topic.topic_sys_flag for name, topic in self._topics.list_topics().items()
            }
        return dict(sorted(topics.items()))

    def count_own_topics(self) -> int:
        return len(self._topics.list_topics())

    def list_system_topics(self) -> list[str]:
        names = {self._settings.broker_cluster_name, self._settings.broker_name}
        for broker in self.others.list_brokers():
            names |= {str(broker["cluster"]), str(broker["brokerName"])}
        return sorted(names)
