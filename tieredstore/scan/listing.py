"""Listings of a tier as catalogues, with or without the metadata of a state directory."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias

from tieredstore.contracts.metadata_store import (
    NEVER_WRITTEN_MS,
    STATUS_DELETED,
    FileSegmentMetadata,
    MetadataStore,
    TopicMetadata,
)
from tieredstore.contracts.segment import (
    FileSegmentType,
    SegmentId,
    SegmentListing,
    SegmentProvider,
)
from tieredstore.scan.ahead import map_ahead
from tieredstore.scan.catalogue import Generation, QueueFiles, SegmentExtent, TierCatalogue
from tieredstore.scan.findings import Finding, damage, note
from tieredstore.server_process import without_cycle_search
from tieredstore.tier.deleted.records import drop_deleted_segments

Listings: TypeAlias = dict[SegmentId, SegmentListing]


def load_catalogue(
    provider: SegmentProvider, metadata: MetadataStore | None = None, *, broker: str | None = None
) -> TierCatalogue:
    """List a tier once and sort its segments into queues. `metadata` is loaded after the listing,
    because writers register a segment before they create it. Then only segments in the metadata
    count, except deleted ones. Other segments, and missing segments, are findings. Raises
    Unavailable if the listing fails, Corrupt if the metadata cannot be parsed."""
    with without_cycle_search():
        listings = list_tier(provider, broker)
        return catalogue_of(provider.url, gather(provider, listings, metadata, broker), listings)


def list_tier(provider: SegmentProvider, broker: str | None = None) -> Listings:
    """List all segments, or those of one broker, without segments of deleted topics. Raises
    Unavailable."""
    listings = {listing.id: listing for listing in provider.list(broker or "")}
    return drop_deleted_segments(provider, listings)


@dataclass(slots=True)
class TierFacts:
    """Data of a catalogue, as values for JSON. `listed`: (path, type, base offset, size) of each
    listed segment. `segments`, `topics`, `queues`: entries of the metadata, or None without
    metadata. `queues` has (topic, queue id)."""

    listed: list[tuple[str, int, int, int]]
    segments: list[FileSegmentMetadata] | None = None
    topics: list[TopicMetadata] | None = None
    queues: list[tuple[str, int]] | None = None


def gather(
    provider: SegmentProvider,
    listings: Listings,
    metadata: MetadataStore | None = None,
    broker: str | None = None,
    topics: Collection[str] | None = None,
) -> TierFacts:
    """Collect the data of a listing, and of the metadata, which is loaded after it. `topics`: the
    topics that were listed, or None for all. Raises Unavailable, Corrupt."""
    facts = TierFacts(_rows_of(listings))
    if metadata is None:
        return facts
    metadata.load()
    facts.topics = metadata.topics()
    facts.queues = [
        (queue.topic, queue.queue_id)
        for topic in facts.topics
        for queue in metadata.queues(topic.topic)
    ]
    facts.segments = [
        entry
        for entry in metadata.segments()
        if (broker is None or entry.path.split("/", 1)[0] == broker)
        and (topics is None or entry.path.split("/")[1] in topics)
    ]
    grown = _find_grown(provider, listings, facts.segments)
    if grown:
        facts.listed = _rows_of({**listings, **grown})
    return facts


def _rows_of(listings: Listings) -> list[tuple[str, int, int, int]]:
    found = listings.items()
    return [(k.path, int(k.type), k.base_offset, one.size_bytes) for k, one in found]


def compare_state(provider: SegmentProvider, metadata: MetadataStore, broker: str) -> list[Finding]:
    """List the segments of a broker, load the metadata, and return their differences as findings.
    Raises Unavailable, Corrupt."""
    listings = list_tier(provider, broker)
    metadata.load()
    known = {
        entry.id: entry for entry in metadata.segments() if entry.path.split("/", 1)[0] == broker
    }
    listings.update(_find_grown(provider, listings, known.values()))
    return list(compare_with_metadata(listings, known))


def _find_grown(
    provider: SegmentProvider, listings: Listings, entries: Iterable[FileSegmentMetadata]
) -> Listings:
    """Return segments that were created, or have grown, since the listing."""
    listed = {segment: one.size_bytes for segment, one in listings.items()}
    ahead = [entry.id for entry in entries if entry.size > listed.get(entry.id, 0)]
    sizes = map_ahead(provider, lambda segment: provider.open(segment).size(), ahead)
    return {
        segment: SegmentListing(segment, size)
        for segment, size in zip(ahead, sizes, strict=True)
        if size
    }


def catalogue_of(url: str, facts: TierFacts, listings: Listings) -> TierCatalogue:
    """Return the catalogue of the given facts. `listings`: possibly later listings of the same
    tier, whose segment details save requests."""
    findings: list[Finding] = []
    listed: Listings = {}
    for path, kind, base_offset, size_bytes in facts.listed:
        segment = SegmentId(path, FileSegmentType(kind), base_offset)
        listing = listings.get(segment)
        if listing is None or listing.size_bytes != size_bytes:
            listing = SegmentListing(segment, size_bytes)
        listed[segment] = listing
    known: dict[SegmentId, FileSegmentMetadata] | None = None
    if facts.segments is not None:
        known = {entry.id: entry for entry in facts.segments}
        findings.extend(compare_with_metadata(listed, known))
        living = {key: one for key, one in known.items() if one.status != STATUS_DELETED}
        extents = []
        for one in listed.values():
            if (entry := living.get(one.id)) is not None:
                times = entry.begin_timestamp_ms, entry.end_timestamp_ms
                known_times = None if NEVER_WRITTEN_MS in times else times
                extents.append(
                    SegmentExtent(one.id, one.size_bytes, one, 0, entry.size, known_times)
                )
        # A missing segment stays in the catalogue, empty, so that readers name it.
        extents += [
            SegmentExtent(entry.id, 0, recorded_bytes=entry.size)
            for entry in living.values()
            if entry.id not in listed and entry.size > 0
        ]
    else:
        extents = [SegmentExtent(one.id, one.size_bytes, one) for one in listed.values()]
    queues, indexes = _sort(extents, findings)
    topics = None if facts.topics is None else {topic.topic: topic for topic in facts.topics}
    known_queues = None if facts.queues is None else frozenset(facts.queues)
    return TierCatalogue(url, queues, indexes, topics, known, known_queues, tuple(findings))


def _sort(
    extents: Iterable[SegmentExtent], findings: list[Finding]
) -> tuple[tuple[QueueFiles, ...], dict[str, tuple[SegmentExtent, ...]]]:
    files: dict[tuple[str, str, int], dict[FileSegmentType, list[SegmentExtent]]] = {}
    indexes: dict[str, list[SegmentExtent]] = {}
    for extent in extents:
        parts = extent.id.path.split("/")
        if len(parts) != 3 or not (parts[2].isascii() and parts[2].isdecimal()):
            findings.append(note("path-foreign", "not a path of broker/topic/queueId", extent.id))
            continue
        broker, topic, queue_id = parts[0], parts[1], int(parts[2])
        if extent.id.type is FileSegmentType.INDEX:
            indexes.setdefault(broker, []).append(extent)
        else:
            queue = files.setdefault((broker, topic, queue_id), {})
            queue.setdefault(extent.id.type, []).append(extent)
    generations: defaultdict[tuple[str, str], Generation] = defaultdict(Generation)
    queues = tuple(
        QueueFiles(
            broker,
            topic,
            queue_id,
            sort_by_base(found.get(FileSegmentType.COMMIT_LOG, [])),
            sort_by_base(found.get(FileSegmentType.CONSUME_QUEUE, [])),
            generations[broker, topic],
        )
        for (broker, topic, queue_id), found in sorted(files.items())
    )
    return queues, {broker: sort_by_base(found) for broker, found in sorted(indexes.items())}


def sort_by_base(extents: list[SegmentExtent]) -> tuple[SegmentExtent, ...]:
    """Sort extents by base offset, and cut each at the start of the next one that is not empty.
    Extents overlap if a writer found another writer's bytes after its own, and continued there in a
    new segment."""
    found: list[SegmentExtent] = []
    limit: int | None = None
    for extent in sorted(extents, key=lambda extent: extent.base_offset, reverse=True):
        surplus = 0 if limit is None else max(extent.end_offset - limit, 0)
        if surplus:
            size_bytes = extent.size_bytes - surplus
            extent = replace(  # noqa: PLW2901
                extent,
                size_bytes=size_bytes,
                surplus_bytes=surplus,
                recorded_bytes=min(extent.recorded_bytes, size_bytes),
            )
        if extent.size_bytes:
            limit = extent.base_offset
        found.append(extent)
    return tuple(reversed(found))


def list_again(
    provider: SegmentProvider, queue: QueueFiles, *, with_new: bool = True
) -> QueueFiles:
    """List a queue again, because a writer may have changed it. Deleted segments, and segments
    before the first segment of `queue`, are omitted. `with_new`: include later segments that
    `queue` lacks. Raises Unavailable."""
    found: dict[FileSegmentType, list[SegmentExtent]] = {kind: [] for kind in FileSegmentType}
    listings = {listing.id: listing for listing in provider.list(queue.path)}
    for listing in drop_deleted_segments(provider, listings).values():
        found[listing.id.type].append(SegmentExtent(listing.id, listing.size_bytes, listing))

    def choose(type: FileSegmentType, known: tuple[SegmentExtent, ...]) -> list[SegmentExtent]:
        first, ids = known[0].base_offset if known else 0, {extent.id for extent in known}
        return [
            one for one in found[type] if one.id in ids or (with_new and one.base_offset >= first)
        ]

    return replace(
        queue,
        commit_log=sort_by_base(choose(FileSegmentType.COMMIT_LOG, queue.commit_log)),
        consume_queue=sort_by_base(choose(FileSegmentType.CONSUME_QUEUE, queue.consume_queue)),
    )


def compare_with_metadata(
    listed: Mapping[SegmentId, SegmentListing], known: Mapping[SegmentId, FileSegmentMetadata]
) -> Iterator[Finding]:
    """Yield the differences between the metadata and the listing of a tier."""
    # A state directory belongs to one broker. Others may share the tier.
    brokers = {entry.path.split("/", 1)[0] for entry in known.values()}
    foreign: set[str] = set()
    for listing in listed.values():
        broker = listing.id.path.split("/", 1)[0]
        if brokers and broker not in brokers:
            if broker not in foreign:
                foreign.add(broker)
                text = (
                    f"broker {broker} is not that of the state directory and is left out (without "
                    "--state, or with its own, it is looked at)"
                )
                yield note("broker-foreign", text, listing.id)
        elif listing.id not in known and listing.size_bytes > 0:
            text = "the tier has a segment that the metadata does not know"
            yield damage("segment-unknown", text, listing.id, found=f"{listing.size_bytes} bytes")
    for entry in known.values():
        if entry.status == STATUS_DELETED:
            if entry.id in listed:
                text = (
                    "the deletion of the segment is announced and not done yet (the writer's next "
                    "expiry does it). No reader uses the segment"
                )
                yield note("segment-deleted", text, entry.id)
        elif entry.id not in listed and entry.size > 0:
            text = "the metadata knows a segment that the tier lacks"
            expected = f"{entry.size} bytes"
            yield damage("segment-missing", text, entry.id, expected=expected, found="nothing")
        elif entry.type is FileSegmentType.INDEX:
            continue  # its size is checked with its contents
        elif entry.size > (there := listed[entry.id].size_bytes if entry.size else 0):
            yield damage(
                "segment-truncated",
                "the segment is shorter than the metadata says",
                entry.id,
                there,
                expected=f"{entry.size} bytes",
                found=f"{there} bytes",
            )
