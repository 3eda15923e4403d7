"""Comparison of tiers that equivalent runs of a job have written."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tieredstore.contracts.segment import FileSegmentType
from tieredstore.message.index.tiered import COMPACTED_ITEM_DTYPE, infer_slots, unpack_header
from tieredstore.metadata.json_store import DefaultMetadataStore
from tieredstore.providers.posix.provider import PosixProvider
from tieredstore.scan.findings import Finding
from tieredstore.scan.listing import load_catalogue
from tieredstore.scan.verify.verification import verify


def tier_contents(root: Path) -> dict[str, object]:
    """Return what must be equal after equivalent runs: the bytes of commit logs and consume queues,
    the index items, and the metadata without creation times."""
    provider = PosixProvider(root / "tier", "cluster-a")
    metadata = DefaultMetadataStore(
        root / "state/config/tieredStoreMetadata.json", "broker-a", read_only=True
    )
    metadata.load()
    catalogue = load_catalogue(provider, metadata)
    findings: list[Finding] = []
    report = verify(provider, catalogue, findings.append)
    found: dict[str, object] = {"findings": findings, "messages": report.messages}
    items: list[tuple[int, ...]] = []
    for listing in provider.list():
        data = bytes(provider.open(listing.id).read(0, listing.size_bytes))
        if listing.id.type is FileSegmentType.INDEX:
            header = unpack_header(data)
            slots = infer_slots(len(data), header.items)
            assert slots is not None
            table = np.frombuffer(data, COMPACTED_ITEM_DTYPE, offset=28 + 8 * slots)
            # Times are relative to the creation of the file.
            items += [item[:5] for item in table.tolist()]
        else:
            found[str(listing.id)] = data
    found["items"] = sorted(items)
    found["topics"] = sorted((topic.topic, topic.topic_id) for topic in metadata.topics())
    found["entries"] = sorted(
        (str(entry.id), entry.size, entry.begin_timestamp_ms, entry.end_timestamp_ms, entry.status)
        for entry in metadata.segments()
        if entry.type is not FileSegmentType.INDEX
    )
    provider.close()
    return found
