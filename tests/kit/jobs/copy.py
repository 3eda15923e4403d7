"""A small source tier, copies of it, and comparisons of two tiers."""

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
from tieredstore.jobs.copying.report import CopyReport
from tieredstore.jobs.copying.target import CopyTarget
from tieredstore.jobs.options import CopyOptions
from tieredstore.metadata.json_store import DefaultMetadataStore
from tieredstore.providers.posix.provider import PosixProvider
from tieredstore.scan.findings import Finding
from tieredstore.scan.listing import load_catalogue
from tieredstore.scan.verify.verification import verify

PIECE_BYTES = 512


class _Unsynced(FileOperations):
    """File operations without syncs, because the system's cache survives the end of a process."""

    def write_synced(self, path: Path, data: bytes, mode: int = 0o644) -> None:
        path.write_bytes(data)

    def sync_directory(self, path: Path) -> None:
        """Do nothing: folders are not synced either."""


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
    """Run a copy. Raises AssertionError if a queue fails."""
    target = CopyTarget(provider, metadata, BROKER, ManualClock())
    chosen = options or CopyOptions(workers=2)
    report = copy_tier(source, origin_metadata, target, BROKER, chosen, piece_bytes=PIECE_BYTES)
    for _, error in report.failed:
        raise error
    return report


def copy_to(built: BuiltTier, root: Path, options: CopyOptions | None = None) -> CopyReport:
    """Copy a built tier and its metadata to a Posix tier below `root`."""
    provider, metadata = posix(root), state(root)
    try:
        return copy(built.provider, state(built.root, read_only=True), provider, metadata, options)
    finally:
        metadata.close()
        provider.close()


def contents(provider: SegmentProvider) -> dict[SegmentId, bytes]:
    """Return all bytes of a tier, by segment."""
    return {
        listing.id: bytes(provider.open(listing.id).read(0, listing.size_bytes))
        for listing in provider.list()
        if listing.size_bytes
    }


Entries = list[tuple[SegmentId, int, int, int]]


def entries(metadata: MetadataStore) -> Entries:
    """Return the segments of the metadata, each with size, begin and end."""
    return sorted(
        (
            (entry.id, entry.size, entry.begin_timestamp_ms, entry.end_timestamp_ms)
            for entry in metadata.segments()
        ),
        key=str,
    )


def tables(metadata: MetadataStore) -> list[tuple[str, int, list[int]]]:
    """Return the topics with their ids and queues."""
    return sorted(
        (topic.topic, topic.topic_id, sorted(q.queue_id for q in metadata.queues(topic.topic)))
        for topic in metadata.topics()
    )


def findings(provider: SegmentProvider, root: Path) -> list[Finding]:
    """Return what `verify` finds in a tier and its state."""
    metadata = state(root, read_only=True)
    found: list[Finding] = []
    verify(provider, load_catalogue(provider, metadata), found.append)
    return found
