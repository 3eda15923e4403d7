"""The tier of a stopped broker, and an operator at the command line."""

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
    """Create the tier of a stopped broker, with topic T (two queues of several segments) and topic
    K (one queue)."""
    world = TieredLocal(root, tieredStoreCommitLogMaxSize=600, tieredStoreConsumeQueueMaxSize=60)
    world.put("T", *T, key="old")
    world.put("T", *K, queue_id=1, key="other")
    world.put("K", *K, key="kept")
    world.upload()
    world.close()
    return world


def operate(world: TieredLocal, *arguments: object) -> Ran:
    """Run a `tieredstore tier` command on the broker's tier."""
    return tieredstore("tier", *arguments, *place(world), "--output", "json")


def place(world: TieredLocal) -> tuple[object, ...]:
    return ("--tier", f"file://{world.root / 'tier'}", "--state", world.root / "store")


def done(world: TieredLocal, *arguments: object) -> dict[str, Any]:
    """Run a command that must succeed, and return its report."""
    ran = operate(world, *arguments)
    assert ran.code == 0, ran.err
    record: dict[str, Any] = ran.record
    return record


def verified(world: TieredLocal) -> dict[str, Any]:
    """Return the report of `verify`. Raises AssertionError if it finds damage."""
    ran = tieredstore(
        "verify", *place(world), "--output", "json", "--quiet", "--workers", 1
    )  # fmt: skip
    assert ran.code == 0, ran.out
    record: dict[str, Any] = ran.record
    return record


def tier_bytes(world: TieredLocal, topic: str) -> int:
    return sum(path.stat().st_size for path in world.tier_files(topic))


def break_queue(world: TieredLocal) -> None:
    """Damage the metadata of queue 0 of T, so that no broker can open it."""
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
    """Add a segment to queue 0 of T that the metadata does not list."""
    config = world.store.flat_files.config
    provider = PosixProvider(world.root / "tier", config.broker_cluster_name)
    path = f"{config.broker_name}/T/0"
    segment = provider.open(SegmentId(path, FileSegmentType.COMMIT_LOG, 10**9))
    segment.write(0, [b"nobody knows of it"])
    segment.close()
