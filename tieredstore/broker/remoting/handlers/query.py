"""Message queries by key, unique key and commit log offset (codes 12, 33)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from tieredstore.broker.auth.policies import Action, want_topic
from tieredstore.broker.refused import Reason, Refused
from tieredstore.broker.remoting.codes import RequestCode
from tieredstore.broker.remoting.command import RemotingCommand
from tieredstore.broker.remoting.handler_table import Int64, Request, RequestHeader, Topic, is_true
from tieredstore.broker.remoting.handlers.base import Handlers, answers, succeed
from tieredstore.broker.services import BrokerServices
from tieredstore.message.record import StoredMessage

UNIQUE_KEY_COUNT: Final = 32
"""Maximum number of messages with the same unique key. A message that is sent again keeps its
unique key."""
MAX_COUNT: Final = 1024
_LOOKS: Final = (Action.SUB, Action.GET)
_FOREVER_MS: Final = 2**63 - 1


class QueryHeader(RequestHeader, kw_only=True):
    """Header of QUERY_MESSAGE. Times are epoch ms."""

    topic: Topic
    key: str
    max_num: Int64
    begin_timestamp: Int64
    end_timestamp: Int64
    is_unique_key: str = msgspec.field(name="_UNIQUE_KEY_QUERY", default="false")


class ViewHeader(RequestHeader, kw_only=True):
    """Header of VIEW_MESSAGE_BY_ID. `offset`: commit log offset of the message."""

    topic: Topic = ""
    offset: Int64


class QueryHandlers(Handlers):
    """Handlers for message queries."""

    @answers(RequestCode.QUERY_MESSAGE, QueryHeader, Action.SUB, Action.GET)
    async def query(self, request: Request[QueryHeader]) -> RemotingCommand:
        """Return messages by key or unique key, including messages in the tier."""
        topic, caller = request.header.topic, request.caller
        count = min(request.header.max_num, MAX_COUNT)
        if is_true(request.header.is_unique_key):
            count = UNIQUE_KEY_COUNT
        found = await self._broker.look_ups.run(
            self._broker.store.query_message,
            topic,
            request.header.key,
            count,
            request.header.begin_timestamp,
            request.header.end_timestamp,
        )
        # A key of another topic may have the same hash.
        found = [message for message in found if caller.allows(want_topic(message.topic, *_LOOKS))]
        if not found:
            raise Refused(
                Reason.QUERY_NOT_FOUND, "can not find message, maybe time range not correct"
            )
        newest = max(found, key=lambda message: message.store_timestamp_ms)
        return succeed(
            {
                "indexLastUpdateTimestamp": str(newest.store_timestamp_ms),
                "indexLastUpdatePhyoffset": str(newest.physical_offset),
            },
            [message.raw for message in found],
        )

    @answers(RequestCode.VIEW_MESSAGE_BY_ID, ViewHeader, Action.GET)
    async def view(self, request: Request[ViewHeader]) -> RemotingCommand:
        """Return the message at an offset of the local commit log. A message that is only in the
        tier must be queried by key or queue offset, because its record contains a physical offset
        in the tier."""
        physical_offset = request.header.offset
        look = self._broker.store.look_message_by_offset
        message = await self._broker.look_ups.run(look, physical_offset)
        if message is None:
            raise Refused(
                Reason.SYSTEM_ERROR, f"can not find message by the offset, {physical_offset}"
            )
        request.caller.require(want_topic(message.topic, Action.GET))
        return succeed(body=message.raw)


async def find_message(
    broker: BrokerServices, physical_offset: int, message_id: str, topics: Sequence[str]
) -> StoredMessage | None:
    """Return the message that a client's request refers to. `physical_offset`: commit log offset in
    the client's copy of the record. `message_id`: id of the message. `topics`: topics that may
    contain it. If the local log has another message or none at that offset, the message is searched
    by id (UNIQ_KEY). This happens for records from the tier, whose offsets refer to the queue's
    file in the tier."""
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
    """Return whether a message has the given id. This is its UNIQ_KEY or, from Go and C++ clients,
    its offset message id."""
    return message.msg_id == message_id or (
        message.offset_message_id == message_id.upper() and message.topic in topics
    )
