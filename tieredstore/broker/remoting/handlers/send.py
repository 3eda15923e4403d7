"""What producers send: single messages (310, 10), batches (320), recalls (370)."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Mapping
from typing import TYPE_CHECKING, Final

from tieredstore.broker.refused import RefusalReason, Refused
from tieredstore.broker.remoting.codes import RequestCode, ResponseCode
from tieredstore.broker.remoting.command import RemotingCommand
from tieredstore.broker.send.sender import REGION, SendRequest, SendResult
from tieredstore.contracts.message_store import PutMessageStatus
from tieredstore.errors import Corrupt
from tieredstore.message.batch import decode_batch
from tieredstore.message.encoding import Message
from tieredstore.message.hosts import parse_host
from tieredstore.message.properties import find_property

if TYPE_CHECKING:
    from tieredstore.broker.remoting.connection import Connection
    from tieredstore.broker.remoting.handler_table import HandlerTable
    from tieredstore.broker.services import BrokerServices

_SHORT_NAMES: Final = {
    "producerGroup": "a",
    "topic": "b",
    "defaultTopic": "c",
    "defaultTopicQueueNums": "d",
    "queueId": "e",
    "sysFlag": "f",
    "bornTimestamp": "g",
    "flag": "h",
    "properties": "i",
    "reconsumeTimes": "j",
    "unitMode": "k",
    "maxReconsumeTimes": "l",
    "batch": "m",
}
_OK: Final = PutMessageStatus.PUT_OK
_CODES: Final[Mapping[PutMessageStatus, ResponseCode]] = {
    PutMessageStatus.FLUSH_DISK_TIMEOUT: ResponseCode.FLUSH_DISK_TIMEOUT,
    PutMessageStatus.SLAVE_NOT_AVAILABLE: ResponseCode.SLAVE_NOT_AVAILABLE,
    PutMessageStatus.FLUSH_SLAVE_TIMEOUT: ResponseCode.FLUSH_SLAVE_TIMEOUT,
}
_born_host = functools.lru_cache(maxsize=4096)(parse_host)


def register_handlers(table: HandlerTable, broker: BrokerServices) -> None:
    """Serve what producers send."""
    handlers = _SendHandlers(broker)
    table.register(RequestCode.SEND_MESSAGE_V2, handlers.send)
    table.register(RequestCode.SEND_MESSAGE, handlers.send_with_long_names)
    table.register(RequestCode.SEND_BATCH_MESSAGE, handlers.send)
    table.register(RequestCode.RECALL_MESSAGE, handlers.recall)


class _SendHandlers:
    def __init__(self, broker: BrokerServices) -> None:
        self._broker = broker
        self._sender = broker.sender

    def send(
        self, connection: Connection, command: RemotingCommand
    ) -> RemotingCommand | Awaitable[RemotingCommand]:
        """Answer SEND_MESSAGE_V2 and SEND_BATCH_MESSAGE."""
        fields = command.ext_fields
        request = _make_request(connection, command, fields)
        if fields.get("m") == "true":
            return self._send_batch(request)
        message = request.message
        if message.properties.find(b"TRAN_MSG\x01") >= 0 and _is_half(message):
            sent = self._broker.transactions.submit(request)
        else:
            sent = self._sender.submit(request)
        return _respond(sent) if isinstance(sent, SendResult) else _wait(sent)

    def send_with_long_names(
        self, connection: Connection, command: RemotingCommand
    ) -> RemotingCommand | Awaitable[RemotingCommand]:
        """Answer SEND_MESSAGE."""
        command.ext_fields = {
            _SHORT_NAMES.get(name, name): value for name, value in command.ext_fields.items()
        }
        return self.send(connection, command)

    async def _send_batch(self, request: SendRequest) -> RemotingCommand:
        body = request.message.body
        limit = self._broker.settings.max_message_size_bytes
        if len(body) > limit:
            raise Refused(
                RefusalReason.MESSAGE_ILLEGAL,
                f"message body size exceeded: expected a batch of at most {limit} bytes, found "
                f"{len(body)}",
            )
        try:
            items = decode_batch(body)
        except Corrupt as error:
            raise Refused(RefusalReason.MESSAGE_ILLEGAL, str(error)) from error
        messages = [
            Message("", item.body, properties=item.properties, flag=item.flag) for item in items
        ]
        return _respond(await self._sender.send_batch(request, messages))

    async def recall(self, _: Connection, command: RemotingCommand) -> RemotingCommand:
        """Answer RECALL_MESSAGE."""
        fields = command.ext_fields
        message_id = await self._sender.recall(
            fields.get("producerGroup", ""),
            fields.get("topic", ""),
            fields.get("recallHandle", ""),
        )
        return RemotingCommand(ResponseCode.SUCCESS, {"msgId": message_id})


def _make_request(
    connection: Connection, command: RemotingCommand, fields: Mapping[str, str]
) -> SendRequest:
    try:
        message = Message(
            fields["b"],
            command.body_bytes,
            int(fields["e"]),
            fields.get("i", "").encode("utf-8", "replace"),
            int(fields.get("h", 0)),
            int(fields.get("f", 0)),
            int(fields.get("g", 0)),
            _born_host(connection.address),
            int(fields.get("j", 0)),
        )
        most = fields.get("l")
        return SendRequest(
            fields.get("a", ""),
            message,
            fields.get("c", ""),
            int(fields.get("d", 4)),
            None if most is None else int(most),
            fields.get("k") == "true",
        )
    except (KeyError, ValueError) as error:
        raise Refused(
            RefusalReason.INVALID_PARAMETER,
            f"request {command.code}: missing or bad field: {error!r}",
        ) from error


def _is_half(message: Message) -> bool:
    """Whether a message waits for the end of a transaction. Clients before 4.6.1 leave TRAN_MSG in
    the messages that they send again later."""
    properties = message.properties
    if (find_property(properties, b"TRAN_MSG") or b"").lower() != b"true":
        return False
    is_delayed = find_property(properties, b"DELAY") not in (None, b"0")
    return not (message.reconsume_times > 0 and is_delayed)


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
