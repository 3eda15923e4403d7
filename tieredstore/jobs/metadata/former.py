"""Facts from earlier metadata that are not in the tier itself."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from tieredstore.contracts.dispatch_source import QueueKey
from tieredstore.contracts.metadata_store import STATUS_DELETED, FileSegmentMetadata, MetadataStore
from tieredstore.contracts.segment import FileSegmentType
from tieredstore.message.names import queue_path
from tieredstore.tier.deleted.records import DeletedTopic


class FormerEnds(NamedTuple):
    """End offsets of a queue's files, bytes."""

    commit_log: int
    consume_queue: int


@dataclass(frozen=True, slots=True)
class FormerMetadata:
    """Facts from earlier metadata. `taken_ms`: time of that metadata, epoch ms. `topic_ids`: id of
    each topic. `queues`: queues that ever had messages. `filled`: queues that had messages at that
    time."""

    taken_ms: int = 0
    topic_ids: Mapping[str, int] = field(default_factory=dict)
    queues: Mapping[QueueKey, FormerEnds] = field(default_factory=dict)
    filled: frozenset[QueueKey] = frozenset()

    @classmethod
    def of(cls, metadata: MetadataStore, broker: str, taken_ms: int) -> FormerMetadata:
        """Return the facts in loaded metadata that are not in the tier itself."""
        ids = {topic.topic: topic.topic_id for topic in metadata.topics()}
        queues = {}
        filled = set()
        for topic in ids:
            for queue in metadata.queues(topic):
                key = QueueKey(topic, queue.queue_id)
                path = queue_path(broker, *key)
                log = _find_end(metadata, path, FileSegmentType.COMMIT_LOG)
                units = _find_end(metadata, path, FileSegmentType.CONSUME_QUEUE)
                if units:
                    queues[key] = FormerEnds(log, units)
                if any(entry.size for entry in metadata.segments(path)):
                    filled.add(key)
        return cls(taken_ms, ids, queues, frozenset(filled))

    def drop_deleted(self, deleted: Mapping[str, DeletedTopic]) -> FormerMetadata:
        """Return a copy without the topics that were deleted at any time."""
        gone = {
            topic
            for topic, topic_id in self.topic_ids.items()
            if topic in deleted and topic_id < deleted[topic].next_id
        }
        if not gone:
            return self
        return FormerMetadata(
            self.taken_ms,
            {topic: number for topic, number in self.topic_ids.items() if topic not in gone},
            {key: ends for key, ends in self.queues.items() if key.topic not in gone},
            self.filled,
        )


def make_segments(
    broker: str, ends: Mapping[QueueKey, FormerEnds], now_ms: int
) -> Iterator[FileSegmentMetadata]:
    """Yield metadata entries of empty segments, which record the ends of queues whose last messages
    have expired or are lost."""
    for key, end in ends.items():
        for kind, offset in zip(_KINDS, end, strict=True):
            yield FileSegmentMetadata(
                queue_path(broker, *key),
                kind,
                offset,
                create_timestamp_ms=now_ms,
                end_timestamp_ms=now_ms,  # Java expires segments without it.
            )


NOTHING_FORMER: Final = FormerMetadata()
_KINDS = (FileSegmentType.COMMIT_LOG, FileSegmentType.CONSUME_QUEUE)


def _find_end(metadata: MetadataStore, path: str, kind: FileSegmentType) -> int:
    entries = metadata.segments(path, kind)
    return max((e.base_offset + e.size for e in entries if e.status != STATUS_DELETED), default=0)
