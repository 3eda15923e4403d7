"""RouteTable: where the topics of this broker are, as a name server tells clients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import orjson

from tieredstore.broker.settings import BrokerSettings
from tieredstore.broker.state.groups import SubscriptionGroupManager
from tieredstore.broker.state.topics import (
    PERM_READ,
    PERM_WRITE,
    TopicConfig,
    TopicConfigManager,
    check_topic_name,
)
from tieredstore.errors import Invalid
from tieredstore.message.names import RETRY_PREFIX

MASTER_ID: Final = "0"


class RouteTable:
    """Routes of one broker. Nothing is kept: each answer is made of the topics as they are now.

    address: gives `ip:port` where clients reach the broker. is_read_only: nobody may write to any
    topic.
    """

    def __init__(
        self,
        settings: BrokerSettings,
        topics: TopicConfigManager,
        groups: SubscriptionGroupManager,
        address: Callable[[], str],
        *,
        is_read_only: bool = False,
    ) -> None:
        self._settings = settings
        self._topics = topics
        self._groups = groups
        self._address = address
        self._is_read_only = is_read_only
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
        found = self.find_topic(topic)
        if found is None:
            return None
        settings = self._settings
        name = settings.broker_name
        return orjson.dumps(
            {
                "brokerDatas": [
                    {
                        "brokerAddrs": {MASTER_ID: self.address},
                        "brokerName": name,
                        "cluster": settings.broker_cluster_name,
                        "enableActingMaster": False,
                    }
                ],
                "filterServerTable": {},
                "queueDatas": [
                    {
                        "brokerName": name,
                        "perm": self.find_permission(found),
                        "readQueueNums": found.read_queue_nums,
                        "topicSysFlag": found.topic_sys_flag,
                        "writeQueueNums": found.write_queue_nums,
                    }
                ],
            }
        )

    def encode_clusters(self) -> bytes:
        """Write the ClusterInfo: one cluster of one broker."""
        settings = self._settings
        name, cluster = settings.broker_name, settings.broker_cluster_name
        broker = {
            "brokerAddrs": {MASTER_ID: self.address},
            "brokerName": name,
            "cluster": cluster,
            "enableActingMaster": False,
        }
        return orjson.dumps(
            {"brokerAddrTable": {name: broker}, "clusterAddrTable": {cluster: [name]}}
        )

    def list_topics(self) -> list[str]:
        """List all topics, as a name server knows them."""
        return sorted(self._topics.list_topics())

    def list_cluster_topics(self, cluster: str) -> list[str]:
        """List the topics of a cluster: all, or none."""
        return self.list_topics() if cluster == self._settings.broker_cluster_name else []

    def list_system_topics(self) -> list[str]:
        """List what a name server calls system topics: the names of cluster and broker."""
        return sorted({self._settings.broker_cluster_name, self._settings.broker_name})
