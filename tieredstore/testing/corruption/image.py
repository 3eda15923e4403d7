"""In-memory copy of a tier that tests can damage (see `corruption`)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import orjson

from tieredstore.contracts.metadata_store import FileSegmentMetadata, MetadataStore, TopicMetadata
from tieredstore.contracts.segment import FileSegmentType, SegmentId, SegmentProvider, Written
from tieredstore.errors import Unavailable
from tieredstore.message.consume_queue import UNIT_DTYPE, UNIT_SIZE

LOG, UNITS, INDEX = (
    FileSegmentType.COMMIT_LOG,
    FileSegmentType.CONSUME_QUEUE,
    FileSegmentType.INDEX,
)
_TABLES = {
    LOG: "commitLogFileSegmentTable",
    UNITS: "consumeQueueFileSegmentTable",
    INDEX: "indexFileSegmentTable",
}


@dataclass(frozen=True, slots=True)
class StoredAt:
    """Location of a message in a tier: the segments that hold its record and its unit, and the
    positions in them (bytes)."""

    path: str
    queue_offset: int
    offset: int
    size: int
    log: SegmentId
    position: int
    units: SegmentId
    unit_position: int


@dataclass(slots=True)
class TierImage:
    """Contents of a tier and of its metadata, which tests may change freely."""

    segments: dict[SegmentId, bytearray]
    entries: dict[SegmentId, FileSegmentMetadata]
    topics: dict[str, TopicMetadata]
    queues: list[tuple[str, str, int]]
    """(broker, topic, queue id) of each queue in the metadata."""

    @classmethod
    def read(cls, provider: SegmentProvider, metadata: MetadataStore) -> TierImage:
        """Read a tier into memory, and load its metadata. Raises Unavailable or Corrupt."""
        segments = {}
        for listing in provider.list():
            segment = provider.open(listing.id, listing)
            segments[listing.id] = bytearray(segment.read(0, listing.size_bytes))
            segment.close()
        metadata.load()
        topics = {topic.topic: topic for topic in metadata.topics()}
        queues = [
            (queue.broker_name, queue.topic, queue.queue_id)
            for topic in topics
            for queue in metadata.queues(topic)
        ]
        return cls(segments, {one.id: one for one in metadata.segments()}, topics, queues)

    def copy(self) -> TierImage:
        return TierImage(
            {one: bytearray(data) for one, data in self.segments.items()},
            {one: entry.copy() for one, entry in self.entries.items()},
            {
                name: TopicMetadata(t.topic_id, t.topic, t.status, t.reserve_time_hours)
                for name, t in self.topics.items()
            },
            list(self.queues),
        )

    def write(self, provider: SegmentProvider, state: Path) -> None:
        """Write the image to an empty tier and a state directory, which is created if missing.
        Raises Unavailable."""
        for one, data in self.segments.items():
            segment = provider.open(one)
            result = segment.write(0, [data])
            segment.close()
            if result != Written(len(data)):
                raise Unavailable(f"{id}: expected {len(data)} bytes written, found {result}")
        path = state / "config" / "tieredStoreMetadata.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(self.metadata_json())

    def metadata_json(self) -> bytes:
        """Return the metadata in the format brokers use (`docs/formats/metadata.md`)."""
        tables: dict[str, dict[str, dict[str, object]]] = {
            name: {} for name in (*_TABLES.values(), "queueMetadataTable")
        }
        for entry in self.entries.values():
            tables[_TABLES[entry.type]].setdefault(entry.path, {})[str(entry.base_offset)] = {
                "path": entry.path,
                "type": int(entry.type),
                "baseOffset": entry.base_offset,
                "status": entry.status,
                "size": entry.size,
                "createTimestamp": entry.create_timestamp_ms,
                "beginTimestamp": entry.begin_timestamp_ms,
                "endTimestamp": entry.end_timestamp_ms,
                "sealTimestamp": entry.seal_timestamp_ms,
            }
        for broker, topic, queue_id in self.queues:
            tables["queueMetadataTable"].setdefault(topic, {})[str(queue_id)] = {
                "queue": {"brokerName": broker, "queueId": queue_id, "topic": topic},
                "minOffset": -1,
                "maxOffset": -1,
                "updateTimestamp": 0,
            }
        topics = {
            name: {
                "topicId": topic.topic_id,
                "topic": name,
                "status": topic.status,
                "reserveTime": topic.reserve_time_hours,
                "updateTimestamp": topic.update_timestamp_ms,
            }
            for name, topic in self.topics.items()
        }
        serial = max((topic.topic_id for topic in self.topics.values()), default=0)
        return orjson.dumps({**tables, "topicMetadataTable": topics, "topicSerialNumber": serial})

    def list_segments(self, path: str, type: FileSegmentType) -> list[SegmentId]:
        """Return the segments of a file, in order of base offset."""
        found = (one for one in self.segments if one.path == path and one.type is type)
        return sorted(found, key=lambda one: one.base_offset)

    def messages(self, path: str) -> list[StoredAt]:
        """Return the unexpired messages of an intact queue."""
        logs = self.list_segments(path, LOG)
        found = []
        for units in self.list_segments(path, UNITS):
            table = np.frombuffer(bytes(self.segments[units]), UNIT_DTYPE)
            for number, unit in enumerate(table):
                offset, size = int(unit["physical_offset"]), int(unit["size"])
                log = next((one for one in reversed(logs) if one.base_offset <= offset), None)
                if log is not None:
                    found.append(
                        StoredAt(
                            path,
                            units.base_offset // UNIT_SIZE + number,
                            offset,
                            size,
                            log,
                            offset - log.base_offset,
                            units,
                            number * UNIT_SIZE,
                        )
                    )
        return found
