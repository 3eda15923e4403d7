"""A whole broker on the test's event loop, on free loopback ports."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from tieredstore.broker.broker import Broker
from tieredstore.clock import SYSTEM_CLOCK, Clock


@asynccontextmanager
async def running_broker(
    root: Path, clock: Clock = SYSTEM_CLOCK, **keys: str
) -> AsyncIterator[Broker]:
    """Run a broker within the block. `keys` are broker.conf entries."""
    properties = {
        "storePathRootDir": str(root),
        "mappedFileSizeCommitLog": str(8 << 20),
        "brokerName": "b",
        "brokerIP1": "127.0.0.1",
        "bindAddress": "127.0.0.1",
        "listenPort": "0",
        "grpcServerPort": "0",
        "metricsPromExporterPort": "0",
        **keys,
    }
    broker = Broker.from_properties(properties, origin="broker.conf", clock=clock)
    await broker.start()
    try:
        yield broker
    finally:
        await broker.stop()
