"""A tier for backfills, and checks of its content."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from tieredstore.config import StoreConfig
from tieredstore.jobs.backfilling.job import run_backfill
from tieredstore.jobs.journal import Journal
from tieredstore.jobs.options import BackfillOptions
from tieredstore.jobs.run import JobRun
from tieredstore.jobs.runner import LocalRunner
from tieredstore.jobs.target import resolve_target
from tieredstore.providers.chunks.provider import ChunkProvider
from tieredstore.providers.chunks.settings import ChunkSettings
from tieredstore.providers.memory.objects import MemoryObjectClient
from tieredstore.scan.arrow.schema import TYPES
from tieredstore.scan.findings import Finding
from tieredstore.scan.listing import load_catalogue
from tieredstore.scan.location import TierLocation
from tieredstore.scan.verify.verification import verify
from tieredstore.table import Tier

CLUSTER, BROKER = "cluster-a", "broker-a"
START_MS = 1_700_000_000_000
SMALL_INDEX = {
    "tieredStoreIndexFileMaxHashSlotNum": "64",
    "tieredStoreIndexFileMaxIndexNum": "1000",
    "tieredStorePosixFsyncEnable": "false",
}


class MemoryChunks(ChunkProvider):
    """Provider for test configurations, which name it by its class. It keeps chunk logs in
    memory."""

    objects = MemoryObjectClient()

    @classmethod
    def from_config(cls, config: StoreConfig) -> ChunkProvider:
        return ChunkProvider(
            MemoryObjectClient(beside=cls.objects),
            config.broker_cluster_name,
            settings=ChunkSettings(preferred_batch_bytes=500),
        )


def memory_tier(root: Path) -> TierLocation:
    """Return an empty in-memory tier of chunk logs."""
    MemoryChunks.objects = MemoryObjectClient()
    tier = tier_at(root)
    name = f"{__name__}:{MemoryChunks.__name__}"
    config = msgspec.structs.replace(tier.config, backend_service_provider=name)
    return TierLocation("memory:", config, tier.broker, tier.state)


def backfill_target(url: str, state: Path, **names: Any) -> TierLocation:
    """Resolve the tier that a backfill writes to."""
    return resolve_target(url, state, **names).location


def tier_at(root: Path, url: str | None = None, **properties: str) -> TierLocation:
    return backfill_target(
        url or f"file://{root}/tier",
        root / "state",
        cluster=CLUSTER,
        broker=BROKER,
        properties={**SMALL_INDEX, **properties},
    )


def new_run(journal: Path | None = None, workers: int = 1) -> JobRun:
    return JobRun("backfill", LocalRunner(workers), Journal(journal, {"job": "backfill"}))


def fill(
    root: Path,
    table: pa.Table | str,
    options: BackfillOptions | None = None,
    *,
    name: str = "table",
    group_rows: int = 1000,
    tier: TierLocation | None = None,
    run: JobRun | None = None,
    **properties: str,
) -> dict[str, Any]:
    """Backfill a table from a file, and return the report."""
    if isinstance(table, pa.Table):
        root.mkdir(parents=True, exist_ok=True)
        path = root / f"{name}.parquet"
        pq.write_table(table, path, row_group_size=group_rows)
        table = str(path)
    return run_backfill(run or new_run(), tier or tier_at(root, **properties), table, options)


def messages(
    count: int, *, topic: str = "orders", queue_id: int = 0, first: int = 0, **columns: Any
) -> pa.Table:
    """Return a table of messages of one queue, with store times 1 ms apart."""
    numbers = range(first, first + count)
    return pa.table(
        {
            "topic": [topic] * count,
            "queue_id": pa.array([queue_id] * count, pa.int32()),
            "queue_offset": pa.array(numbers, pa.int64()),
            "body": [b"body %d of %d" % (number, queue_id) for number in numbers],
            "keys": [[f"key-{queue_id}-{number}"] for number in numbers],
            "tags": [f"Tag{number % 3}" for number in numbers],
            "store_timestamp": pa.array([START_MS + number for number in numbers], pa.int64()),
            **columns,
        }
    )


def found(root: Path, tier: TierLocation | None = None, topic: str | None = None) -> pa.Table:
    """Return all messages of the tier with all columns, sorted by topic, queue and offset."""
    scan = Tier(tier or tier_at(root)).scan(
        topic, topic_pattern=None if topic else ".*", columns=list(TYPES)
    )
    return scan.to_arrow().sort_by(
        [(name, "ascending") for name in ("topic", "queue_id", "queue_offset")]
    )


def damage(tier: TierLocation) -> list[Finding]:
    """Return the damage that `verify` finds in the tier and its metadata."""
    provider, metadata = tier.connect(), tier.metadata()
    findings: list[Finding] = []
    try:
        verify(provider, load_catalogue(provider, metadata, broker=BROKER), findings.append)
    finally:
        provider.close()
        if metadata is not None:
            metadata.close()
    return findings


def contents(tier: TierLocation) -> dict[str, bytes]:
    """Return all bytes of a tier, by segment."""
    provider = tier.connect()
    try:
        return {
            str(listing.id): bytes(provider.open(listing.id, listing).read(0, listing.size_bytes))
            for listing in provider.list()
        }
    finally:
        provider.close()
