"""What metadata of an earlier time tells of a tier that the tier itself does not."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from tieredstore.contracts.dispatch_source import QueueKey
from tieredstore.contracts.metadata_store import FileSegmentMetadata, MetadataStore
from tieredstore.contracts.segment import FileSegmentType
from tieredstore.message.names import queue_path
from tieredstore.tier.flat.segment import STATUS_DELETED


class FormerEnds(NamedTuple):
    """Where the files of a queue ended, bytes."""

    commit_log: int
    consume_queue: int


@dataclass(frozen=True, slots=True)
class FormerMetadata:
    """taken_ms: when it was so, epoch ms; topic_ids: of each topic; queues: those that had messages
    once."""

    taken_ms: int = 0
    topic_ids: Mapping[str, int] = field(default_factory=dict)
    queues: Mapping[QueueKey, FormerEnds] = field(default_factory=dict)

    @classmethod
    def of(cls, metadata: MetadataStore, broker: str, taken_ms: int) -> FormerMetadata:
        """Take what is of use from metadata that is loaded."""
        ids = {topic.topic: topic.topic_id for topic in metadata.topics()}
        queues = {}
        for topic in ids:
            for queue in metadata.queues(topic):
                path = queue_path(broker, topic, queue.queue_id)
                log = _find_end(metadata, path, FileSegmentType.COMMIT_LOG)
                units = _find_end(metadata, path, FileSegmentType.CONSUME_QUEUE)
                if units:
                    queues[QueueKey(topic, queue.queue_id)] = FormerEnds(log, units)
        return cls(taken_ms, ids, queues)

    def make_segments(
        self, broker: str, found: Collection[QueueKey], now_ms: int
    ) -> Iterator[FileSegmentMetadata]:
        """Yield the empty segments with which queues go on that are not among those found: all that
        they had has expired."""
        for key, ends in self.queues.items():
            if key in found:
                continue
            for kind, end in zip(_KINDS, ends, strict=True):
                yield FileSegmentMetadata(
                    queue_path(broker, *key),
                    kind,
                    end,
                    create_timestamp_ms=now_ms,
                    end_timestamp_ms=now_ms,  # Java's expiry deletes what has none
                )


NOTHING_FORMER: Final = FormerMetadata()
_KINDS = (FileSegmentType.COMMIT_LOG, FileSegmentType.CONSUME_QUEUE)


def _find_end(metadata: MetadataStore, path: str, kind: FileSegmentType) -> int:
    entries = metadata.segments(path, kind)
    return max((e.base_offset + e.size for e in entries if e.status != STATUS_DELETED), default=0)
