"""Writes a small Posix tier with its metadata, segment by segment. It uses only the formats and,
like a Java broker, writes no checksums."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from tests.kit.index_chains import put_item
from tieredstore.contracts.metadata_store import FileSegmentMetadata
from tieredstore.contracts.segment import (
    FileSegmentType,
    SegmentId,
    SegmentProvider,
    Written,
)
from tieredstore.message.consume_queue import UNIT_SIZE, pack_unit
from tieredstore.message.encoding import Message, encode_record
from tieredstore.message.hashes import tiered_key_hash
from tieredstore.message.hosts import encode_host
from tieredstore.message.index.tiered import IndexHeader, compact, pack_header, unsealed_size
from tieredstore.metadata.json_store import DefaultMetadataStore
from tieredstore.providers.posix.provider import PosixProvider
from tieredstore.scan.catalogue import TierCatalogue
from tieredstore.scan.findings import Finding, Severity
from tieredstore.scan.listing import load_catalogue
from tieredstore.scan.verify.verification import VerifyReport, verify

BROKER, CLUSTER = "broker-a", "cluster-a"
STORE_HOST = encode_host("10.0.0.7", 10911)
START_MS = 1_700_000_000_000
SLOTS, MAX_ITEMS = 8, 64
INDEX_BEGIN_MS = START_MS - 5_000
CODA = (16).to_bytes(4, "big") + bytes.fromhex("cbd43194") + bytes(8)


@dataclass
class Stored:
    """A message in the tier."""

    message: Message
    queue_offset: int
    offset: int
    record: bytes
    store_timestamp_ms: int


@dataclass
class BuiltTier:
    root: Path
    provider: PosixProvider
    metadata: DefaultMetadataStore
    stored: dict[tuple[str, int], list[Stored]] = field(default_factory=dict)

    @property
    def url(self) -> str:
        return f"file://{self.root / 'tier'}"

    @property
    def state(self) -> Path:
        return self.root / "state"

    def path(self, id: SegmentId) -> Path:
        return next((self.root / "tier").rglob(f"{id.path}/{id.type.name}/*{id.base_offset:020d}"))

    def catalogue(self, *, with_state: bool = False) -> TierCatalogue:
        if not with_state:
            return load_catalogue(self.provider)
        metadata = DefaultMetadataStore(self.metadata.path, BROKER, read_only=True)
        metadata.load()
        return load_catalogue(self.provider, metadata)

    def verify(self, *, with_state: bool = False) -> tuple[VerifyReport, list[Finding]]:
        findings: list[Finding] = []
        report = verify(self.provider, self.catalogue(with_state=with_state), findings.append)
        return report, findings

    def damage(self, *, with_state: bool = False) -> list[Finding]:
        _, findings = self.verify(with_state=with_state)
        return [finding for finding in findings if finding.severity is Severity.DAMAGE]


class TierBuilder:
    """Appends messages to queues, and rolls segments after a given number of messages. `times` are
    the store times of the next messages, in epoch ms. `checksums` adds block checksums to the
    segments."""

    def __init__(
        self,
        root: Path,
        *,
        messages_per_segment: int = 5,
        times: Iterable[int] | None = None,
        checksums: bool = False,
    ) -> None:
        (root / "tier").mkdir(parents=True)
        provider = PosixProvider(root / "tier", CLUSTER, fsync=False, checksums=checksums)
        metadata = DefaultMetadataStore(
            root / "state" / "config" / "tieredStoreMetadata.json", BROKER
        )
        metadata.load()
        self.built = BuiltTier(root, provider, metadata)
        self._per_segment = messages_per_segment
        self._times = iter(itertools.count(START_MS, 1_500) if times is None else times)

    def queue(
        self,
        topic: str,
        queue_id: int,
        messages: list[Message],
        *,
        first_offset: int = 0,
        hole: tuple[int, int] | None = None,
        with_coda: bool = False,
    ) -> list[Stored]:
        """Build one queue with all its messages. `hole` is (number, count): `count` messages are
        missing before message `number`, which begins a segment. `with_coda` writes a coda at the
        end of each commit log segment, as old writers did."""
        path = f"{BROKER}/{topic}/{queue_id}"
        self.built.metadata.add_topic(topic)
        self.built.metadata.add_queue(topic, queue_id)
        stored: list[Stored] = []
        offset = 0
        for number, message in enumerate(messages):
            time_ms = next(self._times)
            if hole is not None and number == hole[0]:
                first_offset += hole[1]
            if with_coda and number and number % self._per_segment == 0:
                offset += len(CODA)
            queue_offset = first_offset + number
            record = encode_record(message, queue_offset, offset, time_ms, store_host=STORE_HOST)
            stored.append(Stored(message, queue_offset, offset, record, time_ms))
            offset += len(record)
        for first in range(0, len(stored), self._per_segment):
            part = stored[first : first + self._per_segment]
            times = [item.store_timestamp_ms for item in part]
            self._segment(
                SegmentId(path, FileSegmentType.COMMIT_LOG, part[0].offset),
                b"".join(item.record for item in part) + CODA * with_coda,
                times,
            )
            units = b"".join(
                pack_unit(item.offset, len(item.record), item.message.tags_code) for item in part
            )
            base = part[0].queue_offset * UNIT_SIZE
            self._segment(SegmentId(path, FileSegmentType.CONSUME_QUEUE, base), units, times)
        self.built.stored[topic, queue_id] = stored
        return stored

    def index(self, *, with_empty_keys: bool = False) -> None:
        """Write all keys of all messages into one compacted index segment. `with_empty_keys` adds
        an empty key for each message, as Java does for KEYS that begin with a space."""
        buffer = bytearray(unsealed_size(SLOTS, MAX_ITEMS))
        buffer[:28] = pack_header(IndexHeader(INDEX_BEGIN_MS))
        times = []
        for (topic, queue_id), messages in self.built.stored.items():
            entry = self.built.metadata.topic(topic)
            assert entry is not None
            for item in messages:
                uniq = [item.message.uniq_key] if item.message.uniq_key else []
                empty = [""] if with_empty_keys else []
                for key in (*uniq, *item.message.keys, *empty):
                    put_item(
                        buffer,
                        SLOTS,
                        tiered_key_hash(topic, key),
                        entry.topic_id,
                        queue_id,
                        item.offset,
                        len(item.record),
                        item.store_timestamp_ms,
                    )
                    times.append(item.store_timestamp_ms)
        data = b"".join(compact(buffer, SLOTS))
        segment = SegmentId(f"{BROKER}/rmq_sys_INDEX/0", FileSegmentType.INDEX, 0)
        self._segment(segment, data, [INDEX_BEGIN_MS, max(times)])

    def _segment(self, id: SegmentId, data: bytes, times: list[int]) -> None:
        write_segment(self.built.provider, id, data)
        announce_segment(self.built.metadata, id, len(data), times)


def write_segment(provider: SegmentProvider, id: SegmentId, data: bytes) -> None:
    """Write a complete segment."""
    segment = provider.open(id)
    assert segment.write(0, [data]) == Written(len(data))
    segment.close()


def announce_segment(
    metadata: DefaultMetadataStore, id: SegmentId, size: int, times: list[int]
) -> None:
    """Record a segment in the metadata with the first and last store time of its messages."""
    metadata.put_segment(
        FileSegmentMetadata(
            id.path,
            id.type,
            id.base_offset,
            size=size,
            begin_timestamp_ms=min(times),
            end_timestamp_ms=max(times),
        )
    )


def message(topic: str, queue_id: int, number: int, **options: Any) -> Message:
    """Return a message with a unique body, unique keys and a unique UNIQ_KEY."""
    fields: dict[str, Any] = {
        "queue_id": queue_id,
        "tags": f"Tag{number % 3}",
        "keys": [f"{topic}-{queue_id}-{number}"],
        "uniq_key": f"{queue_id:02d}{number:04d}".rjust(32, "A"),
        "born_timestamp_ms": START_MS - 10 + number,
        "born_host": ("10.1.2.3", 4567),
        **options,
    }
    body = f"body {number} of {topic}/{queue_id} ".encode() * (1 + number % 4)
    return Message.create(topic, body, **fields)


def small_tier(root: Path) -> BuiltTier:
    """Build a tier of three queues in two topics, with several segments per queue and an index. One
    queue has IPv6 hosts."""
    builder = TierBuilder(root)
    builder.queue("orders", 0, [message("orders", 0, n) for n in range(12)], first_offset=100)
    builder.queue("orders", 1, [message("orders", 1, n) for n in range(4)])
    v6 = [message("over6", 0, n, born_host=("fe80::1", 9)) for n in range(6)]
    builder.queue("over6", 0, v6)
    builder.index()
    builder.built.metadata.flush()
    return builder.built


def flip(path: Path, position: int, mask: int = 0xFF) -> None:
    """Change one byte of a file in place."""
    with path.open("r+b") as file:
        file.seek(position)
        [byte] = file.read(1)
        file.seek(position)
        file.write(bytes([byte ^ mask]))


def units_of(path: Path) -> np.ndarray:
    """Return the units in a consume queue segment file."""
    from tieredstore.message.consume_queue import UNIT_DTYPE

    return np.frombuffer(path.read_bytes(), UNIT_DTYPE)
