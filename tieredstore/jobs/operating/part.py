"""Broker's part of a tier, opened by an operator: read-only, or as its only writer."""

from __future__ import annotations

import difflib
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from tieredstore import registry
from tieredstore.clock import SYSTEM_CLOCK, Clock
from tieredstore.config import StoreConfig
from tieredstore.contracts.dispatch_source import QueueKey
from tieredstore.contracts.metadata_store import NEVER_WRITTEN_MS, STATUS_DELETED, MetadataStore
from tieredstore.contracts.segment import (
    FileSegment,
    FileSegmentType,
    SegmentId,
    SegmentListing,
    SegmentProvider,
)
from tieredstore.errors import Fenced, Invalid, TieredStoreError
from tieredstore.jobs.target import find_only_broker, own_tier
from tieredstore.message.names import queue_path
from tieredstore.scan.listing import list_tier
from tieredstore.scan.location import TierLocation
from tieredstore.tier.backup import TierBackup
from tieredstore.tier.flat.file_store import FlatFileStore, find_segments_before
from tieredstore.tier.identity.belonging import find_known_broker
from tieredstore.tier_url import show_url


@dataclass(frozen=True, slots=True)
class TierPart:
    """One broker's part of a tier, with all its queues open. `listings`: segments in the tier when
    it was opened. `listed`: the same segments by path of the queue. `is_writer`: whether changes
    are allowed."""

    url: str
    state: Path
    config: StoreConfig
    provider: SegmentProvider
    metadata: MetadataStore
    flat_files: FlatFileStore
    listings: Mapping[SegmentId, SegmentListing]
    listed: Mapping[str, Sequence[SegmentId]]
    is_writer: bool

    @property
    def broker(self) -> str:
        return self.config.broker_name

    def path(self, key: QueueKey) -> str:
        return queue_path(self.broker, key.topic, key.queue_id)

    def list_segments(self, key: QueueKey) -> list[SegmentId]:
        """Return the segments of a queue in the tier, or in the metadata."""
        path = self.path(key)
        known = [entry.id for entry in self.metadata.segments(path)]
        return list(dict.fromkeys([*known, *self.listed.get(path, ())]))

    def holds_bytes(self, segment: SegmentId) -> bool:
        """Return whether the tier has bytes of a segment."""
        listing = self.listings.get(segment)
        return listing is not None and listing.size_bytes > 0

    def select(self, topic: str, queue_id: int | None = None) -> list[QueueKey]:
        """Return the queues of a topic, or one queue, from metadata or tier. Raises Invalid, with
        similar names, if neither has the queue."""
        queues = self.list_queues()
        found = [key for key in queues if key.topic == topic and queue_id in (None, key.queue_id)]
        if found:
            return found
        of_topic = [str(key.queue_id) for key in queues if key.topic == topic]
        if of_topic:
            raise Invalid(
                f"{self.url}: topic {topic!r} has no queue {queue_id}. It has "
                + ", ".join(of_topic),
                topic=topic,
            )
        near = difflib.get_close_matches(topic, {key.topic for key in queues}, n=3)
        hint = f"Did you mean {' or '.join(near)}?" if near else "`ls` lists the topics"
        raise Invalid(f"{self.url}: no topic {topic!r} in the tier. {hint}", topic=topic)

    def list_queues(self) -> list[QueueKey]:
        """Return all queues in metadata or tier, in order."""
        found = {
            QueueKey(topic.topic, queue.queue_id)
            for topic in self.metadata.topics()
            for queue in self.metadata.queues(topic.topic)
        }
        for segment in self.listings:
            names = segment.path.split("/")
            is_queue = segment.type is not FileSegmentType.INDEX and len(names) == 3
            if is_queue and names[2].isascii() and names[2].isdigit():
                found.add(QueueKey(names[1], int(names[2])))
        return sorted(found)


@contextmanager
def open_part(
    location: TierLocation, *, writes: bool, take_over: bool = False, clock: Clock = SYSTEM_CLOCK
) -> Iterator[TierPart]:
    """Open a broker's part of a tier, read-only or, with `writes`, as its only writer. `take_over`:
    as in `own_tier`. Raises Invalid without a state directory, or with that of another tier, Fenced
    while another writer is active, Corrupt if the metadata is lost or damaged, Unavailable."""
    if location.state is None:
        raise Invalid("give --state: only its metadata knows what the tier has, and is kept right")
    with ExitStack() as stack:
        provider = location.connect()
        stack.callback(provider.close)
        broker = location.broker or _find_broker(location) or find_only_broker(provider)
        config = msgspec.structs.replace(location.config, broker_name=broker)
        writer = None
        metadata: MetadataStore
        if writes:
            writer = stack.enter_context(
                own_tier(provider, config, location.state, take_over=take_over, clock=clock)
            )
            metadata = writer.metadata
        else:
            metadata = registry.metadata_store(config, read_only=True)
            stack.callback(metadata.close)
            metadata.load()
        listings = list_tier(provider, broker)
        _check_same_tier(location, metadata, listings)
        flat_files = FlatFileStore(config, provider, metadata, clock)
        if writer is not None:
            backup = TierBackup(config, provider, location.state, clock, metadata.flush)
            backup.become_writer(writer)
            flat_files.renew_restore_point = backup.renew_metadata
            flat_files.become_writer(writer)
        stack.callback(flat_files.close)
        flat_files.load()
        listed: defaultdict[str, list[SegmentId]] = defaultdict(list)
        for segment in listings:
            listed[segment.path].append(segment)
        parts = (config, provider, metadata, flat_files, listings, listed, writes)
        yield TierPart(show_url(location.url), location.state, *parts)
        if writer is not None:
            backup.renew_metadata()


def _find_broker(location: TierLocation) -> str | None:
    """Return the broker of the state directory, or None if the metadata has no segment."""
    metadata = location.metadata()
    assert metadata is not None
    with closing(metadata):
        metadata.load()
        return find_known_broker(metadata)


def _check_same_tier(
    location: TierLocation, metadata: MetadataStore, listings: Mapping[SegmentId, SegmentListing]
) -> None:
    """Raise Invalid unless at least half of the segments of the state directory exist in this tier.
    A single match proves nothing, because the queues of all tiers begin at 0."""
    known = {
        entry.id: entry.size
        for entry in metadata.segments()
        if entry.size and entry.status != STATUS_DELETED and _is_of_queue(entry.id)
    }
    left_out = find_segments_before(metadata, listings.values())
    # An interrupted job may have left most segments to be deleted.
    left_out |= {entry.id for entry in metadata.segments() if entry.status == STATUS_DELETED}
    there = {
        one: item.size_bytes
        for one, item in listings.items()
        if item.size_bytes and _is_of_queue(one) and one not in left_out
    }
    same = sum(there.get(one, 0) >= size for one, size in known.items())
    if known and 2 * same < len(known.keys() | there.keys()):
        raise Invalid(
            f"state {location.state}: knows {len(known)} segments, the tier "
            f"{show_url(location.url)} has {len(there)}, and {same} are the same: is it that of "
            "another tier, cluster or broker? `tieredstore rebuild metadata` rebuilds it",
            path=str(location.state),
        )


def _is_of_queue(segment: SegmentId) -> bool:
    return segment.type is not FileSegmentType.INDEX


_TOGETHER: Final = 1000
"""Number of queues per metadata write, because a write may rewrite the whole file."""


def remove_segments(
    part: TierPart, keys: Sequence[QueueKey], before_ms: int = NEVER_WRITTEN_MS
) -> dict[str, TieredStoreError]:
    """Delete segments of queues that contain only messages older than `before_ms`, or all by
    default. A queue that cannot be opened is skipped. The metadata records the deletions of several
    queues before their objects are deleted. Returns failures by path. Raises Fenced, as
    `FlatFileStore.require_restore_point`, and the errors of the metadata."""
    failed: dict[str, TieredStoreError] = {}
    for begin in range(0, len(keys), _TOGETHER):
        victims: list[FileSegment] = []
        with part.metadata.batch():
            for key in keys[begin : begin + _TOGETHER]:
                file = part.flat_files.get(*key)
                try:
                    if file is not None and file.is_initialised:
                        victims += file.take_expired(before_ms)
                except Fenced:
                    raise
                except TieredStoreError as error:
                    failed[part.path(key)] = error
        if victims:
            part.flat_files.require_restore_point()
        with part.metadata.batch():
            part.flat_files.remove(victims)
    return failed
