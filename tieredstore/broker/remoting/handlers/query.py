"""Messages by key, by id and by place (12, 33)."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from tieredstore.broker.refused import RefusalReason, Refused
from tieredstore.broker.remoting.codes import RequestCode, ResponseCode
from tieredstore.broker.remoting.command import RemotingCommand
from tieredstore.broker.remoting.handlers.fields import read_bool, read_int, read_text
from tieredstore.contracts.message_store import GetRequest

if TYPE_CHECKING:
    from tieredstore.broker.remoting.connection import Connection
    from tieredstore.broker.remoting.handler_table import HandlerTable
    from tieredstore.broker.services import BrokerServices
    from tieredstore.contracts.message_store import MessageStore
    from tieredstore.message.record import StoredMessage

UNIQUE_KEY_COUNT: Final = 32
"""How many messages an id finds: a resent message has the id of the first."""
MAX_COUNT: Final = 1024


def register_handlers(table: HandlerTable, broker: BrokerServices) -> None:
    """Serve the codes of this family."""
    handlers = _QueryHandlers(broker)
    table.register(RequestCode.QUERY_MESSAGE, handlers.query)
    table.register(RequestCode.VIEW_MESSAGE_BY_ID, handlers.view)


class _QueryHandlers:
    def __init__(self, broker: BrokerServices) -> None:
        self._broker = broker

    async def query(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        """Find messages by key or unique key, in the tier too."""
        topic = read_text(request, "topic")
        count = min(read_int(request, "maxNum"), MAX_COUNT)
        if read_bool(request, "_UNIQUE_KEY_QUERY"):
            count = UNIQUE_KEY_COUNT
        found = await asyncio.to_thread(
            self._broker.store.query_message,
            topic,
            read_text(request, "key"),
            count,
            read_int(request, "beginTimestamp"),
            read_int(request, "endTimestamp"),
        )
        if not found:
            raise Refused(
                RefusalReason.QUERY_NOT_FOUND,
                "can not find message, maybe time range not correct",
                topic=topic,
            )
        newest = max(found, key=lambda message: message.store_timestamp_ms)
        return RemotingCommand(
            ResponseCode.SUCCESS,
            {
                "indexLastUpdateTimestamp": str(newest.store_timestamp_ms),
                "indexLastUpdatePhyoffset": str(newest.physical_offset),
            },
            [message.raw for message in found],
        )

    async def view(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        """Find the message at a byte of the commit log. One that is in the tier alone is looked for
        in the queues of its topic, which newer clients name."""
        physical_offset = read_int(request, "offset")
        topic = request.ext_fields.get("topic", "")
        message = await find_by_place(self._broker, physical_offset, topic)
        if message is None:
            raise Refused(
                RefusalReason.SYSTEM_ERROR,
                f"can not find message by the offset, {physical_offset}",
            )
        return RemotingCommand(ResponseCode.SUCCESS, body=message.raw)


async def find_by_place(
    broker: BrokerServices, physical_offset: int, topic: str = ""
) -> StoredMessage | None:
    """Find the message at a byte of the commit log, also when only the tier has it: then in the
    queues of its topic, where one is named."""
    found = await asyncio.to_thread(broker.store.look_message_by_offset, physical_offset)
    config = broker.topics.find_topic(topic) if found is None else None
    for queue_id in range(0 if config is None else config.read_queue_nums):
        found = await _find_in_queue(broker.store, topic, queue_id, physical_offset)
        if found is not None:
            break
    return found


async def _find_in_queue(
    store: MessageStore, topic: str, queue_id: int, physical_offset: int
) -> StoredMessage | None:
    """Bisect a queue: its messages stand in the order of the log."""
    low = store.get_min_offset_in_queue(topic, queue_id)
    high = store.get_max_offset_in_queue(topic, queue_id)
    while low < high:
        middle = (low + high) // 2
        result = await store.get_async(GetRequest(topic, queue_id, middle, 1))
        if not result.messages:
            return None
        message = result.messages[0]
        if message.physical_offset == physical_offset:
            return message
        if message.physical_offset < physical_offset:
            low = message.queue_offset + 1
        else:
            high = middle
    return None
