"""A remoting client for tests. It sends requests and raw bytes, and receives the server's
requests."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Self

from tieredstore.broker.auth.policies import Action
from tieredstore.broker.remoting.codes import HeaderType
from tieredstore.broker.remoting.command import (
    Body,
    FrameReader,
    RemotingCommand,
    decode_header,
    encode_header,
    encode_start,
)
from tieredstore.broker.remoting.connection import Connection, RemotingLimits, connect
from tieredstore.broker.remoting.handler_table import HandlerTable, NoFields, Outcome, Request
from tieredstore.broker.remoting.server import RemotingServer
from tieredstore.broker.tls import TlsMode

TIMEOUT_MS = 20_000


class _Calls(HandlerTable):
    """Receives the server's requests, and answers those for which a test registered an answer."""

    def __init__(self) -> None:
        super().__init__()
        self.received: asyncio.Queue[RemotingCommand] = asyncio.Queue()
        self.answers: dict[int, Callable[[RemotingCommand], RemotingCommand]] = {}

    def find(self, code: int) -> Callable[[Connection, RemotingCommand], RemotingCommand | None]:
        def take(_: Connection, request: RemotingCommand) -> RemotingCommand | None:
            self.received.put_nowait(request)
            answer = self.answers.get(request.code)
            return None if answer is None else answer(request)

        return take


def register_plain(
    table: HandlerTable,
    code: int,
    handler: Callable[[Connection, RemotingCommand], Outcome],
) -> None:
    """Register a function that answers the requests of a code from the unparsed command."""

    def answer(request: Request[NoFields]) -> Outcome:
        return handler(request.connection, request.command)

    table.register(code, answer, NoFields, Action.GET)


class RemotingClient:
    """Client of one server. `header_type` is the encoding of request headers. Error responses are
    returned, not raised."""

    def __init__(self, connection: Connection, calls: _Calls, header_type: HeaderType) -> None:
        self.connection = connection
        self.header_type = header_type
        self._calls = calls

    @classmethod
    async def open(
        cls,
        address: str,
        header_type: HeaderType = HeaderType.JSON,
        tls: ssl.SSLContext | None = None,
    ) -> Self:
        """Connect to `host:port`, using TLS if a context is given."""
        calls = _Calls()
        connection = await connect(address, calls, timeout_ms=TIMEOUT_MS, tls=tls)
        return cls(connection, calls, header_type)

    async def request(
        self,
        code: int,
        ext_fields: Mapping[str, object] | None = None,
        body: Body = b"",
        timeout_ms: int = TIMEOUT_MS,
    ) -> RemotingCommand:
        """Send a request and wait for its response. Field values are converted by `str`, and
        booleans to `true` and `false`. The resulting texts must match those of a Java client."""
        fields = _texts(ext_fields)
        return await self.connection.request(code, fields, body, timeout_ms, self.header_type)

    def send_one_way(
        self, code: int, ext_fields: Mapping[str, object] | None = None, body: Body = b""
    ) -> None:
        """Send a request without a response."""
        self.connection.send_one_way(code, _texts(ext_fields), body, self.header_type)

    def answer(self, code: int, answer: Callable[[RemotingCommand], RemotingCommand]) -> None:
        """Register a function that answers the server's requests of a code."""
        self._calls.answers[code] = answer

    async def next_call(self) -> RemotingCommand:
        """Wait for the server's next request."""
        async with asyncio.timeout(TIMEOUT_MS / 1000):
            return await self._calls.received.get()

    @property
    def waiting_calls(self) -> int:
        """Number of requests from the server that `next_call` has not returned yet."""
        return self._calls.received.qsize()

    async def close(self) -> None:
        """Close the connection."""
        self.connection.close()
        await wait_for(lambda: self.connection.has_ended)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


def _texts(fields: Mapping[str, object] | None) -> dict[str, str]:
    return {
        name: str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in (fields or {}).items()
    }


@asynccontextmanager
async def serve(
    table: HandlerTable,
    limits: RemotingLimits | None = None,
    tls: ssl.SSLContext | None = None,
    tls_mode: TlsMode = TlsMode.PERMISSIVE,
) -> AsyncIterator[tuple[RemotingServer, str]]:
    """Serve a table of request handlers on a free loopback port. Yield the server and its
    address."""
    server = RemotingServer(table, limits, tls, tls_mode)
    listening = socket.socket()
    listening.bind(("127.0.0.1", 0))
    await server.start(listening)
    try:
        yield server, f"127.0.0.1:{listening.getsockname()[1]}"
    finally:
        await server.stop()


@asynccontextmanager
async def open_raw(
    address: str,
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """Open a connection for raw bytes."""
    host, port = address.split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        yield reader, writer
    finally:
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()


async def read_until_end(address: str, data: bytes) -> bytes:
    """Send raw bytes, and return everything that the server sends before it closes the
    connection."""
    async with open_raw(address) as (reader, writer), asyncio.timeout(TIMEOUT_MS / 1000):
        writer.write(data)
        answer = b""
        with suppress(ConnectionError):
            while piece := await reader.read(1 << 16):
                answer += piece
        return answer


def encode_command(command: RemotingCommand) -> bytes:
    """Encode a command as a whole frame."""
    header, body = encode_header(command), command.body_bytes
    return encode_start(command.header_type, header, len(body)) + body


def decode_commands(data: bytes) -> list[RemotingCommand]:
    """Decode whole frames into commands."""
    frames = FrameReader()
    frames.add(data)
    commands: list[RemotingCommand] = []
    while (frame := frames.take()) is not None:
        header_type, header, body = frame
        command = decode_header(header_type, header)
        command.body = body
        commands.append(command)
    return commands


async def wait_for(condition: Callable[[], bool]) -> None:
    """Run the event loop until a condition holds."""
    async with asyncio.timeout(TIMEOUT_MS / 1000):
        while not condition():  # noqa: ASYNC110 - a test looks at what tells nobody
            await asyncio.sleep(0.005)
