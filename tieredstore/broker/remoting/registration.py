"""NameServerRegistration: registers this broker and its topics with other name servers. Each
address in `namesrvAddr` has its own connection, so that a failing name server does not affect the
others. Name servers are updated every 30 s, and immediately when topics change."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Final

import msgspec

from tieredstore.broker.background import PeriodicTask
from tieredstore.broker.namesrv.route import RouteTable
from tieredstore.broker.remoting.codes import RequestCode
from tieredstore.broker.remoting.name_server import NameServer, split_addresses
from tieredstore.broker.remoting.signing import SessionCredentials
from tieredstore.broker.settings import BrokerSettings
from tieredstore.broker.state.config_manager import DataVersion
from tieredstore.broker.state.topics import TopicConfig, TopicConfigManager
from tieredstore.broker.turns import take_parts
from tieredstore.errors import TieredStoreError, Unavailable
from tieredstore.message.crc import crc32
from tieredstore.service_thread import ServiceHealth

_MIN_PERIOD_MS: Final = 10_000
_MAX_PERIOD_MS: Final = 60_000
_UNREGISTER_TIMEOUT_MS: Final = 3_000
_log = logging.getLogger(__name__)


class NameServerRegistration:
    """Registers this broker with each configured name server. The setting may change at run
    time."""

    def __init__(
        self, settings: BrokerSettings, topics: TopicConfigManager, route: RouteTable
    ) -> None:
        self._settings = settings
        self._topics = topics
        self._route = route
        self._servers: dict[str, NameServer] = {}
        self._credentials = SessionCredentials.parse(
            settings.inner_client_credentials, "innerClientAuthenticationCredentials"
        )
        self._permission = settings.broker_permission
        self._task = PeriodicTask("NameServerRegistration", self._period_ms, self.register)
        topics.add_listener(lambda _: self._task.wake())

    def start(self) -> None:
        """Start the periodic registration. The first one is immediate."""
        self._task.start()
        self._task.wake()

    async def stop(self) -> None:
        """Stop registering, and unregister from all name servers so that clients notice
        immediately. Idempotent."""
        await self._task.stop()
        servers, self._servers = self._servers, {}
        await asyncio.gather(*(self._unregister(server) for server in servers.values()))

    def health(self) -> ServiceHealth:
        """Return the health of the task. It is FAILED if the last registration failed at any name
        server."""
        return self._task.health()

    async def register(self) -> None:
        """Register with every name server now, even if some fail. Raises Unavailable at the end if
        any failed."""
        wanted = split_addresses(self._settings.namesrv_addr)
        for address in self._servers.keys() - set(wanted):
            await self._unregister(self._servers.pop(address))
        for address in wanted:
            if address not in self._servers:
                self._servers[address] = NameServer(address, self._credentials)
        if not self._servers:
            return
        if self._permission != self._settings.broker_permission:
            self._permission = self._settings.broker_permission
            self._topics.mark_changed()  # name servers accept a table only with a new version
        fields, body = await self._encode()
        timeout_ms = self._settings.register_broker_timeout_ms
        outcomes = await asyncio.gather(
            *(
                server.call(RequestCode.REGISTER_BROKER, fields, body, timeout_ms)
                for server in self._servers.values()
            ),
            return_exceptions=True,
        )
        failures = [outcome for outcome in outcomes if isinstance(outcome, Exception)]
        for failure in failures:
            if not isinstance(failure, TieredStoreError):
                raise failure
        if failures:
            raise Unavailable("; ".join(map(str, failures)))

    def _period_ms(self) -> int:
        period_ms = self._settings.register_name_server_period_ms
        return max(_MIN_PERIOD_MS, min(period_ms, _MAX_PERIOD_MS))

    def _identity(self) -> dict[str, str]:
        return {
            "brokerName": self._settings.broker_name,
            "brokerAddr": self._route.address,
            "clusterName": self._settings.broker_cluster_name,
            "brokerId": str(self._settings.broker_id),
        }

    async def _encode(self) -> tuple[dict[str, str], bytes]:
        """Encode the header fields and the body of REGISTER_BROKER."""
        version = msgspec.structs.replace(self._topics.data_version)
        topics = dict(self._topics.list_topics())
        body = await asyncio.to_thread(self._encode_body, topics, version)
        fields = self._identity() | {
            "haServerAddr": "",
            "enableActingMaster": "false",
            "compressed": "false",
            "bodyCrc32": str(crc32(body)),
        }
        return fields, body

    def _encode_body(self, topics: Mapping[str, TopicConfig], version: DataVersion) -> bytes:
        rows = (
            (name, msgspec.structs.replace(topic, perm=self._route.find_permission(topic)))
            for name, topic in topics.items()
        )
        table = b",".join(msgspec.json.encode(part)[1:-1] for part in take_parts(rows))
        return msgspec.json.encode(
            {
                "filterServerList": [],
                "topicConfigSerializeWrapper": {
                    "dataVersion": version,
                    "topicConfigTable": msgspec.Raw(b"{%b}" % table),
                    "topicQueueMappingDetailMap": {},
                    "topicQueueMappingInfoMap": {},
                },
            }
        )

    async def _unregister(self, server: NameServer) -> None:
        try:
            await server.call(
                RequestCode.UNREGISTER_BROKER, self._identity(), b"", _UNREGISTER_TIMEOUT_MS
            )
        except TieredStoreError as error:
            _log.info("cannot unregister: %s", error)
        server.close()
