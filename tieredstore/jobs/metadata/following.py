"""Metadata of a tier that is kept current for a reader while another process writes the tier."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import NamedTuple

import msgspec

from tieredstore.clock import SYSTEM_CLOCK, Clock, ManualClock
from tieredstore.contracts.dispatch_source import QueueKey
from tieredstore.contracts.metadata_store import NEVER_WRITTEN_MS
from tieredstore.contracts.segment import SegmentProvider
from tieredstore.errors import Invalid, Refused
from tieredstore.jobs.metadata.found import Found
from tieredstore.jobs.metadata.index import (
    SPREAD,
    FoundIndex,
    find_each_index,
    list_undecided_topics,
    pack_probes,
    topic_ids,
)
from tieredstore.jobs.metadata.queues import FoundQueue, find_each_queue
from tieredstore.jobs.metadata.state_files import StateFiles
from tieredstore.jobs.target import find_only_broker
from tieredstore.scan.catalogue import QueueFiles, SegmentExtent
from tieredstore.scan.listing import Listings, catalogue_of, gather, list_tier
from tieredstore.scan.location import TierLocation, place_tier
from tieredstore.tier.deleted.records import DeletedTopic, find_known_records
from tieredstore.tier.lite.runs import LiteDirectory, load_runs
from tieredstore.tier.store import TieredMessageStore

UNREADABLE = "queue-unreadable"


class Changes(NamedTuple):
    """Changes that a refresh found. `queues`: changed queues that no store has loaded yet.
    `has_index`: whether index segments have changed. `listings`: listing of the broker's part of
    the tier."""

    queues: list[QueueKey]
    has_index: bool
    listings: Listings


class TierFollower:
    """Keeps the metadata in a reader's state directory equal to one broker's part of a tier. It
    owns no epoch and does not write into the tier. A refresh makes one listing, and reads each
    index segment once and a few ranges of changed queues. Not thread-safe."""

    def __init__(
        self, location: TierLocation, broker: str, state: Path, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        self.broker = broker
        self._clock = clock
        config = place_tier(location.config, location.url, state=state)
        self._files = StateFiles(msgspec.structs.replace(config, broker_name=broker), state)
        self._seen: dict[QueueKey, QueueFiles] = {}
        self._found: dict[QueueKey, FoundQueue] = {}
        self._seen_index: tuple[SegmentExtent, ...] = ()
        self._index: dict[int, FoundIndex] = {}
        self._more_votes: list[FoundIndex] = []
        self._asked_topics: set[str] = set()
        self._changed: set[QueueKey] = set()
        self._has_new_index = False
        self._deleted: dict[str, DeletedTopic] = {}
        self._named: dict[str, int] = {}

    @classmethod
    def open(cls, location: TierLocation, state: Path, clock: Clock = SYSTEM_CLOCK) -> TierFollower:
        """Refresh the metadata for the first time. Raises Invalid, Unavailable."""
        with closing(location.connect()) as provider:
            broker = location.broker or find_only_broker(provider)
            follower = cls(location, broker, state, clock)
            if location.config.enable_lmq:
                with suppress(Refused):
                    follower._take_ids(load_runs(provider, broker).directory)
            if not follower.look(provider).queues:
                raise Invalid(f"{provider.url}: no broker {broker!r} in the tier")
            follower._settle()
            return follower

    def follow(self, store: TieredMessageStore) -> list[QueueKey]:
        """Refresh the metadata, and update a store over that state directory. Return the changed
        queues. The next call repairs a failed update. Raises Unavailable."""
        # Read before the listing and used after it, so that the messages of the runs exist.
        runs = store.lite.find_runs()
        self._take_ids(runs)
        changes = self.look(store.flat_files.provider)
        if changes.queues or changes.has_index:
            store.reload(changes.queues, changes.listings, reload_index=changes.has_index)
            self._settle()
        store.lite.directory = runs
        return changes.queues

    def look(self, provider: SegmentProvider) -> Changes:
        """List the tier, and rewrite the metadata if it has changed. Raises Unavailable."""
        listings = list_tier(provider, self.broker)
        catalogue = catalogue_of(provider.url, gather(provider, listings), listings)
        self._deleted = find_known_records(provider, self.broker)
        self._look_at_queues(provider, {QueueKey(q.topic, q.queue_id): q for q in catalogue.queues})
        topics = {key.topic for key in self._found}
        extents = catalogue.indexes.get(self.broker, ())
        if extents != self._seen_index or topics - self._asked_topics:
            self._look_at_index(provider, extents, topics - self._asked_topics)
            self._has_new_index |= extents != self._seen_index
            self._seen_index, self._asked_topics = extents, topics
        if self._changed or self._has_new_index:
            self._write()
        return Changes(sorted(self._changed), self._has_new_index, listings)

    def _take_ids(self, runs: LiteDirectory) -> None:
        """Take the ids of parent topics from the runs of lite topics. The index may not have them
        yet, and another id would hide all lite topics of the parent."""
        named, self._named = self._named, runs.topic_ids
        self._changed |= {
            key for key in self._found if named.get(key.topic) != self._named.get(key.topic)
        }

    def _settle(self) -> None:
        self._changed.clear()
        self._has_new_index = False

    def _look_at_queues(
        self, provider: SegmentProvider, queues: dict[QueueKey, QueueFiles]
    ) -> None:
        wanted = {key: queue for key, queue in queues.items() if self._seen.get(key) != queue}
        found = find_each_queue(provider, list(wanted.values()))
        for (key, queue), one in zip(wanted.items(), found, strict=True):
            if key in self._found and any(f.kind == UNREADABLE for f in one.findings):
                continue  # It may be changing right now. The next refresh shows it.
            self._seen[key], self._found[key] = queue, one
            self._changed.add(key)
        for key in self._seen.keys() - queues.keys():
            del self._seen[key], self._found[key]
            self._changed.add(key)

    def _look_at_index(
        self, provider: SegmentProvider, extents: Sequence[SegmentExtent], new_topics: set[str]
    ) -> None:
        """Search the index for topic ids. Index segments that were searched before are searched
        again only for new topics."""
        sizes = {extent.base_offset: extent.size_bytes for extent in extents}
        self._index = {
            base: index
            for base, index in self._index.items()
            if sizes.get(base) == index.size_bytes
        }
        since_ms = self._find_begin_ms(new_topics)
        asked = [
            extent
            for extent in extents
            if (known := self._index.get(extent.base_offset)) is None
            or (known.damage is None and known.latest_ms >= since_ms)
        ]
        queues = self._found.values()
        for index in find_each_index(provider, asked, pack_probes(queues)):
            self._index[index.base_offset] = index
        topics = sorted({key.topic for key in self._found})
        others = set(list_undecided_topics(topics, self._list_votes()))
        if others and asked:
            # Neither their first nor their last message is in the index.
            again = [self._seen[key] for key in self._found if key.topic in others]
            more = find_each_queue(provider, again, spread=SPREAD)
            self._more_votes += find_each_index(provider, asked, pack_probes(more))

    def _find_begin_ms(self, topics: Iterable[str]) -> int:
        """Return the earliest store time (epoch ms) of the given topics, or 2^63 if they have no
        message."""
        wanted = set(topics)
        return min(
            (
                segment.begin_ms
                for key, queue in self._found.items()
                if key.topic in wanted
                for segment in queue.segments
                if segment.begin_ms != NEVER_WRITTEN_MS
            ),
            default=2**63,
        )

    def _list_votes(self) -> list[FoundIndex]:
        return [*self._index.values(), *self._more_votes]

    def _write(self) -> None:
        now_ms = self._clock.now_ms()
        topics = sorted({key.topic for key in self._found})
        ids = topic_ids(topics, self._list_votes(), self._named, self._deleted)
        indexes = [self._index[base] for base in sorted(self._index)]
        queues = [self._found[key] for key in sorted(self._found)]
        found = Found(self.broker, queues, indexes, ids, now_ms)
        for replaced in self._files.replace(found.fill, ManualClock(now_ms), force=True):
            replaced.unlink()
