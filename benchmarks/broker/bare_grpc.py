"""gRPC servers that do no work, to measure the cost of the transport alone.

    python -m benchmarks.broker.bare_grpc --port 9000 --server grpcio|relay|grpclib|zttp|service

Each server answers SendMessage with the same bytes, and decodes nothing. `relay` is grpcio behind
our relay for plain and TLS clients. `grpclib` and `zttp` must be installed. zttp has no gRPC, so
this module implements the one method. `service` serves nothing, and prints the CPU time (µs) of our
Service for a send without any transport.
"""

from __future__ import annotations

import argparse
import asyncio
import socket
import tempfile
import time
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from tieredstore.broker.grpc.message_types import (
    SERVICE_NAME,
    Encoding,
    MessageType,
    SendMessageRequest,
    SendMessageResponse,
    Status,
)
from tieredstore.broker.grpc.protocol import CLIENT_ID, Call
from tieredstore.broker.grpc.server import LOOPBACK, Ports, Relay
from tieredstore.broker.grpc.service import Service
from tieredstore.testing.broker import Broker

ANSWER: bytes = SendMessageResponse(status=Status(code="OK", message="OK")).SerializeToString()
CALLS = 20_000


async def serve_grpcio(port: int) -> int:
    """Start a grpcio server on a port of the loopback interface, and return it."""

    async def answer(request: bytes, context: Any) -> bytes:  # noqa: ARG001
        return ANSWER

    server = grpc.aio.server()
    method: grpc.RpcMethodHandler[bytes, bytes] = grpc.unary_unary_rpc_method_handler(answer)
    handlers = {"SendMessage": method}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE_NAME, handlers),))
    bound: int = server.add_insecure_port(f"{LOOPBACK}:{port}")
    await server.start()
    _KEPT.append(server)
    return bound


async def serve_relay(port: int) -> None:
    """Serve with grpcio behind our relay, for plain and TLS clients on one port."""
    relay = Relay(Ports(await serve_grpcio(0), None), 100)
    listener = socket.socket()
    listener.bind((LOOPBACK, port))
    await relay.start(listener)
    _KEPT.append(relay)


async def serve_grpclib(port: int) -> None:
    """Serve with grpclib (HTTP/2 by h2, in Python)."""
    from grpclib.const import (  # type: ignore[import-not-found]
        Cardinality,
        Handler,
    )
    from grpclib.encoding.base import CodecBase  # type: ignore[import-not-found]
    from grpclib.server import Server  # type: ignore[import-not-found]

    class Bytes(CodecBase):  # type: ignore[misc]
        __content_subtype__ = "proto"

        def encode(self, message: bytes, message_type: object) -> bytes:  # noqa: ARG002
            return message

        def decode(self, data: bytes, message_type: object) -> bytes:  # noqa: ARG002
            return data

    class Answering:
        async def answer(self, stream: Any) -> None:
            await stream.recv_message()
            await stream.send_message(ANSWER)

        def __mapping__(self) -> dict[str, Any]:
            method = Handler(self.answer, Cardinality.UNARY_UNARY, bytes, bytes)
            return {f"/{SERVICE_NAME}/SendMessage": method}

    server = Server([Answering()], codec=Bytes())
    await server.start(LOOPBACK, port)
    _KEPT.append(server)


async def serve_zttp(port: int) -> None:
    """Serve with zttp (HTTP/2 in native code, without a transport)."""
    import zttp  # type: ignore[import-not-found]

    heads = [(b"content-type", b"application/grpc")]
    answer = b"\0" + len(ANSWER).to_bytes(4, "big") + ANSWER

    class Answering(asyncio.Protocol):
        def connection_made(self, transport: Any) -> None:
            self._transport = transport
            self._connection = zttp.Connection(zttp.SERVER, zttp.HTTP2)
            self._connection.initiate_connection()
            self._bodies: dict[int, list[bytes]] = {}
            self._tasks: set[asyncio.Task[None]] = set()

        def data_received(self, data: bytes) -> None:
            connection = self._connection
            connection.receive_data(data)
            event = connection.next_event()
            while event is not zttp.NEED_DATA and event is not zttp.CONNECTION_CLOSED:
                if isinstance(event, zttp.Request):
                    self._bodies[event.stream_id] = []
                elif isinstance(event, zttp.Data):
                    self._bodies[event.stream_id].append(event.data)
                elif isinstance(event, zttp.EndOfMessage):
                    b"".join(self._bodies.pop(event.stream_id))
                    task = asyncio.ensure_future(self._answer(event.stream_id))
                    self._tasks.add(task)
                    task.add_done_callback(self._tasks.discard)
                event = connection.next_event()
            self._flush()

        async def _answer(self, stream_id: int) -> None:  # a task a call, as a service needs
            stream = self._connection.stream(stream_id)
            stream.send_response(200, heads)
            stream.send_data(answer)
            stream.end_message([(b"grpc-status", b"0")])
            self._flush()

        def _flush(self) -> None:
            out = self._connection.data_to_send()
            if out:
                self._transport.write(out)

    loop = asyncio.get_running_loop()
    _KEPT.append(await loop.create_server(Answering, LOOPBACK, port))


def measure_service() -> float:
    """Measure our Service with a real store and no transport. Return the CPU time of a send, µs."""
    request = SendMessageRequest()
    message = request.messages.add(body=b"x" * 1024)
    message.topic.name = "load"
    properties = message.system_properties
    properties.tag, properties.message_id = "TagA", "01" + "0" * 32
    properties.message_type, properties.body_encoding = MessageType.NORMAL, Encoding.IDENTITY
    data = request.SerializeToString()
    decode = SendMessageRequest.FromString
    call = Call({CLIENT_ID: "load"})
    with tempfile.TemporaryDirectory() as folder, Broker(Path(folder)) as broker:
        service = Service(broker.services)

        async def send(count: int) -> None:
            for _ in range(count):
                response = await service.answer("SendMessage", decode(data), call)
                assert response.status.code == 20000, response
                response.SerializeToString()

        broker.run(send(CALLS // 4))
        begin = time.process_time()
        broker.run(send(CALLS))
        return (time.process_time() - begin) / CALLS * 1e6


_KEPT: list[object] = []
SERVERS = {
    "grpcio": serve_grpcio,
    "relay": serve_relay,
    "grpclib": serve_grpclib,
    "zttp": serve_zttp,
}


def main() -> None:
    """Run the chosen server until the end of the process."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=9000)
    parser.add_argument("--server", choices=[*SERVERS, "service"], default="grpcio")
    arguments = parser.parse_args()
    if arguments.server == "service":
        print(f"{measure_service():.1f} µs CPU a send")
        return

    async def serve() -> None:
        await SERVERS[arguments.server](arguments.port)
        await asyncio.Event().wait()

    try:
        import uvloop
    except ImportError:
        asyncio.run(serve())
    else:
        uvloop.run(serve())


if __name__ == "__main__":
    main()
