"""Where topics are (105, 106, 205, 206, 216, 217, 224, 304, 311 to 313, 327)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final

import msgspec

from tieredstore.broker.namesrv.registered import QueueData
from tieredstore.broker.refused import RefusalReason, Refused
from tieredstore.broker.remoting.codes import RequestCode, ResponseCode
from tieredstore.broker.remoting.command import RemotingCommand
from tieredstore.broker.remoting.handlers.fields import read_text
from tieredstore.broker.state.topics import TopicConfig, check_topic_name
from tieredstore.java_json import quote_integer_keys

if TYPE_CHECKING:
    from tieredstore.broker.remoting.connection import Connection
    from tieredstore.broker.remoting.handler_table import HandlerTable
    from tieredstore.broker.services import BrokerServices

_UNIT: Final = 1
_UNIT_SUBSCRIPTION: Final = 2
_UNIT_FLAGS: Final = _UNIT | _UNIT_SUBSCRIPTION
"""What Java's TopicSysFlag says of a topic."""


class _TopicRoute(msgspec.Struct, rename="camel"):
    queue_datas: list[QueueData]


def register_handlers(table: HandlerTable, broker: BrokerServices) -> None:
    """Serve them."""
    handlers = _RouteHandlers(broker)
    table.register(RequestCode.GET_ROUTEINFO_BY_TOPIC, handlers.find_route)
    table.register(RequestCode.GET_BROKER_CLUSTER_INFO, handlers.find_clusters)
    table.register(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, handlers.list_topics)
    table.register(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS, handlers.list_system_topics)
    table.register(RequestCode.GET_TOPICS_BY_CLUSTER, handlers.list_cluster_topics)
    table.register(RequestCode.GET_UNIT_TOPIC_LIST, handlers.list_unit_topics)
    table.register(RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST, handlers.list_unit_subscriptions)
    table.register(RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST, handlers.list_mixed_topics)
    table.register(RequestCode.DELETE_TOPIC_IN_NAMESRV, handlers.delete_topic)
    table.register(RequestCode.REGISTER_TOPIC_IN_NAMESRV, handlers.register_topic)
    table.register(RequestCode.WIPE_WRITE_PERM_OF_BROKER, handlers.wipe_write_permission)
    table.register(RequestCode.ADD_WRITE_PERM_OF_BROKER, handlers.add_write_permission)


class _RouteHandlers:
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
        """Answer which brokers there are."""
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
        return _answer_topics(self._route.list_topics(read_text(request, "cluster")))

    def list_unit_topics(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        """Answer with the topics of a unit."""
        return self._list_flagged(lambda flag: bool(flag & _UNIT))

    def list_unit_subscriptions(
        self, connection: Connection, request: RemotingCommand
    ) -> RemotingCommand:
        """Answer with the topics to which a unit subscribes."""
        return self._list_flagged(lambda flag: bool(flag & _UNIT_SUBSCRIPTION))

    def list_mixed_topics(
        self, connection: Connection, request: RemotingCommand
    ) -> RemotingCommand:
        """Answer with those of them that are of no unit."""
        return self._list_flagged(lambda flag: flag & _UNIT_FLAGS == _UNIT_SUBSCRIPTION)

    def _list_flagged(self, wants: Callable[[int], bool]) -> RemotingCommand:
        return _answer_topics(
            name for name, flag in self._route.list_topics().items() if wants(flag)
        )

    def delete_topic(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        """Forget where other brokers have a topic. A topic that is here keeps its route until
        DELETE_TOPIC_IN_BROKER deletes it."""
        self._route.others.delete_topic(
            read_text(request, "topic"), request.ext_fields.get("clusterName", "")
        )
        return RemotingCommand(ResponseCode.SUCCESS)

    async def register_topic(
        self, connection: Connection, request: RemotingCommand
    ) -> RemotingCommand:
        """Note where a topic is, as its TopicRouteData says; here it is made, if it is not there.
        One that names a broker of which nobody knows is refused as a whole."""
        topic = read_text(request, "topic")
        check_topic_name(topic)
        name = self._broker.settings.broker_name
        queues = self._read_queues(topic, request.body_bytes)
        for found in queues:
            if found.broker_name != name:
                self._route.others.put_queues(topic, found)
            elif self._broker.topics.find_topic(topic) is None:
                self._broker.topics.update_topic(
                    TopicConfig(
                        topic_name=topic,
                        read_queue_nums=found.read_queue_nums,
                        write_queue_nums=found.write_queue_nums,
                        perm=found.perm,
                    )
                )
                await self._broker.topics.persist()
        return RemotingCommand(ResponseCode.SUCCESS)

    def _read_queues(self, topic: str, route: bytes) -> list[QueueData]:
        try:
            queues = msgspec.json.decode(quote_integer_keys(route), type=_TopicRoute).queue_datas
        except (msgspec.MsgspecError, RecursionError) as error:
            raise Refused(
                RefusalReason.INVALID_PARAMETER, f"route of topic {topic}: {error}", topic=topic
            ) from None
        known = {self._broker.settings.broker_name}
        unknown = [
            found.broker_name
            for found in queues
            if found.broker_name not in known and found.broker_name not in self._route.others
        ]
        if unknown or not queues:
            raise Refused(
                RefusalReason.INVALID_PARAMETER,
                f"route of topic {topic}: expected queues of brokers that have registered, found "
                f"{', '.join(unknown) or 'none'}",
                topic=topic,
            )
        return queues

    # --- the permission to write ----------------------------------------------------------------

    def wipe_write_permission(
        self,
        connection: Connection,
        request: RemotingCommand,
    ) -> RemotingCommand:
        """Let routes say that nobody may write to a broker, before it is stopped."""
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
        name = read_text(request, "brokerName")
        if name == self._broker.settings.broker_name:
            is_new = self._route.is_write_wiped != is_wiped
            self._route.is_write_wiped = is_wiped
            count = self._route.count_own_topics() if is_new else 0
        else:
            count = self._route.others.set_writable(name, is_writable=not is_wiped)
        return RemotingCommand(ResponseCode.SUCCESS, {count_field: str(count)})


def _answer_topics(topics: Iterable[str], broker_address: str | None = None) -> RemotingCommand:
    body = msgspec.json.encode({"brokerAddr": broker_address, "topicList": list(topics)})
    return RemotingCommand(ResponseCode.SUCCESS, body=body)
