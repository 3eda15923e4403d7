"""Brokers that register here as with any name server (103, 104, 322, 901, 904)."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Final

import msgspec

from tieredstore.broker.namesrv.registered import SILENCE_MS, Registration
from tieredstore.broker.refused import RefusalReason, Refused
from tieredstore.broker.remoting.codes import RequestCode, ResponseCode
from tieredstore.broker.remoting.command import RemotingCommand
from tieredstore.broker.remoting.handlers.fields import decode_body, read_bool, read_int, read_text
from tieredstore.broker.state.config_manager import DataVersion
from tieredstore.broker.state.topics import TopicConfig
from tieredstore.errors import Invalid
from tieredstore.java_json import quote_integer_keys
from tieredstore.message.crc import crc32

if TYPE_CHECKING:
    from tieredstore.broker.remoting.connection import Connection
    from tieredstore.broker.remoting.handler_table import HandlerTable
    from tieredstore.broker.services import BrokerServices

_MAX_TABLE_BYTES: Final = 64 * 1024 * 1024
"""Of a compressed table, unpacked."""


class _TopicTable(msgspec.Struct, rename="camel"):
    topic_config_table: dict[str, TopicConfig] = {}
    data_version: DataVersion = msgspec.field(default_factory=DataVersion)


class _Body(msgspec.Struct, rename="camel"):
    topic_config_serialize_wrapper: _TopicTable = msgspec.field(default_factory=_TopicTable)


def register_handlers(table: HandlerTable, broker: BrokerServices) -> None:
    """Serve them."""
    handlers = _BrokerRegistrationHandlers(broker)
    table.register(RequestCode.REGISTER_BROKER, handlers.register)
    table.register(RequestCode.UNREGISTER_BROKER, handlers.unregister)
    table.register(RequestCode.QUERY_DATA_VERSION, handlers.find_version)
    table.register(RequestCode.BROKER_HEARTBEAT, handlers.take_heartbeat)
    table.register(RequestCode.GET_BROKER_MEMBER_GROUP, handlers.list_members)


class _BrokerRegistrationHandlers:
    def __init__(self, broker: BrokerServices) -> None:
        self._settings = broker.settings
        self._route = broker.route

    def register(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        """Take a broker in with its topics. This broker itself is known anyway."""
        name, address = self._read_broker(request)
        if name == self._settings.broker_name:
            if address == self._route.address:
                return RemotingCommand(ResponseCode.SUCCESS)
            raise Refused(
                RefusalReason.SYSTEM_ERROR,
                f"broker {name} at {address}: the name is that of the broker which is the name "
                f"server here, at {self._route.address}",
            )
        body = request.body_bytes
        expected = read_int(request, "bodyCrc32", 0)
        if expected not in {0, crc32(body)}:
            raise Refused(RefusalReason.SYSTEM_ERROR, "crc32 not match")
        table = _decode_table(body, is_compressed=read_bool(request, "compressed"))
        fields = request.ext_fields
        said = Registration(
            cluster=read_text(request, "clusterName"),
            name=name,
            address=address,
            broker_id=read_int(request, "brokerId"),
            ha_address=fields.get("haServerAddr", ""),
            enable_acting_master=(
                read_bool(request, "enableActingMaster") if "enableActingMaster" in fields else None
            ),
            silence_ms=read_int(request, "heartbeatTimeoutMillis", SILENCE_MS),
            version=table.data_version,
            topics=table.topic_config_table,
        )
        master, replication = self._route.others.register(said, connection)
        answer = {"masterAddr": master, "haServerAddr": replication} if master else {}
        return RemotingCommand(ResponseCode.SUCCESS, answer)

    def unregister(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        """Forget a broker that stops."""
        self._route.others.unregister(*self._read_broker(request))
        return RemotingCommand(ResponseCode.SUCCESS)

    def find_version(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        """Tell a broker whether its topics have another version than those that are known here."""
        name, address = self._read_broker(request)
        asked = decode_body(request, DataVersion)
        self._route.others.note_heard(name, address)
        known = self._route.others.find_version(name, address)
        return RemotingCommand(
            ResponseCode.SUCCESS,
            {"changed": str(known != asked).lower()},
            b"" if known is None else msgspec.json.encode(known),
        )

    def take_heartbeat(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        """Note that a broker is there."""
        self._route.others.note_heard(*self._read_broker(request))
        return RemotingCommand(ResponseCode.SUCCESS)

    def list_members(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        """Answer where master and slaves of a broker are."""
        cluster, name = read_text(request, "clusterName"), read_text(request, "brokerName")
        return RemotingCommand(
            ResponseCode.SUCCESS, body=self._route.encode_member_group(cluster, name)
        )

    def _read_broker(self, request: RemotingCommand) -> tuple[str, str]:
        return read_text(request, "brokerName"), read_text(request, "brokerAddr")


def _decode_table(body: bytes, *, is_compressed: bool) -> _TopicTable:
    try:
        if is_compressed:
            return _decode_compressed(body)
        data = msgspec.json.decode(quote_integer_keys(body or b"{}"), type=_Body)
        return data.topic_config_serialize_wrapper
    except (msgspec.MsgspecError, RecursionError, zlib.error, UnicodeDecodeError) as error:
        raise Refused(RefusalReason.INVALID_PARAMETER, f"body: {error}") from None


def _decode_compressed(body: bytes) -> _TopicTable:
    """Read Java's packed form: parts with their length in front, topics as text by blanks."""
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
