"""Looking after the store: what is old is deleted now, and a queue's units (codes 306, 316, 321,
329)."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

import msgspec

from tieredstore.broker.refused import RefusalReason, Refused
from tieredstore.broker.remoting.codes import RequestCode, ResponseCode
from tieredstore.broker.remoting.command import RemotingCommand
from tieredstore.broker.remoting.handlers.admin.connections import show_subscription
from tieredstore.broker.remoting.handlers.fields import read_int, read_text
from tieredstore.contracts.dispatch_source import QueueKey, QueueRange
from tieredstore.contracts.layers import list_layers
from tieredstore.contracts.message_store import CleanableStore
from tieredstore.message.names import LMQ_PREFIX, is_system_topic

if TYPE_CHECKING:
    from tieredstore.broker.remoting.connection import Connection
    from tieredstore.broker.remoting.handler_table import HandlerTable
    from tieredstore.broker.services import BrokerServices

MAX_UNITS: Final = 10_000
"""Units of a queue that one answer has at most."""


def register_handlers(table: HandlerTable, broker: BrokerServices) -> None:
    """Serve them."""
    handlers = MaintenanceHandlers(broker)
    table.register(RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE, handlers.clean_queues)
    table.register(RequestCode.DELETE_EXPIRED_COMMITLOG, handlers.delete_files)
    table.register(RequestCode.CLEAN_UNUSED_TOPIC, handlers.delete_unused_topics)
    table.register(RequestCode.QUERY_CONSUME_QUEUE, handlers.list_units)


class MaintenanceHandlers:
    """Answers by what the store does."""

    def __init__(self, broker: BrokerServices) -> None:
        self._broker = broker

    async def clean_queues(
        self, connection: Connection, request: RemotingCommand
    ) -> RemotingCommand:
        """Empty the queues whose messages have all expired."""
        await asyncio.to_thread(self._find_cleanable().clean_expired_consume_queue)
        return RemotingCommand(ResponseCode.SUCCESS)

    def delete_files(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        """Have files that have expired deleted now, whatever the hour."""
        self._find_cleanable().execute_delete_files_manually()
        return RemotingCommand(ResponseCode.SUCCESS)

    async def delete_unused_topics(
        self, connection: Connection, request: RemotingCommand
    ) -> RemotingCommand:
        """Delete the messages of topics that are in no table any more, but the broker's own and
        light queues."""
        self._find_cleanable()  # a history is left alone
        queues = await asyncio.to_thread(self._list_queues)
        known = self._broker.topics
        unused = {
            key.topic
            for key in queues
            if known.find_topic(key.topic) is None
            and not is_system_topic(key.topic)
            and not key.topic.startswith(LMQ_PREFIX)
        }
        if unused:
            with known.deleting(unused):
                await self._broker.look_ups.run(self._broker.store.delete_topics, unused)
        return RemotingCommand(ResponseCode.SUCCESS)

    def _list_queues(self) -> set[QueueKey]:
        source = self._broker.store.dispatch_source
        source.flush()
        return set(source.queues())

    async def list_units(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        """Return units of a queue in the local store, from an index on."""
        topic, queue_id = read_text(request, "topic"), read_int(request, "queueId")
        index = read_int(request, "index")
        count = min(max(read_int(request, "count"), 0), MAX_UNITS)
        found = await asyncio.to_thread(self._read_units, QueueKey(topic, queue_id), index, count)
        if found is None:
            raise Refused(
                RefusalReason.SYSTEM_ERROR, f"{queue_id}@{topic} is not exist!", topic=topic
            )
        there, units = found
        remark = None if units is not None else f"Index {index} of {queue_id}@{topic} is not exist!"
        body: dict[str, object] = {
            "maxQueueIndex": there.max_offset,
            "minQueueIndex": there.min_offset,
            "queueData": units or [],
        }
        if group := request.ext_fields.get("consumerGroup"):
            subscription = self._broker.consumers.find_subscription(group, topic)
            if subscription is None:
                body["filterData"] = f"{group}@{topic} is not online!"
            else:
                body["subscriptionData"] = show_subscription(subscription)
        return RemotingCommand(ResponseCode.SUCCESS, body=msgspec.json.encode(body), remark=remark)

    def _read_units(
        self, key: QueueKey, index: int, count: int
    ) -> tuple[QueueRange, list[dict[str, object]] | None] | None:
        """What a queue has, and its units from an index on; None for an index out of that. None
        for no such queue."""
        source = self._broker.store.dispatch_source
        source.flush()  # what is not on disk is not in the range
        found = source.queue_range(key)
        if found is None or not found.min_offset <= index < found.max_offset:
            return None if found is None else (found, None)
        units: list[dict[str, object]] = [
            {
                "physicOffset": int(unit["physical_offset"]),
                "physicSize": int(unit["size"]),
                "tagsCode": int(unit["tags_code"]),
                "eval": False,
            }
            for unit in source.read_units(key, index, min(count, found.max_offset - index))
        ]
        return found, units

    def _find_cleanable(self) -> CleanableStore:
        for layer in list_layers(self._broker.store):
            if isinstance(layer, CleanableStore):
                return layer
        raise Refused(RefusalReason.NO_PERMISSION, "the broker serves a history, read-only")
