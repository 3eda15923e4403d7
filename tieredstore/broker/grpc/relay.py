"""One port for TLS and plain connections, in front of a gRPC server that can tell neither.

The first byte says what a client speaks: 0x16 begins a TLS handshake. The bytes then go, as they
are, to the server's TLS port or to its plain port, both on the loopback interface.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from dataclasses import dataclass
from typing import Final, cast

from tieredstore.broker.descriptors import leaves_room

TLS_HANDSHAKE: Final = 0x16
FIRST_BYTE_TIMEOUT_S: Final = 20.0
"""How long a client may be connected before it says its first byte."""
STALL_TIMEOUT_S: Final = 120.0
"""How long a peer may take nothing of what waits for it."""
LOOPBACK: Final = "127.0.0.1"
_BACKLOG: Final = 1024
_PENDING_LIMIT_BYTES: Final = 256 << 10

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Ports:
    """The server's own ports behind the relay; None: clients of that kind are not served."""

    plain: int | None
    tls: int | None


class Relay:
    """Accepts clients on one port and passes them on."""

    def __init__(self, ports: Ports, max_connections: int) -> None:
        self._ports = ports
        self._max_connections = max_connections
        self._server: asyncio.Server | None = None
        self._fronts: set[_Front] = set()
        self._peers: dict[int, str] = {}

    async def start(self, listener: socket.socket) -> None:
        """Begin to accept on a bound socket, which is closed with the relay."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            lambda: _Front(self), sock=listener, backlog=_BACKLOG
        )

    async def stop(self) -> None:
        """Close the port and every connection."""
        if self._server is None:
            return
        self._server.close()
        for front in list(self._fronts):
            front.close()
        await asyncio.sleep(0)
        self._server = None

    @property
    def connections(self) -> int:
        """How many clients are connected."""
        return len(self._fronts)

    def find_peer(self, relayed_port: int) -> str | None:
        """Return the address (`ip:port`) of the client whose bytes come from one of our ports on
        the loopback interface; None for a port that is not the relay's."""
        return self._peers.get(relayed_port)

    def admit(self, front: _Front, descriptor: int) -> bool:
        """Take a connection in, unless there are too many."""
        if len(self._fronts) >= self._max_connections or not leaves_room(descriptor):
            logger.warning("gRPC port: %d connections, another is refused", len(self._fronts))
            return False
        self._fronts.add(front)
        return True

    def choose_port(self, first_byte: int) -> int | None:
        """Return the server's port for what a client speaks; None when it has none."""
        return self._ports.tls if first_byte == TLS_HANDSHAKE else self._ports.plain

    def name_peer(self, relayed_port: int, peer: str) -> None:
        """Remember whose bytes come from one of our ports."""
        self._peers[relayed_port] = peer

    def forget(self, front: _Front, relayed_port: int | None) -> None:
        """Forget a connection that is over."""
        self._fronts.discard(front)
        if relayed_port is not None:
            self._peers.pop(relayed_port, None)


class _Side(asyncio.Protocol):
    """One of the two ends: what it reads the other one writes."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self.other: _Side | None = None
        self.has_ended = False
        self._stall: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        other = self.other
        if other is not None and other.transport is not None:
            other.transport.write(data)

    def eof_received(self) -> bool:
        """Pass the end on; once both have said it, both are closed."""
        self.has_ended = True
        other = self.other
        if other is None or other.transport is None or other.has_ended:
            return False
        other.transport.write_eof()
        return True

    def pause_writing(self) -> None:
        self.limit_stall()
        if self.other is not None and self.other.transport is not None:
            self.other.transport.pause_reading()

    def resume_writing(self) -> None:
        if self.other is not None and self.other.transport is not None:
            self._stop_stall()
            self.other.transport.resume_reading()

    def limit_stall(self) -> None:
        """End the connection after a while: a peer that never reads would keep its place."""
        if self.transport is not None and self._stall is None:
            loop = asyncio.get_running_loop()
            self._stall = loop.call_later(STALL_TIMEOUT_S, self.transport.abort)

    def _stop_stall(self) -> None:
        if self._stall is not None:
            self._stall.cancel()
            self._stall = None

    def connection_lost(self, error: Exception | None) -> None:  # noqa: ARG002
        other = self.other
        self._stop_stall()
        self.transport = None
        if other is not None and other.transport is not None:
            other.transport.close()
            other.limit_stall()  # what was written goes out first


class _Front(_Side):
    """The client's end; it finds its other end by the first byte."""

    def __init__(self, relay: Relay) -> None:
        super().__init__()
        self._relay = relay
        self._pending = bytearray()
        self._connecting: asyncio.Task[None] | None = None
        self._relayed_port: int | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._peer = ""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        if not self._relay.admit(self, transport.get_extra_info("socket").fileno()):
            transport.abort()  # type: ignore[attr-defined]
            return
        host, port = transport.get_extra_info("peername")[:2]
        self._peer = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(FIRST_BYTE_TIMEOUT_S, self.close)

    def data_received(self, data: bytes) -> None:
        if self.other is not None:
            super().data_received(data)
            return
        self._pending += data
        if self._connecting is None:
            self._stop_timer()
            self._connecting = asyncio.ensure_future(self._connect(data[0]))
        elif len(self._pending) > _PENDING_LIMIT_BYTES and self.transport is not None:
            self.transport.pause_reading()

    async def _connect(self, first_byte: int) -> None:
        port = self._relay.choose_port(first_byte)
        if port is None:
            self.close()
            return
        loop = asyncio.get_running_loop()
        back = _Side()
        back.other = self  # before it connects: the server speaks at once
        try:
            transport, _ = await loop.create_connection(lambda: back, LOOPBACK, port)
        except OSError as error:
            logger.warning("gRPC port: no connection to the server behind it: %s", error)
            self.close()
            return
        if self.transport is None:
            transport.close()
            return
        self._relayed_port = transport.get_extra_info("sockname")[1]
        self._relay.name_peer(self._relayed_port, self._peer)
        self.other = back
        transport.write(bytes(self._pending))
        self._pending.clear()
        self.transport.resume_reading()

    def connection_lost(self, error: Exception | None) -> None:
        self._stop_timer()
        super().connection_lost(error)
        self._relay.forget(self, self._relayed_port)

    def close(self) -> None:
        """Close the connection, once what was written has gone out."""
        if self.transport is not None:
            self.transport.close()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
