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
    SendMessageResponse,
    SendResultEntry,
)
from tieredstore.broker.send.sender import SendRequest
from tieredstore.errors import TieredStoreError

if TYPE_CHECKING:
    from tieredstore.broker.services import BrokerServices
    from tieredstore.message.encoding import Message as StoreMessage

MAX_MESSAGES: Final = 1_024
"""Of one call."""


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
                raise Rejected(Code.UNSUPPORTED, "transactions are not supported")
            result = await self._broker.sender.send(request)
        except TieredStoreError as error:
            entry.status.CopyFrom(convert_error(error))
            return entry
        code = convert_put_status(result.status)
        entry.status.CopyFrom(make_status(code))
        if code is Code.OK:
            entry.offset = result.queue_offset
            entry.recall_handle = result.recall_handle
        return entry

    async def recall_message(self, request: Any, call: Call) -> Any:  # noqa: ARG002
        """Take back a message that is to be delivered later."""
        topic = read_topic(request.topic)
        message_id = await self._broker.sender.recall(topic, topic, request.recall_handle)
        return RecallMessageResponse(status=make_status(Code.OK), message_id=message_id)
