"""The target of a copy: what its listing and its metadata say, and the entries that it gets."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from tieredstore.clock import Clock
from tieredstore.contracts.metadata_store import (
    NEVER_WRITTEN_MS,
    FileSegmentMetadata,
    MetadataStore,
    TopicMetadata,
)
from tieredstore.contracts.segment import SegmentId, SegmentListing, SegmentProvider
from tieredstore.errors import Invalid
from tieredstore.jobs.copying.plan import SegmentCopy, TargetSegment
from tieredstore.scan.segments.times import NO_TIMES, Times
from tieredstore.tier.flat.segment import STATUS_DELETED


class CopyTarget:
    """One broker's part of a tier, and the metadata of its state (loaded by `load`).

    back: the same tier, to read back through; None for `provider`, unless that one keeps in memory
    what it writes. state: the directory of the metadata, which a copy locks.
    """

    def __init__(
        self,
        provider: SegmentProvider,
        metadata: MetadataStore,
        broker: str,
        clock: Clock,
        back: SegmentProvider | None = None,
        state: Path | None = None,
    ) -> None:
        self.provider = provider
        self.back = provider if back is None else back
        self.metadata = metadata
        self.state = state
        self._broker = broker
        self._clock = clock
        self._by_path: dict[str, list[TargetSegment]] = {}

    def load(self) -> None:
        """List the tier, and then read what the state knows.

        Raises Invalid when they do not belong together, Corrupt, Unavailable.
        """
        listed = {item.id: item for item in self.provider.list(self._broker)}
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
            if entry.path.split("/", 1)[0] != self._broker:
                raise Invalid(
                    f"the target's state is that of another broker: it knows {entry.id}, and "
                    f"broker {self._broker!r} is to be copied; give each broker a state of its own",
                    path=entry.path,
                )
            if entry.size and entry.status != STATUS_DELETED and entry.id not in listed:
                raise Invalid(
                    f"{self.provider.url}: lacks {entry.id}, of which the target's state knows "
                    f"{entry.size} bytes: is it the state of another tier or cluster?",
                    path=entry.path,
                )

    def segments(self, path: str) -> Sequence[TargetSegment]:
        """Return what `load` found below a path, by type and base offset."""
        return self._by_path.get(path, ())

    def list_segments_again(self, path: str) -> Sequence[TargetSegment]:
        """List the segments below a path anew, by type and base offset."""
        listed = {item.id: item for item in self.provider.list(path)}
        return _segments(listed, self.metadata.segments(path))

    def paths(self) -> list[str]:
        """Return the paths with bytes in the tier."""
        return sorted(
            path for path, found in self._by_path.items() if any(s.real_bytes for s in found)
        )

    def topic_conflict(self, topics: Iterable[TopicMetadata]) -> str | None:
        """Say why the topic ids of the origin cannot be those of the target too; index items name
        topics by id."""
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

    def announce(
        self,
        topics: Iterable[TopicMetadata],
        queues: Iterable[tuple[str, int]],
        segments: Iterable[SegmentCopy],
    ) -> None:
        """Put topics with their ids, queues, and entries of segments to be made into the metadata:
        one write."""
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
                    self._put_entry(item.id, 0, NO_TIMES)

    def complete(self, id: SegmentId, size_bytes: int, times: Times) -> None:
        """Note that all that can be copied of a segment is there."""
        self._put_entry(id, size_bytes, times)

    def _put_entry(self, id: SegmentId, size_bytes: int, times: Times) -> None:
        begin_ms, end_ms = times
        now_ms = self._clock.now_ms()
        if begin_ms == NEVER_WRITTEN_MS:
            end_ms = now_ms  # Java's expiry deletes what has no end time
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
        """Delete segments: consume queue first, newest first, so that what is left at any moment
        is whole. Raises Unavailable; what is gone until then is gone from the metadata too."""
        ordered = sorted(segments, key=lambda s: (s.id.type, s.id.base_offset), reverse=True)
        with self.metadata.batch():
            for segment in ordered:
                entry = self.metadata.segment(segment.id)
                if entry is not None:
                    entry.status, entry.size = STATUS_DELETED, 0
                    self.metadata.put_segment(entry)
        for segment in ordered:
            file = self.provider.open(segment.id, segment.listing)
            try:
                file.delete()
            finally:
                file.close()
        with self.metadata.batch():
            for segment in ordered:
                self.metadata.delete_segment(segment.id)

    def finish_removals(self) -> None:
        """Delete what an earlier run had announced as deleted. Raises Unavailable."""
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
