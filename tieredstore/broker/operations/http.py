"""OperationsServer: `/health` and `/metrics` over HTTP, for an operator."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Any

import orjson
from aiohttp import web

from tieredstore.broker.operations.health import DOWN, STARTING
from tieredstore.errors import Unavailable

CONTENT_TYPE = "text/plain; version=1.0.0; charset=utf-8"


class OperationsServer:
    """Serves what two calls return. find_health: the answer of `/health`; render_metrics: the text
    of `/metrics`."""

    def __init__(
        self,
        find_health: Callable[[], Awaitable[dict[str, Any]]],
        render_metrics: Callable[[], Awaitable[bytes]],
    ) -> None:
        self._find_health = find_health
        self._render_metrics = render_metrics
        self._runner: web.AppRunner | None = None

    async def start(self, host: str, port: int) -> int:
        """Begin to answer; returns the port (of 0: a free one). Raises Unavailable when the port is
        taken."""
        app = web.Application()
        app.router.add_get("/health", self._answer_health)
        app.router.add_get("/metrics", self._answer_metrics)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
        await runner.setup()
        site = web.TCPSite(runner, host, port)
        try:
            await site.start()
        except OSError as error:
            await runner.cleanup()
            raise Unavailable(f"{host}:{port}: cannot listen: {error}") from error
        self._runner = runner
        address: tuple[str, int] = runner.addresses[0]
        return address[1]

    async def stop(self) -> None:
        """Stop answering. Idempotent."""
        runner, self._runner = self._runner, None
        if runner is not None:
            await runner.cleanup()

    async def _answer_health(self, request: web.Request) -> web.Response:  # noqa: ARG002
        health = await self._find_health()
        is_serving = health["status"] not in {DOWN, STARTING}
        status = HTTPStatus.OK if is_serving else HTTPStatus.SERVICE_UNAVAILABLE
        body = orjson.dumps(health, option=orjson.OPT_APPEND_NEWLINE)
        return web.Response(body=body, status=status, content_type="application/json")

    async def _answer_metrics(self, request: web.Request) -> web.Response:  # noqa: ARG002
        body = await self._render_metrics()
        return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE})
