"""SegmentProvider and FileSegment: the contract of a storage backend. A provider holds the segments
of one tier. Calls block and are thread-safe. Names and paths are defined in
`docs/formats/tier-layout.md`.

A write is first *stored*, then *confirmed*. `FileSegment.write` returns Written once the bytes are
stored. They are confirmed by a fence check that begins after the write returned
(`WriterEpoch.confirm`). From then on, every later epoch will find these bytes, whatever the clocks
say and however long this process pauses. Bytes of a write whose reply was lost, and bytes found in
a listing under the epoch, need such a check too. Never report bytes as written before they are
confirmed."""

from __future__ import annotations

import enum
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias, runtime_checkable

from tieredstore.contracts.tier_identity import EpochRecord

Buffer: TypeAlias = bytes | bytearray | memoryview


class FileSegmentType(enum.IntEnum):
    """Content type of a segment. The value is the `type` in the metadata JSON."""

    COMMIT_LOG = 0
    CONSUME_QUEUE = 1
    INDEX = 2


@dataclass(frozen=True, slots=True)
class SegmentId:
    """Name of a segment, the same for every provider. `path`: logical path
    `brokerName/topic/queueId`. `base_offset`: offset of the segment's first byte in its file."""

    path: str
    type: FileSegmentType
    base_offset: int

    def __str__(self) -> str:
        return f"{self.path}/{self.type.name}@{self.base_offset}"


@dataclass(frozen=True, slots=True)
class SegmentListing:
    """Entry of a listing, for one segment. `token`: opaque value of the provider, such as chunk
    extents. `objects`: number of files or objects that hold the content. `stamp`: value that
    changes whenever the file of this name is written or replaced, or None if the provider cannot
    detect that."""

    id: SegmentId
    size_bytes: int
    sealed: bool = False
    token: object = None
    objects: int = 1
    stamp: int | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Capabilities:
    """Capabilities of a provider. `rewritable`: bytes may be written again at the same position, to
    repair a torn write in place. `conditional`: a write that loses a race fails with Fenced instead
    of overwriting. `durable`: written bytes survive the process. Without it, bytes never count as
    stored. `preferred_batch_bytes`: cheapest size of a write, or 0 for no preference.
    `concurrent_reads`: number of network reads that together take about as long as one. `paired`:
    two writes together cost no more than one, so segments are PairedSegments. `gathered_bytes`:
    size up to which small writes are collected before they are stored (see `contracts.gathering`),
    or 0 for one object per write."""

    rewritable: bool
    conditional: bool
    durable: bool
    preferred_batch_bytes: int = 0
    concurrent_reads: int = 16
    paired: bool = False
    gathered_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Written:
    """Result of a write that stored all bytes as durably as the provider promises. If the write may
    wait (`Companion.may_wait`), its bytes may be stored and confirmed as late as the next
    `WriterEpoch.confirm`."""

    size_bytes: int


@dataclass(frozen=True, slots=True)
class FencedWrite:
    """Result of a write that wrote nothing because another writer has written at the position.
    `stale`: the other writer lost its epoch to this one, or the segment is sealed. A new segment
    may then continue at this position. Otherwise `writer` is the current owner of the epoch."""

    size_bytes: int
    writer: str
    stale: bool = False


@dataclass(frozen=True, slots=True)
class UnknownWrite:
    """Result of a write with an unknown outcome: some, all or none of the bytes may be stored. The
    caller must compare the stored bytes before it continues."""

    reason: str


WriteResult: TypeAlias = Written | FencedWrite | UnknownWrite


@runtime_checkable
class FileSegment(Protocol):
    """Open segment. Positions are bytes from the start of the segment."""

    @property
    def id(self) -> SegmentId: ...

    def size(self) -> int:
        """Return the length in bytes as the backend reports it, or 0 if the segment does not exist.
        Raises Unavailable instead of guessing."""

    def write(self, position: int, buffers: Sequence[Buffer]) -> WriteResult:
        """Write the concatenation of `buffers` at `position`, and create the segment if needed. On
        a rewritable provider the segment is truncated after these bytes. Raises Invalid if
        `position` is beyond the size, because segments have no holes. Returns UnknownWrite if the
        outcome is unknown. Raises Unavailable only if nothing was written."""

    def read(self, position: int, length: int) -> memoryview:
        """Read exactly `length` bytes. Raises Corrupt if the segment ends earlier, Unavailable on a
        backend error. Never fills missing bytes with zeros."""

    def read_nowait(self, position: int, length: int) -> memoryview | None:
        """Return the bytes if they can be read without blocking (page cache, memory), otherwise
        None."""

    def seal(self) -> None:
        """Seal the segment against further writes. Idempotent."""

    def delete(self) -> None:
        """Delete the segment. Idempotent. Raises Unavailable if the segment still exists."""

    def close(self) -> None:
        """Release the resources of this object. Idempotent."""


@dataclass(frozen=True, slots=True)
class Companion:
    """Bytes to write together with a write to another segment of the same queue, but never before
    it. For example, units must not be stored before their messages. `segment`, `position`: where to
    write the bytes. `may_wait`: True if both writes may be stored as late as `WriterEpoch.confirm`,
    because the caller does not read them earlier."""

    segment: FileSegment
    position: int
    buffers: Sequence[Buffer]
    may_wait: bool = False


@runtime_checkable
class PairedSegment(FileSegment, Protocol):
    """Segment that can be written together with another one. Optional. Callers write separately if
    a segment is not a PairedSegment or `Capabilities.paired` is False."""

    def write_with(
        self, position: int, buffers: Sequence[Buffer], companion: Companion
    ) -> tuple[WriteResult, WriteResult | None]:
        """Write like `write`, together with the companion's bytes. Both writes are stored, or
        neither, or both outcomes are unknown. Returns the results for this segment and for the
        companion. A result of None means that the companion's bytes were not sent and need a
        separate write. Raises the errors of `write`. After an error both outcomes are unknown."""


class WriterEpoch(Protocol):
    """Ownership of one broker prefix of a tier, until `release`."""

    @property
    def owner(self) -> str: ...

    def check(self) -> None:
        """Raise Fenced if ownership is known to be lost. Only `confirm` proves that it is not."""

    def confirm(self) -> None:
        """Check ownership with a fence check that begins after this call. On return, all bytes
        stored before the call are confirmed. Several calls may share a fence check. No request is
        needed if the epoch cannot pass to another writer unnoticed, as with a file lock. Raises
        Fenced if ownership was lost, and Unavailable if the check failed. After Unavailable the
        bytes stay stored, and a later call may confirm them."""

    def release(self) -> None: ...


@runtime_checkable
class SegmentProvider(Protocol):
    """Backend of a tier. The provider knows the cluster and the root folder or prefix, so paths do
    not include them."""

    @property
    def capabilities(self) -> Capabilities: ...

    @property
    def url(self) -> str:
        """Location of the tier, for messages."""

    def list(self, prefix: str = "") -> Iterable[SegmentListing]:
        """List all segments whose logical path starts with `prefix` (whole path components), in any
        order. A failed listing raises Unavailable, at the call or during iteration, and never looks
        like a shorter one."""

    def open(self, id: SegmentId, listing: SegmentListing | None = None) -> FileSegment:
        """Return a handle of a segment. Nothing is created or read before its first use. `listing`:
        the segment's entry in a listing, if known, which saves a request."""

    def acquire_writer(
        self, broker_name: str, *, take_over: bool = False, record: EpochRecord | None = None
    ) -> WriterEpoch:
        """Take the writer epoch of a broker prefix. Raises Fenced with the name of the owner if
        another writer is alive. `take_over`: end the epoch of a live owner if the backend can.
        `record`: claims of the state directory that the caller has locked. An epoch claimed with
        this record is taken over. Backends whose epochs end with the process ignore it."""

    def close(self) -> None: ...


@runtime_checkable
class BoundedStop(Protocol):
    """Provider that can stop within a time limit even if its backend does not respond. Optional."""

    def begin_stop(self) -> None:
        """Stop throttling and start the shutdown deadline. At the deadline, requests in flight are
        aborted and no new ones are sent. Call `close` afterwards. Idempotent. Safe to call in a
        signal handler."""


@runtime_checkable
class DividedListing(Protocol):
    """Provider that can list parts of a broker's prefix concurrently. Optional."""

    def expect_queues(self, broker_name: str, paths: Sequence[str]) -> None:
        """Split later listings at these queue paths, which probably exist, to list the parts
        concurrently. Listings return the same segments as before."""


@runtime_checkable
class NumberedEpoch(Protocol):
    """Writer epoch with a number. Optional."""

    @property
    def number(self) -> int:
        """Number of the epoch, greater than those of all earlier epochs of the same broker
        prefix."""


@runtime_checkable
class HelpedEpoch(NumberedEpoch, Protocol):
    """Writer epoch that helper processes may use to write, without epochs of their own.
    Optional."""

    def expect_helpers(self) -> None:
        """Expect writes by other processes until this epoch ends. The owner can then no longer
        assume that it knows all written bytes."""


@runtime_checkable
class WriterHelper(Protocol):
    """Provider that can write under the epoch of another process. Optional."""

    def help_writer(self, broker_name: str, number: int) -> None:
        """Write to a broker prefix under the epoch of another process. `number`: number of that
        epoch. If another writer takes over, later writes raise Fenced or have no effect. The owner
        of the epoch must make a fence check before it relies on these writes."""


@runtime_checkable
class WriterRecord(Protocol):
    """Provider that remembers the last writer to a broker prefix. Optional."""

    def find_last_writer(self, broker_name: str) -> str | None:
        """Describe the last writer to a broker prefix for messages, or return None if there was
        none. Takes no epoch. Raises Unavailable."""


LocalCopy: TypeAlias = Callable[[str, int, int, int], "tuple[Buffer, Buffer] | None"]
"""Function that returns messages from the local disk as the tier stores them, with their units.
Parameters: queue path, first queue offset, number of messages, commit log offset of the first
message. Returns None if the messages are no longer on this machine."""


def order_in_groups(path: str) -> int:
    """Return the sort key of a queue in group objects: a 32-bit hash of its logical path."""
    return zlib.crc32(path.encode())


@runtime_checkable
class GatheringProvider(Protocol):
    """Provider that stores writes of many queues together and sorts them by queue later.
    Optional."""

    def use_local_copy(self, broker_name: str, read: LocalCopy) -> None:
        """Read stored messages of a broker from this machine instead of the tier where possible.
        Messages whose bytes differ from those in the tier are not used."""
