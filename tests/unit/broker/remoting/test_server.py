"""Tests of the server over loopback: requests in both directions, responses, tasks and
disconnects."""

from __future__ import annotations

import asyncio

import pytest

from tests.kit.remoting import (
    RemotingClient,
    decode_commands,
    encode_command,
    read_until_end,
    register_plain,
    serve,
    wait_for,
)
from tieredstore.broker.refused import Reason, Refused
from tieredstore.broker.remoting.codes import HeaderType, ResponseCode
from tieredstore.broker.remoting.command import ONE_WAY_FLAG, RemotingCommand
from tieredstore.broker.remoting.connection import BufferedBytes, Connection, RemotingLimits
from tieredstore.broker.remoting.handler_table import HandlerTable
from tieredstore.errors import Busy, Corrupt, Exhausted, Invalid, Unavailable
from tieredstore.message.buffers import Buffer

ECHO, ECHO_LATER, PARK, FAIL, ASK, PIECES, CLOSE = range(1001, 1008)


def echo(_: Connection, request: RemotingCommand) -> RemotingCommand:
    return RemotingCommand(0, request.ext_fields, request.body, remark=request.remark)


async def echo_later(connection: Connection, request: RemotingCommand) -> RemotingCommand:
    await asyncio.sleep(float(request.ext_fields.get("delay", "0")))
    return echo(connection, request)


async def close_later(connection: Connection, request: RemotingCommand) -> None:
    await asyncio.sleep(float(request.ext_fields["delay"]))
    connection.close()


def table() -> HandlerTable:
    handlers = HandlerTable()
    register_plain(handlers, ECHO, echo)
    register_plain(handlers, ECHO_LATER, echo_later)
    register_plain(handlers, CLOSE, close_later)
    return handlers


@pytest.mark.parametrize("header_type", list(HeaderType))
def test_a_request_gets_its_response_with_the_header_type_of_the_request(
    header_type: HeaderType,
) -> None:
    async def main() -> None:
        async with (
            serve(table()) as (_, address),
            await RemotingClient.open(address, header_type) as client,
        ):
            for code in (ECHO, ECHO_LATER):
                response = await client.request(code, {"a": "1", "ü": "\x01\x02"}, b"body")
                assert response.flag & 1
                assert response.header_type is header_type
                assert response.code == ResponseCode.SUCCESS
                assert response.ext_fields == {"a": "1", "ü": "\x01\x02"}
                assert response.body == b"body"

    asyncio.run(main())


def test_pipelined_requests_are_matched_by_opaque_whatever_their_order() -> None:
    async def main() -> None:
        go_on = asyncio.Event()

        async def park(_: Connection, request: RemotingCommand) -> RemotingCommand:
            await go_on.wait()
            return RemotingCommand(0, request.ext_fields)

        handlers = table()
        register_plain(handlers, PARK, park)
        async with serve(handlers) as (_, address), await RemotingClient.open(address) as client:
            slow = asyncio.ensure_future(client.request(PARK, {"n": "slow"}))
            many = await asyncio.gather(
                *(client.request(ECHO, {"n": n}, b"x" * n) for n in range(2_000))
            )
            assert not slow.done()
            go_on.set()
            assert [len(response.body_bytes) for response in many] == list(range(2_000))
            assert (await slow).ext_fields["n"] == "slow"

    asyncio.run(main())


def test_an_unknown_code_is_not_supported() -> None:
    async def main() -> None:
        async with serve(table()) as (_, address), await RemotingClient.open(address) as client:
            for code in (999, -1, 200_050, 2**31 - 1):
                response = await client.request(code)
                assert response.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
                assert str(code) in (response.remark or "")

    asyncio.run(main())


def test_a_one_way_request_is_never_answered() -> None:
    async def main() -> None:
        async with serve(table()) as (_, address):
            codes = (ECHO, ECHO_LATER, 999)
            requests = [RemotingCommand(code, opaque=code, flag=ONE_WAY_FLAG) for code in codes]
            requests.append(RemotingCommand(ECHO_LATER, {"delay": "0.1"}, opaque=7))
            requests.append(RemotingCommand(CLOSE, {"delay": "0.2"}, flag=ONE_WAY_FLAG))
            answer = await read_until_end(address, b"".join(map(encode_command, requests)))
            assert [response.opaque for response in decode_commands(answer)] == [7]

    asyncio.run(main())


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (Refused(Reason.TOPIC_NOT_EXIST, "no topic t"), ResponseCode.TOPIC_NOT_EXIST),
        (Busy("full"), ResponseCode.SYSTEM_BUSY),
        (Exhausted("disk"), ResponseCode.SERVICE_NOT_AVAILABLE),
        (Unavailable("away"), ResponseCode.SERVICE_NOT_AVAILABLE),
        (Invalid("wrong"), ResponseCode.INVALID_PARAMETER),
        (Corrupt("bytes"), ResponseCode.SYSTEM_ERROR),
        (KeyError("secret"), ResponseCode.SYSTEM_ERROR),
    ],
)
@pytest.mark.parametrize("is_later", [False, True])
def test_what_a_handler_raises_becomes_a_response_code(
    error: Exception, code: ResponseCode, is_later: bool
) -> None:
    def fail(_: Connection, __: RemotingCommand) -> RemotingCommand:
        raise error

    async def fail_later(_: Connection, __: RemotingCommand) -> RemotingCommand:
        await asyncio.sleep(0)
        raise error

    async def main() -> None:
        handlers = table()
        register_plain(handlers, FAIL, fail_later if is_later else fail)
        async with serve(handlers) as (_, address), await RemotingClient.open(address) as client:
            response = await client.request(FAIL)
            assert response.code == code
            assert response.remark
            assert "secret" not in response.remark
            assert (await client.request(ECHO)).code == 0

    asyncio.run(main())


def test_the_server_asks_the_client_on_its_connection() -> None:
    async def ask(connection: Connection, request: RemotingCommand) -> RemotingCommand:
        reply = await connection.request(307, {"q": "1"}, b"?", 5_000)
        return RemotingCommand(0, {"said": reply.body_bytes.decode()})

    async def main() -> None:
        handlers = table()
        register_plain(handlers, ASK, ask)
        async with (
            serve(handlers) as (server, address),
            await RemotingClient.open(address) as client,
        ):
            client.answer(307, lambda call: RemotingCommand(0, {}, call.body_bytes + b"!"))
            assert (await client.request(ASK)).ext_fields == {"said": "?!"}
            assert (await client.next_call()).ext_fields == {"q": "1"}
            (connection,) = server.connections
            connection.notify_consumers_changed("g")
            call = await client.next_call()
            assert (call.code, call.is_one_way) == (40, True)
            assert call.ext_fields == {"consumerGroup": "g"}

    asyncio.run(main())


def test_a_body_of_pieces_is_written_as_one() -> None:
    pieces: list[Buffer] = [
        b"a" * 100_000,
        memoryview(bytearray(b"b" * 50_000))[:40_000],
        bytearray(b"c"),
    ]

    async def main() -> None:
        handlers = table()
        register_plain(handlers, PIECES, lambda _, __: RemotingCommand(0, {}, pieces))
        async with serve(handlers) as (_, address), await RemotingClient.open(address) as client:
            assert (await client.request(PIECES)).body == b"".join(pieces)

    asyncio.run(main())


def test_parked_requests_are_cancelled_when_their_connection_ends() -> None:
    parked: list[str] = []

    async def park(_: Connection, __: RemotingCommand) -> RemotingCommand:
        parked.append("parked")
        try:
            await asyncio.sleep(3_600)
        except asyncio.CancelledError:
            parked.append("cancelled")
            raise
        return RemotingCommand(0)

    async def main() -> None:
        handlers = table()
        register_plain(handlers, PARK, park)
        ended: list[Connection] = []
        async with serve(handlers) as (server, address):
            server.add_close_listener(ended.append)
            client = await RemotingClient.open(address)
            other = await RemotingClient.open(address)
            waiting = asyncio.ensure_future(client.request(PARK))
            await wait_for(lambda: parked == ["parked"])
            client.connection.abort("test")
            with pytest.raises(Unavailable):
                await waiting
            await wait_for(lambda: parked == ["parked", "cancelled"])
            await wait_for(lambda: len(ended) == 1)
            assert (await other.request(ECHO)).code == 0
            assert len(server.connections) == 1

    asyncio.run(main())


def test_a_stopped_server_has_ended_all_connections() -> None:
    async def main() -> None:
        async with serve(table()) as (server, address):
            clients = [await RemotingClient.open(address) for _ in range(3)]
            for client in clients:
                await client.request(ECHO)
            await server.stop()
            assert server.connections == set()
            await wait_for(lambda: not any(client.connection.is_open for client in clients))
            with pytest.raises(Unavailable):
                await RemotingClient.open(address)

    asyncio.run(main())


@pytest.mark.parametrize(
    ("peer", "address"),
    [
        (("10.0.0.1", 5), "10.0.0.1:5"),
        (("fe80::1%eth0", 5, 0, 2), "[fe80:0:0:0:0:0:0:1]:5"),
        (None, ""),
    ],
)
def test_a_peer_has_an_address_that_records_can_hold(
    peer: tuple[object, ...] | None, address: str
) -> None:
    class Accepted(asyncio.Transport):
        def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
            pass

    async def main() -> None:
        limits = RemotingLimits()
        connection = Connection(table(), limits, BufferedBytes(limits.max_buffered_bytes), [])
        connection.connection_made(Accepted({"peername": peer}))
        assert connection.address == address

    asyncio.run(main())
