"""What a tier holds: queues and index files with their segments, from a listing alone or with the
metadata of a state directory. Layout: `docs/formats/tier-layout.md`.
"""

from __future__ import annotations

import bisect
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain, pairwise
from typing import TypeAlias

from tieredstore.contracts.metadata_store import (
    NEVER_WRITTEN_MS,
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
from tieredstore.cycles import without_cycle_search
from tieredstore.errors import Invalid
from tieredstore.message.consume_queue import UNIT_SIZE
from tieredstore.scan.ahead import map_ahead
from tieredstore.scan.compared import compare_with_metadata
from tieredstore.scan.findings import Finding, note
from tieredstore.scan.intervals import Interval, add_interval, subtract_intervals
from tieredstore.tier.flat.segment import STATUS_DELETED


@dataclass(frozen=True, slots=True)
class SegmentExtent:
    """One segment and its size in bytes, as the listing saw it: no further than where the next
    one of its file begins. surplus_bytes: what it has behind that. What the metadata say:
    recorded_bytes, that it has, 0 without; times, smallest and largest store time of its messages,
    epoch ms, None without."""

    id: SegmentId
    size_bytes: int
    listing: SegmentListing | None = field(default=None, compare=False, repr=False)
    surplus_bytes: int = 0
    recorded_bytes: int = 0
    times: tuple[int, int] | None = field(default=None, compare=False, repr=False)

    @property
    def base_offset(self) -> int:
        return self.id.base_offset

    @property
    def end_offset(self) -> int:
        return self.id.base_offset + self.size_bytes


@dataclass(frozen=True, slots=True)
class QueueFiles:
    """The segments of one queue, by ascending base offset. Picklable.

    Offsets of consume queue segments are bytes (20 a message), of commit log segments bytes of the
    queue's own log.
    """

    broker: str
    topic: str
    queue_id: int
    commit_log: tuple[SegmentExtent, ...] = ()
    consume_queue: tuple[SegmentExtent, ...] = ()

    @property
    def path(self) -> str:
        return f"{self.broker}/{self.topic}/{self.queue_id}"

    @property
    def consume_queue_min_offset(self) -> int:
        """Queue offset of the first unit; messages before the commit log's start have expired."""
        return -(-self.consume_queue[0].base_offset // UNIT_SIZE) if self.consume_queue else 0

    @property
    def consume_queue_max_offset(self) -> int:
        """Queue offset behind the last whole unit."""
        if not self.consume_queue:
            return 0
        return max(extent.end_offset for extent in self.consume_queue) // UNIT_SIZE

    @property
    def commit_log_min_offset(self) -> int:
        return self.commit_log[0].base_offset if self.commit_log else 0

    @property
    def commit_log_max_offset(self) -> int:
        return self.commit_log[-1].end_offset if self.commit_log else 0

    @property
    def size_bytes(self) -> int:
        return sum(extent.size_bytes for extent in (*self.commit_log, *self.consume_queue))

    @property
    def is_contiguous(self) -> bool:
        """Whether each segment ends where the next one of its file begins."""
        return all(
            before.end_offset == after.base_offset
            for file in (self.commit_log, self.consume_queue)
            for before, after in pairwise(file)
        )

    def unit_spans(self) -> list[Interval]:
        """List the runs of queue offsets [from, until) that consume queue segments cover without a
        hole."""
        spans: list[Interval] = []
        for extent in self.consume_queue:
            start, end = -(-extent.base_offset // UNIT_SIZE), extent.end_offset // UNIT_SIZE
            if spans and start <= spans[-1][1]:
                spans[-1] = (spans[-1][0], max(end, spans[-1][1]))
            elif end > start:
                spans.append((start, end))
        return spans

    @property
    def has_units(self) -> bool:
        """Whether the consume queue has a unit, or had one by what the metadata says."""
        return bool(self.unit_spans()) or self.recorded_end > 0

    def lost_units(self) -> list[Interval]:
        """List the runs of queue offsets [from, until) whose units the metadata speaks of, and no
        segment has. Empty without metadata."""
        spans, lost = self.unit_spans(), list[Interval]()
        for extent in self.consume_queue:
            if extent.recorded_bytes > extent.size_bytes:
                start = -(-extent.base_offset // UNIT_SIZE)
                end = (extent.base_offset + extent.recorded_bytes) // UNIT_SIZE
                for low, high in subtract_intervals(start, end, spans):
                    add_interval(lost, low, high)
        return lost

    @property
    def recorded_end(self) -> int:
        """Queue offset behind the last unit that the metadata speaks of; 0 without metadata."""
        return max(
            (
                (e.base_offset + e.recorded_bytes) // UNIT_SIZE
                for e in self.consume_queue
                if e.recorded_bytes
            ),
            default=0,
        )


@dataclass(frozen=True, slots=True)
class TierCatalogue:
    """All queues and index segments of a tier. Picklable.

    topics, metadata (segment -> what the state knows of it) and known_queues (topic, queue id) are
    None without state. findings: what the listing and the metadata already disagree on.
    """

    url: str
    queues: tuple[QueueFiles, ...]
    indexes: Mapping[str, tuple[SegmentExtent, ...]]
    topics: Mapping[str, TopicMetadata] | None = None
    metadata: Mapping[SegmentId, FileSegmentMetadata] | None = None
    known_queues: frozenset[tuple[str, int]] | None = None
    findings: tuple[Finding, ...] = ()

    @property
    def topic_ids(self) -> dict[str, int] | None:
        if self.topics is None:
            return None
        return {name: topic.topic_id for name, topic in self.topics.items()}

    @property
    def brokers(self) -> list[str]:
        return sorted({queue.broker for queue in self.queues} | set(self.indexes))

    def topic_names(self) -> list[str]:
        return sorted({queue.topic for queue in self.queues})

    def require_own_state(self) -> None:
        """Raise Invalid where there are segments, and the metadata knows none of them: it is that
        of another tier, and would make this one look empty."""
        kinds = {finding.kind for finding in self.findings}
        extents = chain(
            chain.from_iterable((*queue.commit_log, *queue.consume_queue) for queue in self.queues),
            chain.from_iterable(self.indexes.values()),
        )
        is_known = any(extent.listing is not None for extent in extents)
        if not is_known and kinds & {"segment-unknown", "broker-foreign"}:
            raise Invalid(
                f"{self.url}: the state directory knows none of the segments that are there: "
                "it belongs to another tier, or to another broker"
            )

    def select(
        self, topic: str | None = None, queue_id: int | None = None, broker: str | None = None
    ) -> list[QueueFiles]:
        """Select the queues that match; raises Invalid, with near names, when nothing does."""
        found = [
            queue
            for queue in self.queues
            if (topic is None or queue.topic == topic)
            and (queue_id is None or queue.queue_id == queue_id)
            and (broker is None or queue.broker == broker)
        ]
        if not found:
            self._refuse(topic, queue_id, broker)
        return found

    def _refuse(self, topic: str | None, queue_id: int | None, broker: str | None) -> None:
        if broker is not None and broker not in self.brokers:
            known = ", ".join(self.brokers) or "none"
            raise Invalid(f"{self.url}: no broker {broker!r} in the tier; there are: {known}")
        if topic is None and queue_id is None:
            return
        names = self.topic_names()
        if topic is not None and topic not in names:
            import difflib

            close = difflib.get_close_matches(topic, names, n=3)
            hint = f"did you mean {' or '.join(close)}?" if close else "`ls` shows what there is"
            raise Invalid(f"{self.url}: no topic {topic!r} in the tier; {hint}", topic=topic)
        queues = sorted({q.queue_id for q in self.queues if topic is None or q.topic == topic})
        raise Invalid(
            f"{self.url}: topic {topic!r} has no queue {queue_id}; it has "
            + ", ".join(map(str, queues)),
            topic=topic,
            queue_id=queue_id,
        )


def load_catalogue(
    provider: SegmentProvider,
    metadata: MetadataStore | None = None,
    *,
    broker: str | None = None,
) -> TierCatalogue:
    """List a tier once and sort what is there into queues.

    With `metadata` (which is loaded here, after the listing) only the segments that it knows
    count, but for those whose deletion it announces: others are findings, as are segments that it
    knows and the tier lacks. Writers announce a segment before they make it, so one that works
    meanwhile does not look like damage. Raises Unavailable when the listing fails, Corrupt when the
    metadata does not parse.
    """
    with without_cycle_search():
        listings = list_tier(provider, broker)
        return catalogue_of(provider.url, gather(provider, listings, metadata, broker), listings)


Listings: TypeAlias = dict[SegmentId, SegmentListing]


def list_tier(provider: SegmentProvider, broker: str | None = None) -> Listings:
    """List all segments, or those of one broker. Raises Unavailable."""
    return {listing.id: listing for listing in provider.list(broker or "")}


@dataclass(slots=True)
class TierFacts:
    """What a catalogue is made of, as values that JSON can hold.

    listed: (path, type, base offset, size) of each segment. The others are None without metadata:
    segments, topics, and (topic, queue id) of each queue.
    """

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
    """Gather the facts of a listing, and of the metadata as it is after it; `topics`: what was
    listed, None for all. Raises Unavailable, Corrupt."""
    facts = TierFacts([_row(one.id, one.size_bytes) for one in listings.values()])
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
        facts.listed = [_row(one.id, one.size_bytes) for one in {**listings, **grown}.values()]
    return facts


def compare_state(provider: SegmentProvider, metadata: MetadataStore, broker: str) -> list[Finding]:
    """List the segments of a broker and load the metadata; find what the two disagree on, as a
    catalogue of them would tell. Raises Unavailable, Corrupt."""
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
    """Find segments that were made, or have grown, since they were listed."""
    ahead = [entry.id for entry in entries if entry.size > _listed_bytes(listings, entry.id)]
    sizes = map_ahead(provider, lambda segment: provider.open(segment).size(), ahead)
    return {
        segment: SegmentListing(segment, size)
        for segment, size in zip(ahead, sizes, strict=True)
        if size
    }


def _listed_bytes(listings: Listings, id: SegmentId) -> int:
    listing = listings.get(id)
    return 0 if listing is None else listing.size_bytes


def _row(id: SegmentId, size_bytes: int) -> tuple[str, int, int, int]:
    return id.path, int(id.type), id.base_offset, size_bytes


def catalogue_of(url: str, facts: TierFacts, listings: Listings) -> TierCatalogue:
    """Make the catalogue of those facts. listings: of the same tier, maybe later ones; what they
    know of a segment saves look-ups."""
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
        extents = [
            SegmentExtent(
                one.id,
                one.size_bytes,
                one,
                recorded_bytes=living[one.id].size,
                times=_times_of(living[one.id]),
            )
            for one in listed.values()
            if one.id in living
        ]
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


def _times_of(entry: FileSegmentMetadata) -> tuple[int, int] | None:
    if NEVER_WRITTEN_MS in (entry.begin_timestamp_ms, entry.end_timestamp_ms):
        return None
    return entry.begin_timestamp_ms, entry.end_timestamp_ms


def _sort(
    extents: Iterable[SegmentExtent], findings: list[Finding]
) -> tuple[tuple[QueueFiles, ...], dict[str, tuple[SegmentExtent, ...]]]:
    files: dict[tuple[str, str, int], dict[FileSegmentType, list[SegmentExtent]]] = {}
    indexes: dict[str, list[SegmentExtent]] = {}
    for extent in extents:
        parts = extent.id.path.split("/")
        if len(parts) != 3 or not (parts[2].isascii() and parts[2].isdecimal()):
            findings.append(
                note("path-foreign", "not a path of broker/topic/queueId", segment=extent.id)
            )
            continue
        broker, topic, queue_id = parts[0], parts[1], int(parts[2])
        if extent.id.type is FileSegmentType.INDEX:
            indexes.setdefault(broker, []).append(extent)
        else:
            queue = files.setdefault((broker, topic, queue_id), {})
            queue.setdefault(extent.id.type, []).append(extent)
    queues = tuple(
        QueueFiles(
            broker,
            topic,
            queue_id,
            sort_by_base(found.get(FileSegmentType.COMMIT_LOG, [])),
            sort_by_base(found.get(FileSegmentType.CONSUME_QUEUE, [])),
        )
        for (broker, topic, queue_id), found in sorted(files.items())
    )
    return queues, {broker: sort_by_base(found) for broker, found in sorted(indexes.items())}


def sort_by_base(extents: list[SegmentExtent]) -> tuple[SegmentExtent, ...]:
    """Sort extents, each cut where the next one with content begins: a writer that met foreign
    bytes behind its own went on in a new segment there."""
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
    """List a queue as it is now: a writer may have worked on it since the catalogue was made.

    Segments that are gone are left out, and so are those in front of the segments of `queue`;
    without `with_new`, all that `queue` does not have. Raises Unavailable.
    """
    found: dict[FileSegmentType, list[SegmentExtent]] = {kind: [] for kind in FileSegmentType}
    for listing in provider.list(queue.path):
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


def extent_at(extents: tuple[SegmentExtent, ...], offset: int) -> SegmentExtent | None:
    """Return the segment whose bytes cover `offset`, None when none does."""
    index = bisect.bisect_right(extents, offset, key=lambda extent: extent.base_offset) - 1
    while index > 0 and not extents[index].size_bytes:
        index -= 1  # an empty one may lie within the bytes of another
    if index < 0 or offset >= extents[index].end_offset:
        return None
    return extents[index]
