"""RouteTable: where topics are, as a name server tells clients: here, and at brokers that have
registered."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from tieredstore.broker.namesrv.registered import MASTER_ID, QueueData, RegisteredBrokers
from tieredstore.broker.settings import BrokerSettings
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


class RouteTable:
    """Routes of this broker and of others. Nothing is kept of this one: each answer is made of the
    topics as they are now.

    address: gives `ip:port` where clients reach the broker. is_read_only: nobody may write to any
    topic. others: brokers for which this one is the name server.
    """

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
        """Whether an operator has asked that routes let nobody write (205), until 327."""

    @property
    def address(self) -> str:
        """Where clients reach the broker, `ip:port`."""
        return self._address()

    def find_topic(self, topic: str) -> TopicConfig | None:
        """Return a topic that has a route. The retry topic of a group is made when it is asked for:
        a consumer asks before its first heartbeat, and again only 30 s later."""
        found = self._topics.find_topic(topic)
        if found is not None or not topic.startswith(RETRY_PREFIX):
            return found
        group = self._groups.find_group(topic.removeprefix(RETRY_PREFIX))
        if group is None or group.retry_queue_nums <= 0:
            return None
        try:
            check_topic_name(topic)
        except Invalid:
            return None
        return self._topics.create_on_send_back(topic, group.retry_queue_nums)

    def find_permission(self, topic: TopicConfig) -> int:
        """Return what clients may do with a topic: 4 read, 2 write, 1 others are made after it."""
        kept = self._settings.broker_permission | ~(PERM_READ | PERM_WRITE)
        if self._is_read_only or self.is_write_wiped:
            kept &= ~PERM_WRITE
        return topic.perm & kept

    def encode_route(self, topic: str) -> bytes | None:
        """Write a topic's TopicRouteData as JSON; None for an unknown topic."""
        queues = self.others.find_queues(topic)
        brokers = [self.others.describe(found.broker_name) for found in queues]
        found = self.find_topic(topic)
        if found is not None:
            queues.insert(0, self._describe_queues(found))
            brokers.insert(0, self.describe_broker())
        if not queues:
            return None
        return msgspec.json.encode(
            {"brokerDatas": brokers, "filterServerTable": {}, "queueDatas": queues}
        )

    def _describe_queues(self, topic: TopicConfig) -> QueueData:
        return QueueData(
            self._settings.broker_name,
            topic.read_queue_nums,
            topic.write_queue_nums,
            self.find_permission(topic),
            topic.topic_sys_flag,
        )

    def describe_broker(self) -> dict[str, object]:
        """Return this broker as its BrokerData."""
        return {
            "brokerAddrs": {str(MASTER_ID): self.address},
            "brokerName": self._settings.broker_name,
            "cluster": self._settings.broker_cluster_name,
            "enableActingMaster": False,
        }

    def encode_clusters(self) -> bytes:
        """Write the ClusterInfo: this broker and those that have registered."""
        brokers = [self.describe_broker(), *self.others.list_brokers()]
        clusters: dict[str, list[object]] = {}
        for broker in brokers:
            clusters.setdefault(str(broker["cluster"]), []).append(broker["brokerName"])
        table = {str(broker["brokerName"]): broker for broker in brokers}
        return msgspec.json.encode({"brokerAddrTable": table, "clusterAddrTable": clusters})

    def encode_member_group(self, cluster: str, name: str) -> bytes:
        """Write which addresses a broker's name has: none for an unknown one."""
        members: object = {}
        if name == self._settings.broker_name:
            members = self.describe_broker()["brokerAddrs"]
        elif name in self.others:
            members = self.others.describe(name)["brokerAddrs"]
        group = {"brokerAddrs": members, "brokerName": name, "cluster": cluster}
        return msgspec.json.encode({"brokerMemberGroup": group})

    def list_topics(self, cluster: str | None = None) -> dict[str, int]:
        """List all topics, or those of a cluster, with their system flags."""
        topics = self.others.list_topics(cluster)
        if cluster in {None, self._settings.broker_cluster_name}:
            topics |= {
                name: topic.topic_sys_flag for name, topic in self._topics.list_topics().items()
            }
        return dict(sorted(topics.items()))

    def count_own_topics(self) -> int:
        """Return how many topics this broker has."""
        return len(self._topics.list_topics())

    def list_system_topics(self) -> list[str]:
        """List what a name server calls system topics: the names of clusters and brokers."""
        names = {self._settings.broker_cluster_name, self._settings.broker_name}
        for broker in self.others.list_brokers():
            names |= {str(broker["cluster"]), str(broker["brokerName"])}
        return sorted(names)
