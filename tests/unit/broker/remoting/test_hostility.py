"""Tests of peers that send invalid frames, send slowly, never read, or send too many requests at
once."""

from __future__ import annotations

import asyncio
import os
import resource
import struct
from collections.abc import Iterator
from contextlib import AsyncExitStack, ExitStack, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from tests.kit.remoting import (
    RemotingClient,
    decode_commands,
    encode_command,
    open_raw,
    read_until_end,
    register_plain,
    serve,
    wait_for,
)
from tieredstore.broker.remoting.codes import ResponseCode
from tieredstore.broker.remoting.command import RemotingCommand, encode_start
from tieredstore.broker.remoting.connection import BufferedBytes, Connection, RemotingLimits
from tieredstore.broker.remoting.handler_table import HandlerTable
from tieredstore.errors import Unavailable
from tieredstore.testing.moving_time import MovingClock, MovingLoop

ECHO, LARGE, PARK = 1001, 1002, 1003
LARGE_BYTES = 256 << 10


def table() -> HandlerTable:
    def echo(_: Connection, request: RemotingCommand) -> RemotingCommand:
        return RemotingCommand(0, request.ext_fields, request.body)

    async def park(_: Connection, __: RemotingCommand) -> None:
        await asyncio.sleep(3_600)

    handlers = HandlerTable()
    register_plain(handlers, ECHO, echo)
    register_plain(handlers, LARGE, lambda _, __: RemotingCommand(0, {}, bytes(LARGE_BYTES)))
    register_plain(handlers, PARK, park)
    return handlers


def frame(header: bytes, header_type: int = 0) -> bytes:
    return encode_start(header_type, header, 0)


HOSTILE = {
    "length 0": b"\x00\x00\x00\x00",
    "length -1": b"\xff\xff\xff\xff",
    "length 2^31-1": b"\x7f\xff\xff\xff" + bytes(100),
    "length above the limit": (17 << 20).to_bytes(4, "big"),
    "header longer than its frame": b"\x00\x00\x00\x08\x00\x00\x00\x05{}{}",
    "longest header": b"\x00\x00\x00\x08\x00\xff\xff\xff{}{}",
    "unknown header type": frame(b"{}", 7),
    "no JSON": frame(b"\x00\x01\x02"),
    "JSON that is no object": frame(b"[]"),
    "JSON without a code": frame(b"{}"),
    "a code that is no number": frame(b'{"code":"x"}'),
    "a code of many digits": frame(b'{"code":' + b"9" * 5_000 + b"}"),
    "deep JSON": frame(b'{"code":1,"x":' + b"[" * 100_000),
    "an empty header": frame(b""),
    "a binary header that is cut": frame(b"\x00\x0a\x00", 1),
    "a binary header with wrong sizes": frame(bytes(13) + b"\x7f\xff\xff\xff" * 2, 1),
    "another protocol": b"GET / HTTP/1.1\r\nHost: a\r\n\r\n",
}


@pytest.mark.parametrize("hostile", HOSTILE.values(), ids=HOSTILE.keys())
def test_i03_a_hostile_frame_ends_its_connection_and_no_other(hostile: bytes) -> None:
    async def main() -> None:
        async with serve(table()) as (server, address), await RemotingClient.open(address) as other:
            before = encode_command(RemotingCommand(ECHO, {"a": "b"}, b"body", opaque=5))
            behind = encode_command(RemotingCommand(ECHO, opaque=6))
            await read_until_end(address, hostile + behind)
            await read_until_end(address, before + hostile + behind)
            assert (await other.request(ECHO)).code == 0
            await wait_for(lambda: len(server.connections) == 1)
            assert server.buffered_bytes == 0

    asyncio.run(main())


def test_i03_codes_that_nobody_knows_leave_the_connection_as_it_is() -> None:
    async def main() -> None:
        async with serve(table()) as (_, address), await RemotingClient.open(address) as client:
            for code in (-(2**31), -1, 0, 9_999, 2**31 - 1):
                assert (await client.request(code)).code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
            assert (await client.request(ECHO, {"a": "b"})).ext_fields == {"a": "b"}

    asyncio.run(main())


def test_i03_responses_to_nothing_are_ignored() -> None:
    async def main() -> None:
        async with serve(table()) as (_, address), await RemotingClient.open(address) as client:
            for opaque in range(100):
                client.connection.send(RemotingCommand(0, opaque=opaque, flag=1))
            assert (await client.request(ECHO)).code == 0

    asyncio.run(main())


def test_i03_a_slow_sender_is_closed_like_an_idle_one_and_a_live_one_is_not() -> None:
    clock = MovingClock()

    async def main() -> None:
        limits = RemotingLimits(idle_timeout_ms=60_000)
        async with (
            serve(table(), limits) as (server, address),
            await RemotingClient.open(address) as live,
            await RemotingClient.open(address) as idle,
            open_raw(address) as (reader, writer),
        ):
            ended = asyncio.ensure_future(reader.read())
            for byte in encode_command(RemotingCommand(ECHO, body=bytes(1_000))):
                if ended.done():
                    break
                writer.write(bytes([byte]))
                assert (await live.request(ECHO)).code == 0
                clock.advance(1_000)
            with suppress(ConnectionResetError):
                assert await ended == b""
            await wait_for(lambda: len(server.connections) == 1)
            assert not idle.connection.is_open
            assert (await live.request(ECHO)).code == 0

    with asyncio.Runner(loop_factory=lambda: MovingLoop(clock)) as runner:
        runner.run(main())


def test_i03_unfinished_frames_are_bounded_and_the_greediest_peer_is_closed() -> None:
    async def main() -> None:
        limits = RemotingLimits(max_buffered_bytes=4 << 20)
        start = encode_start(0, b'{"code":1}', 8 << 20)
        whole = encode_command(RemotingCommand(ECHO, body=bytes(1 << 20), opaque=3))
        async with (
            serve(table(), limits) as (server, address),
            open_raw(address) as (reader, writer),
        ):
            writer.write(whole[:-1])
            await wait_for(lambda: server.buffered_bytes == len(whole) - 1)
            assert await read_until_end(address, start + bytes(7 << 20)) == b""
            assert server.buffered_bytes == len(whole) - 1
            writer.write(whole[-1:])
            (length,) = struct.unpack(">i", await reader.readexactly(4))
            assert length > 1 << 20
            await reader.readexactly(length)
            assert server.buffered_bytes == 0

    asyncio.run(main())


def test_i03_a_peer_that_does_not_read_is_not_read_and_gets_all_once_it_reads() -> None:
    count = 200

    async def main() -> None:
        async with (
            serve(table()) as (server, address),
            await RemotingClient.open(address) as other,
            open_raw(address) as (reader, writer),
        ):
            for opaque in range(count):
                writer.write(encode_command(RemotingCommand(LARGE, opaque=opaque)))
            await wait_for(lambda: server.buffered_bytes > 0)
            for _ in range(20):
                assert (await other.request(ECHO)).code == 0
            high_water_bytes = server.limits.high_water_bytes
            assert server.buffered_bytes <= high_water_bytes + 2 * LARGE_BYTES + (64 << 10)
            for opaque in range(count):
                (length,) = struct.unpack(">i", await reader.readexactly(4))
                frame = struct.pack(">i", length) + await reader.readexactly(length)
                (command,) = decode_commands(frame)
                assert (command.opaque, len(command.body_bytes)) == (opaque, LARGE_BYTES)
            await wait_for(lambda: server.buffered_bytes == 0)

    asyncio.run(main())


class Stuck(asyncio.Transport):
    """A transport whose peer never reads. `unsent_bytes` are already in its buffer."""

    def __init__(self, unsent_bytes: int) -> None:
        super().__init__()
        self.unsent_bytes = unsent_bytes
        self.protocol: Connection | None = None

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = high or 0

    def get_write_buffer_size(self) -> int:
        return self.unsent_bytes

    def write(self, data: Any) -> None:
        self.unsent_bytes += len(data)
        if self.unsent_bytes > self._high:
            assert self.protocol is not None
            self.protocol.pause_writing()

    def pause_reading(self) -> None:
        pass

    def is_closing(self) -> bool:
        return False


@pytest.mark.parametrize("share", [0, 0.5, 1])
def test_i03_what_waits_for_a_peer_counts_before_more_is_answered(share: float) -> None:
    async def main() -> None:
        limits = RemotingLimits()
        high_water_bytes = limits.high_water_bytes
        transport = Stuck(int(high_water_bytes * share))  # no more than that: it is read on
        buffered = BufferedBytes(limits.max_buffered_bytes)
        transport.protocol = connection = Connection(table(), limits, buffered, [])
        connection.connection_made(transport)
        connection.data_received(encode_command(RemotingCommand(LARGE)) * 20)
        unsent_bytes = transport.unsent_bytes
        assert high_water_bytes < unsent_bytes <= high_water_bytes + LARGE_BYTES + (1 << 10)

    asyncio.run(main())


def test_i03_unsent_bytes_are_bounded_and_the_greediest_peer_is_closed() -> None:
    async def main() -> None:
        limits = RemotingLimits(max_buffered_bytes=4 << 20)
        async with (
            serve(table(), limits) as (server, address),
            await RemotingClient.open(address) as other,
            open_raw(address) as (_, writer),
        ):
            assert (await other.request(ECHO)).code == 0
            writer.write(encode_command(RemotingCommand(LARGE)))
            await wait_for(lambda: len(server.connections) == 2)
            (greedy,) = (
                connection
                for connection in server.connections
                if connection.address == "{}:{}".format(*writer.get_extra_info("sockname"))
            )
            while greedy.is_open:  # as parked polls do that all find something
                greedy.send(RemotingCommand(ECHO, body=bytes(LARGE_BYTES)))
                await asyncio.sleep(0)
                assert server.buffered_bytes <= limits.max_buffered_bytes
            await wait_for(lambda: len(server.connections) == 1)
            assert server.buffered_bytes == 0
            assert (await other.request(ECHO)).code == 0

    asyncio.run(main())


def test_i03_parked_requests_of_a_connection_are_bounded() -> None:
    async def main() -> None:
        limits = RemotingLimits(max_pending=10)
        async with (
            serve(table(), limits) as (server, address),
            await RemotingClient.open(address) as client,
        ):
            parked = [asyncio.ensure_future(client.request(PARK)) for _ in range(10)]
            await asyncio.sleep(0)
            assert (await client.request(PARK)).code == ResponseCode.SYSTEM_BUSY
            assert (await client.request(ECHO)).code == 0
            (connection,) = server.connections
            assert connection.pending_count == 10
            for request in parked:
                request.cancel()

    asyncio.run(main())


def test_i03_what_many_polls_find_at_once_is_bounded() -> None:
    async def main() -> None:
        limits = RemotingLimits(max_buffered_bytes=4 << 20)
        async with serve(table(), limits) as (server, address), open_raw(address) as (_, writer):
            writer.write(encode_command(RemotingCommand(ECHO)))
            await wait_for(lambda: len(server.connections) == 1)
            (greedy,) = server.connections
            for _ in range(100):  # in one turn of the loop
                greedy.send(RemotingCommand(ECHO, body=bytes(LARGE_BYTES)))
                assert server.buffered_bytes <= limits.max_buffered_bytes
            assert not greedy.is_open
            await wait_for(lambda: not server.connections)
            assert server.buffered_bytes == 0

    asyncio.run(main())


def test_i03_requests_that_wait_are_bounded_by_their_size() -> None:
    async def main() -> None:
        limits = RemotingLimits(max_buffered_bytes=4 << 20)
        async with (
            serve(table(), limits) as (server, address),
            await RemotingClient.open(address) as other,
            await RemotingClient.open(address) as greedy,
        ):
            small = asyncio.ensure_future(other.request(PARK, body=bytes(1 << 20)))
            await wait_for(lambda: server.buffered_bytes > 1 << 20)
            parked = [
                asyncio.ensure_future(greedy.request(PARK, body=bytes(1 << 20))) for _ in range(4)
            ]
            for request in parked:
                with pytest.raises(Unavailable):
                    await request
            assert 1 << 20 < server.buffered_bytes < 2 << 20
            assert (await other.request(ECHO)).code == 0
            small.cancel()
            other.connection.close()
            await wait_for(lambda: server.buffered_bytes == 0)

    asyncio.run(main())


def test_i03_clients_leave_descriptors_for_files() -> None:
    async def main(folder: Path) -> None:
        async with serve(table()) as (_, address), AsyncExitStack() as clients:
            first = await clients.enter_async_context(await RemotingClient.open(address))
            with few_descriptors(more=320):
                served = 0
                with suppress(Unavailable):
                    while True:
                        client = await RemotingClient.open(address)
                        await clients.enter_async_context(client)
                        assert (await client.request(ECHO)).code == 0
                        served += 1
                assert served > 20
                with ExitStack() as files:  # as a running store does
                    for number in range(20):
                        files.enter_context((folder / str(number)).open("wb"))
                assert (await first.request(ECHO)).code == 0

    with TemporaryDirectory() as folder:
        asyncio.run(main(Path(folder)))


@contextmanager
def few_descriptors(more: int) -> Iterator[None]:
    """Limit the process to the given number of additional open files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest_free = os.open(os.devnull, os.O_RDONLY)
    os.close(lowest_free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free + more, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
