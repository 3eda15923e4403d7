"""In-memory chunk log without background work or waits."""

from __future__ import annotations

from typing import Any

from tieredstore.contracts.objects import ObjectClient
from tieredstore.providers.chunks.provider import ChunkProvider
from tieredstore.providers.chunks.settings import ChunkSettings
from tieredstore.providers.memory.objects import MemoryObjectClient


def chunk_provider(
    client: ObjectClient | None = None, *, owner: str | None = None, **settings: object
) -> ChunkProvider:
    """Return a provider on `client` (default: a new MemoryObjectClient). `settings` are fields of
    ChunkSettings."""
    quick: dict[str, Any] = {"maintenance_threads": 0, "pause_ms": 0}
    return ChunkProvider(
        client if client is not None else MemoryObjectClient(),
        settings=ChunkSettings(**(quick | settings)),
        owner=owner,
    )
