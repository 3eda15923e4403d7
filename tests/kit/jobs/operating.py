"""A stopped broker over a tier, and an operator at the command line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.kit.command_line import Ran, tieredstore
from tests.kit.tiered_local import TieredLocal
from tieredstore.contracts.metadata_store import FileSegmentMetadata
from tieredstore.contracts.segment import FileSegmentType, SegmentId
from tieredstore.metadata.json_store import DefaultMetadataStore
from tieredstore.providers.posix.provider import PosixProvider
from tieredstore.scan.location import METADATA_FILE

T, K = [b"t %d" % number for number in range(9)], [b"k %d" % number for number in range(4)]


def make_world(root: Path) -> TieredLocal:
    """Topic T with two queues and some segments each, topic K with one; the broker is stopped."""
    world = TieredLocal(root, tieredStoreCommitLogMaxSize=600, tieredStoreConsumeQueueMaxSize=60)
    world.put("T", *T, key="old")
    world.put("T", *K, queue_id=1, key="other")
    world.put("K", *K, key="kept")
    world.upload()
    world.close()
    return world


def operate(world: TieredLocal, *arguments: object) -> Ran:
    """Run a verb of `tieredstore tier` on the world's tier."""
    return tieredstore("tier", *arguments, *place(world), "--output", "json")


def place(world: TieredLocal) -> tuple[object, ...]:
    return ("--tier", f"file://{world.root / 'tier'}", "--state", world.root / "store")


def done(world: TieredLocal, *arguments: object) -> dict[str, Any]:
    """The report of a verb that works."""
    ran = operate(world, *arguments)
    assert ran.code == 0, ran.err
    record: dict[str, Any] = ran.record
    return record


def verified(world: TieredLocal) -> dict[str, Any]:
    """The report of a verification that finds no damage."""
    ran = tieredstore(
        "verify", *place(world), "--output", "json", "--quiet", "--workers", 1
    )  # fmt: skip
    assert ran.code == 0, ran.out
    record: dict[str, Any] = ran.record
    return record


def tier_bytes(world: TieredLocal, topic: str) -> int:
    return sum(path.stat().st_size for path in world.tier_files(topic))


def break_queue(world: TieredLocal) -> None:
    """The metadata of queue 0 of T is damaged: it cannot be opened."""
    broker = world.store.flat_files.config.broker_name
    metadata = DefaultMetadataStore(world.root / "store" / METADATA_FILE, broker)
    metadata.load()
    path = f"{broker}/T/0"
    metadata.put_segment(
        FileSegmentMetadata(path, FileSegmentType.CONSUME_QUEUE, 61, end_timestamp_ms=1)
    )
    metadata.flush()
    metadata.close()


def leave_stray(world: TieredLocal) -> None:
    """Queue 0 of T has a segment that the metadata does not know of."""
    config = world.store.flat_files.config
    provider = PosixProvider(world.root / "tier", config.broker_cluster_name)
    path = f"{config.broker_name}/T/0"
    segment = provider.open(SegmentId(path, FileSegmentType.COMMIT_LOG, 10**9))
    segment.write(0, [b"nobody knows of it"])
    segment.close()
