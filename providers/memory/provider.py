"""MemoryProvider: segments in this process's memory, like Java's default provider. They are not
durable."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from tieredstore.config import StoreConfig
from tieredstore.contracts.segment import (
    Buffer,
    Capabilities,
    SegmentId,
    SegmentListing,
    WriteResult,
    Written,
)
from tieredstore.contracts.tier_identity import EpochRecord, TierMark, WriterKind, WriterMark
from tieredstore.errors import Busy, Fenced
from tieredstore.providers import checks, naming
from tieredstore.providers.records import RecordingProvider


@dataclass(frozen=True, slots=True)
class MemoryFolder:
    """Records in memory (`providers.records`). Thread-safe. `records`: content of all records by
    path."""

    place: str
    records: dict[str, bytes]

    def list(self, depth: int = 1) -> Iterable[str]:
        del depth
        prefix = f"{self.place}/"
        paths = list(self.records)  # one step, while others write
        return [path.removeprefix(prefix) for path in paths if path.startswith(prefix)]

    def read(self, name: str) -> bytes | None:
        return self.records.get(f"{self.place}/{name}")

    def read_range(self, name: str, position: int, length: int) -> bytes | None:
        found = self.read(name)
        return None if found is None else found[position : position + length]

    def write(self, name: str, data: bytes) -> bool:
        return self.records.setdefault(f"{self.place}/{name}", data) is data

    def delete(self, names: Iterable[str]) -> None:
        for name in names:
            self.records.pop(f"{self.place}/{name}", None)


_CAPABILITIES = Capabilities(rewritable=True, conditional=False, durable=False)


class MemoryProvider(RecordingProvider):
    """Tier in memory, for tests and for Java's default configuration. Its content is lost when the
    process ends."""

    def __init__(self) -> None:
        self._contents: dict[SegmentId, bytearray] = {}
        self._lock = threading.Lock()
        self._writers: dict[str, MemoryWriterEpoch] = {}
        self._last_owners: dict[str, str] = {}
        self._epoch_count = 0
        self._identities: dict[str, str] = {}
        self._marks: dict[str, dict[int, WriterMark]] = {}
        self._records: dict[str, bytes] = {}

    @classmethod
    def from_config(cls, config: StoreConfig) -> MemoryProvider:
        """Create an empty tier. The configuration is ignored, because a tier in memory has no
        settings."""
        del config
        return cls()

    @property
    def capabilities(self) -> Capabilities:
        return _CAPABILITIES

    @property
    def url(self) -> str:
        return "memory://"

    def list(self, prefix: str = "") -> Iterable[SegmentListing]:
        parts = naming.parse_prefix(prefix)
        with self._lock:
            return tuple(
                SegmentListing(name, len(content))
                for name, content in self._contents.items()
                if tuple(name.path.split("/")[: len(parts)]) == parts
            )

    def open(self, id: SegmentId, listing: SegmentListing | None = None) -> MemoryFileSegment:
        del listing
        naming.relative_segment_path(id)
        return MemoryFileSegment(id, self._contents, self._lock)

    def acquire_writer(
        self, broker_name: str, *, take_over: bool = False, record: EpochRecord | None = None
    ) -> MemoryWriterEpoch:
        mark = None if record is None else record.mark  # epochs end with the process
        naming.check_name(broker_name, "broker name")
        with self._lock:
            current = self._writers.get(broker_name)
            if current is not None and not take_over:
                raise Fenced(f"memory tier: broker {broker_name!r} is held by {current.owner}")
            marks = self._marks.setdefault(broker_name, {})
            before = max(marks, default=0)
            if mark is not None and mark.after != before:
                raise Busy(f"memory tier: expected epoch {mark.after}, found {before}")
            mark = mark or WriterMark(uuid.uuid4().hex, uuid.uuid4().hex, WriterKind.JOB)
            identity = self._identities.setdefault(broker_name, mark.identity)
            marks[before + 1] = replace(mark, identity=identity)
            self._epoch_count += 1
            epoch = MemoryWriterEpoch(
                broker_name,
                f"epoch {self._epoch_count} of this process",
                self._writers,
                lambda: self._become_store(broker_name, before + 1),
            )
            self._writers[broker_name] = epoch
            self._last_owners[broker_name] = epoch.owner
            return epoch

    def _become_store(self, broker_name: str, number: int) -> None:
        marks = self._marks[broker_name]
        marks[number] = replace(marks[number], kind=WriterKind.STORE)

    def find_last_writer(self, broker_name: str) -> str | None:
        """Return a description of the last writer below a broker prefix, or None."""
        return self._last_owners.get(broker_name)

    def read_mark(self, broker_name: str, since: int) -> TierMark:
        """Return the identity of a broker's part and its writers. See `IdentifiedTier`."""
        del since
        naming.check_name(broker_name, "broker name")
        with self._lock:
            marks = dict(self._marks.get(broker_name, {}))
            identity = self._identities.get(broker_name)
        if marks:
            return TierMark(identity, max(marks), marks)
        return TierMark(is_empty=next(iter(self.list(broker_name)), None) is None)

    def list_brokers(self) -> Iterator[str]:
        """Yield the names of the brokers with segments or epochs."""
        with self._lock:
            names = {name.path.partition("/")[0] for name in self._contents} | set(self._marks)
        yield from sorted(names)

    def open_records(self, *names: str, is_secret: bool = False) -> MemoryFolder:
        """Return a folder of records, see `RecordingProvider`."""
        del is_secret
        return MemoryFolder("/".join(("memory:", *names)), self._records)

    def close(self) -> None:
        """No-op: the contents stay, because the provider may be used again."""


@dataclass(eq=False)
class MemoryWriterEpoch:
    """Ownership of one broker prefix, until it is released or taken over."""

    broker_name: str
    owner: str
    writers: dict[str, MemoryWriterEpoch]
    record_store: Callable[[], None]

    def check(self) -> None:
        current = self.writers.get(self.broker_name)
        if current is not self:
            held = f"held by {current.owner}" if current is not None else "released"
            raise Fenced(
                f"memory tier: broker {self.broker_name!r} was held by {self.owner}, now {held}"
            )

    def confirm(self) -> None:
        """No-op: `check` reads the current owner."""
        self.check()

    def become_store(self) -> None:
        """Mark the epoch as owned by a store, not by a job."""
        self.check()
        self.record_store()

    def release(self) -> None:
        if self.writers.get(self.broker_name) is self:
            del self.writers[self.broker_name]


class MemoryFileSegment:
    """Segment of a MemoryProvider. The segment exists once its first byte is written."""

    PROVIDER: ClassVar = MemoryProvider
    """Provider for a configuration that names this segment class, as Java's configurations do."""

    def __init__(
        self, id: SegmentId, contents: dict[SegmentId, bytearray], lock: threading.Lock
    ) -> None:
        self.id = id
        self._contents = contents
        self._lock = lock
        self._sealed = False

    def size(self) -> int:
        return len(self._contents.get(self.id, b""))

    def write(self, position: int, buffers: Sequence[Buffer]) -> WriteResult:
        checks.check_range(self.id, position, 0)
        if self._sealed:
            raise checks.make_sealed_error(self.id, position)
        data = b"".join(buffers)
        with self._lock:
            size = len(self._contents.get(self.id, b""))
            if position > size:
                raise checks.make_hole_error(self.id, position, size)
            if data or size:
                content = self._contents.setdefault(self.id, bytearray())
                content[position:] = data
            return Written(position + len(data))

    def read(self, position: int, length: int) -> memoryview:
        checks.check_range(self.id, position, length)
        with self._lock:
            found = bytes(self._contents.get(self.id, b"")[position : position + length])
        if len(found) < length:
            raise checks.make_short_read_error(self.id, position, length, len(found))
        return memoryview(found)

    def read_nowait(self, position: int, length: int) -> memoryview | None:
        checks.check_range(self.id, position, length)
        with self._lock:
            found = bytes(self._contents.get(self.id, b"")[position : position + length])
        return memoryview(found) if len(found) == length else None

    def seal(self) -> None:
        self._sealed = True

    def delete(self) -> None:
        with self._lock:
            self._contents.pop(self.id, None)

    def close(self) -> None:
        """No-op: a handle has no resources."""
