"""Tests of the port for both TLS and plain connections, with real gRPC channels and malicious
peers."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any, ClassVar, cast

import grpc
import grpc.aio
import pytest

from tests.kit.grpc_types import find_message
from tieredstore.broker.grpc import server as relay
from tieredstore.broker.grpc.message_types import SERVICE_NAME
from tieredstore.broker.grpc.protocol import Call, Code, make_status
from tieredstore.broker.grpc.server import GrpcServer, Ports, Relay
from tieredstore.broker.tls import Tls, make_certificate

HEARTBEAT = f"/{SERVICE_NAME}/Heartbeat"
HeartbeatResponse = find_message("HeartbeatResponse")


class EchoService:
    """Service that replies to a heartbeat with the sender's address."""

    def serves(self, method: str) -> bool:
        return method == "Heartbeat"

    async def answer(self, method: str, request: Any, call: Call) -> Any:
        return HeartbeatResponse(status=make_status(Code.OK, call.peer))

    async def stream(self, method: str, request: Any, call: Call) -> AsyncGenerator[Any, None]:
        yield None

    async def stop(self) -> None:
        return


async def heartbeat(channel: grpc.aio.Channel) -> str:
    call: Any = channel.unary_unary(
        HEARTBEAT,
        request_serializer=lambda request: request.SerializeToString(),
        response_deserializer=HeartbeatResponse.FromString,
    )
    response = await call(find_message("HeartbeatRequest")(), timeout=20)
    text: str = response.status.message
    return text


async def start(server: GrpcServer) -> int:
    listener = socket.create_server(("127.0.0.1", 0))
    port: int = listener.getsockname()[1]
    await server.start(listener)
    return port


def serve(
    test: Callable[[int], Awaitable[None]], tls: Tls | None = None, max_connections: int = 100
) -> None:
    async def run() -> None:
        server = GrpcServer(EchoService(), tls, max_connections)
        port = await start(server)
        try:
            await test(port)
        finally:
            await server.stop()

    asyncio.run(run())


def test_one_port_takes_plain_and_tls() -> None:
    certificate = make_certificate()

    async def test(port: int) -> None:
        target = f"localhost:{port}"
        async with grpc.aio.insecure_channel(target) as channel:
            assert await heartbeat(channel)
        trusted = grpc.ssl_channel_credentials(certificate.chain)
        async with grpc.aio.secure_channel(target, trusted) as channel:
            assert await heartbeat(channel)

    serve(test, Tls(certificate))


def test_the_peer_is_the_client_and_not_the_relay() -> None:
    async def test(port: int) -> None:
        seen: list[bytes] = []

        async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            # A client of the relay whose own port is known.
            back_reader, back_writer = await asyncio.open_connection("127.0.0.1", port)
            own = back_writer.get_extra_info("sockname")
            seen.append(f"{own[0]}:{own[1]}".encode())
            await asyncio.gather(copy(reader, back_writer), copy(back_reader, writer))

        async with await asyncio.start_server(forward, "127.0.0.1", 0) as forwarder:
            own_port = forwarder.sockets[0].getsockname()[1]
            async with grpc.aio.insecure_channel(f"127.0.0.1:{own_port}") as channel:
                peer = await heartbeat(channel)
        assert peer.encode() in seen

    serve(test)


async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65536):
        writer.write(data)
    writer.close()


def test_s61_a_client_that_has_gone_has_not_the_address_of_the_relay() -> None:
    """A call never appears to come from the relay itself, even if its client has disconnected."""
    peers: list[str] = []
    sent = bytearray()

    class NotingService(EchoService):
        async def answer(self, method: str, request: Any, call: Call) -> Any:
            peers.append(call.peer)
            return await super().answer(method, request, call)

    async def record(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1 << 16):
            sent.extend(data)
            writer.write(data)
        writer.close()

    async def run() -> None:
        server = GrpcServer(NotingService(), None, 200)
        port = await start(server)

        async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            from_relay, to_relay = await asyncio.open_connection("127.0.0.1", port)
            await asyncio.gather(record(reader, to_relay), copy(from_relay, writer))

        recorder = await asyncio.start_server(forward, "127.0.0.1", 0)
        address = recorder.sockets[0].getsockname()
        async with grpc.aio.insecure_channel(f"127.0.0.1:{address[1]}") as channel:
            await asyncio.gather(*(heartbeat(channel) for _ in range(60)))
        assert peers
        peers.clear()
        for number in range(60):
            client = socket.create_connection(("127.0.0.1", port), source_address=("127.0.0.2", 0))
            client.sendall(sent)
            if number % 2:
                await asyncio.sleep(0.001 * (number % 7))
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            client.close()
            await asyncio.sleep(0.01)
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            own = await heartbeat(channel)
        assert {peer.rpartition(":")[0] for peer in peers if peer != own} <= {"127.0.0.2"}
        recorder.close()
        await server.stop()

    asyncio.run(run())


def test_a_method_that_is_not_served_is_unimplemented() -> None:
    async def test(port: int) -> None:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            call: Any = channel.unary_unary(f"/{SERVICE_NAME}/QueryOffset")
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await call(b"", timeout=20)
            assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED

    serve(test)


def test_i07_more_connections_than_allowed_are_refused_and_others_go_on() -> None:
    async def test(port: int) -> None:
        held = [await asyncio.open_connection("127.0.0.1", port) for _ in range(3)]
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        assert await read_end(reader)
        writer.close()
        held[0][1].close()
        for _ in range(1000):
            if await answers(port):
                break
            await asyncio.sleep(0.01)
        else:
            raise AssertionError("a connection that was closed still counts")
        for _, held_writer in held[1:]:
            held_writer.close()

    serve(test, max_connections=3)


def test_i03_one_host_does_not_take_all_connections() -> None:
    async def test(port: int) -> None:
        async def connect(host: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
            return await asyncio.open_connection("127.0.0.1", port, local_addr=(host, 0))

        held = [await connect("127.0.0.2") for _ in range(8)]
        for reader, _ in held[6:]:
            assert await read_end(reader)
        assert await answers(port)
        for _, writer in held:
            writer.close()

    serve(test, max_connections=8)


async def read_end(reader: asyncio.StreamReader) -> bool:
    try:
        return await reader.read() == b""
    except ConnectionError:
        return True


async def answers(port: int) -> bool:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        try:
            return bool(await heartbeat(channel))
        except grpc.aio.AioRpcError:
            return False


def test_tls_without_a_certificate_is_closed() -> None:
    async def test(port: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"\x16\x03\x01\x00\x05hello")
        assert await read_end(reader)
        writer.close()
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            assert await heartbeat(channel)

    serve(test)


def test_i07_a_client_that_does_not_read_loses_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay, "STALL_TIMEOUT_S", 0.2)

    async def answer_much(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(b"x" * (64 << 20))  # more than all buffers on the way take

    async def run() -> None:
        backend = await asyncio.start_server(answer_much, "127.0.0.1", 0)
        front = Relay(Ports(backend.sockets[0].getsockname()[1], None), 10)
        listener = socket.create_server(("127.0.0.1", 0))
        address = listener.getsockname()
        await front.start(listener)
        with socket.create_connection(address) as client:
            client.sendall(b"P")
            await wait_for_count(front, 1)
            await wait_for_count(front, 0)
        await front.stop()
        backend.close()
        await backend.wait_closed()

    asyncio.run(run())


async def wait_for_count(front: Relay, count: int) -> None:
    for _ in range(6_000):
        if front.connections == count:
            return
        await asyncio.sleep(0.01)
    raise AssertionError(f"expected {count} connections, found {front.connections}")


def test_large_requests_pass_both_ways() -> None:
    body = b"x" * (9 << 20)

    class Echo(EchoService):
        def serves(self, method: str) -> bool:
            return method == "SendMessage"

        async def answer(self, method: str, request: Any, call: Call) -> Any:
            response = find_message("SendMessageResponse")()
            response.status.message = request.messages[0].body.decode()
            return response

    async def run() -> None:
        server = GrpcServer(Echo(), None)
        port = await start(server)
        request = find_message("SendMessageRequest")()
        request.messages.add().body = body
        options = [("grpc.max_receive_message_length", -1)]
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", options) as channel:
            call: Any = channel.unary_unary(
                f"/{SERVICE_NAME}/SendMessage",
                response_deserializer=find_message("SendMessageResponse").FromString,
            )
            response = await call(request.SerializeToString(), timeout=60)
            assert response.status.message.encode() == body
        await server.stop()

    asyncio.run(run())


class Greeter(asyncio.Protocol):
    """A server that sends data as soon as a client connects."""

    open: ClassVar[set[Greeter]] = set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.open.add(self)
        cast("asyncio.Transport", transport).write(b"hello")

    def connection_lost(self, error: Exception | None) -> None:
        self.open.discard(self)


def test_what_the_server_says_first_is_not_lost() -> None:
    async def run() -> None:
        loop = asyncio.get_running_loop()
        async with await loop.create_server(Greeter, "127.0.0.1", 0) as behind:
            relay = Relay(Ports(behind.sockets[0].getsockname()[1], None), 100)
            listener = socket.create_server(("127.0.0.1", 0))
            await relay.start(listener)
            for _ in range(100):
                reader, writer = await asyncio.open_connection(*listener.getsockname())
                writer.write(b"P")
                assert await asyncio.wait_for(reader.readexactly(5), 60) == b"hello"
                writer.close()
                await writer.wait_closed()
            for _ in range(1000):
                if not relay.connections and not Greeter.open:
                    break
                await asyncio.sleep(0.01)
            else:
                raise AssertionError("connections that were closed are still there")
            await relay.stop()

    asyncio.run(run())
