"""Offsets of groups and of queues (14, 15, 29 to 32)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tieredstore.broker.refused import RefusalReason, Refused
from tieredstore.broker.remoting.codes import RequestCode, ResponseCode
from tieredstore.broker.remoting.command import RemotingCommand
from tieredstore.broker.remoting.handlers.fields import read_int, read_text
from tieredstore.contracts.message_store import BoundaryType

if TYPE_CHECKING:
    from tieredstore.broker.remoting.connection import Connection
    from tieredstore.broker.remoting.handler_table import HandlerTable
    from tieredstore.broker.services import BrokerServices


def register_handlers(table: HandlerTable, broker: BrokerServices) -> None:
    """Serve the codes of this family."""
    handlers = _OffsetHandlers(broker)
    table.register(RequestCode.QUERY_CONSUMER_OFFSET, handlers.query)
    table.register(RequestCode.UPDATE_CONSUMER_OFFSET, handlers.update)
    table.register(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, handlers.search)
    table.register(RequestCode.GET_MAX_OFFSET, handlers.get_max)
    table.register(RequestCode.GET_MIN_OFFSET, handlers.get_min)
    table.register(RequestCode.GET_EARLIEST_MSG_STORETIME, handlers.get_earliest_time)


class _OffsetHandlers:
    def __init__(self, broker: BrokerServices) -> None:
        self._broker = broker

    def query(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        """Answer where a group goes on. A group without an offset gets QUERY_NOT_FOUND, so that the
        client begins where its consumeFromWhere says; one that asks for zero then gets 0, of a
        queue that begins there."""
        group = read_text(request, "consumerGroup")
        topic = read_text(request, "topic")
        queue_id = read_int(request, "queueId")
        offset = self._broker.offsets.query_offset(group, topic, queue_id)
        if offset is None:
            wants_zero = request.ext_fields.get("setZeroIfNotFound") == "true"
            if not wants_zero or self._broker.store.get_min_offset_in_queue(topic, queue_id) > 0:
                raise Refused(
                    RefusalReason.QUERY_NOT_FOUND,
                    "Not found, maybe this group consumer boot first",
                    topic=topic,
                )
            offset = 0
        return _answer("offset", offset)

    def update(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        """Keep where a group goes on."""
        group = read_text(request, "consumerGroup")
        topic = read_text(request, "topic")
        queue_id = read_int(request, "queueId")
        offset = read_int(request, "commitOffset")
        broker = self._broker
        if broker.groups.find_group(group) is None:
            raise Refused(RefusalReason.SUBSCRIPTION_GROUP_NOT_EXIST, f"Group {group} not exist!")
        if broker.topics.find_topic(topic) is None:
            raise Refused(RefusalReason.TOPIC_NOT_EXIST, f"Topic {topic} not exist!", topic=topic)
        if offset < 0 or queue_id < 0:
            raise Refused(
                RefusalReason.INVALID_PARAMETER,
                f"queueId and commitOffset: expected 0 or more, found {queue_id} and {offset}",
                topic=topic,
            )
        broker.offsets.commit_offset(group, topic, queue_id, offset)
        return RemotingCommand(ResponseCode.SUCCESS)

    async def search(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        """Find an offset by time. It may have to read a tier, which blocks: in a thread."""
        upper = request.ext_fields.get("boundaryType", "").upper() == "UPPER"
        found = await self._broker.look_ups.run(
            self._broker.store.get_offset_in_queue_by_time,
            *self._read_queue(request),
            read_int(request, "timestamp"),
            BoundaryType.UPPER if upper else BoundaryType.LOWER,
        )
        return _answer("offset", found)

    def get_max(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        """Answer with the offset behind a queue's last message."""
        return _answer(
            "offset", self._broker.store.get_max_offset_in_queue(*self._read_queue(request))
        )

    def get_min(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        """Answer with the offset of a queue's first message."""
        return _answer(
            "offset", self._broker.store.get_min_offset_in_queue(*self._read_queue(request))
        )

    async def get_earliest_time(
        self,
        connection: Connection,
        request: RemotingCommand,
    ) -> RemotingCommand:
        """Answer with the store time of a queue's first message."""
        found = await self._broker.look_ups.run(
            self._broker.store.get_earliest_message_time, *self._read_queue(request)
        )
        return _answer("timestamp", found)

    def _read_queue(self, request: RemotingCommand) -> tuple[str, int]:
        return read_text(request, "topic"), read_int(request, "queueId")


def _answer(name: str, number: int) -> RemotingCommand:
    return RemotingCommand(ResponseCode.SUCCESS, {name: str(number)})
