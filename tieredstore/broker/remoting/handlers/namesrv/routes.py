"""What a name server answers (100 to 106, 205 to 219, 224, 304, 327): routes, topics, keys."""

from __future__ import annotations

from typing import TYPE_CHECKING

import orjson

from tieredstore.broker.refused import RefusalReason, Refused
from tieredstore.broker.remoting.codes import RequestCode, ResponseCode
from tieredstore.broker.remoting.command import RemotingCommand
from tieredstore.broker.remoting.handlers.fields import read_text
from tieredstore.broker.state.topics import TopicConfig, check_topic_name

if TYPE_CHECKING:
    from tieredstore.broker.remoting.connection import Connection
    from tieredstore.broker.remoting.handler_table import HandlerTable
    from tieredstore.broker.services import BrokerServices


def register_handlers(table: HandlerTable, broker: BrokerServices) -> None:
    """Serve the codes of a name server, for this broker alone: others are not registered here."""
    handlers = _NameServerHandlers(broker)
    table.register(RequestCode.GET_ROUTEINFO_BY_TOPIC, handlers.find_route)
    table.register(RequestCode.GET_BROKER_CLUSTER_INFO, handlers.find_clusters)
    table.register(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, handlers.list_topics)
    table.register(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS, handlers.list_system_topics)
    table.register(RequestCode.GET_TOPICS_BY_CLUSTER, handlers.list_cluster_topics)
    table.register(RequestCode.DELETE_TOPIC_IN_NAMESRV, handlers.delete_topic)
    table.register(RequestCode.REGISTER_TOPIC_IN_NAMESRV, handlers.register_topic)
    table.register(RequestCode.WIPE_WRITE_PERM_OF_BROKER, handlers.wipe_write_permission)
    table.register(RequestCode.ADD_WRITE_PERM_OF_BROKER, handlers.add_write_permission)
    table.register(RequestCode.PUT_KV_CONFIG, handlers.put_key_value)
    table.register(RequestCode.GET_KV_CONFIG, handlers.find_key_value)
    table.register(RequestCode.DELETE_KV_CONFIG, handlers.delete_key_value)
    table.register(RequestCode.GET_KVLIST_BY_NAMESPACE, handlers.list_key_values)


class _NameServerHandlers:
    def __init__(self, broker: BrokerServices) -> None:
        self._broker = broker
        self._route = broker.route

    # --- routes and topics ----------------------------------------------------------------------

    def find_route(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        """Answer where a topic is."""
        topic = read_text(request, "topic")
        route = self._route.encode_route(topic)
        if route is None:
            raise Refused(
                RefusalReason.TOPIC_NOT_EXIST,
                f"No topic route info in name server for the topic: {topic}",
                topic=topic,
            )
        return RemotingCommand(ResponseCode.SUCCESS, body=route)

    def find_clusters(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        """Answer which brokers there are: this one."""
        return RemotingCommand(ResponseCode.SUCCESS, body=self._route.encode_clusters())

    def list_topics(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        """Answer with all topics."""
        return _answer_topics(self._route.list_topics())

    def list_system_topics(
        self,
        connection: Connection,
        request: RemotingCommand,
    ) -> RemotingCommand:
        """Answer with the names that are no topic of a user."""
        return _answer_topics(self._route.list_system_topics(), self._route.address)

    def list_cluster_topics(
        self,
        connection: Connection,
        request: RemotingCommand,
    ) -> RemotingCommand:
        """Answer with the topics of a cluster."""
        return _answer_topics(self._route.list_cluster_topics(read_text(request, "cluster")))

    def delete_topic(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        """Forget a topic's route. There is none without the topic, which is deleted by
        DELETE_TOPIC_IN_BROKER; a topic that is still there keeps its route."""
        read_text(request, "topic")
        return RemotingCommand(ResponseCode.SUCCESS)

    def register_topic(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        """Make a topic that is not there, as its TopicRouteData says for this broker."""
        topic = read_text(request, "topic")
        check_topic_name(topic)
        if self._broker.topics.find_topic(topic) is None:
            self._broker.topics.update_topic(self._read_topic(topic, request.body_bytes))
        return RemotingCommand(ResponseCode.SUCCESS)

    def _read_topic(self, topic: str, route: bytes) -> TopicConfig:
        name = self._broker.settings.broker_name
        try:
            for queues in orjson.loads(route)["queueDatas"]:
                if queues["brokerName"] == name:
                    return TopicConfig(
                        topic_name=topic,
                        read_queue_nums=int(queues["readQueueNums"]),
                        write_queue_nums=int(queues["writeQueueNums"]),
                        perm=int(queues["perm"]),
                    )
        except (ValueError, TypeError, KeyError) as error:
            raise Refused(
                RefusalReason.INVALID_PARAMETER, f"route of topic {topic}: {error!r}", topic=topic
            ) from error
        raise Refused(
            RefusalReason.INVALID_PARAMETER,
            f"route of topic {topic}: expected queues of broker {name}, found none",
            topic=topic,
        )

    # --- the permission to write ----------------------------------------------------------------

    def wipe_write_permission(
        self,
        connection: Connection,
        request: RemotingCommand,
    ) -> RemotingCommand:
        """Let routes say that nobody may write to this broker, before it is stopped."""
        return self._set_wiped(request, "wipeTopicCount", is_wiped=True)

    def add_write_permission(
        self,
        connection: Connection,
        request: RemotingCommand,
    ) -> RemotingCommand:
        """Let routes say again who may write."""
        return self._set_wiped(request, "addTopicCount", is_wiped=False)

    def _set_wiped(
        self, request: RemotingCommand, count_field: str, *, is_wiped: bool
    ) -> RemotingCommand:
        count = 0
        if read_text(request, "brokerName") == self._broker.settings.broker_name:
            if self._route.is_write_wiped != is_wiped:
                count = len(self._route.list_topics())
            self._route.is_write_wiped = is_wiped
        return RemotingCommand(ResponseCode.SUCCESS, {count_field: str(count)})

    # --- keys -----------------------------------------------------------------------------------

    def put_key_value(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        """Keep a text."""
        self._broker.key_values.put(
            read_text(request, "namespace"), read_text(request, "key"), read_text(request, "value")
        )
        return RemotingCommand(ResponseCode.SUCCESS)

    def find_key_value(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        """Answer with a text."""
        namespace, key = read_text(request, "namespace"), read_text(request, "key")
        value = self._broker.key_values.find(namespace, key)
        if value is None:
            raise Refused(
                RefusalReason.QUERY_NOT_FOUND,
                f"No config item, Namespace: {namespace} Key: {key}",
            )
        return RemotingCommand(ResponseCode.SUCCESS, {"value": value})

    def delete_key_value(
        self,
        connection: Connection,
        request: RemotingCommand,
    ) -> RemotingCommand:
        """Forget a text."""
        self._broker.key_values.delete(read_text(request, "namespace"), read_text(request, "key"))
        return RemotingCommand(ResponseCode.SUCCESS)

    def list_key_values(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        """Answer with all texts of a namespace."""
        namespace = read_text(request, "namespace")
        values = self._broker.key_values.list_namespace(namespace)
        if values is None:
            raise Refused(RefusalReason.QUERY_NOT_FOUND, f"No config item, Namespace: {namespace}")
        return RemotingCommand(ResponseCode.SUCCESS, body=orjson.dumps({"table": dict(values)}))


def _answer_topics(topics: list[str], broker_address: str | None = None) -> RemotingCommand:
    body = orjson.dumps({"brokerAddr": broker_address, "topicList": topics})
    return RemotingCommand(ResponseCode.SUCCESS, body=body)
