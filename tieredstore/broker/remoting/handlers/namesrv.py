"""Name server: brokers (codes 103, 104, 322, 901, 904), key-value table (100 to 102, 219), topic
routes (105, 106, 205, 206, 216, 217, 224, 304, 311 to 313, 327)."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable
from typing import Final

import msgspec

from tieredstore.broker.auth.policies import Action
from tieredstore.broker.namesrv.registered import SILENCE_MS, QueueData, Registration
from tieredstore.broker.refused import Reason, Refused
from tieredstore.broker.remoting.codes import RequestCode
from tieredstore.broker.remoting.command import RemotingCommand
from tieredstore.broker.remoting.handler_table import (
    Int64,
    NoFields,
    Request,
    RequestHeader,
    is_true,
)
from tieredstore.broker.remoting.handlers.base import (
    Handlers,
    TopicHeader,
    answers,
    decode_body,
    succeed,
    succeed_with,
)
from tieredstore.broker.services import BrokerServices
from tieredstore.broker.state.config_manager import DataVersion
from tieredstore.broker.state.topics import TopicConfig, check_topic_name
from tieredstore.errors import Invalid
from tieredstore.java_json import quote_integer_keys
from tieredstore.message.crc import crc32
from tieredstore.message.names import is_system_topic

_MAX_TABLE_BYTES: Final = 64 * 1024 * 1024
"""Maximum size of a decompressed topic table, in bytes."""


class _TopicTable(msgspec.Struct, rename="camel"):
    topic_config_table: dict[str, TopicConfig] = {}
    data_version: DataVersion = msgspec.field(default_factory=DataVersion)


class _Body(msgspec.Struct, rename="camel"):
    topic_config_serialize_wrapper: _TopicTable = msgspec.field(default_factory=_TopicTable)


class BrokerHeader(RequestHeader, kw_only=True):
    broker_name: str
    broker_addr: str


class RegisterBrokerHeader(BrokerHeader, kw_only=True):
    cluster_name: str
    broker_id: Int64
    ha_server_addr: str = ""
    enable_acting_master: str = ""
    compressed: str = "false"
    body_crc32: Int64 = 0
    heartbeat_timeout_millis: Int64 = SILENCE_MS


class MemberGroupHeader(RequestHeader):
    cluster_name: str
    broker_name: str


class BrokerRegistrationHandlers(Handlers):
    """Handlers for the registration of other brokers."""

    def __init__(self, broker: BrokerServices) -> None:
        super().__init__(broker)
        self._route = broker.route

    @answers(RequestCode.REGISTER_BROKER, RegisterBrokerHeader, Action.UPDATE)
    def register(self, request: Request[RegisterBrokerHeader]) -> RemotingCommand:
        """Register a broker with its topics. The broker of this process is not registered."""
        name, address = self._read_broker(request)
        if name == self._broker.settings.broker_name:
            if address == self._route.address:
                return succeed()
            raise Refused(
                Reason.SYSTEM_ERROR,
                f"broker {name} at {address}: the name is that of the broker which is the name "
                f"server here, at {self._route.address}",
            )
        body = request.body
        expected = request.header.body_crc32
        if expected not in {0, crc32(body)}:
            raise Refused(Reason.SYSTEM_ERROR, "crc32 not match")
        table = _decode_table(body, is_compressed=is_true(request.header.compressed))
        new = Registration(
            cluster=request.header.cluster_name,
            name=name,
            address=address,
            broker_id=request.header.broker_id,
            ha_address=request.header.ha_server_addr,
            enable_acting_master=(
                is_true(acting) if (acting := request.header.enable_acting_master) else None
            ),
            silence_ms=request.header.heartbeat_timeout_millis,
            version=table.data_version,
            topics=table.topic_config_table,
        )
        master, replication = self._route.others.register(new, request.connection)
        answer = {"masterAddr": master, "haServerAddr": replication} if master else {}
        return succeed(answer)

    @answers(RequestCode.UNREGISTER_BROKER, BrokerHeader, Action.UPDATE)
    def unregister(self, request: Request[BrokerHeader]) -> RemotingCommand:
        self._route.others.unregister(*self._read_broker(request))
        return succeed()

    @answers(RequestCode.QUERY_DATA_VERSION, BrokerHeader, Action.GET)
    def find_version(self, request: Request[BrokerHeader]) -> RemotingCommand:
        """Return whether a broker's topics have another version than the registered one."""
        name, address = self._read_broker(request)
        asked = decode_body(request, DataVersion)
        self._route.others.note_heard(name, address)
        known = self._route.others.find_version(name, address)
        return succeed(
            {"changed": str(known != asked).lower()},
            b"" if known is None else msgspec.json.encode(known),
        )

    @answers(RequestCode.BROKER_HEARTBEAT, BrokerHeader, Action.UPDATE)
    def take_heartbeat(self, request: Request[BrokerHeader]) -> RemotingCommand:
        self._route.others.note_heard(*self._read_broker(request))
        return succeed()

    @answers(RequestCode.GET_BROKER_MEMBER_GROUP, MemberGroupHeader, Action.GET)
    def list_members(self, request: Request[MemberGroupHeader]) -> RemotingCommand:
        """Return the addresses of a broker's master and slaves."""
        cluster, name = request.header.cluster_name, request.header.broker_name
        return succeed(body=self._route.encode_member_group(cluster, name))

    def _read_broker(self, request: Request[BrokerHeader]) -> tuple[str, str]:
        return request.header.broker_name, request.header.broker_addr


def _decode_table(body: bytes, *, is_compressed: bool) -> _TopicTable:
    try:
        if is_compressed:
            return _decode_compressed(body)
        data = msgspec.json.decode(quote_integer_keys(body or b"{}"), type=_Body)
        return data.topic_config_serialize_wrapper
    except (msgspec.MsgspecError, RecursionError, zlib.error, UnicodeDecodeError) as error:
        raise Refused(Reason.INVALID_PARAMETER, f"body: {error}") from None


def _decode_compressed(body: bytes) -> _TopicTable:
    """Decode a topic table in Java's compressed format. Each part is preceded by its length. A
    topic is a string of fields separated by spaces."""
    unpacking = zlib.decompressobj()
    data = unpacking.decompress(body, _MAX_TABLE_BYTES)
    if not unpacking.eof:
        raise Invalid(f"body: expected at most {_MAX_TABLE_BYTES} bytes, unpacked, found more")
    position = 0

    def read_number() -> int:
        nonlocal position
        position += 4
        if position > len(data):
            raise Invalid(f"body: expected a number at byte {position - 4}, found the end")
        return int.from_bytes(data[position - 4 : position], "big")

    def read_part() -> bytes:
        nonlocal position
        size_bytes = read_number()
        position += size_bytes
        if position > len(data):
            raise Invalid(f"body: expected {size_bytes} bytes, found the end")
        return data[position - size_bytes : position]

    version = msgspec.json.decode(read_part(), type=DataVersion)
    topics = [_read_topic(read_part().decode()) for _ in range(read_number())]
    return _TopicTable({topic.topic_name: topic for topic in topics}, version)


def _read_topic(text: str) -> TopicConfig:
    match text.split(" "):
        case [name, read, write, perm, kind, *_] if (read + write + perm).isdigit():
            return TopicConfig(
                topic_name=name,
                read_queue_nums=int(read),
                write_queue_nums=int(write),
                perm=int(perm),
                topic_filter_type=kind,
            )
    raise Invalid(f"body: expected a topic, found {text[:80]!r}")


class NamespaceHeader(RequestHeader):
    namespace: str


class KeyValueHeader(RequestHeader):
    namespace: str
    key: str


class PutKeyValueHeader(KeyValueHeader):
    value: str


class KeyValueHandlers(Handlers):
    """Handlers for the key-value table of clients."""

    @answers(RequestCode.PUT_KV_CONFIG, PutKeyValueHeader, Action.UPDATE)
    def put_key_value(self, request: Request[PutKeyValueHeader]) -> RemotingCommand:
        self._broker.key_values.put(
            request.header.namespace, request.header.key, request.header.value
        )
        return succeed()

    @answers(RequestCode.GET_KV_CONFIG, KeyValueHeader, Action.GET)
    def find_key_value(self, request: Request[KeyValueHeader]) -> RemotingCommand:
        namespace, key = request.header.namespace, request.header.key
        value = self._broker.key_values.find(namespace, key)
        if value is None:
            raise Refused(
                Reason.QUERY_NOT_FOUND, f"No config item, Namespace: {namespace} Key: {key}"
            )
        return succeed({"value": value})

    @answers(RequestCode.DELETE_KV_CONFIG, KeyValueHeader, Action.UPDATE)
    def delete_key_value(self, request: Request[KeyValueHeader]) -> RemotingCommand:
        self._broker.key_values.delete(request.header.namespace, request.header.key)
        return succeed()

    @answers(RequestCode.GET_KVLIST_BY_NAMESPACE, NamespaceHeader, Action.GET)
    def list_key_values(self, request: Request[NamespaceHeader]) -> RemotingCommand:
        namespace = request.header.namespace
        values = self._broker.key_values.list_namespace(namespace)
        if values is None:
            raise Refused(Reason.QUERY_NOT_FOUND, f"No config item, Namespace: {namespace}")
        return succeed_with({"table": dict(values)})


_UNIT: Final = 1
_UNIT_SUBSCRIPTION: Final = 2
_UNIT_FLAGS: Final = _UNIT | _UNIT_SUBSCRIPTION
"""Flags of a topic, as in Java's TopicSysFlag."""


class _TopicRoute(msgspec.Struct, rename="camel"):
    queue_datas: list[QueueData]


_MAX_PERM: Final = 7


class ClusterHeader(RequestHeader):
    cluster: str


class RouteTopicHeader(RequestHeader):
    """Header of DELETE_TOPIC_IN_NAMESRV and REGISTER_TOPIC_IN_NAMESRV. The sender needs permission
    to change the cluster, but none on the topic."""

    topic: str
    cluster_name: str = ""


class BrokerNameHeader(RequestHeader):
    broker_name: str


class RouteHandlers(Handlers):
    """Handlers for topic routes."""

    def __init__(self, broker: BrokerServices) -> None:
        super().__init__(broker)
        self._route = broker.route

    # --- routes and topics ----------------------------------------------------------------------

    @answers(RequestCode.GET_ROUTEINFO_BY_TOPIC, TopicHeader, Action.PUB, Action.SUB, Action.GET)
    def find_route(self, request: Request[TopicHeader]) -> RemotingCommand:
        topic = request.header.topic
        route = self._route.encode_route(topic)
        if route is None:
            raise Refused(
                Reason.TOPIC_NOT_EXIST, f"No topic route info in name server for the topic: {topic}"
            )
        return succeed(body=route)

    @answers(RequestCode.GET_BROKER_CLUSTER_INFO, NoFields, Action.GET)
    def find_clusters(self, request: Request[NoFields]) -> RemotingCommand:
        return succeed(body=self._route.encode_clusters())

    @answers(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, NoFields, Action.GET)
    def list_topics(self, request: Request[NoFields]) -> RemotingCommand:
        return _answer_topics(self._route.list_topics())

    @answers(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS, NoFields, Action.GET)
    def list_system_topics(self, request: Request[NoFields]) -> RemotingCommand:
        """Return the names of all system topics."""
        return _answer_topics(self._route.list_system_topics(), self._route.address)

    @answers(RequestCode.GET_TOPICS_BY_CLUSTER, ClusterHeader, Action.GET)
    def list_cluster_topics(self, request: Request[ClusterHeader]) -> RemotingCommand:
        return _answer_topics(self._route.list_topics(request.header.cluster))

    @answers(RequestCode.GET_UNIT_TOPIC_LIST, NoFields, Action.GET)
    def list_unit_topics(self, request: Request[NoFields]) -> RemotingCommand:
        return self._list_flagged(lambda flag: bool(flag & _UNIT))

    @answers(RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST, NoFields, Action.GET)
    def list_unit_subscriptions(self, request: Request[NoFields]) -> RemotingCommand:
        return self._list_flagged(lambda flag: bool(flag & _UNIT_SUBSCRIPTION))

    @answers(RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST, NoFields, Action.GET)
    def list_mixed_topics(self, request: Request[NoFields]) -> RemotingCommand:
        return self._list_flagged(lambda flag: flag & _UNIT_FLAGS == _UNIT_SUBSCRIPTION)

    def _list_flagged(self, wants: Callable[[int], bool]) -> RemotingCommand:
        return _answer_topics(
            name for name, flag in self._route.list_topics().items() if wants(flag)
        )

    @answers(RequestCode.DELETE_TOPIC_IN_NAMESRV, RouteTopicHeader, Action.UPDATE)
    def delete_topic(self, request: Request[RouteTopicHeader]) -> RemotingCommand:
        """Delete a topic's routes to other brokers. If this broker has the topic, its route remains
        until DELETE_TOPIC_IN_BROKER."""
        self._route.others.delete_topic(request.header.topic, request.header.cluster_name)
        return succeed()

    @answers(RequestCode.REGISTER_TOPIC_IN_NAMESRV, RouteTopicHeader, Action.UPDATE)
    async def register_topic(self, request: Request[RouteTopicHeader]) -> RemotingCommand:
        """Register the route in a TopicRouteData. If the route names this broker and the topic does
        not exist here, it is created. A route that names an unknown broker is refused as a
        whole."""
        topic = request.header.topic
        check_topic_name(topic)
        if is_system_topic(topic):
            raise Refused(
                Reason.INVALID_PARAMETER, f"The topic[{topic}] is conflict with system topic."
            )
        name = self._broker.settings.broker_name
        queues = self._read_queues(topic, request.body)
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
        return succeed()

    def _read_queues(self, topic: str, route: bytes) -> list[QueueData]:
        try:
            queues = msgspec.json.decode(quote_integer_keys(route), type=_TopicRoute).queue_datas
        except (msgspec.MsgspecError, RecursionError) as error:
            raise Refused(Reason.INVALID_PARAMETER, f"route of topic {topic}: {error}") from None
        for found in queues:
            if not 0 <= found.perm <= _MAX_PERM:
                raise Refused(
                    Reason.INVALID_PARAMETER,
                    f"route of topic {topic}: perm: expected 0 to {_MAX_PERM}, found {found.perm}",
                )
        known = {self._broker.settings.broker_name}
        unknown = [
            found.broker_name
            for found in queues
            if found.broker_name not in known and found.broker_name not in self._route.others
        ]
        if unknown or not queues:
            raise Refused(
                Reason.INVALID_PARAMETER,
                f"route of topic {topic}: expected queues of brokers that have registered, found "
                f"{', '.join(unknown) or 'none'}",
            )
        return queues

    # --- write permission -----------------------------------------------------------------------

    @answers(RequestCode.WIPE_WRITE_PERM_OF_BROKER, BrokerNameHeader, Action.UPDATE)
    def wipe_write_permission(self, request: Request[BrokerNameHeader]) -> RemotingCommand:
        """Remove the write permission from a broker's routes, before the broker is stopped."""
        return self._set_wiped(request, "wipeTopicCount", is_wiped=True)

    @answers(RequestCode.ADD_WRITE_PERM_OF_BROKER, BrokerNameHeader, Action.UPDATE)
    def add_write_permission(self, request: Request[BrokerNameHeader]) -> RemotingCommand:
        """Restore the write permission of a broker's routes."""
        return self._set_wiped(request, "addTopicCount", is_wiped=False)

    def _set_wiped(
        self, request: Request[BrokerNameHeader], count_field: str, *, is_wiped: bool
    ) -> RemotingCommand:
        name = request.header.broker_name
        if name == self._broker.settings.broker_name:
            is_new = self._route.is_write_wiped != is_wiped
            self._route.is_write_wiped = is_wiped
            count = self._route.count_own_topics() if is_new else 0
        else:
            count = self._route.others.set_writable(name, is_writable=not is_wiped)
        return succeed({count_field: str(count)})


def _answer_topics(topics: Iterable[str], broker_address: str | None = None) -> RemotingCommand:
    body = msgspec.json.encode({"brokerAddr": broker_address, "topicList": list(topics)})
    return succeed(body=body)
