"""RoutedQueues: finds a topic's queues on all brokers, to assign them to consumers."""

from __future__ import annotations

import logging
from collections import OrderedDict
from typing import Final, NamedTuple

import msgspec

from tieredstore.broker.clients.assignment import AssignedQueue
from tieredstore.broker.namesrv.registered import QueueData
from tieredstore.broker.namesrv.route import RouteTable
from tieredstore.broker.remoting.codes import RequestCode, ResponseCode
from tieredstore.broker.remoting.name_server import NameServer, split_addresses
from tieredstore.broker.remoting.signing import SessionCredentials
from tieredstore.broker.settings import BrokerSettings
from tieredstore.broker.shared_calls import SharedCalls
from tieredstore.broker.state.topics import MAX_QUEUE_NUMS, PERM_READ, TopicConfigManager
from tieredstore.clock import SYSTEM_CLOCK, Clock
from tieredstore.errors import TieredStoreError, Unavailable
from tieredstore.java_json import quote_integer_keys
from tieredstore.message.names import LMQ_PREFIX, MAX_NAME_BYTES

MAX_TOPICS: Final = 10_000
"""Maximum number of topics with a cached route. The least recently used one is dropped first."""
_TIMEOUT_MS: Final = 3_000
_log = logging.getLogger(__name__)


class _Route(msgspec.Struct, rename="camel"):
    queue_datas: list[QueueData] | None = None


class _Known(NamedTuple):
    """Queues on other brokers, as reported by a name server. `asked_ms`: time of the request
    (monotonic ms)."""

    queues: list[QueueData]
    asked_ms: int


class RoutedQueues:
    """Finds the readable queues of a topic on this broker, on brokers registered with it, and on
    brokers reported by the configured name servers. Routes from name servers are refreshed after
    `loadBalancePollNameServerInterval`. If no name server responds, the last route is used."""

    def __init__(
        self,
        settings: BrokerSettings,
        topics: TopicConfigManager,
        route: RouteTable,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._settings = settings
        self._topics = topics
        self._route = route
        self._clock = clock
        self._known: OrderedDict[str, _Known] = OrderedDict()
        self._servers: dict[str, NameServer] = {}
        self._asking = SharedCalls[list[QueueData]]()
        self._credentials = SessionCredentials.parse(
            settings.inner_client_credentials, "innerClientAuthenticationCredentials"
        )

    async def list_queues(self, topic: str) -> list[AssignedQueue] | None:
        """Return the queues of a topic in Java's order, or None if no broker has the topic."""
        if len(topic) > MAX_NAME_BYTES:
            return None
        own_name = self._settings.broker_name
        if topic.startswith(LMQ_PREFIX):  # in no route
            has_light = self._topics.find_consumed(topic) is not None
            return [AssignedQueue(topic, own_name, 0)] if has_light else None
        found = {data.broker_name: data for data in await self._find_others(topic)}
        found |= {data.broker_name: data for data in self._route.others.find_queues(topic)}
        found.pop(own_name, None)
        config = self._topics.find_topic(topic)
        if config is not None:
            found[own_name] = self._route.describe_queues(config)
        if not found:
            return None
        return sorted(
            AssignedQueue(topic, data.broker_name, queue_id)
            for data in found.values()
            if data.perm & PERM_READ
            for queue_id in range(min(data.read_queue_nums, MAX_QUEUE_NUMS))
        )

    async def close(self) -> None:
        """Cancel requests in progress and close the connections to name servers."""
        await self._asking.stop()
        for server in self._servers.values():
            server.close()

    async def _find_others(self, topic: str) -> list[QueueData]:
        addresses = split_addresses(self._settings.namesrv_addr)
        for former in self._servers.keys() - set(addresses):
            self._servers.pop(former).close()
        if not addresses:
            return []
        known = self._known.get(topic)
        now_ms = self._clock.monotonic_ms()
        interval_ms = self._settings.load_balance_poll_name_server_interval_ms
        if known is not None and now_ms - known.asked_ms < interval_ms:
            self._known.move_to_end(topic)
            return known.queues
        return await self._asking.run(topic, lambda: self._ask(topic, addresses))

    async def _ask(self, topic: str, addresses: list[str]) -> list[QueueData]:
        known = self._known.get(topic)
        queues: list[QueueData] = [] if known is None else known.queues
        for address in addresses:
            try:
                queues = await self._ask_server(topic, address)
                break
            except TieredStoreError as error:
                # The health of the registration tells operators.
                _log.debug("topic %s: the route cannot be read: %s", topic, error)
        if queues or self._topics.find_topic(topic) is not None:  # names of clients are not
            self._known[topic] = _Known(queues, self._clock.monotonic_ms())
            self._known.move_to_end(topic)
            while len(self._known) > MAX_TOPICS:
                self._known.popitem(last=False)
        return queues

    async def _ask_server(self, topic: str, address: str) -> list[QueueData]:
        server = self._servers.get(address)
        if server is None:
            server = self._servers[address] = NameServer(address, self._credentials)
        fields = {"topic": topic, "acceptStandardJsonOnly": "true"}
        code = RequestCode.GET_ROUTEINFO_BY_TOPIC
        response = await server.request(code, fields, b"", _TIMEOUT_MS)
        if response.code == ResponseCode.TOPIC_NOT_EXIST:
            return []
        if response.code != ResponseCode.SUCCESS:
            raise Unavailable(
                f"name server {address}: expected code 0, found {response.code} ({response.remark})"
            )
        try:
            body = quote_integer_keys(response.body_bytes)
            return msgspec.json.decode(body, type=_Route).queue_datas or []
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise Unavailable(f"name server {address}: route of {topic}: {error}") from None
