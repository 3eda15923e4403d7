"""Health of a long-running job, over HTTP as in the broker (`/health`, `/metrics`) or in a file."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from tieredstore.errors import TieredStoreError, make_missing_error

HEALTH_FILE_SECONDS = 10.0

if TYPE_CHECKING:
    from tieredstore.jobs.offloading.watch import OffloadWatch


@contextmanager
def serve_watch(host: str, port: int, watch: OffloadWatch) -> Iterator[int]:
    """Serve the health of a job in a separate thread while the block runs. Yields the port. With
    port 0, the system chooses one. Raises Invalid without the extra `broker`, Unavailable if the
    port is in use."""
    try:
        from tieredstore.broker.operations.exporter import MetricsExporter
        from tieredstore.broker.operations.health import describe_health
        from tieredstore.broker.operations.http import OperationsServer
    except ModuleNotFoundError as error:
        raise make_missing_error("--metrics-port", error, "broker") from error
    exporter = MetricsExporter({"node_type": "offload"})

    async def find_health() -> dict[str, object]:
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


@contextmanager
def write_health(
    path: Path, watch: OffloadWatch, every_seconds: float = HEALTH_FILE_SECONDS
) -> Iterator[None]:
    """Write the content of `/health` to a file while the block runs, for health checks without
    HTTP. The file has one line of JSON, with the time of the last write as `written_ms`, and is
    replaced atomically. It is deleted at the end of the block, but not if the process is killed.
    Raises Invalid or Unavailable if the first write fails."""
    import orjson

    from tieredstore.broker.operations.health import describe_health
    from tieredstore.disk.errors import wrap_os_errors
    from tieredstore.disk.file_operations import FILES

    def write() -> None:
        health = describe_health(watch.list_services(), watch.tier)
        found = {"written_ms": watch.clock.now_ms(), **health}
        FILES.replace_file(path, orjson.dumps(found, default=str) + b"\n")

    def keep() -> None:
        while not ended.wait(every_seconds):
            # A file that cannot be written grows old, which a probe detects.
            with suppress(OSError, TieredStoreError):
                write()

    ended = threading.Event()
    with wrap_os_errors("write", path):
        path.parent.mkdir(parents=True, exist_ok=True)
        write()
    thread = threading.Thread(target=keep, name="tiered-health", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        with suppress(OSError):
            path.unlink()
