"""A Posix tier that grows, expires and is recreated while a stream reads it."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tieredstore.contracts.metadata_store import FileSegmentMetadata
from tieredstore.contracts.segment import FileSegmentType, SegmentId, SegmentProvider, Written
from tieredstore.message.consume_queue import UNIT_SIZE, pack_unit
from tieredstore.message.encoding import Message, encode_record
from tieredstore.message.hosts import encode_host
from tieredstore.metadata.json_store import DefaultMetadataStore
from tieredstore.providers.posix.provider import PosixProvider

BROKER, CLUSTER = "broker-a", "cluster-a"
START_MS = 1_700_000_000_000
_HOST = encode_host("10.0.0.7", 10911)


@dataclass
class _Queue:
    """Positions in a queue: the next queue offset, the end of the commit log, and the base offsets
    of the last commit log and consume queue segments."""

    log_base: int = 0
    log_end: int = 0
    units_base: int = 0
    offset: int = 0


class GrowingTier:
    """A growing tier. The body of a message repeats `TOPIC/QUEUE/OFFSET `. Its key is KEY-OFFSET
    and its tag T0, T1 or T2. Store times advance by one second per message."""

    def __init__(self, root: Path, provider: SegmentProvider | None = None) -> None:
        self.root = root
        (root / "tier").mkdir(parents=True, exist_ok=True)
        self.provider = provider or PosixProvider(
            root / "tier", CLUSTER, fsync=False, checksums=False
        )
        self.metadata = DefaultMetadataStore(root / "state/config/tieredStoreMetadata.json", BROKER)
        self.metadata.load()
        self._queues: dict[tuple[str, int], _Queue] = {}
        self._life = 0

    @property
    def url(self) -> str:
        return f"file://{self.root / 'tier'}"

    def append(
        self,
        topic: str,
        queue_id: int,
        count: int,
        *,
        body_bytes: int = 100,
        with_units: bool = True,
        with_uniq_key: bool = True,
        uniq_keys: Sequence[str | None] | None = None,
        times_ms: Sequence[int] | None = None,
        sys_flag: int = 0,
        body: bytes | None = None,
    ) -> range:
        """Append messages and return their queue offsets. Without `with_units`, append only to the
        commit log. `uniq_keys` and `times_ms` override the UNIQ_KEYs and store times. `body` is
        used for all messages."""
        self.metadata.add_topic(topic)
        self.metadata.add_queue(topic, queue_id)
        queue = self._queues.setdefault((topic, queue_id), _Queue())
        first, place = queue.offset, queue.log_end
        records, units = [], []
        for offset in range(first, first + count):
            text = f"{topic}/{queue_id}/{offset} ".encode()
            uniq_key: str | None = f"{self._life:02d}{queue_id:02d}{offset:08d}".rjust(32, "A")
            if uniq_keys is not None or not with_uniq_key:
                uniq_key = None if uniq_keys is None else uniq_keys[offset - first]
            message = Message.create(
                topic,
                (text * (body_bytes // len(text) + 1))[:body_bytes] if body is None else body,
                queue_id=queue_id,
                tags=f"T{offset % 3}",
                keys=[f"KEY-{offset}"],
                uniq_key=uniq_key,
                sys_flag=sys_flag,
                born_timestamp_ms=START_MS,
                born_host=("10.1.2.3", 4567),
            )
            time_ms = START_MS + offset * 1000 + self._life
            if times_ms is not None:
                time_ms = times_ms[offset - first]
            record = encode_record(message, offset, place, time_ms, store_host=_HOST)
            units.append(pack_unit(place, len(record), message.tags_code))
            records.append(record)
            place += len(record)
        self._write(topic, queue_id, FileSegmentType.COMMIT_LOG, queue.log_base, queue.log_end,
                    b"".join(records))  # fmt: skip
        if with_units:
            self._write(topic, queue_id, FileSegmentType.CONSUME_QUEUE, queue.units_base,
                        first * UNIT_SIZE, b"".join(units))  # fmt: skip
            queue.log_end, queue.offset = place, first + count
        return range(first, first + count)

    def roll(self, topic: str, queue_id: int) -> None:
        """Start new segments of a queue for later messages."""
        queue = self._queues[topic, queue_id]
        queue.log_base, queue.units_base = queue.log_end, queue.offset * UNIT_SIZE

    def skip(self, topic: str, queue_id: int, count: int) -> None:
        """Skip `count` queue offsets, as if the broker had deleted the messages before their
        upload. The next append begins a new consume queue segment, but continues the commit log
        segment."""
        queue = self._queues[topic, queue_id]
        queue.offset += count
        queue.units_base = queue.offset * UNIT_SIZE

    def expire(self, topic: str, queue_id: int) -> None:
        """Delete the first commit log segment and the first consume queue segment."""
        for type_ in FileSegmentType.CONSUME_QUEUE, FileSegmentType.COMMIT_LOG:
            self.segments(topic, queue_id, type_)[0].unlink()

    def make_again(self, topic: str) -> None:
        """Delete a topic. The next append creates a new topic with the same name."""
        shutil.rmtree(next((self.root / "tier").glob(f"*_{CLUSTER}/{BROKER}/{topic}")))
        self.metadata.delete_topic(topic)
        for key in [key for key in self._queues if key[0] == topic]:
            del self._queues[key]
        self._life += 1

    def segments(self, topic: str, queue_id: int, type_: FileSegmentType) -> list[Path]:
        """Return the segment files of a queue, oldest first."""
        folder = f"*_{CLUSTER}/{BROKER}/{topic}/{queue_id}/{type_.name}"
        found = (self.root / "tier").glob(f"{folder}/[!.]*")
        return sorted(found, key=lambda path: path.name[-20:])

    def _write(
        self, topic: str, queue_id: int, type_: FileSegmentType, base: int, at: int, data: bytes
    ) -> None:
        id_ = SegmentId(f"{BROKER}/{topic}/{queue_id}", type_, base)
        segment = self.provider.open(id_)
        assert segment.write(at - base, [data]) == Written(at - base + len(data))
        segment.close()
        self.metadata.put_segment(
            FileSegmentMetadata(id_.path, type_, base, size=at - base + len(data))
        )
