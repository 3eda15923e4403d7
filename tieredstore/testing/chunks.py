"""A chunk log in memory, for tests: no background work, no waiting."""

from __future__ import annotations

from typing import Any

from tieredstore.providers.chunks.client import ObjectClient
from tieredstore.providers.chunks.provider import ChunkProvider
from tieredstore.providers.chunks.settings import ChunkSettings
from tieredstore.providers.memory.objects import MemoryObjectClient


def chunk_provider(
    client: ObjectClient | None = None, *, owner: str | None = None, **settings: Any
) -> ChunkProvider:
    """Make a provider on `client` (a new MemoryObjectClient unless given). settings: fields of
    ChunkSettings."""
    quick: dict[str, Any] = {"maintenance_threads": 0, "pause_ms": 0}
    return ChunkProvider(
        client if client is not None else MemoryObjectClient(),
        settings=ChunkSettings(**(quick | settings)),
        owner=owner,
    )
