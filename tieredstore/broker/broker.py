"""Broker: all parts of one broker, made, started and stopped in order."""

from __future__ import annotations

import asyncio
import gc
import logging
import socket
from collections.abc import Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Self, cast

from tieredstore import registry
from tieredstore.broker.services import BrokerServices
from tieredstore.clock import SYSTEM_CLOCK, Clock
from tieredstore.config import LoadedConfig, config_from_properties, read_broker_conf
from tieredstore.contracts.message_store import HostedStore
from tieredstore.message.hosts import encode_host
from tieredstore.service_thread import MonitoredServices, ServiceHealth

_log = logging.getLogger(__name__)


class Broker:
    """One broker over one message store, on the running event loop.

    Start order: the listening sockets are bound, the store is locked and recovered, the files of
    `config/` are loaded, services start, and only then does anybody answer on the sockets. `stop`
    does the reverse. What blocks for long (load, shutdown) runs in a thread.
    """

    def __init__(
        self, loaded: LoadedConfig, settings: Any = None, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        self.loaded = loaded
        self.settings = settings
        self.clock = clock
        self._running = AsyncExitStack()
        self._services: BrokerServices | None = None

    @classmethod
    def from_properties(
        cls, properties: Mapping[str, str], *, origin: str, clock: Clock = SYSTEM_CLOCK
    ) -> Self:
        """Make a broker from the keys of a broker.conf. Raises Invalid."""
        return cls(config_from_properties(properties, origin=origin, serving=True), None, clock)

    @classmethod
    def from_file(cls, path: Path, clock: Clock = SYSTEM_CLOCK) -> Self:
        """Make a broker from a broker.conf. Raises Invalid."""
        return cls.from_properties(read_broker_conf(path), origin=str(path), clock=clock)

    @property
    def services(self) -> BrokerServices:
        """The parts, once `start` has made them."""
        assert self._services is not None, "the broker is not started"
        return self._services

    async def start(self) -> None:
        """Recover the store and begin to serve. Raises Invalid, Fenced, Corrupt, Unavailable; what
        was started is stopped again then."""
        async with AsyncExitStack() as starting:
            await self._start(starting)
            self._running = starting.pop_all()

    async def _start(self, starting: AsyncExitStack) -> None:
        listener = starting.enter_context(_bind("127.0.0.1", 0))
        port = listener.getsockname()[1]
        store = await self._open_store(starting, encode_host("127.0.0.1", port))
        self._services = BrokerServices(
            settings=self.settings,
            store=store,
            clock=self.clock,
            address=f"127.0.0.1:{port}",
        )
        gc.collect()
        gc.freeze()

    async def _open_store(self, starting: AsyncExitStack, host: bytes) -> HostedStore:
        store = cast(HostedStore, registry.message_store(self.loaded, self.clock, store_host=host))
        await asyncio.to_thread(store.load)
        starting.push_async_callback(asyncio.to_thread, store.shutdown)
        await asyncio.to_thread(store.start)
        return store

    async def stop(self) -> None:
        """Stop everything in the reverse order; nothing that was acknowledged is lost.
        Idempotent."""
        running, self._running = self._running, AsyncExitStack()
        await running.aclose()

    def health(self) -> list[ServiceHealth]:
        """Return how each background loop of the broker and its store is."""
        store = self.services.store
        return list(store.health()) if isinstance(store, MonitoredServices) else []


def _bind(host: str, port: int) -> socket.socket:
    """Bind a listening socket; nobody is answered on it yet."""
    bound = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    bound.bind((host, port))
    return bound
