"""Lite topics, for mqadmin (codes 200074 to 200079)."""

from __future__ import annotations

import heapq
from typing import Final

from tieredstore.broker.auth.policies import Action
from tieredstore.broker.lite.expiry import find_expiration
from tieredstore.broker.lite.subscriptions import LiteClient
from tieredstore.broker.refused import Reason, Refused
from tieredstore.broker.remoting.codes import RequestCode
from tieredstore.broker.remoting.command import RemotingCommand
from tieredstore.broker.remoting.handler_table import (
    Group,
    Int32,
    NoFields,
    Request,
    RequestHeader,
    Topic,
)
from tieredstore.broker.remoting.handlers.base import (
    Handlers,
    TopicHeader,
    answers,
    succeed,
    succeed_with,
)
from tieredstore.broker.state.groups import SubscriptionGroupConfig
from tieredstore.broker.state.topics import TopicConfig
from tieredstore.contracts.dispatch_source import find_light
from tieredstore.message.lite import (
    LITE_QUEUE_ID,
    LiteTopic,
    make_parent_prefix,
    parse_lite_topic,
)
from tieredstore.message.names import LMQ_PREFIX

_MAX_NAMES: Final = 10_000


class LiteTopicHeader(RequestHeader, kw_only=True):
    parent_topic: Topic
    lite_topic: str


class LiteClientHeader(RequestHeader, kw_only=True):
    parent_topic: Topic
    group: Group
    client_id: str = ""
    max_count: Int32 = 1000


class LiteGroupHeader(RequestHeader, kw_only=True):
    group: Group
    lite_topic: str = ""
    top_k: Int32 = 20


class DispatchHeader(RequestHeader, kw_only=True):
    group: Group
    client_id: str = ""


class LiteAdminHandlers(Handlers):
    """Handlers for information about lite topics."""

    @answers(RequestCode.GET_BROKER_LITE_INFO, NoFields, Action.GET)
    async def get_broker_info(self, request: Request[NoFields]) -> RemotingCommand:
        broker = self._broker
        parents = [config for config in broker.topics.list_topics().values() if config.is_lite]
        groups: dict[str, list[str]] = {}
        for name, group in broker.groups.list_groups().items():
            if group.lite_parent is not None:
                groups.setdefault(group.lite_parent, []).append(name)
        source = broker.store.dispatch_source
        light = find_light(source).count_light_queues(LMQ_PREFIX)
        plain = await broker.look_ups.run(lambda: len(list(source.queues())))
        lite = broker.receive.lite
        progresses = broker.receive.state.list_queues()
        return succeed_with(
            {
                "storeType": broker.store_config.store_type,
                "maxLmqNum": broker.store_config.max_lmq_consume_queue_num,
                "currentLmqNum": light,
                "liteSubscriptionCount": broker.subscriptions.count,
                "orderInfoCount": sum(one.is_lite and bool(one.entries) for one in progresses),
                "cqTableSize": plain + light,
                "offsetTableSize": len(broker.offsets.list_keys()),
                "eventMapSize": 0 if lite is None else lite.count_clients(),
                "topicMeta": {one.topic_name: find_expiration(one) for one in parents},
                "groupMeta": groups,
            }
        )

    @answers(RequestCode.GET_PARENT_TOPIC_INFO, TopicHeader, Action.GET)
    def get_parent_info(self, request: Request[TopicHeader]) -> RemotingCommand:
        broker, topic = self._broker, request.header.topic
        config, source = self._find_parent(topic), broker.store.dispatch_source
        groups = broker.groups.list_groups().values()
        return succeed_with(
            {
                "topic": topic,
                "ttl": find_expiration(config),
                "groups": [one.group_name for one in groups if one.lite_parent == topic],
                "lmqNum": find_light(source).count_light_queues(LMQ_PREFIX),
                "liteTopicCount": find_light(source).count_light_queues(make_parent_prefix(topic)),
            }
        )

    @answers(RequestCode.GET_LITE_TOPIC_INFO, LiteTopicHeader, Action.GET)
    def get_topic_info(self, request: Request[LiteTopicHeader]) -> RemotingCommand:
        broker, header = self._broker, request.header
        self._find_parent(header.parent_topic)
        queue = LiteTopic(header.parent_topic, header.lite_topic).queue
        end = max(broker.store.get_max_offset_in_queue(queue, LITE_QUEUE_ID), 0)
        begin = broker.store.get_min_offset_in_queue(queue, LITE_QUEUE_ID) if end else 0
        clients: dict[tuple[str, str], None] = {}
        for client in broker.subscriptions.list_clients(queue):
            group = broker.groups.list_groups().get(client.group)
            is_wildcard = group is not None and group.is_lite_wildcard
            clients["*" if is_wildcard else client.client_id, client.group] = None
        return succeed_with(
            {
                "parentTopic": header.parent_topic,
                "liteTopic": header.lite_topic,
                "subscriber": [{"clientId": name, "group": group} for name, group in clients],
                "topicOffset": {
                    "minOffset": max(begin, 0),
                    "maxOffset": end,
                    "lastUpdateTimestamp": self._find_time(queue, end - 1),
                },
                "shardingToBroker": True,
            }
        )

    @answers(RequestCode.GET_LITE_CLIENT_INFO, LiteClientHeader, Action.GET)
    def get_client_info(self, request: Request[LiteClientHeader]) -> RemotingCommand:
        broker, header = self._broker, request.header
        self._find_parent(header.parent_topic)
        if self._find_group(header.group).lite_parent != header.parent_topic:
            text = f"Subscription [{header.group}]-[{header.parent_topic}] not match."
            raise Refused(Reason.INVALID_PARAMETER, text)
        found = broker.subscriptions.find(LiteClient(header.group, header.client_id))
        most = min(max(header.max_count, 0), _MAX_NAMES)
        return succeed_with(
            {
                "parentTopic": header.parent_topic,
                "group": header.group,
                "clientId": header.client_id,
                "lastAccessTime": 0 if found is None else found.updated_ms,
                "lastConsumeTime": 0,
                "liteTopicCount": -1 if found is None else len(found.queues),
                "liteTopicSet": None if found is None else sorted(found.queues)[:most],
            }
        )

    @answers(RequestCode.GET_LITE_GROUP_INFO, LiteGroupHeader, Action.GET)
    async def get_group_info(self, request: Request[LiteGroupHeader]) -> RemotingCommand:
        """Return a group's lag in one lite topic, or in all lite topics of the parent."""
        header, broker = request.header, self._broker
        parent = self._find_bound(header.group)
        body: dict[str, object] = {
            "group": header.group,
            "parentTopic": parent,
            "liteTopic": header.lite_topic,
            "earliestUnconsumedTimestamp": -1,
            "totalLagCount": 0,
        }
        if header.lite_topic:
            queue = LiteTopic(parent, header.lite_topic).queue
            end = broker.store.get_max_offset_in_queue(queue, LITE_QUEUE_ID)
            offset = broker.offsets.query_offset(header.group, queue, LITE_QUEUE_ID)
            if end <= 0:
                body["totalLagCount"] = -1
            elif offset is not None:
                body["totalLagCount"] = end - offset
                body["earliestUnconsumedTimestamp"] = self._find_time(queue, offset)
                body["liteTopicOffsetWrapper"] = {
                    "brokerOffset": end,
                    "consumerOffset": offset,
                    "lastTimestamp": self._find_time(queue, offset - 1),
                    "pullOffset": 0,
                }
            return succeed_with(body)
        lags = await broker.look_ups.run(self._list_lags, header.group, parent)
        most = min(max(header.top_k, 0), _MAX_NAMES)
        body["totalLagCount"] = sum(lag for lag, _ in lags)
        body["lagCountTopK"] = [
            {"liteTopic": name, "lagCount": lag, "earliestUnconsumedTimestamp": -1}
            for lag, name in heapq.nlargest(most, lags)
        ]
        body["lagTimestampTopK"] = []
        return succeed_with(body)

    @answers(RequestCode.TRIGGER_LITE_DISPATCH, DispatchHeader, Action.UPDATE)
    def dispatch(self, request: Request[DispatchHeader]) -> RemotingCommand:
        """Make the next receive of a client, or of all clients of a group, check all lite topics
        for messages."""
        group, client_id = request.header.group, request.header.client_id
        self._find_bound(group)
        lite = self._broker.receive.lite
        for client in self._broker.subscriptions.list_members(group):
            if lite is not None and client_id in ("", client.client_id):
                lite.mark_all(client)
        return succeed()

    def _list_lags(self, group: str, parent: str) -> list[tuple[int, str]]:
        lags = []
        source = self._broker.store.dispatch_source
        for queue, end in find_light(source).list_light_queues(make_parent_prefix(parent)):
            lite = parse_lite_topic(queue)
            offset = self._broker.offsets.query_offset(group, queue, LITE_QUEUE_ID)
            if lite is not None and offset is not None and end > offset:
                lags.append((end - offset, lite.name))
        return lags

    def _find_time(self, queue: str, offset: int) -> int:
        if offset < 0:
            return 0
        store = self._broker.store
        return max(store.get_message_store_timestamp(queue, LITE_QUEUE_ID, offset), 0)

    def _find_parent(self, topic: str) -> TopicConfig:
        config: TopicConfig | None = self._broker.topics.find_topic(topic)
        if config is None:
            raise Refused(Reason.TOPIC_NOT_EXIST, f"Topic [{topic}] not exist.")
        if not config.is_lite:
            raise Refused(Reason.INVALID_PARAMETER, f"Topic [{topic}] type not match.")
        return config

    def _find_group(self, group: str) -> SubscriptionGroupConfig:
        config = self._broker.groups.list_groups().get(group)
        if config is None:
            raise Refused(Reason.SUBSCRIPTION_GROUP_NOT_EXIST, f"Group [{group}] not exist.")
        return config

    def _find_bound(self, group: str) -> str:
        parent = self._find_group(group).lite_parent
        if parent is None:
            raise Refused(Reason.INVALID_PARAMETER, f"Group [{group}] is not a LITE group.")
        return parent
