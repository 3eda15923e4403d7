"""The HTTP port limits the number of connections, the size of headers and the duration of
requests."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest

from tieredstore.broker.operations import http
from tieredstore.broker.operations.http import ALWAYS_ADMITTED, HttpLimits, OperationsServer

WAIT_S = 60
METRICS = b"m 1\n" * 1_000_000
GET = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"
Pair = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Peers:
    """Client connections to a server under test."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._writers: list[asyncio.StreamWriter] = []

    async def connect(self, data: bytes = b"") -> Pair:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        self._writers.append(writer)
        writer.write(data)
        return reader, writer

    async def close(self) -> None:
        for writer in self._writers:
            writer.transport.abort()
        await asyncio.gather(
            *(writer.wait_closed() for writer in self._writers), return_exceptions=True
        )


@asynccontextmanager
async def serving(**changes: Any) -> AsyncIterator[Peers]:
    async def find_health() -> dict[str, Any]:
        return {"status": "up"}

    async def render_metrics() -> bytes:
        return METRICS

    server = OperationsServer(find_health, render_metrics, HttpLimits(**changes))
    peers = Peers(await server.start("127.0.0.1", 0))
    try:
        yield peers
    finally:
        await server.stop()
        await peers.close()


async def read_answer(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readuntil(b"\r\n\r\n")
    length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
    return head + await reader.readexactly(length)


async def has_ended(reader: asyncio.StreamReader) -> bool:
    try:
        async with asyncio.timeout(WAIT_S):
            return await reader.read() == b""
    except ConnectionError:
        return True


async def send_in_drops(writer: asyncio.StreamWriter) -> None:
    for byte in GET[:-1] * 20:
        writer.write(bytes([byte]))
        await writer.drain()
        await asyncio.sleep(0.02)


def test_s36_connections_that_only_wait_keep_no_probe_out(caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        async with serving(max_connections=8) as peers:
            silent = [await peers.connect(b"GET /metrics HTTP/1.1\r\nX: ") for _ in range(50)]
            async with asyncio.timeout(WAIT_S):
                reader, _ = await peers.connect(GET)
                assert b'{"status":"up"}' in await read_answer(reader)
            ended = [await has_ended(reader) for reader, _ in silent[:43]]
            assert all(ended)
            still = [writer for _, writer in silent[43:] if not writer.is_closing()]
            assert len(still) == 7

    asyncio.run(run())
    lines = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(lines) == 1  # one line a minute


def test_s36_connections_that_take_no_answer_keep_no_probe_out() -> None:
    async def run() -> None:
        async with serving(max_connections=8) as peers:
            for _ in range(20):
                _, writer = await peers.connect(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n" * 9)
                writer.transport.pause_reading()  # type: ignore[attr-defined]
                await asyncio.sleep(0.02)
            async with asyncio.timeout(WAIT_S):
                for _ in range(3):
                    reader, _ = await peers.connect(GET)
                    assert b'{"status":"up"}' in await read_answer(reader)

    asyncio.run(run())


def test_s36_probes_are_answered_while_files_have_most_descriptors(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def run() -> None:
        async with serving() as peers:
            probes = [await peers.connect(GET) for _ in range(ALWAYS_ADMITTED + 1)]
            async with asyncio.timeout(WAIT_S):
                with suppress(ConnectionError):
                    await probes[0][0].read()
            for reader, _ in probes[1:]:
                assert b'{"status":"up"}' in await read_answer(reader)

    monkeypatch.setattr(http, "count_room", lambda _: 0)
    asyncio.run(run())


@pytest.mark.parametrize(
    "data",
    [
        b"GET /health HTTP/1.1\r\nX: " + b"y" * 20_000,
        b"".join([b"GET /health HTTP/1.1\r\n", *(b"X%d: y\r\n" % n for n in range(4_000))]),
        b"POST /health HTTP/1.1\r\nContent-Length: 99999999\r\n\r\n" + b"y" * 70_000,
    ],
)
def test_s36_a_request_that_is_too_large_ends_its_connection(data: bytes) -> None:
    async def run() -> None:
        async with serving() as peers:
            reader, _ = await peers.connect(data)
            async with asyncio.timeout(WAIT_S):
                with suppress(ConnectionResetError):
                    while await reader.read(65_536):
                        pass

    asyncio.run(run())


def test_s36_a_request_that_comes_in_drops_ends_in_time() -> None:
    async def run() -> None:
        async with serving(request_s=0.3) as peers:
            reader, writer = await peers.connect()
            with pytest.raises(ConnectionError):
                await send_in_drops(writer)
            assert await has_ended(reader)

    asyncio.run(run())


def test_s36_a_connection_is_kept_between_requests_and_closed_when_it_is_idle() -> None:
    async def run() -> None:
        async with serving(request_s=0.2, idle_s=WAIT_S) as peers:
            reader, writer = await peers.connect(GET)
            for _ in range(3):
                assert b"200 OK" in await read_answer(reader)
                await asyncio.sleep(0.3)
                writer.write(GET)
            await read_answer(reader)
        async with serving(idle_s=0.3) as peers:
            reader, _ = await peers.connect(GET)
            await read_answer(reader)
            assert await has_ended(reader)

    asyncio.run(run())


def test_s36_who_does_not_take_an_answer_is_closed_in_time() -> None:
    async def run() -> None:
        async with serving(answer_s=0.3, idle_s=0.3) as peers:
            _, writer = await peers.connect(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
            writer.transport.pause_reading()  # type: ignore[attr-defined]
            await asyncio.sleep(1)
            reader, _ = await peers.connect(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
            assert METRICS[:1000] in await read_answer(reader)  # others get it whole

    asyncio.run(run())


def test_s37_bad_requests_are_one_line_without_tracebacks(
    caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    async def run() -> None:
        async with serving() as peers:
            for data in (b"\x16\x03\x01\x02\x00\r\n\r\n", b"GET / HTTP/9\r\n\r\n") * 10:
                reader, _ = await peers.connect(data)
                assert b" 400 " in await reader.readline()
            reader, _ = await peers.connect(GET)
            assert b"200 OK" in await read_answer(reader)

    asyncio.run(run())
    (record,) = caplog.records
    assert record.exc_info is None
    assert "Traceback" not in capfd.readouterr().err
