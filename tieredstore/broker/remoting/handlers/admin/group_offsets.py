"""Consumer offsets of groups, for operators (codes 43, 45, 223, 303, 308, 314)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Final

import msgspec

from tieredstore.broker.auth.policies import Action, Want, want_group, want_topic
from tieredstore.broker.clients.session import ClientSession
from tieredstore.broker.refused import Reason, Refused
from tieredstore.broker.remoting.codes import RequestCode, ResponseCode
from tieredstore.broker.remoting.command import RemotingCommand
from tieredstore.broker.remoting.handler_table import (
    Group,
    NoFields,
    Request,
    RequestHeader,
    Topic,
    is_true,
)
from tieredstore.broker.remoting.handlers.admin.progress import (
    MessageQueue,
    encode_object,
    find_member,
)
from tieredstore.broker.remoting.handlers.base import Handlers, answers, succeed, succeed_with
from tieredstore.broker.services import BrokerServices
from tieredstore.broker.state.groups import check_group_of_client
from tieredstore.errors import Invalid, Unavailable

STATUS_TIMEOUT_MS: Final = 5_000
"""Time limit (ms) for a consumer's answer, as in Java."""
_INT64_MAX: Final = 2**63 - 1


class _QueueTimeSpan(msgspec.Struct, rename="camel"):
    """Store times of messages in a queue, epoch ms. `min_time_stamp`, `max_time_stamp`: first and
    last message. `consume_time_stamp`: last consumed message. `delay_time`: ms since the next
    message to consume was stored, or 0 if there is none."""

    message_queue: MessageQueue
    min_time_stamp: int
    max_time_stamp: int
    consume_time_stamp: int
    delay_time: int


class ConsumerStatusHeader(RequestHeader, kw_only=True):
    topic: Topic
    group: Group
    client_addr: str = ""


class TimeSpanHeader(RequestHeader, kw_only=True):
    topic: Topic
    group: Group


class CorrectionHeader(RequestHeader, kw_only=True):
    """Header of QUERY_CORRECTION_OFFSET. `filter_groups`: groups to ignore, separated by commas."""

    topic: Topic
    compare_group: Group
    filter_groups: str = ""


class CloneHeader(RequestHeader, kw_only=True):
    """Header of CLONE_GROUP_OFFSET. Without a topic, the permissions on all topics of the source
    group are checked later."""

    src_group: str
    dest_group: str
    topic: str = ""
    offline: str = "false"

    def list_wants(self, *actions: Action) -> Iterator[Want]:
        """Yield the permissions to read the source group and to change the target group and the
        topic."""
        yield want_group(self.src_group, Action.GET, Action.SUB)
        yield want_group(self.dest_group, *actions)
        if topic := self.topic.strip():
            yield want_topic(topic, *actions)


class GroupOffsetHandlers(Handlers):
    """Handlers for consumer offsets, both those stored in the broker and those of connected
    consumers."""

    def __init__(self, broker: BrokerServices) -> None:
        super().__init__(broker)
        self._offsets = broker.offsets

    @answers(RequestCode.GET_ALL_CONSUMER_OFFSET, NoFields, Action.GET)
    async def get_all(self, request: Request[NoFields]) -> RemotingCommand:
        """Return all consumer offsets in the format of their file."""
        return succeed(body=await self._offsets.encode_in_thread())

    @answers(RequestCode.GET_ALL_DELAY_OFFSET, NoFields, Action.GET)
    def get_delay_offsets(self, request: Request[NoFields]) -> RemotingCommand:
        """Return the progress of each delay level in the format of its file."""
        return succeed(body=self._broker.schedule.offsets.encode())

    @answers(RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, ConsumerStatusHeader, Action.GET)
    async def ask_consumers(self, request: Request[ConsumerStatusHeader]) -> RemotingCommand:
        """Ask one member or all members of a group for their offsets in a topic (request code 221).
        Members that do not respond are omitted."""
        group, topic = request.header.group, request.header.topic
        wanted = request.header.client_addr
        members = self._broker.consumers.find_group(group)
        if members is None:
            raise Refused(
                Reason.SYSTEM_ERROR, f"No Any Consumer online in the consumer group: [{group}]"
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
        return succeed(body=body)

    @answers(RequestCode.QUERY_CONSUME_TIME_SPAN, TimeSpanHeader, Action.GET)
    async def get_time_spans(self, request: Request[TimeSpanHeader]) -> RemotingCommand:
        """Return store times for each queue of a topic: of the first, the last and the last
        consumed message. Also returns the delay of a group in each queue."""
        topic, group = request.header.topic, request.header.group
        config = self._broker.topics.find_topic(topic)
        if config is None:
            raise Refused(Reason.TOPIC_NOT_EXIST, f"topic[{topic}] not exist")
        offsets = dict(self._offsets.list_offsets(group, topic))
        spans = await self._broker.look_ups.run(
            lambda: [
                self._measure(topic, queue_id, offsets.get(queue_id, -1))
                for queue_id in range(config.write_queue_nums)
            ]
        )
        body = msgspec.json.encode({"consumeTimeSpanSet": spans})
        return succeed(body=body)

    def _measure(self, topic: str, queue_id: int, offset: int) -> _QueueTimeSpan:
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

    @answers(RequestCode.QUERY_CORRECTION_OFFSET, CorrectionHeader, Action.GET)
    def get_corrections(self, request: Request[CorrectionHeader]) -> RemotingCommand:
        """Return the smallest consumer offset of all groups in each queue of a topic, without
        changing any. The result is 2^63-1 for a queue in which `compare_group` is behind that
        offset. Groups in `filter_groups` are ignored."""
        topic, compared = request.header.topic, request.header.compare_group
        left_out = set(request.header.filter_groups.split(","))
        found: dict[int, int] = {}
        for group in self._offsets.list_groups(topic) - left_out:
            for queue_id, offset in self._offsets.list_offsets(group, topic).items():
                if offset >= self._broker.store.get_min_offset_in_queue(topic, queue_id):
                    found[queue_id] = min(found.get(queue_id, offset), offset)
        for queue_id, offset in self._offsets.list_offsets(compared, topic).items():
            if found.get(queue_id, -1) > offset:
                found[queue_id] = _INT64_MAX
        return succeed_with({"correctionOffsets": found})

    @answers(RequestCode.CLONE_GROUP_OFFSET, CloneHeader, Action.UPDATE)
    async def clone(self, request: Request[CloneHeader]) -> RemotingCommand:
        """Copy the consumer offsets of a group to another group, in one topic or in all. Deleted
        topics are skipped. Unless `offline` is set, topics without a connected subscriber in the
        source group are skipped too."""
        source, target = request.header.src_group, request.header.dest_group
        check_group_of_client(target)
        topic = request.header.topic.strip()
        is_offline = is_true(request.header.offline)
        members = None if is_offline else self._broker.consumers.find_group(source)
        for name in {topic} if topic else self._offsets.list_topics(source):
            if self._broker.topics.find_topic(name) is None or (
                members is not None and members.subscriptions and name not in members.subscriptions
            ):
                continue
            request.caller.require(want_topic(name, Action.UPDATE))
            for queue_id, offset in dict(self._offsets.list_offsets(source, name)).items():
                self._offsets.commit_offset(target, name, queue_id, offset)
        await self._offsets.persist()
        return succeed()


async def _ask_consumer(member: ClientSession, topic: str, group: str) -> bytes | None:
    """Return a consumer's offsets in its queues as JSON, or None if it does not respond."""
    code = RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT
    fields = {"topic": topic, "group": group}
    try:
        reply = await member.request(code, fields, b"", STATUS_TIMEOUT_MS)
    except (Unavailable, Invalid):
        return None
    assert isinstance(reply, RemotingCommand)  # a gRPC client cannot be asked
    if reply.code != ResponseCode.SUCCESS:
        return None
    return find_member(reply.body_bytes, "messageQueueTable")
