"""Messages by key, by id and by place (12, 33)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from tieredstore.broker.refused import RefusalReason, Refused
from tieredstore.broker.remoting.codes import RequestCode, ResponseCode
from tieredstore.broker.remoting.command import RemotingCommand
from tieredstore.broker.remoting.handlers.fields import read_bool, read_int, read_text

if TYPE_CHECKING:
    from tieredstore.broker.remoting.connection import Connection
    from tieredstore.broker.remoting.handler_table import HandlerTable
    from tieredstore.broker.services import BrokerServices
    from tieredstore.message.record import StoredMessage

UNIQUE_KEY_COUNT: Final = 32
"""How many messages an id finds: a resent message has the id of the first."""
MAX_COUNT: Final = 1024
_FOREVER_MS: Final = 2**63 - 1


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
        found = await self._broker.look_ups.run(
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
        """Find the message at a byte of the local commit log. One that is in the tier alone is
        found by its key or its place in the queue: its record names another byte."""
        physical_offset = read_int(request, "offset")
        look = self._broker.store.look_message_by_offset
        message = await self._broker.look_ups.run(look, physical_offset)
        if message is None:
            raise Refused(
                RefusalReason.SYSTEM_ERROR,
                f"can not find message by the offset, {physical_offset}",
            )
        return RemotingCommand(ResponseCode.SUCCESS, body=message.raw)


async def find_message(
    broker: BrokerServices, physical_offset: int, message_id: str, topics: Sequence[str]
) -> StoredMessage | None:
    """Find the message that a client has: by the byte of the commit log that its record names, and
    by its id (UNIQ_KEY) where another one, or none, is there.

    A record that came from the tier names a byte of its queue's file there, at which the local log
    may hold any other. topics: where a message with that id may be.
    """
    found = await broker.look_ups.run(broker.store.look_message_by_offset, physical_offset)
    if found is not None and _has_id(found, message_id, topics):
        return found
    for topic in topics:
        named = await broker.look_ups.run(
            broker.store.query_message, topic, message_id, UNIQUE_KEY_COUNT, 0, _FOREVER_MS
        )
        for message in named:
            if message.uniq_key == message_id:
                return message
    return None


def _has_id(message: StoredMessage, message_id: str, topics: Sequence[str]) -> bool:
    """Tell whether a message has an id, as clients name it: UNIQ_KEY, or (Go, C++) where it is."""
    return message.msg_id == message_id or (
        message.offset_message_id == message_id.upper() and message.topic in topics
    )
