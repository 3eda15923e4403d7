"""What the metadata of a state directory says of a tier, beside what the tier lists."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tieredstore.contracts.metadata_store import FileSegmentMetadata
from tieredstore.contracts.segment import FileSegmentType, SegmentId, SegmentListing
from tieredstore.scan.findings import Finding, damage, note
from tieredstore.tier.flat.segment import STATUS_DELETED


def compare_with_metadata(
    listed: Mapping[SegmentId, SegmentListing], known: Mapping[SegmentId, FileSegmentMetadata]
) -> Iterator[Finding]:
    """Yield what the metadata and the listing of a tier disagree on."""
    # A state directory is one broker's; others may share the tier.
    brokers = {entry.path.split("/", 1)[0] for entry in known.values()}
    foreign: set[str] = set()
    for listing in listed.values():
        broker = listing.id.path.split("/", 1)[0]
        if brokers and broker not in brokers:
            if broker not in foreign:
                foreign.add(broker)
                yield note(
                    "broker-foreign",
                    f"broker {broker} is not that of the state directory and is left out (without "
                    "--state, or with its own, it is looked at)",
                    segment=listing.id,
                )
        elif listing.id not in known and listing.size_bytes > 0:
            yield damage(
                "segment-unknown",
                "the tier has a segment that the metadata does not know",
                segment=listing.id,
                found=f"{listing.size_bytes} bytes",
            )
    for entry in known.values():
        if entry.status == STATUS_DELETED:
            if entry.id in listed:
                yield note(
                    "segment-deleted",
                    "the deletion of the segment is announced and not done yet (the writer's next "
                    "expiry does it); nobody reads the segment",
                    segment=entry.id,
                )
        elif entry.id not in listed and entry.size > 0:
            yield damage(
                "segment-missing",
                "the metadata knows a segment that the tier lacks",
                segment=entry.id,
                expected=f"{entry.size} bytes",
                found="nothing",
            )
        elif entry.type is FileSegmentType.INDEX:
            continue  # its size is told where its contents are looked at
        elif entry.size > (there := listed[entry.id].size_bytes if entry.size else 0):
            yield damage(
                "segment-truncated",
                "the segment is shorter than the metadata says",
                segment=entry.id,
                position=there,
                expected=f"{entry.size} bytes",
                found=f"{there} bytes",
            )
