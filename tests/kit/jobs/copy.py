"""A small source tier, copies of it, and what two tiers must have in common."""

from __future__ import annotations

from pathlib import Path

from tests.kit.tier_builder import BROKER, CLUSTER, BuiltTier
from tieredstore.clock import ManualClock
from tieredstore.contracts.metadata_store import MetadataStore
from tieredstore.contracts.segment import (
    SegmentId,
    SegmentProvider,
)
from tieredstore.disk.file_operations import FileOperations
from tieredstore.jobs.copying.job import copy_tier
from tieredstore.jobs.copying.report import CopyOptions, CopyReport
from tieredstore.jobs.copying.target import CopyTarget
from tieredstore.metadata.json_store import DefaultMetadataStore
from tieredstore.providers.posix.provider import PosixProvider
from tieredstore.scan.catalogue import load_catalogue
from tieredstore.scan.findings import Finding
from tieredstore.scan.verify.verification import verify

PIECE_BYTES = 512


class _Unsynced(FileOperations):
    """A process that ends loses nothing that the system has."""

    def write_synced(self, path: Path, data: bytes) -> None:
        path.write_bytes(data)

    def sync_directory(self, path: Path) -> None:
        """Nothing, as above."""


def state(root: Path, *, read_only: bool = False) -> DefaultMetadataStore:
    path = root / "state" / "config" / "tieredStoreMetadata.json"
    return DefaultMetadataStore(
        path, BROKER, ManualClock(), read_only=read_only, operations=_Unsynced()
    )


def posix(root: Path) -> PosixProvider:
    (root / "tier").mkdir(parents=True, exist_ok=True)
    return PosixProvider(root / "tier", CLUSTER, fsync=False)


def copy(
    source: SegmentProvider,
    origin_metadata: MetadataStore | None,
    provider: SegmentProvider,
    metadata: MetadataStore,
    options: CopyOptions | None = None,
) -> CopyReport:
    """One run that must not fail for any queue."""
    target = CopyTarget(provider, metadata, BROKER, ManualClock())
    chosen = options or CopyOptions(workers=2)
    report = copy_tier(source, origin_metadata, target, BROKER, chosen, piece_bytes=PIECE_BYTES)
    for _, error in report.failed:
        raise error
    return report


def copy_to(built: BuiltTier, root: Path, options: CopyOptions | None = None) -> CopyReport:
    """One run from a built tier with its state to a Posix tier below `root`."""
    provider, metadata = posix(root), state(root)
    try:
        return copy(built.provider, state(built.root, read_only=True), provider, metadata, options)
    finally:
        metadata.close()
        provider.close()


def contents(provider: SegmentProvider) -> dict[SegmentId, bytes]:
    """All bytes of a tier."""
    return {
        listing.id: bytes(provider.open(listing.id).read(0, listing.size_bytes))
        for listing in provider.list()
        if listing.size_bytes
    }


Entries = list[tuple[SegmentId, int, int, int]]


def entries(metadata: MetadataStore) -> Entries:
    """Segments of the metadata with size, begin and end."""
    return sorted(
        (
            (entry.id, entry.size, entry.begin_timestamp_ms, entry.end_timestamp_ms)
            for entry in metadata.segments()
        ),
        key=str,
    )


def tables(metadata: MetadataStore) -> list[tuple[str, int, list[int]]]:
    """Topics with their ids and queues."""
    return sorted(
        (topic.topic, topic.topic_id, sorted(q.queue_id for q in metadata.queues(topic.topic)))
        for topic in metadata.topics()
    )


def findings(provider: SegmentProvider, root: Path) -> list[Finding]:
    """What `verify` says of a tier with its state."""
    metadata = state(root, read_only=True)
    found: list[Finding] = []
    verify(provider, load_catalogue(provider, metadata), found.append)
    return found
