"""Client registration: heartbeats, group members and queue locks (codes 34, 35, 38, 41, 42, 46)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Final

import msgspec

from tieredstore.broker.auth.policies import Action, Want, want_group, want_topic
from tieredstore.broker.clients.consumers import MAX_SUBSCRIPTIONS, ConsumerSettings
from tieredstore.broker.clients.session import TAG, Subscription
from tieredstore.broker.pull import make_filter
from tieredstore.broker.refused import Reason, Refused
from tieredstore.broker.remoting.codes import RequestCode
from tieredstore.broker.remoting.command import RemotingCommand
from tieredstore.broker.remoting.connection import Connection
from tieredstore.broker.remoting.handler_table import Group, JsonBody, Request, RequestHeader
from tieredstore.broker.remoting.handlers.base import (
    ConsumerGroupHeader,
    Handlers,
    answers,
    list_source_wants,
    succeed,
    succeed_with,
)
from tieredstore.broker.remoting.handlers.pull import check_property_filter
from tieredstore.contracts.dispatch_source import QueueKey
from tieredstore.errors import Busy, Invalid
from tieredstore.message.names import MAX_NAME_BYTES, RETRY_PREFIX

MAX_CLIENT_ID: Final = 1_024
"""Maximum length of a client id in characters."""
_MAX_LANGUAGE: Final = 32


class _SubscriptionData(msgspec.Struct, rename="camel"):
    topic: str
    sub_string: str | None = None
    sub_version: int = 0
    expression_type: str | None = TAG


class _ConsumerData(msgspec.Struct, rename="camel"):
    group_name: str
    consume_type: str | None = None
    message_model: str | None = None
    consume_from_where: str | None = None
    subscription_data_set: list[_SubscriptionData] | None = None
    unit_mode: bool = False


class _ProducerData(msgspec.Struct, rename="camel"):
    group_name: str


class HeartbeatBody(JsonBody, kw_only=True):
    """Body of HEART_BEAT. Producer groups have no permissions. For a transaction check, the
    client's permission on the topic is checked."""

    client_id: str = msgspec.field(name="clientID")
    producer_data_set: list[_ProducerData] | None = None
    consumer_data_set: list[_ConsumerData] | None = None

    def list_wants(self, *actions: Action) -> Iterator[Want]:
        """Yield the permissions on the groups and topics of all consumers in the heartbeat."""
        for consumer in self.consumer_data_set or ():
            topics = [data.topic for data in consumer.subscription_data_set or ()]
            own = RETRY_PREFIX + consumer.group_name
            others = (topic for topic in topics if topic != own)
            yield from list_source_wants(consumer.group_name, others, *actions)


class _MessageQueue(msgspec.Struct, rename="camel", frozen=True):
    topic: str
    queue_id: int
    broker_name: str | None = None


class LockBody(JsonBody, kw_only=True):
    consumer_group: str
    client_id: str
    mq_set: list[_MessageQueue]

    def list_wants(self, *actions: Action) -> Iterator[Want]:
        """Yield the permissions on the group and on the topics of the queues."""
        yield want_group(self.consumer_group, *actions)
        for topic in {queue.topic for queue in self.mq_set}:
            yield want_topic(topic, *actions)


class CheckBody(JsonBody, kw_only=True):
    client_id: str | None = None
    group: Group = ""
    subscription_data: _SubscriptionData | None = None


class UnregisterHeader(RequestHeader, kw_only=True):
    producer_group: str = ""
    consumer_group: str = ""

    def list_wants(self, *actions: Action) -> Iterator[Want]:
        """Yield the permission of a consumer on its group. A producer needs no permission to
        unregister."""
        if self.consumer_group:
            yield want_group(self.consumer_group, *actions)


class ClientHandlers(Handlers):
    """Handlers for client registration and queue locks."""

    @answers(RequestCode.HEART_BEAT, HeartbeatBody, Action.SUB)
    def take_heartbeat(self, request: Request[HeartbeatBody]) -> RemotingCommand:
        """Register the groups of a client, and create the retry topics of its consumer groups."""
        heartbeat, connection = request.header, request.connection
        _check_client_id(heartbeat.client_id)
        connection.caller = request.caller
        connection.client_id = heartbeat.client_id
        connection.language = request.command.language[:_MAX_LANGUAGE]
        connection.version = request.command.version
        consumers = heartbeat.consumer_data_set or []
        producers = heartbeat.producer_data_set or []
        count = len(producers) + sum(1 + len(c.subscription_data_set or ()) for c in consumers)
        if count > MAX_SUBSCRIPTIONS:
            raise Invalid(
                f"heartbeat: expected at most {MAX_SUBSCRIPTIONS} groups and topics, found {count}"
            )
        for consumer in consumers:
            self._register_consumer(connection, consumer)
        for producer in producers:
            self._broker.producers.register(producer.group_name, connection)
        return succeed()

    def _register_consumer(self, connection: Connection, consumer: _ConsumerData) -> None:
        broker = self._broker
        config = broker.groups.find_group(consumer.group_name)
        if config is None:  # as Java: its pulls report why
            return
        with suppress(Busy):  # it is being deleted: the next heartbeat creates it again
            broker.topics.create_on_send_back(
                RETRY_PREFIX + consumer.group_name,
                config.retry_queue_nums,
                sys_flag=_UNIT_TOPIC_FLAG if consumer.unit_mode else 0,
            )
        subscriptions = {
            data.topic: Subscription.parse(
                data.topic, data.sub_string, data.expression_type, data.sub_version
            )
            for data in consumer.subscription_data_set or ()
        }
        default = ConsumerSettings()
        settings = ConsumerSettings(
            consumer.consume_type or default.consume_type,
            consumer.message_model or default.message_model,
            consumer.consume_from_where or default.consume_from_where,
        )
        broker.consumers.register(
            consumer.group_name,
            connection,
            settings,
            subscriptions,
            notify=config.notify_consumer_ids_changed_enable
            and broker.settings.notify_consumer_ids_changed_enable,
        )

    @answers(RequestCode.UNREGISTER_CLIENT, UnregisterHeader, Action.PUB, Action.SUB)
    def unregister(self, request: Request[UnregisterHeader]) -> RemotingCommand:
        if group := request.header.producer_group:
            self._broker.producers.unregister(group, request.connection)
        if group := request.header.consumer_group:
            self._broker.consumers.unregister(group, request.connection)
        return succeed()

    @answers(RequestCode.GET_CONSUMER_LIST_BY_GROUP, ConsumerGroupHeader, Action.SUB, Action.GET)
    def list_consumers(self, request: Request[ConsumerGroupHeader]) -> RemotingCommand:
        """Return the client ids of a group's members."""
        group = request.header.consumer_group
        client_ids = self._broker.consumers.list_client_ids(group)
        if not client_ids:
            raise Refused(Reason.SYSTEM_ERROR, f"no consumer for this group, {group}")
        return succeed_with({"consumerIdList": client_ids})

    @answers(RequestCode.LOCK_BATCH_MQ, LockBody, Action.SUB)
    def lock(self, request: Request[LockBody]) -> RemotingCommand:
        """Lock queues or renew their locks. The response lists the queues that the client holds."""
        wanted = request.header
        _check_client_id(wanted.client_id)
        group = wanted.consumer_group
        known = len(group) <= MAX_NAME_BYTES and self._broker.groups.find_group(group) is not None
        keys = [key for key in _keys(wanted) if known and self._has_queue(key)]
        held = self._broker.locks.lock(group, keys, wanted.client_id)
        queues = [queue for queue in wanted.mq_set if QueueKey(queue.topic, queue.queue_id) in held]
        return succeed_with({"lockOKMQSet": queues})

    def _has_queue(self, key: QueueKey) -> bool:
        """Return whether a queue exists. Consumers may lock only existing queues."""
        config = self._broker.topics.find_consumed(key.topic)
        if config is None or key.queue_id < 0 or len(key.topic) > MAX_NAME_BYTES:
            return False
        return key.queue_id < config.queue_nums

    @answers(RequestCode.UNLOCK_BATCH_MQ, LockBody, Action.SUB)
    def unlock(self, request: Request[LockBody]) -> RemotingCommand:
        """Release queue locks."""
        given = request.header
        self._broker.locks.unlock(given.consumer_group, _keys(given), given.client_id)
        return succeed()

    @answers(RequestCode.CHECK_CLIENT_CONFIG, CheckBody, Action.SUB)
    def check_config(self, request: Request[CheckBody]) -> RemotingCommand:
        """Check a subscription, including the syntax of SQL92 expressions."""
        data = request.header.subscription_data
        if data is not None and (data.expression_type or TAG) != TAG:
            check_property_filter(self._broker, str(data.expression_type))
            make_filter(Subscription.parse(data.topic, data.sub_string, data.expression_type))
        return succeed()


_UNIT_TOPIC_FLAG: Final = 2


def _check_client_id(client_id: str) -> None:
    if len(client_id) > MAX_CLIENT_ID:
        raise Invalid(
            f"client id: expected at most {MAX_CLIENT_ID} characters, found {len(client_id)}"
        )


def _keys(request: LockBody) -> list[QueueKey]:
    return [QueueKey(queue.topic, queue.queue_id) for queue in request.mq_set]
