"""MemoryProvider: segments in this process's memory. Java's default; nothing of it is durable."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, ClassVar

from tieredstore.contracts.backups import BackupName
from tieredstore.contracts.epoch_record import EpochRecord
from tieredstore.contracts.segment import (
    Buffer,
    Capabilities,
    SegmentId,
    SegmentListing,
    WriteResult,
    Written,
)
from tieredstore.errors import Fenced, Unavailable
from tieredstore.providers import checks, naming

if TYPE_CHECKING:
    from tieredstore.config import StoreConfig

_CAPABILITIES = Capabilities(rewritable=True, conditional=False, durable=False)


class MemoryProvider:
    """A tier that ends with the process. For tests, and for Java's default configuration."""

    def __init__(self) -> None:
        self._contents: dict[SegmentId, bytearray] = {}
        self._lock = threading.Lock()
        self._writers: dict[str, MemoryWriterEpoch] = {}
        self._last_owners: dict[str, str] = {}
        self._epoch_count = 0
        self._backups: dict[tuple[str, BackupName], bytes] = {}

    @classmethod
    def from_config(cls, config: StoreConfig) -> MemoryProvider:
        """Make an empty tier; no configuration key changes it."""
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
        del record  # epochs end with the process
        naming.check_name(broker_name, "broker name")
        with self._lock:
            current = self._writers.get(broker_name)
            if current is not None and not take_over:
                raise Fenced(f"memory tier: broker {broker_name!r} is held by {current.owner}")
            self._epoch_count += 1
            epoch = MemoryWriterEpoch(
                broker_name, f"epoch {self._epoch_count} of this process", self._writers
            )
            self._writers[broker_name] = epoch
            self._last_owners[broker_name] = epoch.owner
            return epoch

    def find_last_writer(self, broker_name: str) -> str | None:
        """Describe the last writer below a broker prefix; None when there was none."""
        return self._last_owners.get(broker_name)

    def list_backups(self, broker_name: str) -> Sequence[BackupName]:
        naming.check_name(broker_name, "broker name")
        with self._lock:
            return sorted(name for broker, name in self._backups if broker == broker_name)

    def read_backup(self, broker_name: str, name: BackupName) -> bytes | None:
        return self._backups.get((broker_name, name))

    def write_backup(self, broker_name: str, name: BackupName, data: bytes) -> None:
        naming.check_name(broker_name, "broker name")
        with self._lock:
            if self._backups.setdefault((broker_name, name), data) is not data:
                raise Unavailable(f"memory tier: backup {name} is there already")

    def delete_backups(self, broker_name: str, names: Iterable[BackupName]) -> None:
        with self._lock:
            for name in names:
                self._backups.pop((broker_name, name), None)

    def close(self) -> None:
        """Keep the contents: the same object may be used again."""


class MemoryWriterEpoch:
    """The right to write under one broker prefix, until it is released or taken over."""

    def __init__(self, broker_name: str, owner: str, writers: dict[str, MemoryWriterEpoch]) -> None:
        self._broker_name = broker_name
        self._owner = owner
        self._writers = writers

    @property
    def owner(self) -> str:
        return self._owner

    def check(self) -> None:
        current = self._writers.get(self._broker_name)
        if current is not self:
            held = f"held by {current.owner}" if current is not None else "released"
            raise Fenced(
                f"memory tier: broker {self._broker_name!r} was held by {self._owner}, now {held}"
            )

    def confirm(self) -> None:
        """Confirm at once: what `check` sees is the very present."""
        self.check()

    def release(self) -> None:
        if self._writers.get(self._broker_name) is self:
            del self._writers[self._broker_name]


class MemoryFileSegment:
    """One segment of a MemoryProvider. It is there once a byte was written to it."""

    PROVIDER: ClassVar = MemoryProvider
    """What a configuration means that names this class, as Java's do."""

    def __init__(
        self, id: SegmentId, contents: dict[SegmentId, bytearray], lock: threading.Lock
    ) -> None:
        self._id = id
        self._contents = contents
        self._lock = lock
        self._sealed = False

    @property
    def id(self) -> SegmentId:
        return self._id

    def size(self) -> int:
        return len(self._contents.get(self._id, b""))

    def write(self, position: int, buffers: Sequence[Buffer]) -> WriteResult:
        checks.check_range(self._id, position, 0)
        if self._sealed:
            raise checks.make_sealed_error(self._id, position)
        data = b"".join(buffers)
        with self._lock:
            size = len(self._contents.get(self._id, b""))
            if position > size:
                raise checks.make_hole_error(self._id, position, size)
            if data or size:
                content = self._contents.setdefault(self._id, bytearray())
                content[position:] = data
            return Written(position + len(data))

    def read(self, position: int, length: int) -> memoryview:
        checks.check_range(self._id, position, length)
        with self._lock:
            found = bytes(self._contents.get(self._id, b"")[position : position + length])
        if len(found) < length:
            raise checks.make_short_read_error(self._id, position, length, len(found))
        return memoryview(found)

    def read_nowait(self, position: int, length: int) -> memoryview | None:
        checks.check_range(self._id, position, length)
        with self._lock:
            found = bytes(self._contents.get(self._id, b"")[position : position + length])
        return memoryview(found) if len(found) == length else None

    def seal(self) -> None:
        self._sealed = True

    def delete(self) -> None:
        with self._lock:
            self._contents.pop(self._id, None)

    def close(self) -> None:
        """Do nothing: nothing is held."""
