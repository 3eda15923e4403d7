"""Contents of a tier: queues and index files with their segments, from a listing with or without
the metadata of a state directory. Layout: `docs/formats/tier-layout.md`."""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import chain, pairwise
from typing import NamedTuple, Self

from tieredstore.contracts.metadata_store import FileSegmentMetadata, TopicMetadata
from tieredstore.contracts.segment import SegmentId, SegmentListing
from tieredstore.errors import Invalid
from tieredstore.message.consume_queue import UNIT_SIZE
from tieredstore.scan.findings import Finding

Interval = tuple[int, int]
"""A range of numbers, [from, until): bytes or queue offsets."""


def add_interval(intervals: list[Interval], low: int, high: int) -> None:
    """Append [low, high) to a list, merged with the last range if the two touch."""
    if intervals and intervals[-1][0] <= low <= intervals[-1][1]:
        intervals[-1] = (intervals[-1][0], max(intervals[-1][1], high))
    else:
        intervals.append((low, high))


def subtract_intervals(low: int, high: int, intervals: Iterable[Interval]) -> list[Interval]:
    """Return the parts of [low, high) that the intervals do not cover."""
    left: list[Interval] = []
    for start, end in sorted(intervals):
        if low >= high:
            break
        if start > low:
            left.append((low, min(start, high)))
        low = max(low, end)
    if low < high:
        left.append((low, high))
    return left


def clip_spans(spans: Iterable[Interval], low: int, high: int) -> list[Interval]:
    """Return the non-empty parts of the spans within [low, high)."""
    clipped = ((max(start, low), min(end, high)) for start, end in spans)
    return [(start, end) for start, end in clipped if start < end]


@dataclass(frozen=True, slots=True)
class SegmentExtent:
    """One segment. `size_bytes`: bytes before the base offset of the next segment. `surplus_bytes`:
    bytes after that. `recorded_bytes`: size in the metadata, 0 without metadata. `times`: smallest
    and largest store time in the metadata, epoch ms, None without metadata."""

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


class Witness(NamedTuple):
    """A message by which a reader recognises the generation of its topic. `extent`: its commit log
    segment. Its offsets and its store time (epoch ms) together belong to one generation only."""

    extent: SegmentExtent
    queue_offset: int
    physical_offset: int
    store_timestamp_ms: int


@dataclass(slots=True)
class Generation:
    """One generation of a topic, as a reader sees it. The queues of one listing share it.
    `witness`: the message of the topic that the reader compared last, or None before the first
    read."""

    witness: Witness | None = None


@dataclass(frozen=True, slots=True)
class QueueFiles:
    """Segments of one queue, by ascending base offset. Picklable. Offsets of consume queue segments
    are in bytes (20 per message). Offsets of commit log segments are in bytes of the queue's own
    log."""

    broker: str
    topic: str
    queue_id: int
    commit_log: tuple[SegmentExtent, ...] = ()
    consume_queue: tuple[SegmentExtent, ...] = ()
    generation: Generation = field(default_factory=Generation, compare=False, repr=False)

    @classmethod
    def at(cls, path: str) -> Self:
        """Return a queue without segments by its path."""
        broker, topic, queue_id = path.split("/")
        return cls(broker, topic, int(queue_id))

    @property
    def path(self) -> str:
        return f"{self.broker}/{self.topic}/{self.queue_id}"

    @property
    def consume_queue_min_offset(self) -> int:
        """Queue offset of the first unit, whose message may have expired."""
        return -(-self.consume_queue[0].base_offset // UNIT_SIZE) if self.consume_queue else 0

    @property
    def consume_queue_max_offset(self) -> int:
        """Queue offset after the last whole unit."""
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
    def stamps(self) -> tuple[object, ...]:
        """Values that change when a segment is replaced by another of the same size, if the
        provider can detect this."""
        return tuple(
            None if extent.listing is None else (extent.listing.stamp, extent.listing.token)
            for extent in (*self.commit_log, *self.consume_queue)
        )

    @property
    def is_contiguous(self) -> bool:
        """Whether each segment ends where the next segment of its file begins."""
        return all(
            before.end_offset == after.base_offset
            for file in (self.commit_log, self.consume_queue)
            for before, after in pairwise(file)
        )

    def unit_spans(self) -> list[Interval]:
        """Return the contiguous ranges of queue offsets [from, until) that segments cover."""
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
        """Whether the consume queue has a unit, or had one according to the metadata."""
        return bool(self.unit_spans()) or self.recorded_end > 0

    def lost_units(self) -> list[Interval]:
        """Return the ranges of queue offsets [from, until) whose units are in the metadata but in
        no segment. Empty without metadata."""
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
        """Queue offset after the last unit in the metadata, 0 without metadata."""
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
    """All queues and index segments of a tier. Picklable. `topics`, `metadata` (entry of each
    segment) and `known_queues` (topic, queue id) are None without a state directory. `findings`:
    differences between the listing and the metadata."""

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
        """Raise Invalid if the tier has segments but the metadata knows none of them. Such metadata
        belongs to another tier, and would make this tier look empty."""
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
        """Return the queues that match. Raises Invalid, with similar names, if no queue matches."""
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
            raise Invalid(f"{self.url}: no broker {broker!r} in the tier. There are: {known}")
        if topic is None and queue_id is None:
            return
        names = self.topic_names()
        if topic is not None and topic not in names:
            import difflib

            close = difflib.get_close_matches(topic, names, n=3)
            hint = f"Did you mean {' or '.join(close)}?" if close else "`ls` shows the topics"
            raise Invalid(f"{self.url}: no topic {topic!r} in the tier. {hint}", topic=topic)
        queues = sorted({q.queue_id for q in self.queues if topic is None or q.topic == topic})
        raise Invalid(
            f"{self.url}: topic {topic!r} has no queue {queue_id}. It has "
            + ", ".join(map(str, queues)),
            topic=topic,
            queue_id=queue_id,
        )


def extent_at(extents: tuple[SegmentExtent, ...], offset: int) -> SegmentExtent | None:
    """Return the segment whose bytes cover `offset`, or None."""
    index = bisect.bisect_right(extents, offset, key=lambda extent: extent.base_offset) - 1
    while index > 0 and not extents[index].size_bytes:
        index -= 1  # an empty one may lie within the bytes of another
    if index < 0 or offset >= extents[index].end_offset:
        return None
    return extents[index]
