"""gRPC server for TLS and plain clients on a single port. A relay accepts the connections and tells
the two kinds apart."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias, cast

import grpc
import grpc.aio

from tieredstore.broker.grpc.message_types import SERVICE_NAME, find_class, list_methods
from tieredstore.broker.grpc.protocol import Call
from tieredstore.broker.hosts import HOST, HostShares, name_host
from tieredstore.broker.peer_warnings import PEERS
from tieredstore.broker.ports import CLIENTS, count_room
from tieredstore.broker.tls import ClientAuth, Tls, TlsMode

if TYPE_CHECKING:
    from google.protobuf.message import Message as ProtocolMessage

Context: TypeAlias = "grpc.aio.ServicerContext[ProtocolMessage, ProtocolMessage]"
Request: TypeAlias = "ProtocolMessage | AsyncIterator[ProtocolMessage]"

TLS_HANDSHAKE: Final = 0x16
FIRST_BYTE_TIMEOUT_S: Final = 20.0
"""Time limit for a client's first byte, in seconds."""
STALL_TIMEOUT_S: Final = 120.0
"""Time (seconds) after which a connection ends if its peer does not read."""
LOOPBACK: Final = "127.0.0.1"
_BACKLOG: Final = 1024
_PENDING_LIMIT_BYTES: Final = 256 << 10

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Ports:
    """Internal ports for plain and TLS clients. None means that this kind of client is not
    served."""

    plain: int | None
    tls: int | None


class Relay:
    """Accepts clients on one port and forwards their connections to the server."""

    def __init__(self, ports: Ports, max_connections: int) -> None:
        self._ports = ports
        self._shares = HostShares(max_connections)
        self._server: asyncio.Server | None = None
        self._fronts: set[_Front] = set()
        self._peers: dict[int, str] = {}

    async def start(self, listener: socket.socket) -> None:
        """Start accepting on a bound socket. `stop` closes the socket."""
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
        return len(self._fronts)

    def find_peer(self, relayed_port: int) -> str | None:
        """Return the address (`ip:port`) of a client, or None if it is not connected.
        `relayed_port`: loopback port from which the relay forwards its connection."""
        return self._peers.get(relayed_port)

    def admit(self, front: _Front, host: str, descriptor: int) -> bool:
        """Register a connection. Returns False if there are too many, in total or from its host."""
        if not (self._shares.has_room(host) and CLIENTS.take(host, free=count_room(descriptor))):
            PEERS.note(
                "gRPC connections refused",
                f"gRPC port: {len(self._fronts)} connections, another of {host} is refused",
            )
            return False
        self._shares.add(host)
        self._fronts.add(front)
        return True

    def choose_port(self, first_byte: int) -> int | None:
        """Return the server's port for a client with this first byte (TLS or plain), or None if
        such clients are not served."""
        return self._ports.tls if first_byte == TLS_HANDSHAKE else self._ports.plain

    def name_peer(self, relayed_port: int, peer: str) -> None:
        """Store the address of a client under the loopback port from which the relay forwards its
        connection."""
        self._peers[relayed_port] = peer

    def forget(self, front: _Front, relayed_port: int | None) -> None:
        """Remove a closed connection."""
        if front in self._fronts:
            self._fronts.discard(front)
            self._shares.give_back(front.host)
            CLIENTS.give_back(front.host)
        if relayed_port is not None:
            self._peers.pop(relayed_port, None)


class _Side(asyncio.Protocol):
    """One side of a relayed connection. It writes the bytes read by the other side."""

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
        """Forward the end of the stream to the other side. Once both streams have ended, close both
        sides."""
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
        """Close the connection after STALL_TIMEOUT_S, so that a peer that never reads cannot occupy
        it forever."""
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
            other.limit_stall()  # written bytes are sent first


class _Front(_Side):
    """Client side of a relayed connection. Its first byte selects the server's port."""

    def __init__(self, relay: Relay) -> None:
        super().__init__()
        self._relay = relay
        self._pending = bytearray()
        self._connecting: asyncio.Task[None] | None = None
        self._relayed_port: int | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._peer = ""
        self.host = ""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        peer = transport.get_extra_info("peername")
        self.host = name_host(peer[0]) if peer else ""
        descriptor = transport.get_extra_info("socket").fileno()
        # A client that has gone at once has no address.
        if peer is None or not self._relay.admit(self, self.host, descriptor):
            transport.abort()  # type: ignore[attr-defined]
            return
        host, port = peer[:2]
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
        back.other = self  # before it connects: the server sends at once
        try:
            transport, _ = await loop.create_connection(lambda: back, LOOPBACK, port)
        except OSError as error:
            logger.warning("gRPC port: the relay cannot connect to the server: %s", error)
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
        """Close the connection once all written bytes are sent."""
        if self.transport is not None:
            self.transport.close()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


MAX_RECEIVE_BYTES: Final = 130 << 20
"""Maximum size of one request, in bytes: 32 messages of 4 MiB, as in RocketMQ's proxy."""
MAX_CONNECTIONS: Final = 10_000
MAX_CALLS_PER_CONNECTION: Final = 1_024
MAX_METADATA_BYTES: Final = 16 << 10
STOP_GRACE_S: Final = 3.0


class MessagingService(Protocol):
    """Service that answers the methods of `apache.rocketmq.v2.MessagingService` by name."""

    def serves(self, method: str) -> bool:
        """Return whether a method is served. For other methods, the transport answers
        UNIMPLEMENTED."""

    async def answer(self, method: str, request: ProtocolMessage, call: Call) -> ProtocolMessage:
        """Answer a call that has one response. Never raises because of a client's error."""

    def stream(
        self, method: str, request: Request, call: Call
    ) -> AsyncGenerator[ProtocolMessage, None]:
        """Answer a call that has many responses. If the client also streams its requests, `request`
        is an iterator."""

    async def stop(self) -> None:
        """Wake all waiting calls so that the transport can stop."""


class GrpcServer:
    """Serves TLS and plain clients on a single port. `tls` defines which of them are served.
    Without `tls`, only plain clients are served."""

    def __init__(
        self, service: MessagingService, tls: Tls | None, max_connections: int = MAX_CONNECTIONS
    ) -> None:
        self._service = service
        self._tls = tls
        self._max_connections = max_connections
        self._server: grpc.aio.Server | None = None
        self._relay: Relay | None = None

    async def start(self, listener: socket.socket) -> None:
        """Serve on a bound socket. `stop` closes the socket."""
        server = grpc.aio.server(
            options=[
                ("grpc.max_receive_message_length", MAX_RECEIVE_BYTES),
                ("grpc.max_send_message_length", -1),
                ("grpc.max_concurrent_streams", MAX_CALLS_PER_CONNECTION),
                ("grpc.max_metadata_size", MAX_METADATA_BYTES),
                ("grpc.so_reuseport", 0),
                # Clients ping about every 30 s, some without an open call.
                ("grpc.keepalive_permit_without_calls", 1),
                ("grpc.http2.min_recv_ping_interval_without_data_ms", 5_000),
                ("grpc.keepalive_time_ms", 60_000),
                ("grpc.keepalive_timeout_ms", 20_000),
            ]
        )
        server.add_generic_rpc_handlers((self._make_handlers(),))
        ports = Ports(
            plain=server.add_insecure_port(f"{LOOPBACK}:0") if self._serves_plain else None,
            tls=None if self._tls is None else _add_tls_port(server, self._tls),
        )
        await server.start()
        self._server = server
        self._relay = Relay(ports, self._max_connections)
        await self._relay.start(listener)

    @property
    def _serves_plain(self) -> bool:
        return self._tls is None or self._tls.mode is not TlsMode.ENFORCING

    async def stop(self) -> None:
        """End all calls, then close all connections. Idempotent."""
        await self._service.stop()
        server, self._server = self._server, None
        if server is not None:
            await server.stop(STOP_GRACE_S)
        relay, self._relay = self._relay, None
        if relay is not None:
            await relay.stop()

    def _make_handlers(self) -> grpc.GenericRpcHandler:
        handlers: dict[str, grpc.RpcMethodHandler[ProtocolMessage, ProtocolMessage]] = {}
        for method in list_methods():
            if not self._service.serves(method.name):
                continue
            read = find_class(method.input_type).FromString
            write = find_class(method.output_type).SerializeToString
            if method.client_streaming:
                handler = grpc.stream_stream_rpc_method_handler(
                    self._serve_stream(method.name), read, write
                )
            elif method.server_streaming:
                handler = grpc.unary_stream_rpc_method_handler(
                    self._serve_stream(method.name), read, write
                )
            else:
                handler = grpc.unary_unary_rpc_method_handler(
                    self._serve_one(method.name), read, write
                )
            handlers[method.name] = handler
        return grpc.method_handlers_generic_handler(SERVICE_NAME, handlers)

    def _serve_one(
        self, method: str
    ) -> Callable[[ProtocolMessage, Context], Awaitable[ProtocolMessage]]:
        async def serve(request: ProtocolMessage, context: Context) -> ProtocolMessage:
            return await self._service.answer(method, request, await self._make_call(context))

        return serve

    def _serve_stream(
        self, method: str
    ) -> Callable[[Request, Context], AsyncIterator[ProtocolMessage]]:
        async def serve(request: Request, context: Context) -> AsyncIterator[ProtocolMessage]:
            responses = self._service.stream(method, request, await self._make_call(context))
            async with aclosing(responses):
                async for response in responses:
                    yield response

        return serve

    async def _make_call(self, context: Context) -> Call:
        """Return the context of a call. The call is aborted if the relay does not know the client.
        Otherwise the client would get the permissions of the relay's loopback address."""
        peer = self._find_peer(context.peer())
        if peer is None:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "the client has gone")
            raise AssertionError("abort raises")
        HOST.set(name_host(peer))
        remaining_s = context.time_remaining()
        deadline_s = None
        if remaining_s is not None:
            deadline_s = asyncio.get_running_loop().time() + remaining_s
        metadata = {
            name: value
            for name, value in context.invocation_metadata() or ()
            if isinstance(value, str)
        }
        return Call(metadata, peer, deadline_s)

    def _find_peer(self, peer: str) -> str | None:
        """Return the client's address for a grpcio peer such as `ipv4:127.0.0.1:50000`."""
        port = peer.rpartition(":")[2]
        return self._relay.find_peer(int(port)) if self._relay and port.isdigit() else None


def _add_tls_port(server: grpc.aio.Server, tls: Tls) -> int | None:
    if tls.mode is TlsMode.DISABLED:
        return None
    # grpcio asks all clients for a certificate, or none.
    is_required = tls.client_auth is ClientAuth.REQUIRE
    credentials = grpc.ssl_server_credentials(
        [(tls.certificate.private_key, tls.certificate.chain)],
        tls.trusted if is_required else None,
        require_client_auth=is_required,
    )
    return server.add_secure_port(f"{LOOPBACK}:0", credentials)
