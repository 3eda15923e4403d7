"""An in-memory chunk log whose requests may fail. A `broker.conf` selects it with
`tieredBackendServiceProvider=tests.kit.random_worlds.chunk_tier:ChunkTier`."""

from __future__ import annotations

from typing import Any, ClassVar

from tests.kit.memory_chunks import chunk_provider
from tests.kit.random_worlds.objects import RandomClient, RandomObjects
from tieredstore.providers.chunks.provider import ChunkProvider
from tieredstore.providers.chunks.upkeep.policy import MergePolicy


class ChunkWorld:
    """Settings and objects that the next ChunkTier uses."""

    newest: ChunkProvider

    def __init__(self, objects: RandomObjects) -> None:
        self.objects = objects
        self.group_bytes = 0
        self.take_over_epoch = 0

    def connect(self) -> ChunkProvider:
        clock = self.objects.clock
        provider = chunk_provider(
            RandomClient(self.objects),
            clock=clock,
            monotonic_ms=clock.monotonic_ms,
            grace_ms=30_000,
            sweep_interval_ms=1,
            write_cache_bytes=2_000,
            block_cache_bytes=4_000,
            block_bytes=512,
            read_threads=2,
            regroup_interval_ms=60_000,
            regrouped_bytes=2_000,
            split_bytes=3_000,
            split_age_ms=600_000,
            group_bytes=self.group_bytes,
            take_over_epoch=self.take_over_epoch,
            policy=MergePolicy(
                fan_in=3, target_bytes=1_500, part_bytes=400, free_bytes=100, settle_ms=0
            ),
        )
        self.newest = provider
        return provider


class ChunkTier(ChunkProvider):
    """Provider for test configurations, which name it by its class. It uses the latest `world`."""

    world: ClassVar[ChunkWorld]

    @classmethod
    def from_config(cls, config: Any) -> ChunkProvider:
        return cls.world.connect()
