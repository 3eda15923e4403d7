"""Serves a Service by grpcio: two ports on the loopback interface, the relay in front of them."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Any, Final, Protocol

import grpc
import grpc.aio

from tieredstore.broker.grpc.call import Call
from tieredstore.broker.grpc.relay import LOOPBACK, Ports, Relay
from tieredstore.broker.grpc.stubs import SERVICE_NAME, find_class, list_methods
from tieredstore.broker.tls import ClientAuth, Tls, TlsMode

MAX_RECEIVE_BYTES: Final = 130 << 20
"""Of one request: 32 messages of 4 MiB. As RocketMQ's proxy."""
MAX_CONNECTIONS: Final = 10_000
MAX_CALLS_PER_CONNECTION: Final = 1_024
MAX_METADATA_BYTES: Final = 16 << 10
STOP_GRACE_S: Final = 3.0

logger = logging.getLogger(__name__)


class MessagingService(Protocol):
    """What is served: the methods of `apache.rocketmq.v2.MessagingService`, by name."""

    def serves(self, method: str) -> bool:
        """Tell whether a method is served; the transport answers UNIMPLEMENTED otherwise."""
        ...

    async def answer(self, method: str, request: Any, call: Call) -> Any:
        """Answer a call of one request and one response. Never raises for what a client did."""
        ...

    def stream(self, method: str, request: Any, call: Call) -> AsyncGenerator[Any, None]:
        """Answer a call of many responses; the request of a call of many requests is an
        iterator."""
        ...

    async def stop(self) -> None:
        """End what clients wait for, so that the transport can stop."""
        ...


class GrpcServer:
    """A Service on one port, for TLS and plain clients as `tls` says; None: for plain ones."""

    def __init__(
        self,
        service: MessagingService,
        tls: Tls | None,
        max_connections: int = MAX_CONNECTIONS,
    ) -> None:
        self._service = service
        self._tls = tls
        self._max_connections = max_connections
        self._server: Any = None
        self._relay: Relay | None = None

    async def start(self, listener: socket.socket) -> None:
        """Serve on a socket that is bound; it is closed with the server."""
        server = grpc.aio.server(
            options=[
                ("grpc.max_receive_message_length", MAX_RECEIVE_BYTES),
                ("grpc.max_send_message_length", -1),
                ("grpc.max_concurrent_streams", MAX_CALLS_PER_CONNECTION),
                ("grpc.max_metadata_size", MAX_METADATA_BYTES),
                ("grpc.so_reuseport", 0),
                # Clients ping about every 30 s, some while no call is open.
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
        """Stop: calls end, then the connections. Idempotent."""
        await self._service.stop()
        server, self._server = self._server, None
        if server is not None:
            await server.stop(STOP_GRACE_S)
        relay, self._relay = self._relay, None
        if relay is not None:
            await relay.stop()

    def _make_handlers(self) -> Any:
        handlers = {}
        for method in list_methods():
            if not self._service.serves(method.name):
                continue
            coding = {
                "request_deserializer": find_class(method.input_type).FromString,
                "response_serializer": find_class(method.output_type).SerializeToString,
            }
            if method.client_streaming:
                make, behaviour = grpc.stream_stream_rpc_method_handler, self._serve_stream
            elif method.server_streaming:
                make, behaviour = grpc.unary_stream_rpc_method_handler, self._serve_stream
            else:
                make, behaviour = grpc.unary_unary_rpc_method_handler, self._serve_one
            handlers[method.name] = make(behaviour(method.name), **coding)
        return grpc.method_handlers_generic_handler(SERVICE_NAME, handlers)

    def _serve_one(self, method: str) -> Any:
        async def serve(request: Any, context: Any) -> Any:
            return await self._service.answer(method, request, self._make_call(context))

        return serve

    def _serve_stream(self, method: str) -> Any:
        async def serve(request: Any, context: Any) -> AsyncIterator[Any]:
            responses = self._service.stream(method, request, self._make_call(context))
            async with aclosing(responses):
                async for response in responses:
                    yield response

        return serve

    def _make_call(self, context: Any) -> Call:
        remaining_s = context.time_remaining()
        deadline_s = None
        if remaining_s is not None:
            deadline_s = asyncio.get_running_loop().time() + remaining_s
        metadata = {
            name: value
            for name, value in context.invocation_metadata() or ()
            if isinstance(value, str)
        }
        return Call(metadata, self._find_peer(context.peer()), deadline_s)

    def _find_peer(self, peer: str) -> str:
        """Turn grpcio's `ipv4:127.0.0.1:50000` into the address of the client behind the relay."""
        address = peer.partition(":")[2]
        port = address.rpartition(":")[2]
        found = None
        if self._relay is not None and port.isdigit():
            found = self._relay.find_peer(int(port))
        return found or address


def _add_tls_port(server: Any, tls: Tls) -> int | None:
    if tls.mode is TlsMode.DISABLED:
        return None
    # grpcio asks all for a certificate, or nobody.
    is_required = tls.client_auth is ClientAuth.REQUIRE
    credentials = grpc.ssl_server_credentials(
        [(tls.certificate.private_key, tls.certificate.chain)],
        tls.trusted if is_required else None,
        require_client_auth=is_required,
    )
    port: int = server.add_secure_port(f"{LOOPBACK}:0", credentials)
    return port
