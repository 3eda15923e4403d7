"""Serves how a long-running job is over HTTP, as the broker does: `/health` and `/metrics`."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from tieredstore.errors import make_missing_error

if TYPE_CHECKING:
    from tieredstore.jobs.offloading.watch import OffloadWatch


@contextmanager
def serve_watch(host: str, port: int, watch: OffloadWatch) -> Iterator[int]:
    """Answer, within the block, from a thread of its own; yields the port (of 0: a free one).
    Raises Invalid when the extra `broker` is not installed, Unavailable when the port is taken."""
    try:
        from tieredstore.broker.operations.exporter import MetricsExporter
        from tieredstore.broker.operations.health import describe_health
        from tieredstore.broker.operations.http import OperationsServer
    except ModuleNotFoundError as error:
        raise make_missing_error("--metrics-port", error, "broker") from error
    exporter = MetricsExporter({"node_type": "offload"})

    async def find_health() -> dict[str, Any]:
        return describe_health(watch.list_services(), watch.tier)

    async def render_metrics() -> bytes:
        return exporter.render([watch.metrics])

    server = OperationsServer(find_health, render_metrics)
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="tiered-metrics", daemon=True)
    thread.start()
    try:
        yield asyncio.run_coroutine_threadsafe(server.start(host, port), loop).result()
    finally:
        asyncio.run_coroutine_threadsafe(server.stop(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
