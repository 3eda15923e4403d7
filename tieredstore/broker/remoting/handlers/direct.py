"""What the broker asks live clients on behalf of others (220, 307, 309), and replies to
requests between clients (324, 325, 326)."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Mapping
from typing import TYPE_CHECKING, Final

import msgspec

from tieredstore.broker.clients import ClientSession, ConsumerGroup, TelemetryClient
from tieredstore.broker.refused import RefusalReason, Refused
from tieredstore.broker.remoting.codes import RequestCode, ResponseCode
from tieredstore.broker.remoting.command import RemotingCommand
from tieredstore.broker.remoting.handlers.admin.connections import show_subscription
from tieredstore.broker.remoting.handlers.fields import read_bool, read_int, read_text
from tieredstore.broker.send.sender import SendRequest
from tieredstore.errors import Invalid, TieredStoreError, Unavailable
from tieredstore.message import properties as props
from tieredstore.message.hosts import encode_host
from tieredstore.message.ids import parse_offset_message_id
from tieredstore.message.record import Message

if TYPE_CHECKING:
    from tieredstore.broker.remoting.connection import Connection
    from tieredstore.broker.remoting.handler_table import HandlerTable
    from tieredstore.broker.services import BrokerServices
    from tieredstore.message.record import StoredMessage
_log = logging.getLogger(__name__)

CALL_TIMEOUT_MS: Final = 10_000
"""How long a client may take to answer, as with Java."""
REPLY_TO_CLIENT: Final = "REPLY_TO_CLIENT"
PUSH_REPLY_TIME: Final = "PUSH_REPLY_TIME"
_SEND_FIELDS: Final = {
    "a": "producerGroup",
    "b": "topic",
    "c": "defaultTopic",
    "d": "defaultTopicQueueNums",
    "e": "queueId",
    "f": "sysFlag",
    "g": "bornTimestamp",
    "h": "flag",
    "i": "properties",
    "j": "reconsumeTimes",
    "k": "unitMode",
}


def register_handlers(table: HandlerTable, broker: BrokerServices) -> None:
    """Serve the codes of this family."""
    handlers = _DirectHandlers(broker)
    table.register(RequestCode.GET_CONSUMER_RUNNING_INFO, handlers.get_running_info)
    table.register(RequestCode.CONSUME_MESSAGE_DIRECTLY, handlers.consume)
    table.register(RequestCode.SEND_REPLY_MESSAGE, handlers.reply)
    table.register(RequestCode.SEND_REPLY_MESSAGE_V2, handlers.reply)


def reset_client_offsets(
    broker: BrokerServices, group: str, topic: str, timestamp_ms: int, body: bytes
) -> list[ClientSession]:
    """Tell the members of a group to go on elsewhere (220, one-way); returns those that were told.

    body: Java's ResetOffsetBody, a map with queues as keys. A client then commits these offsets.
    """
    members = broker.consumers.find_group(group)
    told: list[ClientSession] = []
    fields = {"topic": topic, "group": group, "timestamp": str(timestamp_ms), "isForce": "true"}
    for session in () if members is None else members.sessions:
        try:
            session.send_one_way(RequestCode.RESET_CONSUMER_CLIENT_OFFSET, fields, body)
        except Invalid:  # gRPC: the server itself knows how far its groups are
            continue
        told.append(session)
    return told


class _DirectHandlers:
    def __init__(self, broker: BrokerServices) -> None:
        self._broker = broker

    async def get_running_info(
        self,
        connection: Connection,
        request: RemotingCommand,
    ) -> RemotingCommand:
        """Ask a consumer how it is."""
        group, session = self._find_consumer(request)
        if not isinstance(session, TelemetryClient):
            return await _pass_on(
                session, _relay(session, request, request.ext_fields, request.body_bytes)
            )
        has_stacks = read_bool(request, "jstackEnable")
        return await _pass_on(session, _describe(group, session, has_stacks=has_stacks))

    async def consume(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        """Let a consumer consume one message, which is found by its offset message id."""
        _, session = self._find_consumer(request)
        message_id = read_text(request, "msgId")
        _, _, physical_offset = parse_offset_message_id(message_id)
        look = self._broker.store.look_message_by_offset
        message = await self._broker.look_ups.run(look, physical_offset)
        topic = request.ext_fields.get("topic")
        # The id of a message from the tier may be that of any other one here.
        if message is None or (topic and message.topic != topic):
            raise Refused(RefusalReason.SYSTEM_ERROR, f"message {message_id} is not there")
        if isinstance(session, TelemetryClient):
            return await _pass_on(session, self._verify(session, message))
        fields = request.ext_fields | {"brokerName": self._broker.settings.broker_name}
        return await _pass_on(session, _relay(session, request, fields, bytes(message.raw)))

    async def _verify(self, session: TelemetryClient, message: StoredMessage) -> RemotingCommand:
        begin_ms = self._broker.clock.monotonic_ms()
        result = await session.verify_message(message, CALL_TIMEOUT_MS)
        return _answer(
            order=False,
            autoCommit=True,
            consumeResult=result.outcome,
            remark=result.reason or "from gRPC client",
            spentTimeMills=self._broker.clock.monotonic_ms() - begin_ms,
        )

    def _find_consumer(self, request: RemotingCommand) -> tuple[ConsumerGroup, ClientSession]:
        group = read_text(request, "consumerGroup")
        client_id = read_text(request, "clientId")
        members = self._broker.consumers.find_group(group)
        session = None if members is None else members.find_client(client_id)
        if members is None or session is None:
            raise Refused(
                RefusalReason.SYSTEM_ERROR, f"The Consumer <{group}> <{client_id}> not online"
            )
        return members, session

    async def reply(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        """Push a reply to the client that waits for it, and keep it as a message of the reply
        topic. Whether it was pushed is the answer."""
        fields = request.ext_fields
        if request.code == RequestCode.SEND_REPLY_MESSAGE_V2:
            fields = {
                name: fields[short] for short, name in _SEND_FIELDS.items() if short in fields
            }
            request.ext_fields = fields
        properties = props.decode_properties(fields.get("properties", "").encode())
        try:
            await self._push_reply(connection, request, properties)
        finally:
            await self._store_reply(connection, request, properties)
        return RemotingCommand(
            ResponseCode.SUCCESS,
            {
                "msgId": "0",
                "queueId": str(max(read_int(request, "queueId"), 0)),
                "queueOffset": "0",
            },
        )

    async def _push_reply(
        self, connection: Connection, request: RemotingCommand, properties: Mapping[str, str]
    ) -> None:
        broker = self._broker
        client_id = properties.get(REPLY_TO_CLIENT)
        if client_id is None:
            raise Refused(
                RefusalReason.SYSTEM_ERROR, f"reply message properties[{REPLY_TO_CLIENT}] is null"
            )
        session = broker.producers.find_client(client_id)
        if session is None:
            raise Refused(
                RefusalReason.SYSTEM_ERROR,
                f"push reply message fail, channel of <{client_id}> not found.",
            )
        now_ms = str(broker.clock.now_ms())
        pushed = {**properties, PUSH_REPLY_TIME: now_ms}
        fields = request.ext_fields | {
            "properties": props.encode_properties(pushed).decode(),
            "bornHost": connection.address,
            "storeHost": broker.address,
            "storeTimestamp": now_ms,
        }
        reply = await session.request(
            RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, fields, request.body_bytes, CALL_TIMEOUT_MS
        )
        if reply.code != ResponseCode.SUCCESS:
            raise Refused(
                RefusalReason.SYSTEM_ERROR,
                f"push reply message to {client_id} fail: {reply.remark}",
            )

    async def _store_reply(
        self, connection: Connection, request: RemotingCommand, properties: Mapping[str, str]
    ) -> None:
        host, _, port = connection.address.rpartition(":")
        message = Message(
            read_text(request, "topic"),
            request.body_bytes,
            read_int(request, "queueId"),
            props.encode_properties(properties),
            read_int(request, "flag", 0),
            born_timestamp_ms=read_int(request, "bornTimestamp"),
            born_host=encode_host(host, int(port)),
            reconsume_times=read_int(request, "reconsumeTimes", 0),
        )
        try:
            await self._broker.sender.send(
                SendRequest(read_text(request, "producerGroup"), message)
            )
        except TieredStoreError as error:
            _log.warning("a reply was not stored: %s", error)


async def _relay(
    session: ClientSession, request: RemotingCommand, fields: Mapping[str, str], body: bytes
) -> RemotingCommand:
    """Put a request to a client and pass its answer on."""
    reply = await session.request(request.code, fields, body, CALL_TIMEOUT_MS)
    return RemotingCommand(reply.code, dict(reply.ext_fields), reply.body, reply.remark)


async def _describe(
    group: ConsumerGroup, session: TelemetryClient, *, has_stacks: bool
) -> RemotingCommand:
    """Tell what is known of a consumer of gRPC (Java's ConsumerRunningInfo); what its threads do
    it says itself."""
    began_ms = group.consumers[session].began_ms
    subscriptions = [show_subscription(found) for found in group.subscriptions.values()]
    stacks = await session.print_thread_stacks(CALL_TIMEOUT_MS) if has_stacks else None
    properties = {
        "PROP_CONSUME_TYPE": group.settings.consume_type,
        "PROP_CONSUMER_START_TIMESTAMP": str(began_ms),
    }
    return _answer(properties=properties, subscriptionSet=subscriptions, jstack=stacks)


async def _pass_on(session: ClientSession, asking: Awaitable[RemotingCommand]) -> RemotingCommand:
    """Wait for what a client says, or say that it says nothing."""
    try:
        return await asking
    except Unavailable as error:
        return RemotingCommand(
            ResponseCode.CONSUME_MSG_TIMEOUT, remark=f"consumer <{session.client_id}>: {error}"
        )


def _answer(**body: object) -> RemotingCommand:
    return RemotingCommand(ResponseCode.SUCCESS, body=msgspec.json.encode(body))
