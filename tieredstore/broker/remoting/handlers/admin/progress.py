"""How far topics and groups are, and offsets set anew (codes 202, 208, 222, 317)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator

import msgspec

from tieredstore.broker.refused import RefusalReason, Refused
from tieredstore.broker.remoting.codes import RequestCode, ResponseCode
from tieredstore.broker.remoting.command import RemotingCommand
from tieredstore.broker.remoting.connection import Connection
from tieredstore.broker.remoting.handler_table import HandlerTable
from tieredstore.broker.remoting.handlers.admin.queue_maps import (
    encode_members,
    encode_object,
    encode_queue_map,
)
from tieredstore.broker.remoting.handlers.fields import read_bool, read_int, read_text
from tieredstore.broker.services import BrokerServices
from tieredstore.broker.state.topics import TopicConfig
from tieredstore.contracts.dispatch_source import QueueKey
from tieredstore.contracts.message_store import GetRequest
from tieredstore.errors import TieredStoreError

_AT_ONCE = 16
"""Queues of which the time of a message is read at the same time: in a tier that is a wait."""


class _TopicOffset(msgspec.Struct, rename="camel"):
    min_offset: int
    max_offset: int
    last_update_timestamp: int


class _OffsetWrapper(msgspec.Struct, rename="camel"):
    broker_offset: int
    consumer_offset: int
    pull_offset: int
    last_timestamp: int = 0


def register_handlers(table: HandlerTable, broker: BrokerServices) -> None:
    """Serve them."""
    handlers = ProgressHandlers(broker)
    table.register(RequestCode.GET_TOPIC_STATS_INFO, handlers.get_topic_stats)
    table.register(RequestCode.GET_CONSUME_STATS, handlers.get_consume_stats)
    table.register(RequestCode.GET_BROKER_CONSUME_STATS, handlers.get_all_consume_stats)
    table.register(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, handlers.reset_offset)


class ProgressHandlers:
    """Answers from the ends of queues and the offsets of groups."""

    def __init__(self, broker: BrokerServices) -> None:
        self._broker = broker
        self._store = broker.store
        self._name = broker.settings.broker_name
        self._reading = asyncio.Semaphore(_AT_ONCE)

    async def get_topic_stats(
        self, connection: Connection, request: RemotingCommand
    ) -> RemotingCommand:
        """Return the offsets of a topic's queues."""
        topic = self._find_topic(read_text(request, "topic"))

        async def show(key: QueueKey) -> tuple[QueueKey, _TopicOffset]:
            end = self._store.get_max_offset_in_queue(*key)
            begin = self._store.get_min_offset_in_queue(*key)
            return key, _TopicOffset(begin, end, await self._find_store_time(key, end - 1))

        entries = await asyncio.gather(*map(show, _list_queues(topic, topic.write_queue_nums)))
        tps = self._broker.statistics.topic_put_tps(topic.topic_name)
        body = encode_object(
            offsetTable=encode_queue_map(self._name, entries), **encode_members(topicPutTps=tps)
        )
        return RemotingCommand(ResponseCode.SUCCESS, body=body)

    async def get_consume_stats(
        self, connection: Connection, request: RemotingCommand
    ) -> RemotingCommand:
        """Return how far a group is in all topics that it has consumed, or in those asked for."""
        group = read_text(request, "consumerGroup")
        wanted = request.ext_fields.get("topicList", "").split(";")
        topics = {request.ext_fields.get("topic", ""), *wanted} - {""}
        topics = topics or self._broker.offsets.list_topics(group)
        entries = [entry for topic in sorted(topics) for entry in await self._show(group, topic)]
        tps = sum(self._broker.statistics.group_get_tps(group, topic) for topic in topics)
        return RemotingCommand(ResponseCode.SUCCESS, body=self._encode_stats(entries, tps))

    async def get_all_consume_stats(
        self, connection: Connection, request: RemotingCommand
    ) -> RemotingCommand:
        """Return how far all groups are, or all orderly ones."""
        is_order = read_bool(request, "isOrder")
        shown: list[bytes] = []
        total_diff = 0
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
                tps = self._broker.statistics.group_get_tps(name, topic)
                stats.append(self._encode_stats(entries, tps))
            if stats:
                shown.append(encode_object(**{name: b"[" + b",".join(stats) + b"]"}))
        body = encode_object(
            consumeStatsList=b"[" + b",".join(shown) + b"]",
            **encode_members(
                brokerAddr=self._broker.address, totalDiff=total_diff, totalInflightDiff=0
            ),
        )
        return RemotingCommand(ResponseCode.SUCCESS, body=body)

    async def reset_offset(
        self, connection: Connection, request: RemotingCommand
    ) -> RemotingCommand:
        """Set the offsets of a group in a topic to a time (-1: the end), or of one queue to an
        offset, and tell the group's members. Without isForce a queue never goes ahead."""
        group = read_text(request, "group")
        topic = self._find_topic(read_text(request, "topic"))
        timestamp_ms = read_int(request, "timestamp", -1)
        queue_id = read_int(request, "queueId", -1)
        fixed = read_int(request, "offset", -1)
        is_force = read_bool(request, "isForce")
        keys = [
            key
            for key in _list_queues(topic, topic.write_queue_nums)
            if queue_id in (-1, key.queue_id)
        ]
        if queue_id >= 0 and fixed >= 0:
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
        self._tell_members(group, topic.topic_name, timestamp_ms, body, entries, force=is_force)
        return RemotingCommand(ResponseCode.SUCCESS, body=body)

    def _tell_members(
        self,
        group: str,
        topic: str,
        timestamp_ms: int,
        body: bytes,
        entries: Iterable[tuple[QueueKey, int]],
        *,
        force: bool,
    ) -> None:
        """Have consumers that are connected by remoting begin again at the new offsets."""
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
        """Write what clients in C++ read: a list in the place of the map."""
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
        """Find offsets by time, which may have to read a tier: not for the loop."""
        if timestamp_ms < 0:
            return [self._store.get_max_offset_in_queue(*key) for key in keys]
        find = self._store.get_offset_in_queue_by_time
        return [max(find(*key, timestamp_ms), 0) for key in keys]

    def _clamp(self, key: QueueKey, offset: int) -> int:
        low = self._store.get_min_offset_in_queue(*key)
        return min(max(offset, low), self._store.get_max_offset_in_queue(*key))

    async def _show(self, group: str, topic: str) -> list[tuple[QueueKey, _OffsetWrapper]]:
        """Tell how far a group is in each queue of a topic; nothing of a topic that is gone, or
        that none of the members who are connected subscribed to."""
        config = self._broker.topics.find_topic(topic)
        members = self._broker.consumers.find_group(group)
        if config is None or (
            members is not None and members.subscriptions and topic not in members.subscriptions
        ):
            return []

        async def show(key: QueueKey) -> tuple[QueueKey, _OffsetWrapper]:
            end = self._store.get_max_offset_in_queue(*key)
            offset = self._broker.offsets.query_offset(group, *key) or 0
            time_ms = await self._find_store_time(key, offset - 1)
            return key, _OffsetWrapper(end, offset, offset, time_ms)

        return list(await asyncio.gather(*map(show, _list_queues(config, config.read_queue_nums))))

    def _encode_stats(
        self, entries: Iterable[tuple[QueueKey, _OffsetWrapper]], tps: float
    ) -> bytes:
        table = encode_queue_map(self._name, entries)
        return encode_object(offsetTable=table, **encode_members(consumeTps=tps))

    async def _find_store_time(self, key: QueueKey, offset: int) -> int:
        """Find the store time of a message, epoch ms; 0 when it is not there."""
        if offset < self._store.get_min_offset_in_queue(*key):
            return 0
        async with self._reading:
            try:
                found = await self._store.get_async(GetRequest(*key, offset, max_count=1))
            except TieredStoreError:
                return 0
        return found.messages[0].store_timestamp_ms if found.messages else 0

    def _find_topic(self, topic: str) -> TopicConfig:
        config: TopicConfig | None = self._broker.topics.find_topic(topic)
        if config is None:
            raise Refused(RefusalReason.TOPIC_NOT_EXIST, f"topic[{topic}] not exist", topic=topic)
        return config


def _list_queues(topic: TopicConfig, queue_nums: int) -> Iterator[QueueKey]:
    return (QueueKey(topic.topic_name, queue_id) for queue_id in range(queue_nums))
