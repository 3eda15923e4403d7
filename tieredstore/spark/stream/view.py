"""A tier as a running stream looks at it, again and again: what changed is read, what did not is
remembered."""

from __future__ import annotations

import bisect
import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from tieredstore.clock import SYSTEM_CLOCK, Clock
from tieredstore.contracts.segment import SegmentProvider
from tieredstore.scan.ahead import map_ahead
from tieredstore.scan.catalogue import (
    Listings,
    QueueFiles,
    TierCatalogue,
    catalogue_of,
    gather,
    list_tier,
)
from tieredstore.scan.extents import QueueReader
from tieredstore.scan.findings import Severity
from tieredstore.scan.holes import find_lost_units
from tieredstore.scan.intervals import Interval
from tieredstore.scan.location import TierLocation
from tieredstore.scan.segments.tail import Proof, find_committed_end
from tieredstore.spark.offsets import QueueKey
from tieredstore.spark.selection import key_of
from tieredstore.spark.stream.checkpoint import Incarnation
from tieredstore.spark.stream.incarnation import incarnation_of, witnesses_of

_log = logging.getLogger(__name__)
_PAGE_OBJECTS = 1000
"""Objects that one request of a listing tells."""
_FEW_LISTINGS = 16
"""Topics that are listed by themselves, however small the tier."""
_SLOW_LOOK_MS = 10_000
"""A look that takes longer counts for as long again: the next one would list all those pages for
what came in the meantime alone."""
_WHOLE_INTERVALS = 30
"""So often a stream of named topics lists the whole tier: there may be new brokers."""


@dataclass(slots=True)
class QueueView:
    """One queue at one moment: messages [least, end) are there, and committed, but for holes; lost:
    those of which the units are lost, which a batch must not pass in silence."""

    provider: SegmentProvider
    queue: QueueFiles
    topic_id: int | None
    least: int
    end: int
    lost: Sequence[Interval] = ()
    _witnesses: dict[int, Incarnation] = field(default_factory=dict)

    def open(self) -> QueueReader:
        """Open a reader of the queue, for the caller to close."""
        return QueueReader(self.provider, self.queue, self.least)

    def incarnation(self, offset: int) -> Incarnation:
        """Find what the queue is known by at a position. Looks at few messages, however many
        are."""
        for witness in witnesses_of(offset, self.least, self.end):
            found = self._hear(witness)
            if found.message is not None:
                return found
        return Incarnation(self.topic_id)

    def incarnation_like(self, then: Incarnation) -> Incarnation:
        """Return what the same message says now, as far as it is still there."""
        witness = then.message
        if witness is None or not self.least <= witness < self.end:
            return Incarnation(self.topic_id)
        return self._hear(witness)

    def has_heard(self, then: Incarnation) -> bool:
        """Tell whether `incarnation_like` has nothing to read."""
        witness = then.message
        return witness is None or witness in self._witnesses or witness >= self.end

    def is_known_at(self, offset: int) -> bool:
        """Tell whether `incarnation` has nothing to read, mostly."""
        return next(witnesses_of(offset, self.least, self.end), None) in self._witnesses

    def _hear(self, witness: int) -> Incarnation:
        """What a message says, read once."""
        if witness not in self._witnesses:
            with self.open() as reader:
                self._witnesses[witness] = incarnation_of(reader, witness, self.topic_id)
        return self._witnesses[witness]

    def first_at(self, offset: int) -> int:
        """Return the first queue offset at or behind `offset` that is not in a hole."""
        return next((first for first, _ in self._spans(offset, self.end)), self.end)

    def count_messages(self, start: int, end: int) -> int:
        """Count the messages [start, end), without holes."""
        return sum(last - first for first, last in self._spans(start, end))

    def end_of(self, start: int, count: int) -> int:
        """Return the end of the first `count` messages at or behind `start`."""
        for first, last in self._spans(start, self.end):
            if count <= last - first:
                return first + count
            count -= last - first
        return self.end

    def log_bytes(self, start: int, end: int) -> int:
        """Commit log bytes of messages [start, end)."""
        with self.open() as reader:
            return sum(self._log_bytes(reader, *span) for span in self._spans(start, end))

    def end_within(self, start: int, end: int, size_bytes: int) -> int:
        """Find the largest end of [start, end) whose messages are so many commit log bytes at most.
        One message is always within."""
        found, least = start, self.end_of(start, 1)
        with self.open() as reader:
            for first, last in self._spans(start, end):
                size = self._log_bytes(reader, first, last)
                if size > size_bytes:
                    if not self._is_lost(first):
                        limit, key = _find_start(reader, first) + size_bytes, _end_of(reader)
                        found = bisect.bisect_right(range(last), limit, lo=first, key=key)
                    break
                size_bytes -= size
                found = last
        return max(found, least)

    def _spans(self, start: int, end: int) -> Iterator[tuple[int, int]]:
        """The runs of queue offsets of [start, end) that are there, or lost."""
        for first, last in sorted([*self.queue.unit_spans(), *self.lost]):
            low, high = max(first, start, self.least), min(last, end, self.end)
            if low < high:
                yield low, high

    def _is_lost(self, offset: int) -> bool:
        return any(low <= offset < high for low, high in self.lost)

    def _log_bytes(self, reader: QueueReader, start: int, end: int) -> int:
        """Commit log bytes of a run; of one that is lost or damaged, no less than its messages."""
        if self._is_lost(start):
            return end - start
        return max(_end_of(reader)(end - 1) - _find_start(reader, start), end - start)


class TierView:
    """A connection to a tier, and what was seen through it last.

    check_bodies: whether a message whose body has another CRC counts as not there. topics: those
    that the stream names; None where any may be its. interval_ms: the tier is listed once in it at
    most, but for a topic that grew between the last two looks, which is listed by itself. A look
    that takes 10 s or more is followed by one after the same time, at the earliest.
    """

    def __init__(
        self,
        location: TierLocation,
        *,
        check_bodies: bool = True,
        topics: Iterable[str] | None = None,
        interval_ms: int = 0,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._location = location
        self._check_bodies = check_bodies
        self._topics = None if topics is None else frozenset(topics)
        self._interval_ms = interval_ms
        self._clock = clock
        self._provider = location.connect()
        self._told: set[str] = set()
        self._listed_ms: int | None = None
        self._slow_until_ms = 0
        self._listed_whole_ms: int | None = None
        self._growing: set[str] = set()
        self._whole_pages = 1
        self.catalogue: TierCatalogue | None = None
        self.last_seen: dict[QueueKey, QueueView] = {}

    def look(
        self,
        select: Callable[[TierCatalogue], Iterable[QueueFiles]],
        *,
        known: Mapping[QueueKey, int] | None = None,
        now: bool = False,
        hears_first: bool = False,
    ) -> dict[QueueKey, QueueView]:
        """View the queues that `select` chooses and that have units.

        known: ends that were proven before. now: whatever the interval says. hears_first: what
        queues that are new are known by at their begin is asked next. Raises Corrupt, Unavailable.
        """
        is_first, now_ms = self._listed_ms is None, self._clock.monotonic_ms()
        is_due = self._is_due(self._listed_ms, self._interval_ms)
        lists_all = now or (is_due and now_ms >= self._slow_until_ms)
        if lists_all:
            self.catalogue = self._list_all()
        elif self._growing:
            self.catalogue = self._list_topics(self._growing)
        else:
            return self.last_seen
        assert self.catalogue is not None
        found = self._view_queues(
            self.catalogue, select(self.catalogue), known or {}, hears_first=hears_first
        )
        before = self.last_seen
        self._growing = {
            key[0]
            for key, view in found.items()
            if not is_first and (key not in before or view.end > before[key].end)
        }
        self.last_seen = found
        if lists_all:
            self._listed_ms = now_ms
        ended_ms = self._clock.monotonic_ms()
        if ended_ms - now_ms >= _SLOW_LOOK_MS:
            self._slow_until_ms = ended_ms + (ended_ms - now_ms)
        return found

    @property
    def provider(self) -> SegmentProvider:
        return self._provider

    def close(self) -> None:
        self._provider.close()

    # Listings

    def _is_due(self, since_ms: int | None, interval_ms: int) -> bool:
        return since_ms is None or self._clock.monotonic_ms() - since_ms >= interval_ms

    def _list_all(self) -> TierCatalogue:
        whole_ms = _WHOLE_INTERVALS * self._interval_ms
        if self._topics is not None and not self._is_due(self._listed_whole_ms, whole_ms):
            return self._list_topics(self._topics)
        return self._list_whole()

    def _list_whole(self) -> TierCatalogue:
        now_ms = self._clock.monotonic_ms()
        listings = list_tier(self._provider, self._location.broker)
        self._listed_whole_ms = now_ms
        self._whole_pages = 1 + sum(one.objects for one in listings.values()) // _PAGE_OBJECTS
        return self._load_catalogue(listings)

    def _list_topics(self, topics: Collection[str]) -> TierCatalogue:
        """The catalogue with these topics as they are now, at least."""
        before = self.catalogue
        assert before is not None
        brokers = before.brokers if self._location.broker is None else [self._location.broker]
        if len(brokers) * len(topics) > max(self._whole_pages, _FEW_LISTINGS):
            return self._list_whole()  # takes fewer requests
        listings: Listings = {}
        folders = [f"{broker}/{topic}" for broker in brokers for topic in sorted(topics)]
        for some in map_ahead(
            self._provider, lambda folder: list_tier(self._provider, folder), folders
        ):
            listings.update(some)
        found = self._load_catalogue(listings, topics)
        queues = [queue for queue in before.queues if queue.topic not in topics]
        return replace(found, queues=(*queues, *found.queues), indexes=before.indexes)

    def _load_catalogue(
        self, listings: Listings, topics: Collection[str] | None = None
    ) -> TierCatalogue:
        """What was listed, with the metadata as they are now. Damage that they show is told once,
        as a warning."""
        metadata = self._location.metadata()
        try:
            facts = gather(self._provider, listings, metadata, self._location.broker, topics)
        finally:
            if metadata is not None:
                metadata.close()
        catalogue = catalogue_of(self._provider.url, facts, listings)
        for finding in catalogue.findings:
            text = str(finding)
            if finding.severity is Severity.DAMAGE and text not in self._told:
                self._told.add(text)
                _log.warning("%s", text)
        return catalogue

    # Queues

    def _view_queues(
        self,
        catalogue: TierCatalogue,
        queues: Iterable[QueueFiles],
        known: Mapping[QueueKey, int],
        *,
        hears_first: bool,
    ) -> dict[QueueKey, QueueView]:
        ids = catalogue.topic_ids or {}

        def view(queue: QueueFiles) -> QueueView:
            key = key_of(queue)
            before = self.last_seen.get(key)
            if before is not None and before.queue == queue:
                return before
            floor = known.get(key, 0 if before is None else before.end)
            return self._view(queue, ids.get(queue.topic), floor, hears_first=hears_first)

        # One without units was announced, or expired: where it begins is not known yet.
        there = [queue for queue in queues if queue.has_units]
        return dict(zip(map(key_of, there), map_ahead(self._provider, view, there), strict=True))

    def _view(
        self, queue: QueueFiles, topic_id: int | None, known_end: int, *, hears_first: bool
    ) -> QueueView:
        with QueueReader(self._provider, queue) as reader:
            least = reader.min_offset()
            proof = Proof.BODY if self._check_bodies else Proof.RECORD
            end = find_committed_end(reader, proof, floor=known_end, lists_again=False)
            lost = find_lost_units(reader)
            # What it is compared by next: the last message, which was just read, and the one up to
            # which the stream came.
            heard = {end - 1, known_end - 1} if end > known_end else set()
            heard |= {least} if hears_first else set()
            witnesses = {
                witness: incarnation_of(reader, witness, topic_id)
                for witness in sorted(heard, reverse=True)
                if least <= witness < end
            }
        least = min(least, end)
        return QueueView(self._provider, queue, topic_id, least, end, lost, witnesses)


def _find_start(reader: QueueReader, offset: int) -> int:
    return int(reader.read_units(offset, 1)[0]["physical_offset"])


def _end_of(reader: QueueReader) -> Callable[[int], int]:
    def find_end(offset: int) -> int:
        unit = reader.read_units(offset, 1)[0]
        return int(unit["physical_offset"]) + int(unit["size"])

    return find_end
