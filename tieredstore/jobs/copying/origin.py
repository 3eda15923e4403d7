"""Part of an origin that can be copied: a consistent prefix of each queue, and its index. An active
writer of the origin writes the commit log, then the consume queue, then the index. Listings are
therefore made in the opposite order. If a consume queue refers to bytes beyond the listing of the
commit log, the commit log is listed again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tieredstore.contracts.metadata_store import FileSegmentMetadata, MetadataStore, TopicMetadata
from tieredstore.contracts.segment import SegmentId, SegmentProvider
from tieredstore.errors import Corrupt, Invalid
from tieredstore.jobs.metadata.index import find_topic_ids
from tieredstore.message.index.tiered import HEADER_SIZE
from tieredstore.message.names import index_path
from tieredstore.scan.catalogue import QueueFiles, SegmentExtent, TierCatalogue
from tieredstore.scan.findings import Severity
from tieredstore.scan.listing import load_catalogue
from tieredstore.tier.deleted.records import DeletedTopic, find_known_records
from tieredstore.tier.index.uploaded_file import check_whole, header_of


@dataclass(frozen=True, slots=True)
class CopyOrigin:
    """One broker's part of a tier. `metadata`: metadata of the state, None without a state.
    `topics`: topic entries for the target's metadata. `damage`: reasons why data cannot be copied,
    one line each. `deleted`: records of deleted topics."""

    broker: str
    catalogue: TierCatalogue
    queues: tuple[QueueFiles, ...]
    index: tuple[SegmentExtent, ...]
    topics: tuple[TopicMetadata, ...]
    damage: tuple[str, ...]
    deleted: Mapping[str, DeletedTopic]

    def entry(self, id: SegmentId) -> FileSegmentMetadata | None:
        known = self.catalogue.metadata
        return None if known is None else known.get(id)


def load_origin(
    provider: SegmentProvider, metadata: MetadataStore | None, broker: str
) -> CopyOrigin:
    """List the broker's part of a tier. Raises Invalid if there is none or the metadata belongs to
    another tier, Unavailable, Corrupt."""
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
        ids = find_topic_ids(provider, broker, queues, index)
        topics = tuple(TopicMetadata(number, name) for name, number in ids.items())
    if not queues and not index and not topics:
        found = sorted({item.id.path.split("/", 1)[0] for item in provider.list()})
        known_brokers = ", ".join(found) or "none"
        raise Invalid(f"{provider.url}: no broker {broker!r} in the tier. It has: {known_brokers}")
    damage = tuple(
        str(finding) for finding in catalogue.findings if finding.severity is Severity.DAMAGE
    )
    deleted = find_known_records(provider, broker)
    return CopyOrigin(broker, catalogue, queues, tuple(index), topics, damage, deleted)


def _is_whole_index(provider: SegmentProvider, extent: SegmentExtent) -> bool:
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
