"""Offsets of groups, as operators look at them (codes 43, 45, 223, 303, 308, 314)."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

import msgspec

from tieredstore.broker.refused import RefusalReason, Refused
from tieredstore.broker.remoting.codes import RequestCode, ResponseCode
from tieredstore.broker.remoting.command import RemotingCommand
from tieredstore.broker.remoting.handlers.admin.queue_maps import (
    MessageQueue,
    encode_object,
    find_member,
)
from tieredstore.broker.remoting.handlers.fields import read_bool, read_text
from tieredstore.errors import Invalid, Unavailable

if TYPE_CHECKING:
    from tieredstore.broker.clients import ClientSession
    from tieredstore.broker.remoting.connection import Connection
    from tieredstore.broker.remoting.handler_table import HandlerTable
    from tieredstore.broker.services import BrokerServices

STATUS_TIMEOUT_MS: Final = 5_000
"""How long a consumer may take to say how far it is, as with Java."""
_INT64_MAX: Final = 2**63 - 1


class _QueueTimeSpan(msgspec.Struct, rename="camel"):
    """Store times of a queue, epoch ms. consume_time_stamp: of the last message that was consumed;
    delay_time: ms since the next one was stored, 0 without one."""

    message_queue: MessageQueue
    min_time_stamp: int
    max_time_stamp: int
    consume_time_stamp: int
    delay_time: int


def register_handlers(table: HandlerTable, broker: BrokerServices) -> None:
    """Serve them."""
    handlers = GroupOffsetHandlers(broker)
    table.register(RequestCode.GET_ALL_CONSUMER_OFFSET, handlers.get_all)
    table.register(RequestCode.GET_ALL_DELAY_OFFSET, handlers.get_delay_offsets)
    table.register(RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, handlers.ask_consumers)
    table.register(RequestCode.QUERY_CONSUME_TIME_SPAN, handlers.get_time_spans)
    table.register(RequestCode.QUERY_CORRECTION_OFFSET, handlers.get_corrections)
    table.register(RequestCode.CLONE_GROUP_OFFSET, handlers.clone)


class GroupOffsetHandlers:
    """Answers from the table of offsets, and from consumers that are connected."""

    def __init__(self, broker: BrokerServices) -> None:
        self._broker = broker
        self._offsets = broker.offsets

    def get_all(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        """Return the whole table, as its file has it."""
        return RemotingCommand(ResponseCode.SUCCESS, body=self._offsets.encode())

    def get_delay_offsets(
        self, connection: Connection, request: RemotingCommand
    ) -> RemotingCommand:
        """Return how far the delivery of each delay level is, as its file has it."""
        return RemotingCommand(ResponseCode.SUCCESS, body=self._broker.schedule.offsets.encode())

    async def ask_consumers(
        self, connection: Connection, request: RemotingCommand
    ) -> RemotingCommand:
        """Ask the members of a group, or one of them, how far they are in a topic (221); those that
        do not answer are left out."""
        group, topic = read_text(request, "group"), read_text(request, "topic")
        wanted = request.ext_fields.get("clientAddr")
        members = self._broker.consumers.find_group(group)
        if members is None:
            raise Refused(
                RefusalReason.SYSTEM_ERROR,
                f"No Any Consumer online in the consumer group: [{group}]",
            )
        asked = [member for member in members.sessions if wanted in {None, "", member.client_id}]
        tables = await asyncio.gather(*(_ask_consumer(member, topic, group) for member in asked))
        table = encode_object(
            **{
                member.client_id: found
                for member, found in zip(asked, tables, strict=True)
                if found is not None
            }
        )
        body = encode_object(consumerTable=table, messageQueueTable=b"{}")
        return RemotingCommand(ResponseCode.SUCCESS, body=body)

    async def get_time_spans(
        self, connection: Connection, request: RemotingCommand
    ) -> RemotingCommand:
        """Return of each queue of a topic from when its messages are, and how far behind a group
        is."""
        topic, group = read_text(request, "topic"), read_text(request, "group")
        config = self._broker.topics.find_topic(topic)
        if config is None:
            raise Refused(RefusalReason.TOPIC_NOT_EXIST, f"topic[{topic}] not exist", topic=topic)
        offsets = dict(self._offsets.list_offsets(group, topic))
        spans = await self._broker.look_ups.run(
            lambda: [
                self._measure(topic, queue_id, offsets.get(queue_id, -1))
                for queue_id in range(config.write_queue_nums)
            ]
        )
        body = msgspec.json.encode({"consumeTimeSpanSet": spans})
        return RemotingCommand(ResponseCode.SUCCESS, body=body)

    def _measure(self, topic: str, queue_id: int, offset: int) -> _QueueTimeSpan:
        """Read the times of a queue: from a tier, perhaps, which blocks."""
        store = self._broker.store
        end = store.get_max_offset_in_queue(topic, queue_id)
        first_ms = store.get_earliest_message_time(topic, queue_id)
        consumed_ms, delay_ms = first_ms, 0
        if offset > 0:
            consumed_ms = store.get_message_store_timestamp(topic, queue_id, offset - 1)
        if offset < end:
            next_ms = store.get_message_store_timestamp(topic, queue_id, max(offset, 0))
            delay_ms = self._broker.clock.now_ms() - next_ms if next_ms >= 0 else 0
        return _QueueTimeSpan(
            MessageQueue(self._broker.settings.broker_name, queue_id, topic),
            first_ms,
            store.get_message_store_timestamp(topic, queue_id, end - 1),
            consumed_ms,
            delay_ms,
        )

    def get_corrections(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        """Return the smallest offset of all groups in each queue of a topic; 2^63-1 where the group
        to compare with is behind it. Groups to filter are left out, and nothing of them is
        forgotten."""
        topic, compared = read_text(request, "topic"), read_text(request, "compareGroup")
        left_out = set(request.ext_fields.get("filterGroups", "").split(","))
        found: dict[int, int] = {}
        for group in self._offsets.list_groups(topic) - left_out:
            for queue_id, offset in self._offsets.list_offsets(group, topic).items():
                if offset >= self._broker.store.get_min_offset_in_queue(topic, queue_id):
                    found[queue_id] = min(found.get(queue_id, offset), offset)
        for queue_id, offset in self._offsets.list_offsets(compared, topic).items():
            if found.get(queue_id, -1) > offset:
                found[queue_id] = _INT64_MAX
        return RemotingCommand(
            ResponseCode.SUCCESS, body=msgspec.json.encode({"correctionOffsets": found})
        )

    async def clone(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        """Let a group go on where another one is, in one topic or in all of the other's. Topics
        that are gone, or to which the other group, being there, does not subscribe, are left
        out."""
        source, target = read_text(request, "srcGroup"), read_text(request, "destGroup")
        topic = request.ext_fields.get("topic", "").strip()
        is_offline = read_bool(request, "offline")
        members = None if is_offline else self._broker.consumers.find_group(source)
        for name in {topic} if topic else self._offsets.list_topics(source):
            if self._broker.topics.find_topic(name) is None or (
                members is not None and members.subscriptions and name not in members.subscriptions
            ):
                continue
            for queue_id, offset in dict(self._offsets.list_offsets(source, name)).items():
                self._offsets.commit_offset(target, name, queue_id, offset)
        await self._offsets.persist()
        return RemotingCommand(ResponseCode.SUCCESS)


async def _ask_consumer(member: ClientSession, topic: str, group: str) -> bytes | None:
    """Ask a consumer for its table of queues, as the JSON of it; None without an answer."""
    code = RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT
    fields = {"topic": topic, "group": group}
    try:
        reply = await member.request(code, fields, b"", STATUS_TIMEOUT_MS)
    except (Unavailable, Invalid):
        return None
    assert isinstance(reply, RemotingCommand)  # of gRPC nobody can be asked
    if reply.code != ResponseCode.SUCCESS:
        return None
    return find_member(reply.body_bytes, "messageQueueTable")
