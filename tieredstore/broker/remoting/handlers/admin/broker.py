"""Broker statistics and settings (codes 25, 26, 28, 315, 318, 319), store cleanup (306, 316, 329),
and consume queue units (321)."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final

import msgspec

from tieredstore.broker.auth.policies import Action
from tieredstore.broker.refused import Reason, Refused
from tieredstore.broker.remoting.codes import RequestCode, ResponseCode
from tieredstore.broker.remoting.command import RemotingCommand
from tieredstore.broker.remoting.handler_table import (
    Group,
    Int32,
    Int64,
    NoFields,
    Request,
    RequestHeader,
    Topic,
)
from tieredstore.broker.remoting.handlers.admin.connections import show_subscription
from tieredstore.broker.remoting.handlers.admin.runtime import describe_runtime
from tieredstore.broker.remoting.handlers.base import Handlers, answers, succeed, succeed_with
from tieredstore.broker.services import BrokerServices
from tieredstore.broker.settings import list_settings, update_settings
from tieredstore.broker.state.config_manager import DataVersion
from tieredstore.broker.state.statistics import DAY_MS, HOUR_MS, MINUTE_MS, Rate
from tieredstore.contracts.dispatch_source import QueueKey, QueueRange, find_light
from tieredstore.contracts.message_store import CleanableStore
from tieredstore.contracts.wrapping import list_layers
from tieredstore.errors import Invalid
from tieredstore.message.lite import LITE_PREFIX, parse_lite_topic
from tieredstore.message.names import LMQ_PREFIX, is_system_topic


class StatsHeader(RequestHeader):
    stats_name: str
    stats_key: str


class BrokerHandlers(Handlers):
    """Handlers for the settings and statistics of the broker."""

    def __init__(self, broker: BrokerServices) -> None:
        super().__init__(broker)
        self._version = DataVersion(timestamp=broker.clock.now_ms())

    @answers(RequestCode.UPDATE_BROKER_CONFIG, NoFields, Action.UPDATE)
    def update_config(self, request: Request[NoFields]) -> RemotingCommand:
        """Change settings until the broker stops. The file broker.conf is not changed."""
        changes = _parse_properties(request.body)
        try:
            changed = update_settings(
                self._broker.settings, self._broker.store_config, changes, "updateBrokerConfig"
            )
        except Invalid as error:
            raise Refused(Reason.INVALID_PARAMETER, str(error)) from None
        if changed:
            self._version.counter += 1
            self._version.timestamp = self._broker.clock.now_ms()
        return succeed()

    @answers(RequestCode.GET_BROKER_CONFIG, NoFields, Action.GET)
    def get_config(self, request: Request[NoFields]) -> RemotingCommand:
        """Return all settings except those of plugins, which may be secret."""
        settings = list_settings(self._broker.settings, self._broker.store_config)
        return succeed(
            {"version": msgspec.json.encode(self._version).decode()}, _format_properties(settings)
        )

    @answers(RequestCode.GET_BROKER_RUNTIME_INFO, NoFields, Action.GET)
    async def get_runtime_info(self, request: Request[NoFields]) -> RemotingCommand:
        """Return statistics as text, under Java's names."""
        return succeed_with({"table": await describe_runtime(self._broker)})

    @answers(RequestCode.VIEW_BROKER_STATS_DATA, StatsHeader, Action.GET)
    def get_rate(self, request: Request[StatsHeader]) -> RemotingCommand:
        """Return a rate over the last minute, hour and day. The request names the rate and its
        key."""
        name, key = request.header.stats_name, request.header.stats_key
        rates = {
            member: self._broker.statistics.find_rate(name, key, window_ms)
            for member, window_ms in (
                ("statsMinute", MINUTE_MS),
                ("statsHour", HOUR_MS),
                ("statsDay", DAY_MS),
            )
        }
        if None in rates.values():
            raise Refused(Reason.SYSTEM_ERROR, f"The stats <{name}> <{key}> not exist")
        body = {member: _show_rate(rate) for member, rate in rates.items() if rate is not None}
        return succeed_with(body)

    @answers(RequestCode.GET_NAMESRV_CONFIG, NoFields, Action.GET)
    def get_namesrv_config(self, request: Request[NoFields]) -> RemotingCommand:
        """Return the settings of the name-server role."""
        settings = self._broker.settings
        shown = {"bindAddress": settings.bind_address, "listenPort": str(settings.listen_port)}
        return succeed(body=_format_properties(shown))

    @answers(RequestCode.UPDATE_NAMESRV_CONFIG, NoFields, Action.UPDATE)
    def update_namesrv_config(self, request: Request[NoFields]) -> RemotingCommand:
        """Refuse the request, because settings of the name-server role cannot change at run
        time."""
        keys = ", ".join(_parse_properties(request.body))
        raise Refused(
            Reason.INVALID_PARAMETER,
            f"updateNamesrvConfig: expected a key that can be changed at run time, found {keys}",
        )


def _parse_properties(body: bytes) -> dict[str, str]:
    """Parse `key=value` lines in Java's Properties format."""
    import javaproperties

    try:
        found = dict(javaproperties.loads(body.decode()))
        "".join(found).encode()  # the answer names a wrong key
    except (UnicodeError, javaproperties.InvalidUEscapeError) as error:
        raise Refused(Reason.INVALID_PARAMETER, f"body: {error}") from None
    return found


def _format_properties(settings: Mapping[str, str]) -> bytes:
    lines = (f"{key}={value}" for key, value in sorted(settings.items()))
    return ("\n".join(lines) + "\n").encode()


def _show_rate(rate: Rate) -> dict[str, float]:
    return {"sum": rate.sum, "tps": rate.tps, "avgpt": rate.average}


MAX_UNITS: Final = 10_000
"""Maximum number of consume queue units in one answer."""


class UnitsHeader(RequestHeader, kw_only=True):
    topic: Topic
    queue_id: Int32
    index: Int64
    count: Int64
    consumer_group: Group = ""


class MaintenanceHandlers(Handlers):
    """Handlers for cleanup of the store, and for consume queue units."""

    @answers(RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE, NoFields, Action.UPDATE)
    async def clean_queues(self, request: Request[NoFields]) -> RemotingCommand:
        """Empty the queues whose messages have all expired."""
        await asyncio.to_thread(self._find_cleanable().clean_expired_consume_queue)
        return succeed()

    @answers(RequestCode.DELETE_EXPIRED_COMMITLOG, NoFields, Action.UPDATE)
    def delete_files(self, request: Request[NoFields]) -> RemotingCommand:
        """Delete expired files now, whatever the configured hour."""
        self._find_cleanable().execute_delete_files_manually()
        return succeed()

    @answers(RequestCode.CLEAN_UNUSED_TOPIC, NoFields, Action.UPDATE)
    async def delete_unused_topics(self, request: Request[NoFields]) -> RemotingCommand:
        """Delete the messages of topics that are not in the topic table, including their lite
        topics. System topics and other light queues are kept."""
        self._find_cleanable()  # a read-only history stays unchanged
        topics = await asyncio.to_thread(self._list_topics)
        known = self._broker.topics
        unused = set(filter(self._is_unused, topics))
        if unused:
            with known.deleting(unused):
                await self._broker.look_ups.run(self._broker.store.delete_topics, unused)
        return succeed()

    def _is_unused(self, topic: str) -> bool:
        if topic.startswith(LMQ_PREFIX):
            lite = parse_lite_topic(topic)
            return lite is not None and self._is_unused(lite.parent)
        return self._broker.topics.find_topic(topic) is None and not is_system_topic(topic)

    def _list_topics(self) -> set[str]:
        source = self._broker.store.dispatch_source
        source.flush()
        light = (queue for queue, _ in find_light(source).list_light_queues(LITE_PREFIX))
        return {key.topic for key in source.queues()}.union(light)

    @answers(RequestCode.QUERY_CONSUME_QUEUE, UnitsHeader, Action.GET)
    async def list_units(self, request: Request[UnitsHeader]) -> RemotingCommand:
        """Return units of a queue in the local store, starting at queue offset `index`."""
        topic, queue_id = request.header.topic, request.header.queue_id
        index = request.header.index
        count = min(max(request.header.count, 0), MAX_UNITS)
        found = await asyncio.to_thread(self._read_units, QueueKey(topic, queue_id), index, count)
        if found is None:
            raise Refused(Reason.SYSTEM_ERROR, f"{queue_id}@{topic} is not exist!")
        there, units = found
        remark = None if units is not None else f"Index {index} of {queue_id}@{topic} is not exist!"
        body: dict[str, object] = {
            "maxQueueIndex": there.max_offset,
            "minQueueIndex": there.min_offset,
            "queueData": units or [],
        }
        if group := request.header.consumer_group:
            subscription = self._broker.consumers.find_subscription(group, topic)
            if subscription is None:
                body["filterData"] = f"{group}@{topic} is not online!"
            else:
                body["subscriptionData"] = show_subscription(subscription)
        return RemotingCommand(ResponseCode.SUCCESS, body=msgspec.json.encode(body), remark=remark)

    def _read_units(
        self, key: QueueKey, index: int, count: int
    ) -> tuple[QueueRange, list[dict[str, object]] | None] | None:
        """Return the range of a queue and its units, starting at queue offset `index`. The units
        are None if the index is out of range. Returns None for an unknown queue."""
        source = self._broker.store.dispatch_source
        source.flush()  # messages that are not on disk are not in the range
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
        raise Refused(Reason.NO_PERMISSION, "the broker serves a history, read-only")
