"""SegmentProvider and FileSegment: the contract of a storage backend. A provider holds the segments
of one tier. Calls block and are thread-safe. Only the tier uses asyncio. Names and paths:
`docs/formats/tier-layout.md`. A write is first *stored*, then *confirmed*. `FileSegment.write`
returns Written for stored bytes. The bytes count after a fence check that began after the write
returned (`WriterEpoch.confirm`). From then on every later epoch will find these bytes, whatever the
clocks say and however long this process pauses. Two other kinds of bytes need such a check too:
bytes of a write whose reply was lost, and bytes in a listing made under the epoch. Never report
bytes as written before they are confirmed."""

from __future__ import annotations

import enum
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias, runtime_checkable

from tieredstore.contracts.tier_identity import EpochRecord

Buffer: TypeAlias = bytes | bytearray | memoryview


class FileSegmentType(enum.IntEnum):
    """Content type of a segment. The value is `type` in the metadata JSON."""

    COMMIT_LOG = 0
    CONSUME_QUEUE = 1
    INDEX = 2


@dataclass(frozen=True, slots=True)
class SegmentId:
    """Name of a segment, the same on every provider. `path`: logical path
    `brokerName/topic/queueId`. `base_offset`: offset of the segment's first byte in its file
    (bytes)."""

    path: str
    type: FileSegmentType
    base_offset: int

    def __str__(self) -> str:
        return f"{self.path}/{self.type.name}@{self.base_offset}"


@dataclass(frozen=True, slots=True)
class SegmentListing:
    """One segment of a listing. `token`: opaque value of the provider, such as chunk extents.
    `objects`: number of files or objects that hold the segment's content. `stamp`: equal in two
    listings if the file of this name was neither replaced nor written between the listings. None if
    the provider cannot detect this."""

    id: SegmentId
    size_bytes: int
    sealed: bool = False
    token: object = None
    objects: int = 1
    stamp: int | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Capabilities:
    """Capabilities of a provider. `rewritable`: bytes at a position may be written again, to repair
    a torn write in place. `conditional`: a write that loses a race gets Fenced instead of
    overwriting. `durable`: written bytes survive the process. Without `durable`, bytes never count
    as stored. `preferred_batch_bytes`: cheapest size of a write, or 0 for no preference.
    `concurrent_reads`: number of reads over a network that take about as long together as one read.
    `paired`: the provider's segments are PairedSegments, because two writes together cost no more
    than one. `gathered_bytes`: small writes that may wait are stored together up to this size (see
    `contracts.gathering`), or 0 for one object each."""

    rewritable: bool
    conditional: bool
    durable: bool
    preferred_batch_bytes: int = 0
    concurrent_reads: int = 16
    paired: bool = False
    gathered_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Written:
    """Result of a write that stored all bytes, as durably as the provider promises. If the write
    may wait (`Companion.may_wait`), its bytes may not be stored yet. They are stored and confirmed
    when `WriterEpoch.confirm` returns."""

    size_bytes: int


@dataclass(frozen=True, slots=True)
class FencedWrite:
    """Result of a write that wrote nothing, because another writer has written at the position.
    `stale`: the other writer lost its epoch to this writer, or the segment is sealed. In both cases
    a new segment may continue at this position. If not `stale`, `writer` is the current owner of
    the epoch."""

    size_bytes: int
    writer: str
    stale: bool = False


@dataclass(frozen=True, slots=True)
class UnknownWrite:
    """Result of a write with an unknown outcome: some, all or none of the bytes may be stored. The
    caller compares the stored bytes before it continues."""

    reason: str


WriteResult: TypeAlias = Written | FencedWrite | UnknownWrite


@runtime_checkable
class FileSegment(Protocol):
    """One open segment. Positions are bytes from the start of the segment."""

    @property
    def id(self) -> SegmentId: ...

    def size(self) -> int:
        """Return the real length in bytes, as the backend reports it, or 0 if the segment does not
        exist. Raises Unavailable instead of guessing."""

    def write(self, position: int, buffers: Sequence[Buffer]) -> WriteResult:
        """Write the concatenation of `buffers` at `position`, and create the segment if needed. On
        a rewritable provider the segment ends after these bytes: the rest of a torn write is gone.
        `position` beyond the size is Invalid, because segments have no holes. An unknown outcome is
        returned as UnknownWrite and never raised. Unavailable is raised only if it is certain that
        nothing was written."""

    def read(self, position: int, length: int) -> memoryview:
        """Read exactly `length` bytes. Raises Corrupt if the segment ends earlier, Unavailable on a
        backend error. Never fills missing bytes with zeros."""

    def read_nowait(self, position: int, length: int) -> memoryview | None:
        """Return the bytes if they can be read without blocking (page cache, memory), else None."""

    def seal(self) -> None:
        """Seal the segment against writes. Idempotent."""

    def delete(self) -> None:
        """Delete the segment. Idempotent. Raises Unavailable if the segment still exists
        afterwards."""

    def close(self) -> None:
        """Release the resources of this object. Idempotent."""


@dataclass(frozen=True, slots=True)
class Companion:
    """Bytes that are written together with a write to another segment of the same queue, and must
    not be stored before that write. For example, units must not be stored before their messages.
    `segment`, `position`: where the companion's bytes are written (bytes). `may_wait`: whether both
    writes may be stored as late as `WriterEpoch.confirm`, because the caller does not read them
    earlier."""

    segment: FileSegment
    position: int
    buffers: Sequence[Buffer]
    may_wait: bool = False


@runtime_checkable
class PairedSegment(FileSegment, Protocol):
    """Segment that can be written together with another segment. Optional. A caller makes two
    separate writes if a segment is not a PairedSegment, or if `Capabilities.paired` is False."""

    def write_with(
        self, position: int, buffers: Sequence[Buffer], companion: Companion
    ) -> tuple[WriteResult, WriteResult | None]:
        """Write as `write` does, together with the companion's bytes. Both writes are stored, or
        neither, or the outcome of both is unknown. Returns the result for this segment and for the
        companion. None for the companion means that the companion's bytes were not sent and need a
        separate write. Raises the errors of `write`. After an error both outcomes are unknown."""


class WriterEpoch(Protocol):
    """Ownership of one broker prefix of a tier, until `release`."""

    @property
    def owner(self) -> str: ...

    def check(self) -> None:
        """Raise Fenced if ownership is known to be lost. If nothing is raised, ownership may still
        be lost: only `confirm` proves it."""

    def confirm(self) -> None:
        """Check ownership with a fence check that begins after this call. On return, all bytes that
        were stored before the call are confirmed. One fence check may serve many calls. A backend
        whose epoch cannot pass to another writer unnoticed, such as a file lock, need not send a
        request. Raises Fenced if ownership was lost, Unavailable if the check failed. After
        Unavailable the stored bytes stay stored, and a later call may confirm them."""

    def release(self) -> None: ...


@runtime_checkable
class SegmentProvider(Protocol):
    """Backend of one tier. The provider knows the cluster and the root folder or prefix, so paths
    do not contain them."""

    @property
    def capabilities(self) -> Capabilities: ...

    @property
    def url(self) -> str:
        """Location of the tier, for messages."""

    def list(self, prefix: str = "") -> Iterable[SegmentListing]:
        """List all segments whose logical path starts with `prefix` (whole path components), in any
        order, as they are found. A failed listing raises Unavailable, at the call or during the
        iteration. A failed listing never looks like an empty or a shorter listing."""

    def open(self, id: SegmentId, listing: SegmentListing | None = None) -> FileSegment:
        """Return a handle of a segment. Nothing is created or read before the first use of the
        handle. `listing`: the segment's entry in a listing, if the caller has one. It saves a
        request."""

    def acquire_writer(
        self, broker_name: str, *, take_over: bool = False, record: EpochRecord | None = None
    ) -> WriterEpoch:
        """Take the writer epoch of a broker prefix. Raises Fenced with the name of a live owner.
        `take_over`: end the epoch of a live owner if the backend can. `record`: claims of the state
        directory that the caller has locked. An epoch that was claimed with this record is taken
        over. A backend whose epochs end with the process ignores the record."""

    def close(self) -> None: ...


@runtime_checkable
class BoundedStop(Protocol):
    """Provider that bounds its shutdown time, even if its backend does not respond. Optional."""

    def begin_stop(self) -> None:
        """Stop throttling and start the backend's shutdown deadline. At the deadline, requests in
        flight end and no new request is sent. The caller must call `close` afterwards. Idempotent.
        Safe in a signal handler."""


@runtime_checkable
class DividedListing(Protocol):
    """Provider that lists the parts of a broker's prefix concurrently. Optional."""

    def expect_queues(self, broker_name: str, paths: Sequence[str]) -> None:
        """Divide later listings at these queue paths, which probably exist, so that several parts
        are listed at once. The results of a listing do not change."""


@runtime_checkable
class NumberedEpoch(Protocol):
    """Writer epoch with a number. Optional."""

    @property
    def number(self) -> int:
        """Number of the epoch. It is greater than the numbers of all earlier epochs of the same
        broker prefix."""


@runtime_checkable
class HelpedEpoch(NumberedEpoch, Protocol):
    """Writer epoch under which helper processes without epochs of their own may write. Optional."""

    def expect_helpers(self) -> None:
        """Expect that other processes write under this epoch until it ends. The owner then cannot
        assume that it knows all written bytes."""


@runtime_checkable
class WriterHelper(Protocol):
    """Provider that writes under a HelpedEpoch of another process. Optional."""

    def help_writer(self, broker_name: str, number: int) -> None:
        """Write below a broker prefix under the epoch of another process. `number`: number of that
        epoch. If another writer takes over, later writes raise Fenced or have no effect. The owner
        of the epoch makes a fence check before it counts these writes."""


@runtime_checkable
class WriterRecord(Protocol):
    """Provider that remembers the last writer below a broker prefix. Optional."""

    def find_last_writer(self, broker_name: str) -> str | None:
        """Describe the last writer below a broker prefix, for messages, or return None if there was
        no writer. Takes no epoch. Raises Unavailable."""


LocalCopy: TypeAlias = Callable[[str, int, int, int], "tuple[Buffer, Buffer] | None"]
"""Function of (queue path, first queue offset, number of messages, commit log offset of the first
message). Returns the messages as the tier stores them, and their units. Returns None if this
machine no longer has the messages."""


def order_in_groups(path: str) -> int:
    """Return the sort key of a queue in a group object: 32 bits of the logical path."""
    return zlib.crc32(path.encode())


@runtime_checkable
class GatheringProvider(Protocol):
    """Provider that stores writes of many queues together, and later sorts them by queue.
    Optional."""

    def use_local_copy(self, broker_name: str, read: LocalCopy) -> None:
        """Read stored messages of a broker from this machine instead of the tier, if this machine
        still has them. The provider does not use messages of this machine whose bytes differ from
        the bytes in the tier."""
