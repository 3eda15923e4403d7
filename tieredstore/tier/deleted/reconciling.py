"""Reconciles metadata with the records of deleted topics before the metadata is used. Metadata may
be older than a deletion: it may be a restored copy, or the writer may have been killed between
writing the record and changing the metadata. A segment is deleted only if a record shows that it
belongs to a deleted generation."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping

from tieredstore.contracts.metadata_store import (
    STATUS_DELETED,
    FileSegmentMetadata,
    MetadataStore,
)
from tieredstore.contracts.segment import FileSegmentType, SegmentId, SegmentListing
from tieredstore.message.names import queue_path
from tieredstore.tier.deleted.records import DeletedTopic, split_path
from tieredstore.tier.deleted.register import DeletedTopics

_log = logging.getLogger(__name__)


def reconcile(deleted: DeletedTopics, metadata: MetadataStore, broker: str, now_ms: int) -> None:
    """Remove the entries of deleted topic generations from the metadata. Segments that may still be
    in the tier are marked for deletion instead. The writer calls this before it finishes pending
    deletions."""
    with metadata.batch():
        for topic, record in deleted.list_topics().items():
            entry = metadata.topic(topic)
            queue_ids = {queue.queue_id for queue in metadata.queues(topic)} | set(record.queues)
            paths = [queue_path(broker, topic, queue_id) for queue_id in sorted(queue_ids)]
            segments = [entry for path in paths for entry in metadata.segments(path)]
            if entry is not None and entry.topic_id >= record.next_id:
                _trust_present(deleted, metadata, topic, record, segments)
                continue
            for segment in segments:
                _forget(metadata, record, segment, now_ms)
            if entry is not None:
                _log.warning(
                    "topic %s: the metadata has the generation with id %d, which was deleted. The "
                    "next one has id %d",
                    topic,
                    entry.topic_id,
                    record.next_id,
                )
                metadata.delete_topic(topic)


def _trust_present(
    deleted: DeletedTopics,
    metadata: MetadataStore,
    topic: str,
    record: DeletedTopic,
    segments: Iterable[FileSegmentMetadata],
) -> None:
    """Keep the metadata entries of a topic that was recreated after its deletion. This includes
    entries at offsets that the deleted topic used, because a Java broker starts a recreated topic
    at 0."""
    before = [segment for segment in segments if not _is_behind(record, segment)]
    if any(segment.status != STATUS_DELETED for segment in before):
        deleted.settle([topic])
    elif not record.is_pending:
        for segment in before:
            metadata.delete_segment(segment.id)


def _forget(
    metadata: MetadataStore, record: DeletedTopic, segment: FileSegmentMetadata, now_ms: int
) -> None:
    if record.is_pending and not _is_behind(record, segment):
        announce_deletion(metadata, segment.id, now_ms)
    else:
        metadata.delete_segment(segment.id)


def announce_deletion(metadata: MetadataStore, segment: SegmentId, now_ms: int) -> None:
    """Mark a segment for deletion in the metadata."""
    metadata.put_segment(
        FileSegmentMetadata(
            *(segment.path, segment.type, segment.base_offset),
            status=STATUS_DELETED,
            create_timestamp_ms=now_ms,
        )
    )


def take_in(
    deleted: DeletedTopics,
    metadata: MetadataStore,
    listings: Mapping[SegmentId, SegmentListing],
    unknown: Mapping[str, list[SegmentId]],
    now_ms: int,
) -> dict[str, list[SegmentId]]:
    """Register segments of previously deleted topics that are in the tier but not in the metadata.
    Segments written after the deletion are added. Segments of the deleted topic are marked for
    deletion. `unknown`: segments that the metadata lacks, by queue path. Returns the segments that
    remain unknown."""
    rest: dict[str, list[SegmentId]] = {}
    missing = {
        topic
        for path in unknown
        if (topic := split_path(path)[0]) and metadata.topic(topic) is None
    }
    with metadata.batch():
        for path, ids in unknown.items():
            topic, queue_id = split_path(path)
            record = deleted.get(topic)
            if record is None or queue_id is None:
                rest[path] = ids
                continue
            going = {
                one
                for one in ids
                if record.is_pending and not record.is_behind(queue_id, one.type, one.base_offset)
            }
            for one in going:
                announce_deletion(metadata, one, now_ms)
            present = [one for one in ids if one not in going]
            if present and topic in missing:
                _log.warning("%s: %d segments are taken in from the tier", path, len(present))
                _add_queue(deleted, metadata, listings, present, now_ms)
            elif present:
                rest[path] = present
    return rest


def announce_index(
    metadata: MetadataStore, listings: Mapping[SegmentId, SegmentListing], now_ms: int
) -> None:
    """Register the index segments that the metadata lacks because it is an older copy. The index
    uses the complete ones when it is opened."""
    unknown = [
        one
        for one, item in listings.items()
        if one.type is FileSegmentType.INDEX and item.size_bytes and metadata.segment(one) is None
    ]
    if not unknown:
        return
    _log.warning("%d segments of the index are taken in from the tier", len(unknown))
    with metadata.batch():
        for one in unknown:
            metadata.put_segment(
                FileSegmentMetadata(
                    *(one.path, one.type, one.base_offset),
                    create_timestamp_ms=now_ms,
                    end_timestamp_ms=now_ms,  # Java's expiry deletes segments without it
                )
            )


def _add_queue(
    deleted: DeletedTopics,
    metadata: MetadataStore,
    listings: Mapping[SegmentId, SegmentListing],
    ids: Iterable[SegmentId],
    now_ms: int,
) -> None:
    for one in ids:
        topic, queue_id = split_path(one.path)
        assert queue_id is not None
        deleted.add_topic(topic)
        metadata.add_queue(topic, queue_id)
        metadata.put_segment(
            FileSegmentMetadata(
                *(one.path, one.type, one.base_offset),
                size=listings[one].size_bytes,
                create_timestamp_ms=now_ms,
                end_timestamp_ms=now_ms,  # Java's expiry deletes segments without it
            )
        )


def _is_behind(record: DeletedTopic, segment: FileSegmentMetadata) -> bool:
    _, queue_id = split_path(segment.path)
    return queue_id is None or record.is_behind(queue_id, segment.type, segment.base_offset)
