"""OperationsServer: serves `/health` and `/metrics` over HTTP."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from http import HTTPStatus
from itertools import chain
from typing import TYPE_CHECKING, Final, cast

import orjson
from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.typedefs import Handler

from tieredstore.broker.operations.health import DOWN, STARTING
from tieredstore.broker.peer_warnings import PEERS
from tieredstore.broker.ports import count_room
from tieredstore.errors import Unavailable

if TYPE_CHECKING:
    from aiohttp.web_protocol import RequestHandler

ALWAYS_ADMITTED: Final = 4
"""Number of connections accepted even if no file descriptors are left for clients, so that a health
check is always answered. Otherwise an orchestrator would restart a healthy broker."""


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """Limits of the HTTP port. `max_connections`: above this number, a new connection replaces the
    oldest one, preferably one that is waiting for a request. `max_request_bytes`: maximum size of a
    request with its headers. `request_s`: time limit for the first request on a connection.
    `idle_s`: time limit for each later request. `answer_s`: time limit for writing an answer until
    the peer has received it."""

    max_connections: int = 128
    max_request_bytes: int = 16 << 10
    request_s: float = 10.0
    idle_s: float = 75.0
    answer_s: float = 60.0


class _PeerHandler(logging.Handler):
    """Logs a warning about the peer for a bad request, instead of aiohttp's traceback."""

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        is_of_peer = error is None or isinstance(error, HttpProcessingError)
        text = f"HTTP port: {record.getMessage()}"
        if error is not None:
            text += f": {type(error).__name__}"
        PEERS.note("bad HTTP requests", text, None if is_of_peer else error)


def make_peer_logger() -> logging.Logger:
    logger = logging.Logger(__name__, logging.WARNING)
    logger.addHandler(_PeerHandler())
    return logger


class Fronts:
    """Connections of a server. Those waiting for a request are ordered by waiting time, longest
    first."""

    def __init__(self, limits: HttpLimits) -> None:
        self.limits = limits
        self._waiting: dict[Front, None] = {}
        self._answering: dict[Front, None] = {}
        self._by_transport: dict[asyncio.BaseTransport, Front] = {}

    def __len__(self) -> int:
        return len(self._by_transport)

    def find(self, transport: asyncio.BaseTransport | None) -> Front | None:
        return None if transport is None else self._by_transport.get(transport)

    def admit(self, front: Front, transport: asyncio.Transport) -> None:
        """Accept a connection. Above the limit, close the connection that has waited longest. If
        none is waiting, close the one whose answer began first. A health check is thus never
        blocked."""
        descriptor = transport.get_extra_info("socket").fileno()
        has_room = len(self) < ALWAYS_ADMITTED or count_room(descriptor) > 0
        if not has_room or len(self) >= self.limits.max_connections:
            PEERS.note(
                "HTTP connections over the limit",
                f"HTTP port: {len(self)} connections, the oldest is closed",
            )
            next(chain(self._waiting, self._answering)).abort()
        self._by_transport[transport] = front

    def wait(self, front: Front) -> None:
        self._answering.pop(front, None)
        self._waiting.pop(front, None)
        self._waiting[front] = None

    def answer(self, front: Front) -> None:
        """Record that a request on this connection is being answered."""
        self._waiting.pop(front, None)
        self._answering[front] = None

    def forget(self, front: Front, transport: asyncio.BaseTransport) -> None:
        """Remove a closed connection."""
        self._waiting.pop(front, None)
        self._answering.pop(front, None)
        self._by_transport.pop(transport, None)


class Front(asyncio.Protocol):
    """Connection in front of aiohttp's handler, which limits neither the number nor the duration of
    connections."""

    def __init__(self, handler: RequestHandler, fronts: Fronts) -> None:
        self._handler = handler
        self._fronts = fronts
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._received_bytes = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        made = cast("asyncio.Transport", transport)
        self._fronts.admit(self, made)
        self._transport = made
        self._handler.connection_made(made)
        self._fronts.wait(self)
        self._limit(self._fronts.limits.request_s)

    def data_received(self, data: bytes) -> None:
        if self._transport is None:
            return
        self._received_bytes += len(data)
        if self._received_bytes > self._fronts.limits.max_request_bytes:
            self._close("sent a request that is too large")
            return
        self._handler.data_received(data)

    def eof_received(self) -> None:
        if self._transport is not None:
            self._handler.eof_received()

    def pause_writing(self) -> None:
        if self._transport is not None:
            self._handler.pause_writing()

    def resume_writing(self) -> None:
        if self._transport is not None:
            self._handler.resume_writing()

    def connection_lost(self, error: BaseException | None) -> None:
        transport, self._transport = self._transport, None
        if self._timer is not None:
            self._timer.cancel()
        if transport is not None:
            self._fronts.forget(self, transport)
            self._handler.connection_lost(error)

    def begin_answer(self) -> None:
        self._fronts.answer(self)
        self._limit(self._fronts.limits.answer_s)

    def end_answer(self) -> None:
        """End the answer and start the time limit for the next request."""
        if self._transport is not None:
            self._received_bytes = 0
            self._fronts.wait(self)
            self._limit(self._fronts.limits.idle_s)

    def abort(self) -> None:
        """Close the connection immediately to make room for another one."""
        if self._transport is not None:
            self._fronts.forget(self, self._transport)
            self._transport.abort()

    def _limit(self, time_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(time_s, self._close, "took too long")

    def _close(self, reason: str) -> None:
        if self._transport is not None:
            peer = self._transport.get_extra_info("peername")
            PEERS.note(
                "HTTP connections closed", f"{peer}: the HTTP connection is closed: {reason}"
            )
            self._transport.abort()


_BACKLOG: Final = 128
CONTENT_TYPE = "text/plain; version=1.0.0; charset=utf-8"


class OperationsServer:
    """Serves the results of two functions: `find_health` for `/health` and `render_metrics` for
    `/metrics`. `limits`: connection limits."""

    def __init__(
        self,
        find_health: Callable[[], Awaitable[dict[str, object]]],
        render_metrics: Callable[[], Awaitable[bytes]],
        limits: HttpLimits | None = None,
    ) -> None:
        self._fronts = Fronts(limits or HttpLimits())
        self._listening: asyncio.Server | None = None
        self._find_health = find_health
        self._render_metrics = render_metrics
        self._runner: web.AppRunner | None = None

    async def start(self, host: str, port: int) -> int:
        """Start serving, and return the port. With port 0, the system chooses one. Raises
        Unavailable if the port is in use."""
        app = web.Application(middlewares=[self._count])
        app.router.add_get("/health", self._answer_health)
        app.router.add_get("/metrics", self._answer_metrics)
        runner = web.AppRunner(
            app, access_log=None, shutdown_timeout=1.0, logger=make_peer_logger()
        )
        await runner.setup()
        make_handler = runner.server
        assert make_handler is not None
        try:
            listening = await asyncio.get_running_loop().create_server(
                lambda: Front(make_handler(), self._fronts), host, port, backlog=_BACKLOG
            )
        except OSError as error:
            await runner.cleanup()
            raise Unavailable(f"{host}:{port}: cannot listen: {error}") from error
        self._runner, self._listening = runner, listening
        found: int = listening.sockets[0].getsockname()[1]
        return found

    async def stop(self) -> None:
        """Stop serving. Idempotent."""
        runner, self._runner = self._runner, None
        listening, self._listening = self._listening, None
        if listening is not None:
            listening.close()
        if runner is not None:
            await runner.cleanup()

    @web.middleware
    async def _count(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Limit the time until the peer has received the answer."""
        front = self._fronts.find(request.transport)
        if front is None:
            return await handler(request)
        front.begin_answer()
        try:
            response = await handler(request)
            await response.prepare(request)
            await response.write_eof()
        finally:
            front.end_answer()
        return response

    async def _answer_health(self, request: web.Request) -> web.Response:  # noqa: ARG002
        health = await self._find_health()
        is_serving = health["status"] not in {DOWN, STARTING}
        status = HTTPStatus.OK if is_serving else HTTPStatus.SERVICE_UNAVAILABLE
        body = orjson.dumps(health, option=orjson.OPT_APPEND_NEWLINE)
        return web.Response(body=body, status=status, content_type="application/json")

    async def _answer_metrics(self, request: web.Request) -> web.Response:  # noqa: ARG002
        body = await self._render_metrics()
        return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE})
