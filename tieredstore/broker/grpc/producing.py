"""SendMessage, EndTransaction, RecallMessage."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from tieredstore.broker.grpc.call import Call
from tieredstore.broker.grpc.conversion import read_topic
from tieredstore.broker.grpc.messages import convert_sent_message, is_transactional
from tieredstore.broker.grpc.statuses import (
    Code,
    Rejected,
    convert_error,
    convert_put_status,
    join_statuses,
    make_status,
)
from tieredstore.broker.grpc.stubs import (
    RecallMessageResponse,
    SendMessageResponse,
    SendResultEntry,
    find_message,
    list_values,
)
from tieredstore.broker.send.sender import SendRequest
from tieredstore.broker.transactions.messages import CommitOrRollback
from tieredstore.errors import TieredStoreError
from tieredstore.message.ids import is_offset_message_id

if TYPE_CHECKING:
    from tieredstore.broker.services import BrokerServices
    from tieredstore.message.encoding import Message as StoreMessage

MAX_MESSAGES: Final = 1_024
"""Of one call."""
_RESOLUTION_NUMBERS: Final = list_values("TransactionResolution")
_RESOLUTIONS: Final = {
    _RESOLUTION_NUMBERS["COMMIT"]: CommitOrRollback.COMMIT,
    _RESOLUTION_NUMBERS["ROLLBACK"]: CommitOrRollback.ROLLBACK,
}

_EndTransactionResponse: Final = find_message("EndTransactionResponse")


class Producing:
    """What producers ask for."""

    def __init__(self, broker: BrokerServices) -> None:
        self._broker = broker

    async def send_message(self, request: Any, call: Call) -> Any:
        """Store messages of one topic; each has an outcome of its own. The broker chooses the
        queues."""
        messages = request.messages
        if not messages:
            raise Rejected(Code.MESSAGE_CORRUPTED, "no message to send")
        if len(messages) > MAX_MESSAGES:
            raise Rejected(Code.TOO_MANY_REQUESTS, f"messages: at most {MAX_MESSAGES} a call")
        topic = read_topic(messages[0].topic)
        settings = self._broker.settings
        now_ms = self._broker.clock.now_ms()
        converted = []
        for message in messages:
            if read_topic(message.topic) != topic:
                raise Rejected(Code.MESSAGE_CORRUPTED, "messages of one call have one topic")
            converted.append(
                convert_sent_message(
                    message, topic, call.peer, now_ms, settings.max_message_size_bytes
                )
            )
        sends = list(map(self._send_one, messages, converted))
        # Each runs up to its put before the next one starts: their order is kept.
        entries = [await sends[0]] if len(sends) == 1 else await asyncio.gather(*sends)
        response = SendMessageResponse(entries=entries)
        response.status.CopyFrom(join_statuses([entry.status for entry in entries]))
        return response

    async def _send_one(self, sent: Any, message: StoreMessage) -> Any:
        system = sent.system_properties
        entry = SendResultEntry(message_id=system.message_id)
        # A producer has no group in this protocol: the topic stands for it, as in RocketMQ's proxy.
        request = SendRequest(group=message.topic, message=message)
        try:
            if is_transactional(system):
                result = await self._broker.transactions.prepare(request)
            else:
                result = await self._broker.sender.send(request)
        except TieredStoreError as error:
            entry.status.CopyFrom(convert_error(error))
            return entry
        code = convert_put_status(result.status)
        entry.status.CopyFrom(make_status(code))
        if code is Code.OK:
            entry.offset = result.queue_offset
            entry.recall_handle = result.recall_handle
            if is_transactional(system):
                # Where the half message is: a restart of the broker forgets no transaction.
                entry.transaction_id = result.message_id
        return entry

    async def end_transaction(self, request: Any, call: Call) -> Any:  # noqa: ARG002
        """Commit or roll back a half message."""
        resolution = _RESOLUTIONS.get(request.resolution)
        if resolution is None:
            raise Rejected(Code.BAD_REQUEST, "resolution: expected COMMIT or ROLLBACK")
        if not is_offset_message_id(request.transaction_id):
            raise Rejected(
                Code.INVALID_TRANSACTION_ID,
                f"transaction id {request.transaction_id!r}: expected one that a send returned",
            )
        topic = read_topic(request.topic)
        await self._broker.transactions.end_by_id(topic, request.transaction_id, resolution)
        return _EndTransactionResponse(status=make_status(Code.OK))

    async def recall_message(self, request: Any, call: Call) -> Any:  # noqa: ARG002
        """Take back a message that is to be delivered later."""
        topic = read_topic(request.topic)
        message_id = await self._broker.sender.recall(topic, topic, request.recall_handle)
        return RecallMessageResponse(status=make_status(Code.OK), message_id=message_id)
