"""One port serves both TLS and plain clients."""

from __future__ import annotations

import asyncio
import ssl

import pytest

from tests.kit.remoting import (
    RemotingClient,
    open_raw,
    read_until_end,
    register_plain,
    serve,
    wait_for,
)
from tieredstore.broker.remoting.codes import RequestCode
from tieredstore.broker.remoting.command import RemotingCommand
from tieredstore.broker.remoting.connection import Connection, RemotingLimits
from tieredstore.broker.remoting.handler_table import HandlerTable
from tieredstore.broker.tls import Tls, TlsMode, make_certificate, make_server_context
from tieredstore.errors import Unavailable
from tieredstore.testing.broker import Broker
from tieredstore.testing.moving_time import MovingClock, MovingLoop

ECHO = 1001


def table() -> HandlerTable:
    def echo(_: Connection, request: RemotingCommand) -> RemotingCommand:
        return RemotingCommand(0, request.ext_fields, request.body)

    handlers = HandlerTable()
    register_plain(handlers, ECHO, echo)
    return handlers


@pytest.fixture(scope="module")
def server_side() -> ssl.SSLContext:
    return make_server_context(Tls(make_certificate()))


def client_side() -> ssl.SSLContext:
    """Return a client's TLS context. Like Java's default, it accepts any certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def test_clients_with_tls_and_without_share_a_port(server_side: ssl.SSLContext) -> None:
    async def main() -> None:
        async with (
            serve(table(), tls=server_side) as (server, address),
            await RemotingClient.open(address, tls=client_side()) as safe,
            await RemotingClient.open(address) as plain,
        ):
            for size in (0, 1, 100_000, 4 << 20):
                body = bytes(size)
                first, second = await asyncio.gather(
                    safe.request(ECHO, {"a": "1"}, body), plain.request(ECHO, {"a": "1"}, body)
                )
                assert first.body == second.body == body
            many = await asyncio.gather(*(safe.request(ECHO, body=bytes(n)) for n in range(500)))
            assert [len(response.body_bytes) for response in many] == list(range(500))
            assert all(connection.address for connection in server.connections)

    asyncio.run(main())


@pytest.mark.parametrize("mode", list(TlsMode))
@pytest.mark.parametrize("has_tls", [True, False])
def test_who_is_served_is_what_the_mode_says(
    server_side: ssl.SSLContext, mode: TlsMode, has_tls: bool
) -> None:
    refused = TlsMode.DISABLED if has_tls else TlsMode.ENFORCING

    async def main() -> None:
        async with serve(table(), tls=server_side, tls_mode=mode) as (_, address):
            try:
                tls = client_side() if has_tls else None
                async with await RemotingClient.open(address, tls=tls) as client:
                    assert (await client.request(ECHO)).code == 0
            except Unavailable:
                assert mode is refused
            else:
                assert mode is not refused

    asyncio.run(main())


def test_without_a_certificate_nobody_is_served_with_tls() -> None:
    async def main() -> None:
        async with serve(table()) as (_, address):
            with pytest.raises(Unavailable):
                await RemotingClient.open(address, tls=client_side())
            async with await RemotingClient.open(address) as plain:
                assert (await plain.request(ECHO)).code == 0

    asyncio.run(main())


def test_i03_a_handshake_that_is_none_ends_its_connection_and_no_other(
    server_side: ssl.SSLContext,
) -> None:
    clock = MovingClock()

    async def main() -> None:
        limits = RemotingLimits(idle_timeout_ms=60_000)
        async with (
            serve(table(), limits, tls=server_side) as (server, address),
            open_raw(address) as (reader, writer),
        ):
            await read_until_end(address, b"\x16" + bytes(100))
            writer.write(b"\x16\x03\x01")  # and then nothing
            assert await read_while_time_passes(reader, clock) == b""
            async with await RemotingClient.open(address, tls=client_side()) as client:
                assert (await client.request(ECHO)).code == 0
            await wait_for(lambda: not server.connections)

    with asyncio.Runner(loop_factory=lambda: MovingLoop(clock)) as runner:
        runner.run(main())


async def read_while_time_passes(reader: asyncio.StreamReader, clock: MovingClock) -> bytes:
    """Read until the connection closes, while the clock advances quickly."""
    reading = asyncio.ensure_future(reader.read())
    while not reading.done():
        clock.advance(1_000)
        await asyncio.sleep(0)
    return reading.result()


def test_i03_a_client_that_says_nothing_is_closed() -> None:
    clock = MovingClock()

    async def main() -> None:
        limits = RemotingLimits(idle_timeout_ms=60_000)
        async with serve(table(), limits) as (server, address), open_raw(address) as (reader, _):
            assert await read_while_time_passes(reader, clock) == b""
            await wait_for(lambda: not server.connections)

    with asyncio.Runner(loop_factory=lambda: MovingLoop(clock)) as runner:
        runner.run(main())


def test_a_broker_serves_tls_with_a_certificate_of_its_own_and_as_its_setting_says() -> None:
    async def ask(address: str, tls: ssl.SSLContext | None) -> int:
        async with await RemotingClient.open(address, tls=tls) as client:
            return (await client.request(RequestCode.GET_BROKER_CLUSTER_INFO)).code

    with Broker() as broker:
        assert asyncio.run(ask(broker.remoting, client_side())) == 0
        assert asyncio.run(ask(broker.remoting, None)) == 0
    with Broker(properties={"tls.server.mode": "enforcing"}) as broker:
        assert asyncio.run(ask(broker.remoting, client_side())) == 0
        with pytest.raises(Unavailable):
            asyncio.run(ask(broker.remoting, None))
