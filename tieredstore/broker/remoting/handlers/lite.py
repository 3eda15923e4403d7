"""Consumers of lite topics: pops (200070) and subscriptions (200071)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import msgspec

from tieredstore.broker.auth.policies import Action, Want
from tieredstore.broker.lite.subscriptions import MAX_NAMES, LiteClient, OffsetOption
from tieredstore.broker.receive.polls import PollKey
from tieredstore.broker.receive.requests import Received, ReceiveRequest, limit_invisible_ms
from tieredstore.broker.refused import Reason, Refused
from tieredstore.broker.remoting.codes import RequestCode, ResponseCode
from tieredstore.broker.remoting.command import RemotingCommand
from tieredstore.broker.remoting.connection import Connection
from tieredstore.broker.remoting.handler_table import (
    Group,
    Int32,
    Int64,
    JsonBody,
    Request,
    RequestHeader,
    Topic,
)
from tieredstore.broker.remoting.handlers.base import (
    Handlers,
    answers,
    list_source_wants,
    succeed,
)
from tieredstore.broker.remoting.handlers.pop import (
    MAX_BYTES,
    MAX_COUNT,
    PopQueueHeader,
    check_attempt_id,
    check_popped,
    find_deadline_ms,
    is_late,
    refuse_with,
)
from tieredstore.broker.remoting.handlers.pull import parse_subscription
from tieredstore.broker.remoting.popped import ORDER_QUEUE, encode_lite, make_fields
from tieredstore.errors import Busy
from tieredstore.message.lite import LiteTopic, find_lite_fault


class PopLiteHeader(RequestHeader, kw_only=True):
    """Header of POP_LITE_MESSAGE. `topic`: the parent topic. Durations are in ms. `born_time`:
    epoch ms, or 0."""

    client_id: str
    consumer_group: Group
    topic: Topic
    max_msg_num: Int32 = 0
    invisible_time: Int64 = 0
    poll_time: Int64 = 0
    born_time: Int64 = 0
    attempt_id: str = ""


class _Option(msgspec.Struct):
    type: str = ""
    value: int = 0


class _Entry(msgspec.Struct, rename="camel"):
    action: Literal["PARTIAL_ADD", "PARTIAL_REMOVE", "COMPLETE_ADD", "COMPLETE_REMOVE"]
    client_id: str = ""
    group: str = ""
    topic: str = ""
    lite_topic_set: list[str] | None = None
    offset_option: _Option | None = None


class SubscriptionBody(JsonBody, kw_only=True, rename="camel"):
    subscription_set: list[_Entry] | None = None

    @classmethod
    def decode(cls, command: RemotingCommand) -> SubscriptionBody:
        """Decode the body of a command. Raises msgspec.MsgspecError."""
        return super().decode(command) if command.body_bytes else cls()

    def list_wants(self, *actions: Action) -> Iterator[Want]:
        """Yield the permissions on the group and the topic of each entry."""
        for entry in self.subscription_set or ():
            yield from list_source_wants(entry.group, (entry.topic,), *actions)


class LiteHandlers(Handlers):
    """Handlers for consumers of lite topics."""

    @answers(RequestCode.POP_LITE_MESSAGE, PopLiteHeader, Action.SUB)
    async def pop(self, request: Request[PopLiteHeader]) -> RemotingCommand | None:
        """Deliver messages of the lite topics to which a client subscribes, waiting for one if none
        are available."""
        try:
            return await self._pop(request)
        except Refused as error:
            return refuse_with(error, make_fields())

    async def _pop(self, request: Request[PopLiteHeader]) -> RemotingCommand | None:
        header, broker = request.header, self._broker
        if request.command.is_one_way or not request.connection.is_open:
            return None
        now_ms = broker.clock.now_ms()
        born_ms = header.born_time or now_ms
        if is_late(born_ms, header.poll_time, now_ms):
            return RemotingCommand(ResponseCode.POLLING_TIMEOUT, make_fields(), remark="too late")
        if header.max_msg_num > MAX_COUNT:
            raise Refused(
                Reason.INVALID_PARAMETER,
                f"maxMsgNum: expected at most {MAX_COUNT}, found {header.max_msg_num}",
            )
        queues = PopQueueHeader(consumer_group=header.consumer_group, topic=header.topic)
        group = check_popped(broker, queues)
        config = broker.topics.find_topic(header.topic)
        if config is None or not config.is_lite:
            text = f"the topic [{header.topic}] message type not match"
            raise Refused(Reason.INVALID_PARAMETER, text)
        if group.lite_parent != header.topic:
            text = f"subscription bind topic not match, {group.group_name}"
            raise Refused(Reason.INVALID_PARAMETER, text)
        check_attempt_id(header.attempt_id)
        deadline_ms = find_deadline_ms(header.poll_time, born_ms, now_ms)
        key = PollKey(group.group_name, header.topic, client_id=header.client_id)
        is_full = deadline_ms > now_ms and not broker.receive.has_room(key)
        receive = ReceiveRequest(
            group=group.group_name,
            topic=header.topic,
            subscription=parse_subscription(header.topic, "*", ""),
            max_count=max(header.max_msg_num, 1),
            invisible_ms=limit_invisible_ms(header.invisible_time),
            attempt_id=header.attempt_id,
            fifo=True,
            client_id=header.client_id,
            deadline_ms=now_ms if is_full else deadline_ms,
            is_lite=True,
            max_bytes=MAX_BYTES,
        )
        try:
            received = await broker.receive.receive(receive)
        except Busy:
            received, is_full = [], True
        if is_full and not received:
            fields = make_fields(now_ms, receive.invisible_ms, ORDER_QUEUE)
            return RemotingCommand(ResponseCode.POLLING_FULL, fields)
        return self._answer(request, receive, received)

    def _answer(
        self,
        request: Request[PopLiteHeader],
        receive: ReceiveRequest,
        received: list[Received],
    ) -> RemotingCommand | None:
        if not received:
            now_ms = self._broker.clock.now_ms()
            fields = make_fields(now_ms, receive.invisible_ms, ORDER_QUEUE)
            return RemotingCommand(
                ResponseCode.POLLING_TIMEOUT, fields, remark="NO_MESSAGE_IN_QUEUE"
            )
        back = received
        try:
            request.require_again(Action.SUB)
            if not request.connection.is_open:
                return None
            fields, records, back = encode_lite(received)
        finally:
            if back:
                self._broker.receive.give_back(receive.group, receive.topic, back)
        return RemotingCommand(ResponseCode.SUCCESS, fields, records, remark="FOUND")

    @answers(RequestCode.LITE_SUBSCRIPTION_CTL, SubscriptionBody, Action.SUB)
    def subscribe(self, request: Request[SubscriptionBody]) -> RemotingCommand:
        """Change clients' subscriptions to lite topics."""
        entries = request.header.subscription_set
        if not entries:
            raise Refused(Reason.ILLEGAL_OPERATION, "LiteSubscriptionCtlRequestBody is empty.")
        count = sum(1 + len(entry.lite_topic_set or ()) for entry in entries)
        if count > MAX_NAMES:
            text = f"subscriptions: expected at most {MAX_NAMES} clients and names, found {count}"
            raise Refused(Reason.INVALID_PARAMETER, text)
        for entry in entries:
            if entry.client_id.strip() and entry.group.strip() and entry.topic.strip():
                self._subscribe(request.connection, entry)
        return succeed()

    def _subscribe(self, connection: Connection, entry: _Entry) -> None:
        client = LiteClient(entry.group, entry.client_id)
        subscriptions, names = self._broker.subscriptions, entry.lite_topic_set or []
        # No message enters the lite topic of an illegal name.
        names = [name for name in names if find_lite_fault(LiteTopic(entry.topic, name)) is None]

        def notify(lite_topic: str) -> None:
            fields = {"clientId": entry.client_id, "consumerGroup": entry.group}
            fields["liteTopic"] = lite_topic
            connection.send_one_way(RequestCode.NOTIFY_UNSUBSCRIBE_LITE, fields, b"")

        match entry.action:
            case "PARTIAL_ADD":
                given = entry.offset_option
                option = None if given is None else OffsetOption(given.type, given.value)
                subscriptions.add(client, entry.topic, names, notify, option)
            case "PARTIAL_REMOVE":
                subscriptions.remove(client, entry.topic, names)
            case "COMPLETE_ADD":
                subscriptions.replace(client, entry.topic, names, notify)
            case "COMPLETE_REMOVE":
                subscriptions.end(client)
