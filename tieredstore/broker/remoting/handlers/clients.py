"""Who is there: heartbeats, members of groups, locks of queues (34, 35, 38, 41, 42, 46)."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Final, TypeVar

import msgspec

from tieredstore.broker.clients import TAG, ConsumerSettings, Subscription
from tieredstore.broker.pull import make_filter
from tieredstore.broker.refused import RefusalReason, Refused
from tieredstore.broker.remoting.codes import RequestCode, ResponseCode
from tieredstore.broker.remoting.command import RemotingCommand
from tieredstore.broker.remoting.handlers.fields import read_text
from tieredstore.broker.remoting.handlers.pull import check_property_filter
from tieredstore.contracts.dispatch_source import QueueKey
from tieredstore.errors import Busy, Invalid
from tieredstore.message.names import RETRY_PREFIX

if TYPE_CHECKING:
    from tieredstore.broker.remoting.connection import Connection
    from tieredstore.broker.remoting.handler_table import HandlerTable
    from tieredstore.broker.services import BrokerServices

MAX_SUBSCRIPTIONS: Final = 10_000
"""Groups and topics of one heartbeat, together."""


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


class _Heartbeat(msgspec.Struct, rename="camel"):
    client_id: str = msgspec.field(name="clientID")
    producer_data_set: list[_ProducerData] | None = None
    consumer_data_set: list[_ConsumerData] | None = None


class _MessageQueue(msgspec.Struct, rename="camel", frozen=True):
    topic: str
    queue_id: int
    broker_name: str | None = None


class _LockRequest(msgspec.Struct, rename="camel"):
    consumer_group: str
    client_id: str
    mq_set: list[_MessageQueue]


class _CheckRequest(msgspec.Struct, rename="camel"):
    client_id: str | None = None
    group: str | None = None
    subscription_data: _SubscriptionData | None = None


_Body = TypeVar("_Body")


def register_handlers(table: HandlerTable, broker: BrokerServices) -> None:
    """Serve the codes of this family."""
    handlers = _ClientHandlers(broker)
    table.register(RequestCode.HEART_BEAT, handlers.take_heartbeat)
    table.register(RequestCode.UNREGISTER_CLIENT, handlers.unregister)
    table.register(RequestCode.GET_CONSUMER_LIST_BY_GROUP, handlers.list_consumers)
    table.register(RequestCode.LOCK_BATCH_MQ, handlers.lock)
    table.register(RequestCode.UNLOCK_BATCH_MQ, handlers.unlock)
    table.register(RequestCode.CHECK_CLIENT_CONFIG, handlers.check_config)


class _ClientHandlers:
    def __init__(self, broker: BrokerServices) -> None:
        self._broker = broker

    def take_heartbeat(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        """Note the groups of a client. The retry topic of a consumer group is made here too."""
        heartbeat = _decode(request, _Heartbeat)
        connection.client_id = heartbeat.client_id
        connection.language = request.language
        connection.version = request.version
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
        return RemotingCommand(ResponseCode.SUCCESS)

    def _register_consumer(self, connection: Connection, consumer: _ConsumerData) -> None:
        broker = self._broker
        config = broker.groups.find_group(consumer.group_name)
        if config is None:  # as Java: its pulls say why
            return
        with suppress(Busy):  # it is being deleted: the next heartbeat makes it again
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

    def unregister(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        """Take a client out of the groups that it names."""
        fields = request.ext_fields
        if group := fields.get("producerGroup"):
            self._broker.producers.unregister(group, connection)
        if group := fields.get("consumerGroup"):
            self._broker.consumers.unregister(group, connection)
        return RemotingCommand(ResponseCode.SUCCESS)

    def list_consumers(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        """List the client ids of a group's members."""
        group = read_text(request, "consumerGroup")
        client_ids = self._broker.consumers.list_client_ids(group)
        if not client_ids:
            raise Refused(RefusalReason.SYSTEM_ERROR, f"no consumer for this group, {group}")
        return RemotingCommand(
            ResponseCode.SUCCESS, body=msgspec.json.encode({"consumerIdList": client_ids})
        )

    def lock(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        """Take or renew the locks of queues; the answer names those that the client holds."""
        wanted = _decode(request, _LockRequest)
        held = self._broker.locks.lock(wanted.consumer_group, _keys(wanted), wanted.client_id)
        queues = [queue for queue in wanted.mq_set if QueueKey(queue.topic, queue.queue_id) in held]
        return RemotingCommand(
            ResponseCode.SUCCESS, body=msgspec.json.encode({"lockOKMQSet": queues})
        )

    def unlock(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        """Give up the locks of queues."""
        given = _decode(request, _LockRequest)
        self._broker.locks.unlock(given.consumer_group, _keys(given), given.client_id)
        return RemotingCommand(ResponseCode.SUCCESS)

    def check_config(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        """Tell whether a subscription is one: SQL92 expressions are parsed."""
        data = _decode(request, _CheckRequest).subscription_data
        if data is not None and (data.expression_type or TAG) != TAG:
            check_property_filter(self._broker, str(data.expression_type))
            make_filter(Subscription.parse(data.topic, data.sub_string, data.expression_type))
        return RemotingCommand(ResponseCode.SUCCESS)


_UNIT_TOPIC_FLAG: Final = 2


def _keys(request: _LockRequest) -> list[QueueKey]:
    return [QueueKey(queue.topic, queue.queue_id) for queue in request.mq_set]


def _decode(request: RemotingCommand, kind: type[_Body]) -> _Body:
    """Decode a JSON body; numbers may be written as text. Raises Invalid."""
    try:
        return msgspec.json.decode(request.body_bytes, type=kind, strict=False)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise Invalid(f"body of request {request.code}: {error}") from None
