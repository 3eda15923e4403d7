"""SegmentProvider and FileSegment: what a tier needs from a backend.

A provider holds the segments of one tier. Calls block and are thread-safe; only the tier knows
asyncio. Names and paths: `docs/formats/tier-layout.md`.

Stored and confirmed are two things. What `FileSegment.write` returns as Written is *stored*. It
counts once the writer's right was *confirmed* by a look that began after that reply
(`WriterEpoch.confirm`): whoever takes the right later finds those bytes, and no clock and no
pause of this process can change that. The same holds for bytes that a writer finds: those of a
lost reply, and those of a listing made under its epoch. Until then nothing is told to anybody.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias, runtime_checkable

from tieredstore.contracts.epoch_record import EpochRecord

Buffer: TypeAlias = bytes | bytearray | memoryview


class FileSegmentType(enum.IntEnum):
    """What a segment holds; the value is the `type` of the metadata JSON."""

    COMMIT_LOG = 0
    CONSUME_QUEUE = 1
    INDEX = 2


@dataclass(frozen=True, slots=True)
class SegmentId:
    """The name of a segment, the same on every provider.

    path: logical path `brokerName/topic/queueId`; base_offset: offset of its first byte in the
    file it belongs to (bytes).
    """

    path: str
    type: FileSegmentType
    base_offset: int

    def __str__(self) -> str:
        return f"{self.path}/{self.type.name}@{self.base_offset}"


@dataclass(frozen=True, slots=True)
class SegmentListing:
    """One segment as a listing saw it. `token` is the provider's own (chunk extents, say); objects:
    of how many files or objects its content is made."""

    id: SegmentId
    size_bytes: int
    sealed: bool = False
    token: object = None
    objects: int = 1


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a provider can do.

    rewritable: bytes at a position may be written again (a torn write is repaired in place).
    conditional: a write that loses a race is told so (Fenced) instead of overwriting.
    durable: what was written is there after the process ends; a provider that is not never
    counts as having taken anything.
    preferred_batch_bytes: writes of about this size are cheapest; 0 for no preference.
    concurrent_reads: so many reads at once take about as long as one, where reads wait for a
    network.
    paired: its segments are PairedSegments, as two writes at once cost it no more than one.
    gathered_bytes: about so much of small writes that may wait is stored together, see
    `contracts.gathering`; 0: each by itself.
    """

    rewritable: bool
    conditional: bool
    durable: bool
    preferred_batch_bytes: int = 0
    concurrent_reads: int = 16
    paired: bool = False
    gathered_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Written:
    """All bytes are stored in the segment, as durable as the provider promises; those that may wait
    are taken, and are stored when `WriterEpoch.confirm` returns. They count after that."""

    size_bytes: int


@dataclass(frozen=True, slots=True)
class FencedWrite:
    """Nothing of ours was written: another writer holds that position.

    stale: that writer has no right any more (its epoch is lower than ours), or the segment is
    sealed: a new segment may go on at this position. Otherwise the right is lost to `writer`.
    """

    size_bytes: int
    writer: str
    stale: bool = False


@dataclass(frozen=True, slots=True)
class UnknownWrite:
    """Some, all or none of the bytes may be there. The caller compares before it goes on."""

    reason: str


WriteResult: TypeAlias = Written | FencedWrite | UnknownWrite


@runtime_checkable
class FileSegment(Protocol):
    """One segment, open. Positions are bytes from its own start."""

    @property
    def id(self) -> SegmentId: ...

    def size(self) -> int:
        """Return the real length in bytes, asked from the backend; 0 when the segment is absent.

        Raises Unavailable when it cannot be found out (never a guess).
        """
        ...

    def write(self, position: int, buffers: Sequence[Buffer]) -> WriteResult:
        """Write the concatenation of `buffers` at `position`, making the segment if needed.

        On a rewritable provider the segment ends behind these bytes afterwards: whatever a torn
        write left there is gone. `position` beyond the size is Invalid: segments have no holes.
        Where the outcome cannot be known the result is UnknownWrite, never an exception;
        Unavailable is raised only when surely nothing was written.
        """
        ...

    def read(self, position: int, length: int) -> memoryview:
        """Read exactly `length` bytes. Raises Corrupt when the segment ends before, Unavailable on
        a backend error. Zeros are never data."""
        ...

    def read_nowait(self, position: int, length: int) -> memoryview | None:
        """Return the same bytes when they are at hand without blocking (page cache, memory), else
        None."""
        ...

    def seal(self) -> None:
        """Seal the segment: no more writes. Idempotent."""
        ...

    def delete(self) -> None:
        """Remove the segment. Idempotent; raises Unavailable when it is still there afterwards."""
        ...

    def close(self) -> None:
        """Release what this object holds. Idempotent."""
        ...


@dataclass(frozen=True, slots=True)
class Companion:
    """Bytes that go with a write to another segment of the same queue, and never before it: units,
    with the messages that they name. position: in their own segment. may_wait: nobody asks for
    either before `WriterEpoch.confirm`, so both may be stored as late as by that."""

    segment: FileSegment
    position: int
    buffers: Sequence[Buffer]
    may_wait: bool = False


@runtime_checkable
class PairedSegment(FileSegment, Protocol):
    """A segment that is written together with another one. Optional: whoever finds that a segment
    is not one, or that its provider is not `Capabilities.paired`, writes twice."""

    def write_with(
        self, position: int, buffers: Sequence[Buffer], companion: Companion
    ) -> tuple[WriteResult, WriteResult | None]:
        """Write as `write` does, and the companion's bytes with it: both are stored, or neither,
        or both are unknown. Returns the result for each segment; None for the companion's when
        nothing of it was sent, since that takes a write of its own. Raises as `write`; then nothing
        is known of either.
        """
        ...


class WriterEpoch(Protocol):
    """The right to write under one broker prefix of a tier, held until `release`."""

    @property
    def owner(self) -> str: ...

    def check(self) -> None:
        """Raise Fenced when the right is known to be lost. Proves nothing: `confirm` does."""
        ...

    def confirm(self) -> None:
        """Look whether the right is held, by a look that begins after this call. On return all
        that was stored before the call counts.

        One look may serve many calls. A backend whose right cannot pass to another one unnoticed
        (a lock) need not ask anybody. Raises Fenced when the right was lost, Unavailable when that
        cannot be found out: what is stored stays stored, and a later call may confirm it.
        """
        ...

    def release(self) -> None: ...


@runtime_checkable
class SegmentProvider(Protocol):
    """The backend of one tier (cluster and root are the provider's own)."""

    @property
    def capabilities(self) -> Capabilities: ...

    @property
    def url(self) -> str:
        """Where the tier is, for messages to people."""
        ...

    def list(self, prefix: str = "") -> Iterable[SegmentListing]:
        """List all segments whose logical path starts with `prefix` (whole path components), in any
        order, found as they are taken. A failing listing raises Unavailable, at the call or later;
        it never looks like an empty or a shorter one."""
        ...

    def open(self, id: SegmentId, listing: SegmentListing | None = None) -> FileSegment:
        """Open a handle; nothing is made or read until it is used. `listing` saves a look-up."""
        ...

    def acquire_writer(
        self, broker_name: str, *, take_over: bool = False, record: EpochRecord | None = None
    ) -> WriterEpoch:
        """Take the writer epoch of a broker prefix; raises Fenced naming the owner when a live
        one holds it (`take_over` ends the other's right where the backend can).

        record: of the state directory that the caller has locked. An epoch that was claimed with it
        is taken over. A backend that ends a right with its process leaves it alone.
        """
        ...

    def close(self) -> None: ...


@runtime_checkable
class BoundedStop(Protocol):
    """A provider that stops within a time of its own, whatever its backend does. Optional."""

    def begin_stop(self) -> None:
        """Let that time begin: after it, what is under way ends and nothing more is asked for.
        `close` must follow. Idempotent; safe to call from a signal handler."""
        ...


@runtime_checkable
class DividedListing(Protocol):
    """A provider that lists a broker's prefix in parts side by side. Optional."""

    def expect_queues(self, broker_name: str, paths: Sequence[str]) -> None:
        """Divide by these paths of queues, which are probably there. No listing shows more or less
        for it."""
        ...


@runtime_checkable
class NumberedEpoch(Protocol):
    """A writer epoch that has a number. Optional."""

    @property
    def number(self) -> int:
        """Of the epochs below its broker prefix; greater than all before."""
        ...


@runtime_checkable
class HelpedEpoch(NumberedEpoch, Protocol):
    """A writer epoch that processes may help which have none of their own. Optional."""

    def expect_helpers(self) -> None:
        """Know that other processes may write beside this epoch, from now until it ends: what its
        own process knows is not all that there is."""
        ...


@runtime_checkable
class WriterHelper(Protocol):
    """A provider that writes beside a HelpedEpoch which another process holds. Optional."""

    def help_writer(self, broker_name: str, number: int) -> None:
        """Write below a broker prefix on behalf of that epoch alone. From the take-over on writes
        raise Fenced, or are of no effect; whoever holds the epoch looks before it counts them."""
        ...


@runtime_checkable
class WriterRecord(Protocol):
    """A provider that remembers who wrote below a broker prefix. Optional."""

    def find_last_writer(self, broker_name: str) -> str | None:
        """Describe the last writer below a broker prefix, for people; None when there was none.
        Takes nothing. Raises Unavailable."""
        ...
