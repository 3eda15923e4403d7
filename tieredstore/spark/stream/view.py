"""View of a tier for a running stream. Each refresh reads only changes, and the rest is cached."""

from __future__ import annotations

import bisect
import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from tieredstore.clock import SYSTEM_CLOCK, Clock
from tieredstore.contracts.segment import SegmentProvider
from tieredstore.scan.ahead import map_ahead
from tieredstore.scan.catalogue import Interval, QueueFiles, TierCatalogue, Witness
from tieredstore.scan.expired import expiry_told, open_queue
from tieredstore.scan.extents import QueueReader
from tieredstore.scan.findings import Severity
from tieredstore.scan.generation import take_witness
from tieredstore.scan.holes import find_lost_units
from tieredstore.scan.listing import Listings, catalogue_of, gather, list_tier
from tieredstore.scan.location import TierLocation
from tieredstore.scan.read.tail import Proof, find_committed_end, read_message
from tieredstore.spark.offsets import QueueKey
from tieredstore.spark.selection import key_of
from tieredstore.spark.stream.checkpoint import Incarnation

_log = logging.getLogger(__name__)
_DISTANCES = 1, 0, *(2**power for power in range(1, 24))
_PAGE_OBJECTS = 1000
"""Number of objects in one page of a listing."""
_FEW_LISTINGS = 16
"""Number of topics up to which each topic is listed singly, even if a listing of the whole tier
would take fewer requests."""
_SLOW_LOOK_MS = 10_000
"""Duration in ms above which a refresh counts as slow. After a slow refresh, the next refresh waits
for as long as the slow one took. Otherwise the stream would list all pages for a few new
objects."""
_WHOLE_INTERVALS = 30
"""Number of refreshes after which a stream of named topics lists the whole tier for new brokers."""


@dataclass(slots=True)
class QueueView:
    """One queue at one moment. Messages [least, end) exist and are committed, except in holes.
    `lost`: ranges of queue offsets whose units are lost, which a batch must report."""

    provider: SegmentProvider
    queue: QueueFiles
    topic_id: int | None
    least: int
    end: int
    lost: Sequence[Interval] = ()
    _witnesses: dict[int, tuple[Incarnation, Witness | None]] = field(default_factory=dict)

    @contextmanager
    def open(self) -> Iterator[QueueReader]:
        """Open a reader of the queue. Segments may have been deleted since the listing."""
        with (
            expiry_told(self.provider, self.queue),
            QueueReader(self.provider, self.queue, self.least) as reader,
        ):
            yield reader

    def incarnation(self, offset: int) -> Incarnation:
        """Return the queue's identity at the queue offset `offset`. Reads only a few messages."""
        for witness in witnesses_of(offset, self.least, self.end):
            found = self._hear(witness)
            if found.message is not None:
                return found
        return Incarnation(self.topic_id)

    def incarnation_like(self, then: Incarnation) -> Incarnation:
        """Return the queue's current identity, with the mark of the same message as in `then`. If
        that message no longer exists, there is no mark."""
        witness = then.message
        if witness is None or not self.least <= witness < self.end:
            return Incarnation(self.topic_id)
        return self._hear(witness)

    def has_heard(self, then: Incarnation) -> bool:
        """Return whether `incarnation_like` can answer without a read."""
        witness = then.message
        return witness is None or witness in self._witnesses or witness >= self.end

    def is_known_at(self, offset: int) -> bool:
        """Return whether `incarnation` can probably answer without a read."""
        return next(witnesses_of(offset, self.least, self.end), None) in self._witnesses

    def _hear(self, witness: int) -> Incarnation:
        """Return the queue's identity, with the mark of the message at queue offset `witness`. The
        message is read once."""
        if witness not in self._witnesses:
            with self.open() as reader:
                self._witnesses[witness] = _identify(reader, witness, self.topic_id)
        return self._witnesses[witness][0]

    def witness_of(self, then: Incarnation) -> Witness | None:
        """Return the message that identifies the incarnation `then` for the readers of a batch, or
        None if it was not read."""
        return self._witnesses.get(-1 if then.message is None else then.message, (then, None))[1]

    def first_at(self, offset: int) -> int:
        """Return the first queue offset at or after `offset` that is not in a hole."""
        return next((first for first, _ in self._spans(offset, self.end)), self.end)

    def count_messages(self, start: int, end: int) -> int:
        """Return the number of messages in [start, end). Holes do not count."""
        return sum(last - first for first, last in self._spans(start, end))

    def end_of(self, start: int, count: int) -> int:
        """Return the queue offset after the first `count` messages at or after `start`."""
        for first, last in self._spans(start, self.end):
            if count <= last - first:
                return first + count
            count -= last - first
        return self.end

    def log_bytes(self, start: int, end: int) -> int:
        """Return the commit log bytes of messages [start, end). A lost message counts as one
        byte."""
        with self.open() as reader:
            return sum(self._log_bytes(reader, *span) for span in self._spans(start, end))

    def end_within(self, start: int, end: int, size_bytes: int) -> int:
        """Return the largest queue offset in [start, end] that keeps the messages from `start`
        within `size_bytes`. At least one message is included."""
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
        """Yield the ranges of queue offsets in [start, end) whose units exist or are lost."""
        for first, last in sorted([*self.queue.unit_spans(), *self.lost]):
            low, high = max(first, start, self.least), min(last, end, self.end)
            if low < high:
                yield low, high

    def _is_lost(self, offset: int) -> bool:
        return any(low <= offset < high for low, high in self.lost)

    def _log_bytes(self, reader: QueueReader, start: int, end: int) -> int:
        """Return the commit log bytes of messages [start, end), at least one per message."""
        if self._is_lost(start):
            return end - start
        return max(_end_of(reader)(end - 1) - _find_start(reader, start), end - start)


class TierView:
    """Connection to a tier, and the results of the last refresh. `check_bodies`: treat a message
    with a wrong body CRC as missing. `topics`: topics that the stream names, or None if any topic
    may match. `interval_ms`: minimum time between two listings of the tier. In the meantime, topics
    that grew recently are listed individually. A refresh of 10 s or more delays the next one by the
    same time."""

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
        self.provider = location.connect()
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
        """Return the queues that have units and match `select`. `known`: ends of queues that were
        found earlier. `now`: list the tier even if the interval has not passed. `hears_first`:
        whether the caller will request the identity of new queues at their start. Raises Corrupt,
        Unavailable."""
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

    def close(self) -> None:
        self.provider.close()

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
        listings = list_tier(self.provider, self._location.broker)
        self._listed_whole_ms = now_ms
        self._whole_pages = 1 + sum(one.objects for one in listings.values()) // _PAGE_OBJECTS
        return self._load_catalogue(listings)

    def _list_topics(self, topics: Collection[str]) -> TierCatalogue:
        """Return a catalogue that is current for at least the given topics."""
        before = self.catalogue
        assert before is not None
        brokers = before.brokers if self._location.broker is None else [self._location.broker]
        if len(brokers) * len(topics) > max(self._whole_pages, _FEW_LISTINGS):
            return self._list_whole()  # needs fewer requests
        listings: Listings = {}
        folders = [f"{broker}/{topic}" for broker in brokers for topic in sorted(topics)]
        for some in map_ahead(
            self.provider, lambda folder: list_tier(self.provider, folder), folders
        ):
            listings.update(some)
        found = self._load_catalogue(listings, topics)
        queues = [queue for queue in before.queues if queue.topic not in topics]
        return replace(found, queues=(*queues, *found.queues), indexes=before.indexes)

    def _load_catalogue(
        self, listings: Listings, topics: Collection[str] | None = None
    ) -> TierCatalogue:
        """Return the listing with current metadata. Damage of the metadata is logged once."""
        metadata = self._location.metadata()
        try:
            facts = gather(self.provider, listings, metadata, self._location.broker, topics)
        finally:
            if metadata is not None:
                metadata.close()
        catalogue = catalogue_of(self.provider.url, facts, listings)
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
            if before is not None and before.queue == queue and before.queue.stamps == queue.stamps:
                return before
            floor = known.get(key, 0 if before is None else before.end)
            return self._view(queue, ids.get(queue.topic), floor, hears_first=hears_first)

        # One without units was registered or has expired: its begin is not known yet.
        there = [queue for queue in queues if queue.has_units]
        return dict(zip(map(key_of, there), map_ahead(self.provider, view, there), strict=True))

    def _view(
        self, queue: QueueFiles, topic_id: int | None, known_end: int, *, hears_first: bool
    ) -> QueueView:
        with open_queue(self.provider, queue) as reader:
            least = reader.min_offset()
            proof = Proof.BODY if self._check_bodies else Proof.RECORD
            end = find_committed_end(reader, proof, floor=known_end, lists_again=False)
            lost = find_lost_units(reader)
            # The messages of the next comparison: the last one, which was just read, and the one
            # before the stream's position.
            heard = {end - 1, known_end - 1} if end > known_end else set()
            heard |= {least} if hears_first else set()
            witnesses = {
                witness: _identify(reader, witness, topic_id)
                for witness in sorted(heard, reverse=True)
                if least <= witness < end
            }
        least = min(least, end)
        return QueueView(self.provider, queue, topic_id, least, end, lost, witnesses)


def _find_start(reader: QueueReader, offset: int) -> int:
    return int(reader.read_units(offset, 1)[0]["physical_offset"])


def _end_of(reader: QueueReader) -> Callable[[int], int]:
    def find_end(offset: int) -> int:
        unit = reader.read_units(offset, 1)[0]
        return int(unit["physical_offset"]) + int(unit["size"])

    return find_end


def witnesses_of(offset: int, least: int, end: int) -> Iterator[int]:
    """Yield the queue offsets in [least, end) of messages that can identify a queue at `offset`.
    The message before it and the message at it come first, then some earlier ones, in case both are
    damaged."""
    for distance in _DISTANCES:
        if least <= offset - distance < end:
            yield offset - distance


def _identify(
    reader: QueueReader, witness: int, topic_id: int | None
) -> tuple[Incarnation, Witness | None]:
    # The second reads the bytes of the first again, without a request.
    return incarnation_of(reader, witness, topic_id), take_witness(reader, witness)


def incarnation_of(reader: QueueReader, witness: int, topic_id: int | None) -> Incarnation:
    """Return the queue's identity: the topic id, and the mark of the message at queue offset
    `witness`. Without that message, it is only the topic id."""
    message = read_message(reader, witness)
    if message is None:
        return Incarnation(topic_id)
    return Incarnation.of_message(
        topic_id, witness, message.store_timestamp_ms, message.size, message.body_crc
    )
