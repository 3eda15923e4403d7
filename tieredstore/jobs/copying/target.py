"""Target of a copy: its listing, and its metadata."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from tieredstore.clock import Clock
from tieredstore.contracts.metadata_store import (
    NEVER_WRITTEN_MS,
    STATUS_DELETED,
    FileSegmentMetadata,
    MetadataStore,
    TopicMetadata,
)
from tieredstore.contracts.segment import SegmentId, SegmentListing, SegmentProvider
from tieredstore.contracts.time_records import TimesPlace
from tieredstore.contracts.wrapping import find_layer
from tieredstore.errors import Invalid, Unavailable
from tieredstore.jobs.copying.plan import SegmentCopy, TargetSegment
from tieredstore.scan.catalogue import QueueFiles
from tieredstore.scan.segments.times import NO_TIMES, Times
from tieredstore.scan.time_search.search import is_read_whole
from tieredstore.tier.deleted.reconciling import reconcile
from tieredstore.tier.deleted.records import DeletedTopic
from tieredstore.tier.deleted.register import DeletedTopics
from tieredstore.tier.recorded_times import find_newest
from tieredstore.tier.writing import TierWriter


@dataclass
class CopyTarget:
    """One broker's part of a tier, and the metadata of its state (loaded by `load`). `other`:
    second provider of the same tier for reading bytes back, or None if `provider` never returns
    written bytes from memory. `state`: directory of the metadata, which a copy locks."""

    provider: SegmentProvider
    metadata: MetadataStore
    broker: str
    clock: Clock
    other: SegmentProvider | None = None
    state: Path | None = None
    _by_path: dict[str, list[TargetSegment]] = field(default_factory=dict)

    @property
    def back(self) -> SegmentProvider:
        return self.other or self.provider

    def load(self) -> None:
        """List the tier, then load its state. Raises Invalid if tier and state differ, Corrupt,
        Unavailable."""
        listed = {item.id: item for item in self.provider.list(self.broker)}
        self.metadata.load()
        entries = {entry.id: entry for entry in self.metadata.segments()}
        self._check(listed, entries)
        self._by_path = {}
        for segment in _segments(listed, entries.values()):
            self._by_path.setdefault(segment.id.path, []).append(segment)

    def _check(
        self,
        listed: Mapping[SegmentId, SegmentListing],
        entries: Mapping[SegmentId, FileSegmentMetadata],
    ) -> None:
        for name, listing in listed.items():
            if listing.size_bytes and name not in entries:
                raise Invalid(
                    f"{self.provider.url}: holds {name} ({listing.size_bytes} bytes), which the "
                    "target's state does not know: give the state directory that this tier was "
                    "written with, or copy to an empty place",
                    path=name.path,
                )
        for entry in entries.values():
            if entry.path.split("/", 1)[0] != self.broker:
                raise Invalid(
                    f"the target's state is that of another broker: it knows {entry.id}, and "
                    f"broker {self.broker!r} is to be copied. Give each broker a state of its own",
                    path=entry.path,
                )
            if entry.size and entry.status != STATUS_DELETED and entry.id not in listed:
                raise Invalid(
                    f"{self.provider.url}: lacks {entry.id}, of which the target's state knows "
                    f"{entry.size} bytes: is it the state of another tier or cluster?",
                    path=entry.path,
                )

    def segments(self, path: str) -> Sequence[TargetSegment]:
        """Return the segments that `load` found below a path, by type and base offset."""
        return self._by_path.get(path, ())

    def list_segments_again(self, path: str) -> Sequence[TargetSegment]:
        """List the segments below a path again, by type and base offset."""
        listed = {item.id: item for item in self.provider.list(path)}
        return _segments(listed, self.metadata.segments(path))

    def paths(self) -> list[str]:
        """Return the paths with bytes in the tier."""
        return sorted(
            path for path, found in self._by_path.items() if any(s.real_bytes for s in found)
        )

    def topic_conflict(self, topics: Iterable[TopicMetadata]) -> str | None:
        """Return why the target cannot use the topic ids of the origin, or None if it can."""
        here = {topic.topic: topic.topic_id for topic in self.metadata.topics()}
        owners = {number: name for name, number in here.items()}
        for topic in topics:
            other = owners.get(topic.topic_id, topic.topic)
            if here.get(topic.topic, topic.topic_id) != topic.topic_id or other != topic.topic:
                known = other if other != topic.topic else f"id {here[topic.topic]}"
                return (
                    f"topic {topic.topic!r} has id {topic.topic_id} in the origin, the target's "
                    f"state has {known} there: an index of one cannot be read with the other"
                )
        return None

    def take_over_deletions(
        self, writer: TierWriter, records: Mapping[str, DeletedTopic], *, is_told: bool
    ) -> bool:
        """Record the origin's deletions of topics in the target, and delete their segments there.
        Return whether the target had any of these topics. `is_told`: whether the user permits the
        deletion. Raises Invalid if it is needed but not permitted, Fenced, Unavailable."""
        deleted = DeletedTopics(self.provider, self.metadata, self.broker, self.clock)
        deleted.begin(writer)
        stale = [
            entry.topic
            for entry in self.metadata.topics()
            if entry.topic in records and entry.topic_id < records[entry.topic].next_id
        ]
        if stale and not is_told:
            raise Invalid(
                f"{self.provider.url}: {len(stale)} topics here were deleted in the origin since "
                f"they were copied (the first: {stale[0]!r}). --force deletes them here too",
                topic=stale[0],
            )
        deleted.take_over(records)
        reconcile(deleted, self.metadata, self.broker, self.clock.now_ms())
        if stale:
            self.finish_removals()
        deleted.settle(list(records))
        deleted.write()
        deleted.leave()
        return bool(stale)

    def announce(
        self,
        topics: Iterable[TopicMetadata],
        queues: Iterable[tuple[str, int]],
        segments: Iterable[SegmentCopy],
    ) -> None:
        """Register topics with their ids, queues, and new segments, in one metadata write."""
        with self.metadata.batch():
            for topic in sorted(topics, key=lambda topic: topic.topic_id):
                found = self.metadata.add_topic(topic.topic, topic.reserve_time_hours)
                same = (found.topic_id, found.status, found.reserve_time_hours)
                if same != (topic.topic_id, topic.status, topic.reserve_time_hours):
                    self.metadata.update_topic(topic)
            for name, queue_id in queues:
                self.metadata.add_queue(name, queue_id)
            for item in segments:
                if self.metadata.segment(item.id) is None:
                    self.complete(item.id, 0, NO_TIMES)

    def complete(self, id: SegmentId, size_bytes: int, times: Times) -> None:
        """Record that the first `size_bytes` bytes of a segment were copied and checked."""
        begin_ms, end_ms = times
        now_ms = self.clock.now_ms()
        if begin_ms == NEVER_WRITTEN_MS:
            end_ms = now_ms  # Java expires entries without it.
        self.metadata.put_segment(
            FileSegmentMetadata(
                id.path,
                id.type,
                id.base_offset,
                size=size_bytes,
                create_timestamp_ms=now_ms,
                begin_timestamp_ms=begin_ms,
                end_timestamp_ms=end_ms,
            )
        )

    def remove(self, segments: Iterable[TargetSegment]) -> None:
        """Delete segments. Consume queues precede commit logs, and newer segments precede older
        ones, so that the rest is consistent at any moment. After an error, the metadata lists the
        segments as deleted. Raises Unavailable."""
        ordered = sorted(segments, key=lambda s: (s.id.type, s.id.base_offset), reverse=True)
        with self.metadata.batch():
            for segment in ordered:
                entry = self.metadata.segment(segment.id)
                if entry is not None:
                    entry.status, entry.size = STATUS_DELETED, 0
                    self.metadata.put_segment(entry)
        for segment in ordered:
            with closing(self.provider.open(segment.id, segment.listing)) as file:
                file.delete()
        with self.metadata.batch():
            for segment in ordered:
                self.metadata.delete_segment(segment.id)

    def finish_removals(self) -> None:
        """Finish the recorded deletions of an earlier run. Raises Unavailable."""
        self.remove(
            TargetSegment(entry.id, 0, 0)
            for entry in list(self.metadata.segments())
            if entry.status == STATUS_DELETED
        )


def _segments(
    listed: Mapping[SegmentId, SegmentListing], entries: Iterable[FileSegmentMetadata]
) -> list[TargetSegment]:
    found = []
    for entry in sorted(entries, key=lambda entry: (entry.type, entry.base_offset)):
        if entry.status != STATUS_DELETED:
            listing = listed.get(entry.id)
            real = 0 if listing is None else listing.size_bytes
            found.append(TargetSegment(entry.id, entry.size, real, listing))
    return found


_log = logging.getLogger(__name__)


class TimesCopy:
    """Copies time records from one tier to another. `broker`: owner of the copied queues."""

    def __init__(self, origin: SegmentProvider, target: SegmentProvider, broker: str) -> None:
        self._origin = find_layer(origin, TimesPlace)
        self._target = find_layer(target, TimesPlace)
        self._broker = broker
        self._timed: frozenset[str] | None = None

    def forget(self, path: str) -> None:
        """Delete the target's time records of a queue that has no messages in the target. Raises
        Unavailable."""
        if self._target is None:
            return
        if self._timed is None:
            self._timed = frozenset(self._target.list_timed_paths(self._broker))
        if path in self._timed:
            self._target.delete_times(path, self._target.list_times(path))

    def copy(self, queue: QueueFiles) -> None:
        """Copy time records that the target lacks. Without them, a search by time in a large queue
        reads messages. Small queues need none."""
        origin, target, path = self._origin, self._target, queue.path
        if is_read_whole(queue) or origin is None or target is None:
            return
        sizes = {extent.base_offset: extent.size_bytes for extent in queue.commit_log}
        try:
            wanted = set(find_newest(origin.list_times(path), sizes).values())
            there = set(target.list_times(path))
            for name in sorted(wanted - there):
                data = origin.read_times(path, name)
                if data is not None:
                    target.write_times(path, name, data)
            bases = {name.base_offset for name in wanted}
            target.delete_times(path, [old for old in there - wanted if old.base_offset in bases])
        except Unavailable as error:
            _log.warning("%s: its recorded times are not copied: %s", path, error)
