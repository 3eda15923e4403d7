"""ChunkSketchProvider: segments as logs of immutable objects, over any ObjectMap.

It proves that the segment contract fits an object store with conditional create: append only, no
byte is ever written twice, a lost race is told. Clustering, batching, grace times before garbage
is deleted and multipart uploads are an object store's own matters and not here.
"""

from __future__ import annotations

import os
import socket
import threading
import uuid
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from tieredstore.contracts.segment import (
    Buffer,
    Capabilities,
    FencedWrite,
    SegmentId,
    SegmentListing,
    UnknownWrite,
    WriteResult,
    Written,
)
from tieredstore.errors import Busy, Corrupt, Fenced, Unavailable
from tieredstore.message.crc import crc32
from tieredstore.providers import checks, naming
from tieredstore.providers.chunk_chain import (
    WHOLE_NAME,
    Chain,
    chunk_name,
    merged_name,
    read_chain,
)
from tieredstore.providers.object_map import MemoryObjectMap, ObjectInfo, ObjectMap

if TYPE_CHECKING:
    from tieredstore.config import StoreConfig

_CAPABILITIES = Capabilities(
    rewritable=False, conditional=True, durable=False, preferred_batch_bytes=4 << 20
)
_MAX_TRIES = 5
_EPOCH_FOLDER = ".writer"


class ChunkSketchProvider:
    """A tier over an object map; `writer` is stamped on all that this provider writes."""

    def __init__(self, objects: ObjectMap | None = None, *, writer: str | None = None) -> None:
        self._objects = objects if objects is not None else MemoryObjectMap()
        self._writer = writer or f"{socket.gethostname()}:{os.getpid()}:{uuid.uuid4().hex[:8]}"

    @classmethod
    def from_config(cls, config: StoreConfig) -> ChunkSketchProvider:
        """An empty tier in memory; no key has a say in it."""
        del config
        return cls()

    @property
    def capabilities(self) -> Capabilities:
        return _CAPABILITIES

    @property
    def url(self) -> str:
        return "chunk-sketch://"

    @property
    def objects(self) -> ObjectMap:
        return self._objects

    def list(self, prefix: str = "") -> Iterable[SegmentListing]:
        """One listing; `token` is the Chain. Raises Corrupt for a chain with a hole."""
        parts = naming.parse_prefix(prefix)
        folders: dict[SegmentId, list[ObjectInfo]] = {}
        for found in self._objects.list("".join(f"{part}/" for part in parts)):
            id = _segment_id(found.key)  # noqa: A001 - the contract's name
            if id is not None:
                folders.setdefault(id, []).append(found)
        listings = []
        for id, objects in folders.items():  # noqa: A001
            chain = read_chain(objects, naming.relative_segment_path(id))
            listings.append(
                SegmentListing(id, chain.size_bytes, chain.sealed or chain.marked, chain)
            )
        return tuple(listings)

    def open(self, id: SegmentId, listing: SegmentListing | None = None) -> ChunkFileSegment:
        token = listing.token if listing is not None else None
        chain = token if isinstance(token, Chain) else None
        return ChunkFileSegment(id, self._objects, self._writer, chain)

    def acquire_writer(self, broker_name: str, *, take_over: bool = False) -> ChunkWriterEpoch:
        naming.check_name(broker_name, "broker name")
        return ChunkWriterEpoch.acquire(
            self._objects, f"{broker_name}/{_EPOCH_FOLDER}", self._writer, take_over=take_over
        )

    def close(self) -> None:
        """Nothing is held."""


class ChunkWriterEpoch:
    """Epoch n is the object `<broker>/.writer/<n>`, made by conditional create; `<n>.released`
    ends it. The highest one counts."""

    def __init__(self, objects: ObjectMap, folder: str, number: int, owner: str) -> None:
        self._objects = objects
        self._folder = folder
        self._number = number
        self._owner = owner

    @classmethod
    def acquire(
        cls, objects: ObjectMap, folder: str, owner: str, *, take_over: bool
    ) -> ChunkWriterEpoch:
        for _ in range(_MAX_TRIES):
            number, released = _latest_epoch(objects, folder)
            if number and not released and not take_over:
                raise Fenced(f"{folder}: held by {_epoch_owner(objects, folder, number)}")
            name = f"{folder}/{number + 1:020d}"
            if objects.put_if_absent(name, owner.encode(), {}):
                return cls(objects, folder, number + 1, owner)
        raise Busy(f"{folder}: {_MAX_TRIES} other writers were faster")

    @property
    def owner(self) -> str:
        return self._owner

    def check(self) -> None:
        number, released = _latest_epoch(self._objects, self._folder)
        if number != self._number:
            owner = _epoch_owner(self._objects, self._folder, number)
            raise Fenced(f"{self._folder}: epoch {self._number} was taken over by {owner}")
        if released:
            raise Fenced(f"{self._folder}: epoch {self._number} was released")

    def release(self) -> None:
        self._objects.put_if_absent(f"{self._folder}/{self._number:020d}.released", b"", {})


class ChunkFileSegment:
    """One segment. Writes append only; its chain is listed when needed and then remembered."""

    def __init__(
        self, id: SegmentId, objects: ObjectMap, writer: str, chain: Chain | None = None
    ) -> None:
        self._id = id
        self._folder = naming.relative_segment_path(id)
        self._objects = objects
        self._writer = writer
        self._chain = chain
        self._lock = threading.Lock()
        self._sealed = False

    @property
    def id(self) -> SegmentId:
        return self._id

    def size(self) -> int:
        return self._list().size_bytes

    def write(self, position: int, buffers: Sequence[Buffer]) -> WriteResult:
        """Append. At a position below the size: Written when it is this writer's very write,
        UnknownWrite when it is another write of this writer, else FencedWrite."""
        checks.check_range(self._id, position, 0)
        data = b"".join(buffers)
        with self._lock:
            if self._sealed:
                raise checks.sealed(self._id, position)
            remembered = self._chain
            if remembered is not None and remembered.size_bytes == position:
                chain = remembered
            else:
                chain = self._list()
            if position > chain.size_bytes:
                raise checks.beyond_end(self._id, position, chain.size_bytes)
            if chain.sealed or chain.marked:
                return FencedWrite(chain.size_bytes, "the seal")
            if position < chain.size_bytes or not data:
                return self._compare(position, data, chain)
            return self._append(position, data)

    def read(self, position: int, length: int) -> memoryview:
        checks.check_range(self._id, position, length)
        remembered = self._chain
        found = self._read(remembered, position, length) if remembered is not None else None
        if found is None:  # nothing known yet, longer by now, or merged underneath
            chain = self._list()
            found = self._read(chain, position, length)
            if found is None:
                there = max(0, chain.size_bytes - position)
                raise checks.ends_before(self._id, position, length, there)
        return memoryview(found)

    def read_nowait(self, position: int, length: int) -> memoryview | None:
        """Nothing of an object store is at hand."""
        checks.check_range(self._id, position, length)
        return None

    def seal(self) -> None:
        """Marker first: from then on no append succeeds. Then the whole content, then garbage."""
        with self._lock:
            chain = self._list()
            while not (chain.sealed or chain.marked):
                self._create(chunk_name(chain.size_bytes), b"")
                chain = self._list()
            if not chain.sealed:
                content = self._read(chain, 0, chain.size_bytes)
                if content is None:
                    raise Corrupt(f"segment {self._id}: an object was lost while it was sealed")
                self._create(WHOLE_NAME, content)
                chain = self._list()
            self._collect(chain)
            self._sealed = True

    def merge(self) -> None:
        """One object instead of the run of writes at the end; then delete what it replaces."""
        with self._lock:
            chain = self._list()
            run = [extent for extent in chain.extents if extent.name.startswith("c.")]
            if len(run) > 1 and not chain.sealed:
                start, end = run[0].start, run[-1].end
                content = self._read(chain, start, end - start)
                if content is None:
                    raise Corrupt(f"segment {self._id}: an object was lost while it was merged")
                self._create(merged_name(start, end), content)
                chain = self._list()
            self._collect(chain)

    def delete(self) -> None:
        """From the end to the start, so that what a crash leaves is a shorter segment and not one
        with a hole. The marker last: a late writer stays out until all is gone."""
        with self._lock:
            self._chain = None
            found = sorted(self._objects.list(f"{self._folder}/"), key=_deletion_order)
            for info in reversed(found):
                self._objects.delete(info.key)

    def close(self) -> None:
        self._chain = None

    def _list(self) -> Chain:
        self._chain = read_chain(self._objects.list(f"{self._folder}/"), self._folder)
        return self._chain

    def _collect(self, chain: Chain) -> None:
        for name in chain.garbage:
            self._objects.delete(f"{self._folder}/{name}")

    def _append(self, position: int, data: bytes) -> WriteResult:
        key = f"{self._folder}/{chunk_name(position)}"
        reason = "the store was busy"
        for _ in range(_MAX_TRIES):
            try:
                if self._objects.put_if_absent(key, data, self._stamp(data)):
                    return self._appended(position, data)
                return self._compare(position, data, self._list())
            except Busy:
                continue  # surely not applied
            except Unavailable as error:
                # it may have been applied: the same key again tells, by its condition
                reason = str(error)
                self._chain = None
        return UnknownWrite(f"segment {self._id}: write at {position}: {reason}")

    def _appended(self, position: int, data: bytes) -> WriteResult:
        """The key was free, which it also is once another writer's object of that name was merged
        away: only bytes that the chain shows are in the segment."""
        chain = self._list()
        if self._read(chain, position, len(data)) == data:
            return Written(position + len(data))
        return FencedWrite(chain.size_bytes, "a writer whose objects were merged since")

    def _compare(self, position: int, data: bytes, chain: Chain) -> WriteResult:
        """What a write at a position that is taken means."""
        if not data:
            return Written(position)
        head = self._objects.head(f"{self._folder}/{chunk_name(position)}")
        if head is None:
            return UnknownWrite(
                f"segment {self._id}: position {position} is inside a larger object"
            )
        if head.size_bytes == 0:
            return FencedWrite(chain.size_bytes, "the seal")
        if head.metadata.get("w") != self._writer:
            return FencedWrite(chain.size_bytes, head.metadata.get("w", "unknown"))
        if head.size_bytes == len(data) and head.metadata == self._stamp(data):
            return Written(position + len(data))
        return UnknownWrite(
            f"segment {self._id}: position {position} holds another write of this writer, "
            f"{head.size_bytes} bytes"
        )

    def _create(self, name: str, data: bytes) -> None:
        """An object whose content is the same whoever makes it."""
        self._objects.put_if_absent(f"{self._folder}/{name}", data, self._stamp(data))

    def _stamp(self, data: bytes) -> dict[str, str]:
        return {"w": self._writer, "crc": f"{crc32(data):08x}"}

    def _read(self, chain: Chain, position: int, length: int) -> bytes | None:
        pieces = []
        for extent in chain.overlapping(position, length):
            first = max(position, extent.start)
            count = min(position + length, extent.end) - first
            key = f"{self._folder}/{extent.name}"
            piece = self._objects.get_range(key, first - extent.start, count)
            if piece is None or len(piece) != count:
                return None
            pieces.append(piece)
        found = b"".join(pieces)
        return found if len(found) == length else None


def _segment_id(key: str) -> SegmentId | None:
    """The segment that an object belongs to; None for an object that is not a segment's."""
    parts = key.split("/")
    if len(parts) != 6:
        return None
    segment_type = naming.parse_type_name(parts[3])
    base_offset = naming.parse_segment_file_name(parts[4])
    if segment_type is None or base_offset is None or not naming.is_queue_id(parts[2]):
        return None
    return SegmentId("/".join(parts[:3]), segment_type, base_offset)


def _latest_epoch(objects: ObjectMap, folder: str) -> tuple[int, bool]:
    """(number, released); number 0 when there never was one."""
    names = {found.key.removeprefix(f"{folder}/") for found in objects.list(f"{folder}/")}
    numbers = [int(name) for name in names if name.isdigit()]
    latest = max(numbers, default=0)
    return latest, f"{latest:020d}.released" in names


def _epoch_owner(objects: ObjectMap, folder: str, number: int) -> str:
    content = objects.get_range(f"{folder}/{number:020d}", 0, 1024)
    return content.decode(errors="replace") if content else "unknown"


def _deletion_order(info: ObjectInfo) -> tuple[bool, bool, str]:
    """Sorts the marker first, then the whole content, then by start."""
    name = info.key.rpartition("/")[2]
    return info.size_bytes > 0, name != WHOLE_NAME, name.partition(".")[2]
