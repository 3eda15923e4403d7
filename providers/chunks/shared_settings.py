"""Settings of a chunk log that all object stores share."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

import msgspec
from msgspec import Meta, field

from tieredstore.providers.chunks.settings import ChunkSettings

_DAYS_MS = 366 * 86_400_000
_PLAIN = ChunkSettings()


class SharedSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Base class of the settings of a provider. `chunk_settings()` returns the settings of the
    chunk log."""

    PREFIXES: ClassVar[tuple[str, ...]] = ("tieredStoreChunk",)

    fencing: Annotated[str, Meta(pattern="^(epoch|none)$")] = field(
        name="tieredStoreChunkFencing", default="epoch"
    )
    """Ours. How a second writer is excluded. `epoch`: each writer proves by conditional creates
    that it is the only one. `none`: not at all, for stores without conditional creates."""
    take_over_epoch: Annotated[int, Meta(ge=0, le=2**62)] = field(
        name="tieredStoreChunkTakeOverEpoch", default=_PLAIN.take_over_epoch
    )
    """Ours. Number of the writer epoch to take over from its owner. The error that names the owner
    shows this number. No other epoch is taken over. 0: none."""
    take_over_after_ms: Annotated[int, Meta(ge=0, le=_DAYS_MS)] = field(
        name="tieredStoreChunkTakeOverAfter", default=_PLAIN.take_over_after_ms
    )
    """Ours. Time without a renewal after which a writer epoch is taken over from its owner, ms. 0:
    never. A writer with this key renews its own epoch four times within this time, with one request
    each."""
    group_bytes: Annotated[int, Meta(ge=0, le=1 << 28)] = field(
        name="tieredStoreChunkGroupSize", default=_PLAIN.group_bytes
    )
    """Ours. Small uploads of many queues are stored together within a minute, in group objects of
    about this size, bytes. 0: each queue is stored alone."""
    hedge: bool = field(name="tieredStoreChunkHedge", default=_PLAIN.hedge)
    """Ours. Whether a read is sent again when it takes longer than 95 % of all reads."""

    def chunk_settings(self, **changes: Any) -> ChunkSettings:
        """Return the settings of the chunk log. `changes`: values of fields without a configuration
        key."""
        return ChunkSettings(
            fencing=self.fencing != "none",
            take_over_epoch=self.take_over_epoch,
            take_over_after_ms=self.take_over_after_ms,
            group_bytes=self.group_bytes,
            hedge=self.hedge,
            **changes,
        )
