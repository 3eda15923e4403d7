"""Producer requests: single messages (codes 310, 10), batches (320), recalls (370) and transactions
(37, 323). Also messages sent back by consumers (36)."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Iterator, Mapping
from typing import Final

import msgspec

from tieredstore.broker.auth.access import Caller
from tieredstore.broker.auth.policies import Action, Want, want_light_queues, want_topic
from tieredstore.broker.refused import Reason, Refused
from tieredstore.broker.remoting.codes import RequestCode, ResponseCode
from tieredstore.broker.remoting.command import RemotingCommand
from tieredstore.broker.remoting.handler_table import (
    Group,
    Int32,
    Int64,
    Request,
    RequestHeader,
    Topic,
)
from tieredstore.broker.remoting.handlers.base import Handlers, answers, succeed
from tieredstore.broker.remoting.handlers.query import find_message
from tieredstore.broker.send.sender import REGION, SendRequest, SendResult
from tieredstore.broker.services import BrokerServices
from tieredstore.broker.transactions.messages import CommitOrRollback
from tieredstore.contracts.durability import PutMessageStatus
from tieredstore.errors import Corrupt
from tieredstore.message.batch import decode_batch
from tieredstore.message.encoding import Message
from tieredstore.message.hosts import parse_host
from tieredstore.message.names import RETRY_PREFIX
from tieredstore.message.properties import find_integer, find_property
from tieredstore.message.record import StoredMessage

_OK: Final = PutMessageStatus.PUT_OK
_CODES: Final[Mapping[PutMessageStatus, ResponseCode]] = {
    PutMessageStatus.FLUSH_DISK_TIMEOUT: ResponseCode.FLUSH_DISK_TIMEOUT,
    PutMessageStatus.SLAVE_NOT_AVAILABLE: ResponseCode.SLAVE_NOT_AVAILABLE,
    PutMessageStatus.FLUSH_SLAVE_TIMEOUT: ResponseCode.FLUSH_SLAVE_TIMEOUT,
}
_born_host = functools.lru_cache(maxsize=4096)(parse_host)


class SendHeader(RequestHeader, kw_only=True):
    """Header of SEND_MESSAGE, with long names. `born_timestamp`: epoch ms."""

    producer_group: str = ""
    topic: Topic
    default_topic: str = ""
    default_topic_queue_nums: Int64 = 4
    queue_id: Int32
    sys_flag: Int64 = 0
    born_timestamp: Int64 = 0
    flag: Int64 = 0
    properties: str = ""
    reconsume_times: Int64 = 0
    unit_mode: str = "false"
    max_reconsume_times: Int64 | None = None
    batch: str = "false"

    def list_wants(self, *actions: Action) -> Iterator[Want]:
        """Yield the permissions on the topic and on the light queues of the message."""
        yield want_topic(self.topic, *actions)
        yield from want_light_queues(self.properties.encode("utf-8", "replace"))


class SendHeaderV2(SendHeader, kw_only=True):
    """Header of SEND_MESSAGE_V2 and SEND_BATCH_MESSAGE: the fields of SEND_MESSAGE, with short
    names."""

    producer_group: str = msgspec.field(name="a", default="")
    topic: Topic = msgspec.field(name="b")
    default_topic: str = msgspec.field(name="c", default="")
    default_topic_queue_nums: Int64 = msgspec.field(name="d", default=4)
    queue_id: Int32 = msgspec.field(name="e")
    sys_flag: Int64 = msgspec.field(name="f", default=0)
    born_timestamp: Int64 = msgspec.field(name="g", default=0)
    flag: Int64 = msgspec.field(name="h", default=0)
    properties: str = msgspec.field(name="i", default="")
    reconsume_times: Int64 = msgspec.field(name="j", default=0)
    unit_mode: str = msgspec.field(name="k", default="false")
    max_reconsume_times: Int64 | None = msgspec.field(name="l", default=None)
    batch: str = msgspec.field(name="m", default="false")


class RecallHeader(RequestHeader, kw_only=True):
    producer_group: str = ""
    topic: Topic
    recall_handle: str = ""


class SendHandlers(Handlers):
    """Handlers for messages from producers."""

    def __init__(self, broker: BrokerServices) -> None:
        super().__init__(broker)
        self._sender = broker.sender

    @answers(RequestCode.SEND_BATCH_MESSAGE, SendHeaderV2, Action.PUB)
    @answers(RequestCode.SEND_MESSAGE_V2, SendHeaderV2, Action.PUB)
    @answers(RequestCode.SEND_MESSAGE, SendHeader, Action.PUB)
    def send(self, request: Request[SendHeader]) -> RemotingCommand | Awaitable[RemotingCommand]:
        made = _make_request(request)
        if request.header.batch == "true":
            return self._send_batch(made, request.caller)
        message = made.message
        if message.properties.find(b"TRAN_MSG\x01") >= 0 and _is_half(message):
            sent = self._broker.transactions.submit(made)
        else:
            sent = self._sender.submit(made)
        return _respond(sent) if isinstance(sent, SendResult) else _wait(sent)

    async def _send_batch(self, request: SendRequest, caller: Caller) -> RemotingCommand:
        body = request.message.body
        limit = self._broker.settings.max_message_size_bytes
        if len(body) > limit:
            raise Refused(
                Reason.SYSTEM_ERROR,  # as Java, for which a single message is MESSAGE_ILLEGAL
                f"message body size exceeded: expected a batch of at most {limit} bytes, found "
                f"{len(body)}",
            )
        try:
            items = decode_batch(body)
        except Corrupt as error:
            raise Refused(Reason.MESSAGE_ILLEGAL, str(error)) from error
        if caller.access is not None:
            for item in items:
                caller.require(*want_light_queues(item.properties))
        messages = [
            Message("", item.body, properties=item.properties, flag=item.flag) for item in items
        ]
        return _respond(await self._sender.send_batch(request, messages))

    @answers(RequestCode.RECALL_MESSAGE, RecallHeader, Action.PUB)
    async def recall(self, request: Request[RecallHeader]) -> RemotingCommand:
        header = request.header
        message_id = await self._sender.recall(
            header.producer_group, header.topic, header.recall_handle
        )
        return succeed({"msgId": message_id})


def _make_request(request: Request[SendHeader]) -> SendRequest:
    header = request.header
    message = Message(
        header.topic,
        request.body,
        header.queue_id,
        header.properties.encode("utf-8", "replace"),
        header.flag,
        header.sys_flag,
        header.born_timestamp,
        _born_host(request.connection.address),
        header.reconsume_times,
    )
    return SendRequest(
        header.producer_group,
        message,
        header.default_topic,
        header.default_topic_queue_nums,
        header.max_reconsume_times,
        header.unit_mode == "true",
    )


def _is_half(message: Message) -> bool:
    """Return whether a message is a half message. Clients before 4.6.1 leave TRAN_MSG in messages
    that they send back for a retry. A message with earlier deliveries and a delay level is
    therefore not a half message."""
    properties = message.properties
    if (find_property(properties, b"TRAN_MSG") or b"").lower() != b"true":
        return False
    level = find_integer(properties, b"DELAY", 32) or 0
    return not (message.reconsume_times > 0 and level > 0)


def _respond(sent: SendResult) -> RemotingCommand:
    fields = {
        "msgId": sent.message_id,
        "queueId": str(sent.queue_id),
        "queueOffset": str(sent.queue_offset),
        "transactionId": sent.transaction_id,
        "MSG_REGION": REGION,
        "TRACE_ON": "true",
    }
    if sent.recall_handle:
        fields["recallHandle"] = sent.recall_handle
    status = sent.status
    code = 0 if status is _OK else _CODES[status]  # the hash of an enum takes long
    return RemotingCommand(code, fields)


async def _wait(sent: Awaitable[SendResult]) -> RemotingCommand:
    return _respond(await sent)


class SendBackHeader(RequestHeader, kw_only=True):
    """Header of CONSUMER_SEND_MSG_BACK. `offset`: commit log offset in the consumer's copy of the
    record."""

    group: Group
    offset: Int64
    delay_level: Int64 = 0
    max_reconsume_times: Int64 | None = None
    origin_msg_id: str = ""
    origin_topic: Topic = ""


class SendBackHandlers(Handlers):
    """Handlers for messages that a consumer failed to consume."""

    @answers(RequestCode.CONSUMER_SEND_MSG_BACK, SendBackHeader, Action.SUB)
    async def send_back(self, request: Request[SendBackHeader]) -> RemotingCommand:
        """Redeliver a message later, or move it to the dead letters."""
        header = request.header
        group, offset = header.group, header.offset
        message: StoredMessage | int = offset
        if message_id := header.origin_msg_id:
            topics = (header.origin_topic, RETRY_PREFIX + group)
            found = await find_message(self._broker, offset, message_id, topics)
            if found is None:
                text = f"look message by offset failed, {offset}: {message_id} is not there"
                raise Refused(Reason.SYSTEM_ERROR, text)
            message = found

        def check(found: StoredMessage) -> None:
            # The offset may be that of any message of the log.
            request.caller.require(want_topic(found.topic, Action.SUB))

        await self._broker.send_back.send_back(
            group, message, header.delay_level, header.max_reconsume_times, check=check
        )
        return succeed()


class EndTransactionHeader(RequestHeader, kw_only=True):
    """Header of END_TRANSACTION. Clients before 5.2 send no topic, and need permission on all
    topics."""

    producer_group: str
    commit_log_offset: Int64
    tran_state_table_offset: Int64
    commit_or_rollback: Int64
    topic: str = ""

    def list_wants(self, *actions: Action) -> Iterator[Want]:
        """Yield the permission on the topic."""
        yield want_topic(self.topic, *actions)


class ResumeHeader(RequestHeader):
    msg_id: str


class TransactionHandlers(Handlers):
    """Handlers for half messages."""

    @answers(RequestCode.END_TRANSACTION, EndTransactionHeader, Action.PUB)
    async def end_transaction(self, request: Request[EndTransactionHeader]) -> RemotingCommand:
        """Commit or roll back a half message."""
        header = request.header
        try:
            resolution = CommitOrRollback(header.commit_or_rollback)
        except ValueError as error:
            text = f"request {request.code}: field commitOrRollback: {error}"
            raise Refused(Reason.INVALID_PARAMETER, text) from error

        def check(topic: str) -> None:
            # The request's topic is the client's claim. This one is the transaction's.
            request.caller.require(want_topic(topic, Action.PUB))

        half = header.commit_log_offset, header.tran_state_table_offset
        await self._broker.transactions.end(header.producer_group, *half, resolution, check)
        return succeed()

    @answers(RequestCode.RESUME_CHECK_HALF_MESSAGE, ResumeHeader, Action.UPDATE)
    async def resume_check(self, request: Request[ResumeHeader]) -> RemotingCommand:
        """Ask the producer again for the outcome of a discarded half message."""
        await self._broker.transactions.resume(request.header.msg_id)
        return succeed()
