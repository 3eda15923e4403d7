"""Requests forwarded to connected clients (codes 220, 307, 309), and replies between clients (324,
325, 326)."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from typing import Any, Final, TypeVar

import msgspec

from tieredstore.broker.auth.policies import Action, want_group, want_topic
from tieredstore.broker.clients.consumers import ConsumerGroup
from tieredstore.broker.clients.session import ClientSession, TelemetryClient
from tieredstore.broker.peer_warnings import PEERS
from tieredstore.broker.refused import Reason, Refused
from tieredstore.broker.remoting.codes import RequestCode, ResponseCode
from tieredstore.broker.remoting.command import RemotingCommand
from tieredstore.broker.remoting.handler_table import Group, Request, RequestHeader, Topic, is_true
from tieredstore.broker.remoting.handlers.admin.connections import show_subscription
from tieredstore.broker.remoting.handlers.base import Handlers, answers, succeed, succeed_with
from tieredstore.broker.remoting.handlers.send import SendHeader, SendHeaderV2
from tieredstore.broker.remoting.signing import ACCESS_KEY, SECURITY_TOKEN, SIGNATURE
from tieredstore.broker.send.sender import SendRequest
from tieredstore.errors import TieredStoreError, Unavailable
from tieredstore.message import properties as props
from tieredstore.message.encoding import Message
from tieredstore.message.hosts import encode_host, parse_offset_message_id
from tieredstore.message.record import StoredMessage

CALL_TIMEOUT_MS: Final = 10_000
"""Time limit (ms) for a client's answer, as in Java."""
REPLY_TO_CLIENT: Final = "REPLY_TO_CLIENT"
PUSH_REPLY_TIME: Final = "PUSH_REPLY_TIME"
_NOT_PASSED_ON: Final = (ACCESS_KEY, SIGNATURE, SECURITY_TOKEN)
"""Fields that are not forwarded. A signature does not cover the request code, so the receiving
client could use it for another request."""


class ConsumerHeader(RequestHeader, kw_only=True):
    consumer_group: Group
    client_id: str
    jstack_enable: str = "false"


class ConsumeHeader(RequestHeader, kw_only=True):
    consumer_group: Group
    client_id: str
    msg_id: str
    topic: Topic = ""


_Consumer = TypeVar("_Consumer", ConsumerHeader, ConsumeHeader)


class DirectHandlers(Handlers):
    """Handlers that forward requests to other clients."""

    @answers(RequestCode.GET_CONSUMER_RUNNING_INFO, ConsumerHeader, Action.GET)
    async def get_running_info(self, request: Request[ConsumerHeader]) -> RemotingCommand:
        group, session = self._find_consumer(request)
        if not isinstance(session, TelemetryClient):
            return await _pass_on(session, _relay(session, request, {}, request.body))
        has_stacks = is_true(request.header.jstack_enable)
        return await _pass_on(session, _describe(group, session, has_stacks=has_stacks))

    @answers(RequestCode.CONSUME_MESSAGE_DIRECTLY, ConsumeHeader, Action.SUB)
    async def consume(self, request: Request[ConsumeHeader]) -> RemotingCommand:
        """Ask a consumer to consume a message, which is identified by its offset message id."""
        _, session = self._find_consumer(request)
        message_id = request.header.msg_id
        _, _, physical_offset = parse_offset_message_id(message_id)
        look = self._broker.store.look_message_by_offset
        message = await self._broker.look_ups.run(look, physical_offset)
        topic = request.header.topic
        # The id of a message from the tier may match any local message.
        if message is None or (topic and message.topic != topic):
            raise Refused(Reason.SYSTEM_ERROR, f"message {message_id} is not there")
        wanted = want_topic(message.topic, Action.SUB)
        request.caller.require(wanted)
        group = request.header.consumer_group
        rights = (wanted, want_group(group, Action.SUB))
        if not all(map(session.caller.allows, rights)):
            raise Refused(
                Reason.NO_PERMISSION,
                f"The Consumer <{group}> <{session.client_id}> may not read topic {message.topic}",
            )
        if isinstance(session, TelemetryClient):
            return await _pass_on(session, self._verify(session, message))
        fields = {"brokerName": self._broker.settings.broker_name}
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

    def _find_consumer(self, request: Request[_Consumer]) -> tuple[ConsumerGroup, ClientSession]:
        group = request.header.consumer_group
        client_id = request.header.client_id
        members = self._broker.consumers.find_group(group)
        session = None if members is None else members.find_client(client_id)
        if members is None or session is None:
            raise Refused(Reason.SYSTEM_ERROR, f"The Consumer <{group}> <{client_id}> not online")
        return members, session

    @answers(RequestCode.SEND_REPLY_MESSAGE_V2, SendHeaderV2, Action.PUB)
    @answers(RequestCode.SEND_REPLY_MESSAGE, SendHeader, Action.PUB)
    async def reply(self, request: Request[SendHeader]) -> RemotingCommand:
        """Send a reply to the client waiting for it, and store it in the reply topic. Returns an
        error if the reply was not sent."""
        self._broker.sender.door.check_topic(request.header.topic, is_reply=True)
        properties = props.decode_properties(request.header.properties.encode())
        try:
            await self._push_reply(request, properties)
        finally:
            await self._store_reply(request, properties)
        return succeed(
            {"msgId": "0", "queueId": str(max(request.header.queue_id, 0)), "queueOffset": "0"}
        )

    async def _push_reply(
        self, request: Request[SendHeader], properties: Mapping[str, str]
    ) -> None:
        broker = self._broker
        client_id = properties.get(REPLY_TO_CLIENT)
        if client_id is None:
            raise Refused(
                Reason.SYSTEM_ERROR, f"reply message properties[{REPLY_TO_CLIENT}] is null"
            )
        session = broker.producers.find_client(client_id)
        if session is None:
            raise Refused(
                Reason.SYSTEM_ERROR, f"push reply message fail, channel of <{client_id}> not found."
            )
        now_ms = str(broker.clock.now_ms())
        pushed = {**properties, PUSH_REPLY_TIME: now_ms}
        fields = {
            **_show_fields(request.header),
            "properties": props.encode_properties(pushed).decode(),
            "bornHost": request.connection.address,
            "storeHost": broker.address,
            "storeTimestamp": now_ms,
        }
        reply = await session.request(
            RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, fields, request.body, CALL_TIMEOUT_MS
        )
        if reply.code != ResponseCode.SUCCESS:
            raise Refused(
                Reason.SYSTEM_ERROR, f"push reply message to {client_id} fail: {reply.remark}"
            )

    async def _store_reply(
        self, request: Request[SendHeader], properties: Mapping[str, str]
    ) -> None:
        host, _, port = request.connection.address.rpartition(":")
        message = Message(
            request.header.topic,
            request.body,
            request.header.queue_id,
            props.encode_properties(properties),
            request.header.flag,
            born_timestamp_ms=request.header.born_timestamp,
            born_host=encode_host(host, int(port)),
            reconsume_times=request.header.reconsume_times,
        )
        try:
            await self._broker.sender.send(
                SendRequest(request.header.producer_group, message, is_reply=True)
            )
        except TieredStoreError as error:
            PEERS.note("replies not stored", f"a reply was not stored: {error}")


async def _relay(
    session: ClientSession, request: Request[Any], fields: Mapping[str, str], body: bytes
) -> RemotingCommand:
    """Forward a request to a client and return its response. `fields`: added to the fields of the
    request. The signature is not forwarded."""
    fields = {**request.command.ext_fields, **fields}
    for name in _NOT_PASSED_ON:
        fields.pop(name, None)
    reply = await session.request(request.code, fields, body, CALL_TIMEOUT_MS)
    return RemotingCommand(reply.code, dict(reply.ext_fields), reply.body, reply.remark)


async def _describe(
    group: ConsumerGroup, session: TelemetryClient, *, has_stacks: bool
) -> RemotingCommand:
    """Return what the broker knows about a gRPC consumer, as Java's ConsumerRunningInfo. With
    `has_stacks`, ask the client for its thread stacks."""
    began_ms = group.consumers[session].began_ms
    subscriptions = [show_subscription(found) for found in group.subscriptions.values()]
    stacks = await session.print_thread_stacks(CALL_TIMEOUT_MS) if has_stacks else None
    properties = {
        "PROP_CONSUME_TYPE": group.settings.consume_type,
        "PROP_CONSUMER_START_TIMESTAMP": str(began_ms),
    }
    return _answer(properties=properties, subscriptionSet=subscriptions, jstack=stacks)


async def _pass_on(session: ClientSession, asking: Awaitable[RemotingCommand]) -> RemotingCommand:
    try:
        return await asking
    except Unavailable as error:
        return RemotingCommand(
            ResponseCode.CONSUME_MSG_TIMEOUT, remark=f"consumer <{session.client_id}>: {error}"
        )


def _show_fields(header: SendHeader) -> dict[str, str]:
    """Return the fields of a send request under their long names, like Java."""
    fields = msgspec.to_builtins(SendHeader(**msgspec.structs.asdict(header)))
    return {name: str(value) for name, value in fields.items() if value is not None}


def _answer(**body: object) -> RemotingCommand:
    return succeed_with(body)
