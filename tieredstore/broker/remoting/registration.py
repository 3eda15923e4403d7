"""NameServerRegistration: tells name servers outside where this broker is and which topics it has.

Each address of `namesrvAddr` keeps a connection of its own and fails alone. All are told each 30 s,
and at once when a topic was made, changed or deleted.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Final

import msgspec

from tieredstore.broker.namesrv.route import RouteTable
from tieredstore.broker.periodic import PeriodicTask
from tieredstore.broker.remoting.client import connect
from tieredstore.broker.remoting.codes import RequestCode, ResponseCode
from tieredstore.broker.remoting.connection import Connection
from tieredstore.broker.remoting.signing import SessionCredentials
from tieredstore.broker.settings import BrokerSettings
from tieredstore.broker.state.topics import TopicConfigManager
from tieredstore.errors import TieredStoreError, Unavailable
from tieredstore.message.crc import crc32
from tieredstore.service_thread import ServiceHealth

_MIN_PERIOD_MS: Final = 10_000
_MAX_PERIOD_MS: Final = 60_000
_UNREGISTER_TIMEOUT_MS: Final = 3_000
_log = logging.getLogger(__name__)


class NameServerRegistration:
    """Registers with each name server of the settings, which may change while it runs."""

    def __init__(
        self, settings: BrokerSettings, topics: TopicConfigManager, route: RouteTable
    ) -> None:
        self._settings = settings
        self._topics = topics
        self._route = route
        self._servers: dict[str, _NameServer] = {}
        self._credentials = SessionCredentials.parse(
            settings.inner_client_credentials, "innerClientAuthenticationCredentials"
        )
        self._permission = settings.broker_permission
        self._task = PeriodicTask("NameServerRegistration", self._period_ms, self.register)
        topics.add_listener(lambda _: self._task.wake())

    def start(self) -> None:
        """Start the task; the first round comes at once."""
        self._task.start()
        self._task.wake()

    async def stop(self) -> None:
        """Unregister from all, so that clients learn of it at once. Idempotent."""
        await self._task.stop()
        servers, self._servers = self._servers, {}
        await asyncio.gather(*(self._unregister(server) for server in servers.values()))

    def health(self) -> ServiceHealth:
        """Return how the task is: FAILED when any name server did not take the last round."""
        return self._task.health()

    async def register(self) -> None:
        """Register with every name server now. Raises Unavailable when some did not take it; the
        others did."""
        wanted = [text.strip() for text in self._settings.namesrv_addr.split(";") if text.strip()]
        for address in self._servers.keys() - set(wanted):
            await self._unregister(self._servers.pop(address))
        for address in wanted:
            if address not in self._servers:
                self._servers[address] = _NameServer(address, self._credentials)
        if not self._servers:
            return
        if self._permission != self._settings.broker_permission:
            self._permission = self._settings.broker_permission
            self._topics.mark_changed()  # name servers take a table only with a new version
        fields, body = self._encode()
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

    def _encode(self) -> tuple[dict[str, str], bytes]:
        """Write header fields and body of REGISTER_BROKER."""
        topics = {
            name: msgspec.structs.replace(topic, perm=self._route.find_permission(topic))
            for name, topic in self._topics.list_topics().items()
        }
        body = msgspec.json.encode(
            {
                "filterServerList": [],
                "topicConfigSerializeWrapper": {
                    "dataVersion": self._topics.data_version,
                    "topicConfigTable": topics,
                    "topicQueueMappingDetailMap": {},
                    "topicQueueMappingInfoMap": {},
                },
            }
        )
        fields = self._identity() | {
            "haServerAddr": "",
            "enableActingMaster": "false",
            "compressed": "false",
            "bodyCrc32": str(crc32(body)),
        }
        return fields, body

    async def _unregister(self, server: _NameServer) -> None:
        try:
            await server.call(
                RequestCode.UNREGISTER_BROKER, self._identity(), b"", _UNREGISTER_TIMEOUT_MS
            )
        except TieredStoreError as error:
            _log.info("not unregistered: %s", error)
        server.close()


class _NameServer:
    """One name server and the connection to it, opened anew when it has ended."""

    def __init__(self, address: str, credentials: SessionCredentials | None) -> None:
        self.address = address
        self._credentials = credentials
        self._connection: Connection | None = None

    async def call(
        self, code: RequestCode, fields: Mapping[str, str], body: bytes, timeout_ms: int
    ) -> None:
        """Call it. Raises Unavailable, also for an answer that is not SUCCESS; Invalid for an
        address that is none."""
        connection = self._connection
        if connection is None or not connection.is_open:
            connection = self._connection = await connect(self.address)
        if self._credentials is not None:
            fields = self._credentials.sign(fields, body)
        response = await connection.request(code, fields, body, timeout_ms)
        if response.code != ResponseCode.SUCCESS:
            raise Unavailable(
                f"name server {self.address}: request {int(code)}: expected code 0, "
                f"found {response.code} ({response.remark})"
            )

    def close(self) -> None:
        """End the connection."""
        if self._connection is not None:
            self._connection.close()
