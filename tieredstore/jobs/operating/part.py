"""A broker's part of a tier in an operator's hands: to look at, or as its only writer."""

from __future__ import annotations

import difflib
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec

from tieredstore import registry
from tieredstore.clock import SYSTEM_CLOCK, Clock
from tieredstore.config import StoreConfig
from tieredstore.contracts.dispatch_source import QueueKey
from tieredstore.contracts.metadata_store import MetadataStore
from tieredstore.contracts.segment import (
    FileSegmentType,
    SegmentId,
    SegmentListing,
    SegmentProvider,
)
from tieredstore.errors import Invalid
from tieredstore.jobs.target import find_broker_of, find_only_broker, own_tier
from tieredstore.message.names import queue_path
from tieredstore.scan.catalogue import list_tier
from tieredstore.scan.location import TierLocation
from tieredstore.tier.backup import TierBackup
from tieredstore.tier.flat.file_store import FlatFileStore
from tieredstore.tier.flat.segment import STATUS_DELETED
from tieredstore.tier_url import show_url


@dataclass(frozen=True, slots=True)
class TierPart:
    """All queues of one broker, opened. listings: what of them was in the tier at the start, by
    segment; listed: the same segments by path. is_writer: whether this process has the right to
    write, and may change anything."""

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
        """List the segments that a queue has in the tier, or by the metadata."""
        path = self.path(key)
        known = [entry.id for entry in self.metadata.segments(path)]
        return list(dict.fromkeys([*known, *self.listed.get(path, ())]))

    def holds_bytes(self, segment: SegmentId) -> bool:
        """Tell whether the tier has bytes of a segment."""
        listing = self.listings.get(segment)
        return listing is not None and listing.size_bytes > 0

    def select(self, topic: str, queue_id: int | None = None) -> list[QueueKey]:
        """Select the queues of a topic, or one of them, as metadata or tier have them. Raises
        Invalid, with near names, for what neither has."""
        queues = self.list_queues()
        found = [key for key in queues if key.topic == topic and queue_id in (None, key.queue_id)]
        if found:
            return found
        of_topic = [str(key.queue_id) for key in queues if key.topic == topic]
        if of_topic:
            raise Invalid(
                f"{self.url}: topic {topic!r} has no queue {queue_id}; it has "
                + ", ".join(of_topic),
                topic=topic,
            )
        near = difflib.get_close_matches(topic, {key.topic for key in queues}, n=3)
        hint = f"did you mean {' or '.join(near)}?" if near else "`ls` shows what there is"
        raise Invalid(f"{self.url}: no topic {topic!r} in the tier; {hint}", topic=topic)

    def list_queues(self) -> list[QueueKey]:
        """List all queues that metadata or tier have, in order."""
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
    location: TierLocation,
    *,
    writes: bool,
    take_over: bool = False,
    clock: Clock = SYSTEM_CLOCK,
) -> Iterator[TierPart]:
    """Open a broker's part of a tier: to look at it beside whoever writes there, or with `writes`
    as its only writer. take_over: as in `own_tier`.

    Raises Invalid without a state directory, or with that of another tier; Fenced while a broker or
    another writer lives; Corrupt when the metadata is lost or damaged, Unavailable.
    """
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
            flat_files.become_writer(writer)
        stack.callback(flat_files.close)
        flat_files.load()
        listed: defaultdict[str, list[SegmentId]] = defaultdict(list)
        for segment in listings:
            listed[segment.path].append(segment)
        yield TierPart(
            show_url(location.url),
            location.state,
            config,
            provider,
            metadata,
            flat_files,
            listings,
            listed,
            writes,
        )
        if writer is not None:
            backup = TierBackup(config, provider, location.state, clock, metadata.flush)
            backup.become_writer(writer)
            backup.renew_metadata()


def _find_broker(location: TierLocation) -> str | None:
    """Find whose state directory it is; None while it knows no segment."""
    metadata = location.metadata()
    assert metadata is not None
    with closing(metadata):
        metadata.load()
        return find_broker_of(metadata)


def _check_same_tier(
    location: TierLocation,
    metadata: MetadataStore,
    listings: Mapping[SegmentId, SegmentListing],
) -> None:
    """Raise Invalid for a state directory that is not of this tier: of the segments that either
    knows less than half are the same. (Damage harms a few; queues of all tiers begin at 0.)"""
    known = {
        entry.id: entry.size
        for entry in metadata.segments()
        if entry.size and entry.status != STATUS_DELETED and _is_of_queue(entry.id)
    }
    there = {
        one: item.size_bytes
        for one, item in listings.items()
        if item.size_bytes and _is_of_queue(one)
    }
    same = sum(there.get(one, 0) >= size for one, size in known.items())
    if known and 2 * same < len(known.keys() | there.keys()):
        raise Invalid(
            f"state {location.state}: knows {len(known)} segments, the tier "
            f"{show_url(location.url)} has {len(there)}, and {same} are the same: is it that of "
            "another tier, cluster or broker? Metadata that is lost `tieredstore rebuild metadata` "
            "makes again",
            path=str(location.state),
        )


def _is_of_queue(segment: SegmentId) -> bool:
    return segment.type is not FileSegmentType.INDEX
