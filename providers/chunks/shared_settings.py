"""The settings of a chunk log, the same for every object store it is on."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

import msgspec
from msgspec import Meta, field

from tieredstore.providers.chunks.settings import ChunkSettings
from tieredstore.providers.chunks.upkeep.policy import MergePolicy

_DAYS_MS = 366 * 86_400_000
_PLAIN = ChunkSettings()


def _number(description: str, ge: float, le: float) -> Meta:
    return Meta(description=f"Ours. {description}", ge=ge, le=le)


class SharedSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Extended by a provider's struct; `chunk_settings()` is what the chunk log takes."""

    PREFIXES: ClassVar[tuple[str, ...]] = ("tieredStoreChunk",)

    fencing: Annotated[
        str,
        Meta(
            description="Ours. `epoch`: a writer proves by conditional creates that it is the only "
            "one; `none`: nothing does, for stores that know no conditions.",
            pattern="^(epoch|none)$",
        ),
    ] = field(name="tieredStoreChunkFencing", default="epoch")
    take_over_epoch: Annotated[
        int,
        _number(
            "Number of a writer epoch that is taken over from its owner, as the error that names "
            "the owner tells it; 0: none. Another epoch than this one is left alone.",
            0,
            2**62,
        ),
    ] = field(name="tieredStoreChunkTakeOverEpoch", default=_PLAIN.take_over_epoch)
    take_over_after_ms: Annotated[
        int,
        _number(
            "A writer epoch is taken over once its owner has not renewed it for so long, ms; 0: "
            "never. Owners with this key renew theirs four times within it, with a request each.",
            0,
            _DAYS_MS,
        ),
    ] = field(name="tieredStoreChunkTakeOverAfter", default=_PLAIN.take_over_after_ms)
    close_timeout_ms: Annotated[
        int,
        _number(
            "Most time that a stop takes, ms. After half of it no request is sent any more, and "
            "those under way end.",
            100,
            3_600_000,
        ),
    ] = field(name="tieredStoreChunkStopTimeout", default=_PLAIN.close_timeout_ms)
    grace_ms: Annotated[
        int,
        _number(
            "How long an object stays after a merged one covers it, ms. It spares readers a second "
            "listing; nothing rests on it.",
            0,
            _DAYS_MS,
        ),
    ] = field(name="tieredStoreChunkGraceTime", default=_PLAIN.grace_ms)
    upload_age_ms: Annotated[
        int, _number("Age at which an open multipart upload is nobody's, ms.", 0, _DAYS_MS)
    ] = field(name="tieredStoreChunkUploadAge", default=_PLAIN.upload_age_ms)
    batch_bytes: Annotated[
        int, _number("Size of a write that fast queues gather, bytes.", 0, 1 << 30)
    ] = field(name="tieredStoreChunkBatchSize", default=_PLAIN.preferred_batch_bytes)
    group_bytes: Annotated[
        int,
        _number(
            "Small uploads of many queues are stored together, in group objects of about so many "
            "bytes, within a minute; 0: each queue's by themselves.",
            0,
            1 << 28,
        ),
    ] = field(name="tieredStoreChunkGroupSize", default=_PLAIN.group_bytes)
    merge_count: Annotated[
        int, _number("Objects of about one size that are merged into one.", 2, 1000)
    ] = field(name="tieredStoreChunkMergeCount", default=_PLAIN.policy.fan_in)
    merge_bytes: Annotated[
        int,
        _number(
            "Small objects are merged as soon as they have so many bytes; at least the smallest "
            "part that a server copies, as what is shorter would be merged with each write anew.",
            _PLAIN.policy.part_bytes,
            1 << 30,
        ),
    ] = field(name="tieredStoreChunkMergeSize", default=_PLAIN.policy.target_bytes)
    read_part_bytes: Annotated[
        int, _number("Largest range that one request reads, bytes.", 1 << 16, 1 << 30)
    ] = field(name="tieredStoreChunkReadSize", default=_PLAIN.read_part_bytes)
    read_threads: Annotated[int, _number("Ranges read at once.", 1, 1024)] = field(
        name="tieredStoreChunkReadThreads", default=_PLAIN.read_threads
    )
    block_cache_bytes: Annotated[
        int, _number("Memory for blocks of consume queues, bytes.", 0, 1 << 40)
    ] = field(name="tieredStoreChunkBlockCacheSize", default=_PLAIN.block_cache_bytes)
    write_cache_bytes: Annotated[
        int,
        _number(
            "Memory for small writes until they are merged, which saves reads, bytes.", 0, 1 << 40
        ),
    ] = field(name="tieredStoreChunkWriteCacheSize", default=_PLAIN.write_cache_bytes)
    maintenance_threads: Annotated[
        int, _number("Segments merged, sealed or cleaned at once.", 1, 256)
    ] = field(name="tieredStoreChunkMaintenanceThreads", default=_PLAIN.maintenance_threads)
    hedge: Annotated[
        bool,
        Meta(description="Ours. Send a read again when it takes longer than 95 % of all do."),
    ] = field(name="tieredStoreChunkHedge", default=_PLAIN.hedge)
    hedge_share: Annotated[float, _number("Most of the reads that may be sent twice.", 0, 1)] = (
        field(name="tieredStoreChunkHedgeShare", default=_PLAIN.hedge_share)
    )

    def chunk_settings(self, **changes: Any) -> ChunkSettings:
        """Return the chunk log's settings, with what is not configured from `changes`."""
        return ChunkSettings(
            fencing=self.fencing != "none",
            take_over_epoch=self.take_over_epoch,
            take_over_after_ms=self.take_over_after_ms,
            close_timeout_ms=self.close_timeout_ms,
            grace_ms=self.grace_ms,
            upload_age_ms=self.upload_age_ms,
            preferred_batch_bytes=self.batch_bytes,
            group_bytes=self.group_bytes,
            read_part_bytes=self.read_part_bytes,
            read_threads=self.read_threads,
            block_cache_bytes=self.block_cache_bytes,
            write_cache_bytes=self.write_cache_bytes,
            **{"maintenance_threads": self.maintenance_threads} | changes,
            hedge=self.hedge,
            hedge_share=self.hedge_share,
            policy=MergePolicy(fan_in=self.merge_count, target_bytes=self.merge_bytes),
        )
