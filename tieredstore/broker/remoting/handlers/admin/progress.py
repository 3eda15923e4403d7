"""Progress of topics and groups, and consumer offset resets (codes 202, 208, 222, 317)."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import Final, TypeVar

import msgspec

from tieredstore.broker.auth.policies import Action, Want, want_group, want_topic
from tieredstore.broker.background import THREADS
from tieredstore.broker.refused import Reason, Refused
from tieredstore.broker.remoting.codes import RequestCode
from tieredstore.broker.remoting.command import RemotingCommand
from tieredstore.broker.remoting.connection import Connection
from tieredstore.broker.remoting.handler_table import (
    Group,
    Int32,
    Int64,
    Request,
    RequestHeader,
    Topic,
    is_true,
)
from tieredstore.broker.remoting.handlers.base import Handlers, TopicHeader, answers, succeed
from tieredstore.broker.services import BrokerServices
from tieredstore.broker.state.groups import check_group_of_client
from tieredstore.broker.state.topics import TopicConfig
from tieredstore.contracts.dispatch_source import QueueKey
from tieredstore.errors import TieredStoreError

_ENCODER: Final = msgspec.json.Encoder()
_TOKEN: Final = re.compile(rb'"(?:[^"\\]|\\.)*"|[{}]')
"""Pattern for a JSON string or a brace."""


class MessageQueue(msgspec.Struct, frozen=True, rename="camel"):
    """Queue in Java's JSON format."""

    broker_name: str
    queue_id: int
    topic: str


def encode_queue_map(broker_name: str, entries: Iterable[tuple[QueueKey, object]]) -> bytes:
    """Encode a map with queues as keys, `{{queue}:value,…}`, in fastjson's format."""
    name = _ENCODER.encode(broker_name)
    topics: dict[str, bytes] = {}
    pairs: list[bytes] = []
    for (topic, queue_id), value in entries:
        quoted = topics.get(topic) or topics.setdefault(topic, _ENCODER.encode(topic))
        encoded = _ENCODER.encode(value)
        pairs.append(
            b'{"brokerName":%b,"queueId":%d,"topic":%b}:%b' % (name, queue_id, quoted, encoded)
        )
    return b"{" + b",".join(pairs) + b"}"


def encode_object(**members: bytes) -> bytes:
    """Encode a JSON object from members that are already JSON."""
    return (
        b"{"
        + b",".join(_ENCODER.encode(name) + b":" + value for name, value in members.items())
        + b"}"
    )


def encode_members(**members: object) -> dict[str, bytes]:
    return {name: _ENCODER.encode(value) for name, value in members.items()}


def find_member(data: bytes, name: str) -> bytes | None:
    """Return the unparsed value of a member in an object written by fastjson, or None if there is
    no such member. The value must be an object, whose keys may be objects too."""
    start = data.find(_ENCODER.encode(name) + b":{")
    if start < 0:
        return None
    begin = data.index(b"{", start)
    depth = 0
    for found in _TOKEN.finditer(data, begin):
        depth += (found[0] == b"{") - (found[0] == b"}")
        if depth == 0:
            return data[begin : found.end()]
    return None


_LOOKS: Final = (Action.SUB, Action.GET)
_Measured = TypeVar("_Measured")


class _TopicOffset(msgspec.Struct, rename="camel"):
    min_offset: int
    max_offset: int
    last_update_timestamp: int


class _OffsetWrapper(msgspec.Struct, rename="camel"):
    broker_offset: int
    consumer_offset: int
    pull_offset: int
    last_timestamp: int = 0


class ConsumeStatsHeader(RequestHeader, kw_only=True):
    """Header of GET_CONSUME_STATS. `topic_list`: topics separated by semicolons. If it names no
    topic, the permissions on all topics of the group are checked later."""

    consumer_group: str
    topic: str = ""
    topic_list: str = ""

    def list_topics(self) -> set[str]:
        return {self.topic, *self.topic_list.split(";")} - {""}

    def list_wants(self, *actions: Action) -> Iterator[Want]:
        """Yield the permissions on the group and on each named topic."""
        yield want_group(self.consumer_group, *actions)
        for topic in sorted(self.list_topics()):
            yield want_topic(topic, *actions)


class AllConsumeStatsHeader(RequestHeader):
    is_order: str = "false"


class ResetOffsetHeader(RequestHeader, kw_only=True):
    """Header of INVOKE_BROKER_TO_RESET_OFFSET. `timestamp`: store time to reset to, epoch ms, or -1
    for the end of each queue."""

    topic: Topic
    group: Group
    timestamp: Int64 = -1
    queue_id: Int32 = -1
    offset: Int64 = -1
    is_force: str = "false"


class ProgressHandlers(Handlers):
    """Handlers for the offsets of topics and groups."""

    def __init__(self, broker: BrokerServices) -> None:
        super().__init__(broker)
        self._store = broker.store
        self._name = broker.settings.broker_name

    @answers(RequestCode.GET_TOPIC_STATS_INFO, TopicHeader, Action.GET)
    async def get_topic_stats(self, request: Request[TopicHeader]) -> RemotingCommand:
        """Return the first and the end offset of each queue of a topic."""
        topic = self._find_topic(request.header.topic)

        def measure(key: QueueKey) -> _TopicOffset:
            end = self._store.get_max_offset_in_queue(*key)
            begin = self._store.get_min_offset_in_queue(*key)
            return _TopicOffset(begin, end, self._find_store_time(key, end - 1, begin))

        entries = await self._measure(measure, _list_queues(topic, topic.write_queue_nums))
        tps = self._broker.statistics.topic_put_tps(topic.topic_name)
        body = encode_object(
            offsetTable=encode_queue_map(self._name, entries), **encode_members(topicPutTps=tps)
        )
        return succeed(body=body)

    @answers(RequestCode.GET_CONSUME_STATS, ConsumeStatsHeader, Action.GET)
    async def get_consume_stats(self, request: Request[ConsumeStatsHeader]) -> RemotingCommand:
        """Return a group's progress in the requested topics, or in all topics it has consumed."""
        group = request.header.consumer_group
        topics = request.header.list_topics()
        if not topics:
            topics = set(self._broker.offsets.list_topics(group))
            request.caller.require(*(want_topic(name, *_LOOKS) for name in sorted(topics)))
        entries = [entry for topic in sorted(topics) for entry in await self._show(group, topic)]
        tps = sum(self._broker.statistics.group_get_tps(group, topic) for topic in topics)
        return succeed(body=self._encode_stats(entries, tps))

    @answers(RequestCode.GET_BROKER_CONSUME_STATS, AllConsumeStatsHeader, Action.GET)
    async def get_all_consume_stats(
        self, request: Request[AllConsumeStatsHeader]
    ) -> RemotingCommand:
        """Return the progress of all groups. With `is_order`, only groups that consume in order are
        returned."""
        is_order = is_true(request.header.is_order)
        shown: list[bytes] = []
        total_diff = in_flight = 0
        topics: dict[str, list[str]] = {}
        for group_name, topic in sorted(self._broker.offsets.list_keys()):
            topics.setdefault(group_name, []).append(topic)
        for name, group in sorted(self._broker.groups.list_groups().items()):
            if is_order and not group.consume_message_orderly:
                continue
            stats: list[bytes] = []
            for topic in topics.get(name, ()):
                entries = await self._show(name, topic)
                total_diff += sum(
                    wrapper.broker_offset - wrapper.consumer_offset for _, wrapper in entries
                )
                in_flight += sum(
                    wrapper.pull_offset - wrapper.consumer_offset for _, wrapper in entries
                )
                tps = self._broker.statistics.group_get_tps(name, topic)
                stats.append(self._encode_stats(entries, tps))
            if stats:
                shown.append(encode_object(**{name: b"[" + b",".join(stats) + b"]"}))
        body = encode_object(
            consumeStatsList=b"[" + b",".join(shown) + b"]",
            **encode_members(
                brokerAddr=self._broker.address, totalDiff=total_diff, totalInflightDiff=in_flight
            ),
        )
        return succeed(body=body)

    @answers(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, ResetOffsetHeader, Action.UPDATE)
    async def reset_offset(self, request: Request[ResetOffsetHeader]) -> RemotingCommand:
        """Reset a group's consumer offsets in a topic to a store time (-1 for the end), and notify
        the members. A request may also set the offset in one queue. Without `isForce`, a time never
        moves an offset forward."""
        group = request.header.group
        check_group_of_client(group)
        topic = self._find_topic(request.header.topic)
        timestamp_ms = request.header.timestamp
        queue_id = request.header.queue_id
        fixed = request.header.offset
        is_fixed = queue_id >= 0 and fixed >= 0  # mqadmin sends no isForce then
        is_force = is_fixed or is_true(request.header.is_force)
        keys = [
            key
            for key in _list_queues(topic, topic.write_queue_nums)
            if queue_id in (-1, key.queue_id)
        ]
        if is_fixed:
            targets = [self._clamp(key, fixed) for key in keys]
        else:
            targets = await self._broker.look_ups.run(self._find_offsets, keys, timestamp_ms)
        entries: list[tuple[QueueKey, int]] = []
        for key, target in zip(keys, targets, strict=True):
            known = self._broker.offsets.query_offset(group, *key)
            most = target if known is None or is_force else known
            entries.append((key, min(target, most)))
        for key, target in entries:
            self._broker.offsets.commit_offset(group, *key, target)
        await self._broker.offsets.persist()
        body = encode_object(offsetTable=encode_queue_map(self._name, entries))
        self._notify_members(group, topic.topic_name, timestamp_ms, body, entries, force=is_force)
        return succeed(body=body)

    def _notify_members(
        self,
        group: str,
        topic: str,
        timestamp_ms: int,
        body: bytes,
        entries: Iterable[tuple[QueueKey, int]],
        *,
        force: bool,
    ) -> None:
        """Notify the remoting consumers of a group to continue at the new offsets."""
        found = self._broker.consumers.find_group(group)
        fields = {
            "topic": topic,
            "group": group,
            "timestamp": str(timestamp_ms),
            "isForce": str(force).lower(),
        }
        for session in () if found is None else found.sessions:
            if isinstance(session, Connection):
                is_c = session.language == "CPP"
                session.send_one_way(
                    RequestCode.RESET_CONSUMER_CLIENT_OFFSET,
                    fields,
                    self._encode_for_c(entries) if is_c else body,
                )

    def _encode_for_c(self, entries: Iterable[tuple[QueueKey, int]]) -> bytes:
        """Encode a body for C++ clients: a list of queues and offsets instead of a map."""
        queues = [
            {
                "brokerName": self._name,
                "queueId": key.queue_id,
                "topic": key.topic,
                "offset": offset,
            }
            for key, offset in entries
        ]
        return msgspec.json.encode({"offsetTable": queues})

    def _find_offsets(self, keys: Iterable[QueueKey], timestamp_ms: int) -> list[int]:
        """Return the queue offsets for a store time, or the ends of the queues for a negative time.
        May read from a tier, so do not call it on the event loop."""
        if timestamp_ms < 0:
            return [self._store.get_max_offset_in_queue(*key) for key in keys]
        find = self._store.get_offset_in_queue_by_time
        return [max(find(*key, timestamp_ms), 0) for key in keys]

    def _clamp(self, key: QueueKey, offset: int) -> int:
        low = self._store.get_min_offset_in_queue(*key)
        return min(max(offset, low), self._store.get_max_offset_in_queue(*key))

    async def _show(self, group: str, topic: str) -> list[tuple[QueueKey, _OffsetWrapper]]:
        """Return a group's progress in each queue of a topic. Empty if the topic was deleted or no
        connected member subscribes to it."""
        config = self._broker.topics.find_topic(topic)
        members = self._broker.consumers.find_group(group)
        if config is None or (
            members is not None and members.subscriptions and topic not in members.subscriptions
        ):
            return []

        offsets = dict(self._broker.offsets.list_offsets(group, topic))
        delivered = {
            queue_id: progress.next_offset
            for queue_id, progress in self._broker.receive.state.find_queues(group, topic).items()
        }

        def measure(key: QueueKey) -> _OffsetWrapper:
            end = self._store.get_max_offset_in_queue(*key)
            begin = self._store.get_min_offset_in_queue(*key)
            offset = offsets.get(key.queue_id) or 0
            time_ms = self._find_store_time(key, offset - 1, begin)
            pulled = max(offset, delivered.get(key.queue_id, 0))
            return _OffsetWrapper(end, offset, pulled, time_ms)

        return await self._measure(measure, _list_queues(config, config.read_queue_nums))

    async def _measure(
        self, measure: Callable[[QueueKey], _Measured], queues: Iterable[QueueKey]
    ) -> list[tuple[QueueKey, _Measured]]:
        """Call a function for each queue, using several threads. A topic may have 65,536 queues,
        and the function may read from a tier."""
        keys = list(queues)
        size = max(1, -(-len(keys) // THREADS))
        parts = [keys[start : start + size] for start in range(0, len(keys), size)]
        found = await asyncio.gather(
            *(
                self._broker.look_ups.run(lambda part: list(map(measure, part)), part)
                for part in parts
            )
        )
        return list(zip(keys, chain.from_iterable(found), strict=True))

    def _encode_stats(
        self, entries: Iterable[tuple[QueueKey, _OffsetWrapper]], tps: float
    ) -> bytes:
        table = encode_queue_map(self._name, entries)
        return encode_object(offsetTable=table, **encode_members(consumeTps=tps))

    def _find_store_time(self, key: QueueKey, offset: int, begin: int) -> int:
        """Return the store time of a message (epoch ms), or 0 if the message does not exist."""
        if offset < begin:
            return 0
        try:
            return max(self._store.get_message_store_timestamp(*key, offset), 0)
        except TieredStoreError:
            return 0

    def _find_topic(self, topic: str) -> TopicConfig:
        config: TopicConfig | None = self._broker.topics.find_topic(topic)
        if config is None:
            raise Refused(Reason.TOPIC_NOT_EXIST, f"topic[{topic}] not exist")
        return config


def _list_queues(topic: TopicConfig, queue_nums: int) -> Iterator[QueueKey]:
    return (QueueKey(topic.topic_name, queue_id) for queue_id in range(queue_nums))
