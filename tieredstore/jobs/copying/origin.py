"""What of the origin of a copy can be copied now: a consistent prefix of each queue, and its index.

A writer may be at work there. It writes commit log, then consume queue, then index, so what was
listed first names only bytes that a later look finds: index segments are listed before queues, and
a queue's commit log is looked at again where its consume queue names more than was listed.
"""

from __future__ import annotations

from dataclasses import dataclass

from tieredstore.contracts.metadata_store import (
    FileSegmentMetadata,
    MetadataStore,
    TopicMetadata,
)
from tieredstore.contracts.segment import SegmentId, SegmentProvider
from tieredstore.errors import Corrupt, Invalid
from tieredstore.message.index.tiered import HEADER_SIZE
from tieredstore.message.names import index_path
from tieredstore.scan.catalogue import (
    QueueFiles,
    SegmentExtent,
    TierCatalogue,
    load_catalogue,
)
from tieredstore.scan.findings import Severity
from tieredstore.scan.segments.topic_ids import find_topic_ids
from tieredstore.tier.index.uploaded_file import check_whole, header_of


@dataclass(frozen=True, slots=True)
class CopyOrigin:
    """One broker's part of a tier. metadata: what the state knows; None without state. topics: as
    they are to be in the target. damage: what cannot be copied, a line each."""

    broker: str
    catalogue: TierCatalogue
    queues: tuple[QueueFiles, ...]
    index: tuple[SegmentExtent, ...]
    topics: tuple[TopicMetadata, ...]
    damage: tuple[str, ...]

    def entry(self, id: SegmentId) -> FileSegmentMetadata | None:
        known = self.catalogue.metadata
        return None if known is None else known.get(id)


def load_origin(
    provider: SegmentProvider, metadata: MetadataStore | None, broker: str
) -> CopyOrigin:
    """List the broker's part of a tier. Raises Invalid when there is none, or the metadata is that
    of another tier, Unavailable, Corrupt."""
    listed = {listing.id: listing for listing in provider.list(index_path(broker))}
    catalogue = load_catalogue(provider, metadata, broker=broker)
    catalogue.require_own_state()
    known = catalogue.metadata
    index = []
    for extent in catalogue.indexes.get(broker, ()):
        listing = listed.get(extent.id)
        if listing is None:
            continue
        whole = SegmentExtent(extent.id, listing.size_bytes, listing)
        if known is not None:
            size = known[extent.id].size
            if 0 < size <= listing.size_bytes:
                index.append(SegmentExtent(extent.id, size, listing))
        elif _is_whole_index(provider, whole):
            index.append(whole)
    queues = tuple(queue for queue in catalogue.queues if queue.broker == broker)
    if catalogue.topics is not None:
        topics = tuple(catalogue.topics.values())
    else:
        ids = find_topic_ids(provider, queues, index)
        topics = tuple(TopicMetadata(number, name) for name, number in ids.items())
    if not queues and not index and not topics:
        found = sorted({item.id.path.split("/", 1)[0] for item in provider.list()})
        known_brokers = ", ".join(found) or "none"
        raise Invalid(
            f"{provider.url}: no broker {broker!r} in the tier; there are: {known_brokers}"
        )
    damage = tuple(
        str(finding) for finding in catalogue.findings if finding.severity is Severity.DAMAGE
    )
    return CopyOrigin(broker, catalogue, queues, tuple(index), topics, damage)


def _is_whole_index(provider: SegmentProvider, extent: SegmentExtent) -> bool:
    """Without state, an upload in progress shows by its contents only."""
    if extent.size_bytes <= HEADER_SIZE:
        return False
    segment = provider.open(extent.id, extent.listing)
    try:
        header = header_of(segment, segment.read(0, HEADER_SIZE))
        check_whole(segment, extent.size_bytes, header)
    except Corrupt:
        return False
    finally:
        segment.close()
    return True
