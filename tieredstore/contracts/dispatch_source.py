"""DispatchSource: what the tier needs from the store below it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol, runtime_checkable

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from tieredstore.config import StorageLevel


class QueueKey(NamedTuple):
    """One queue of one topic."""

    topic: str
    queue_id: int


class QueueRange(NamedTuple):
    """Queue offsets of the messages that may be dispatched: [min_offset, max_offset).

    max_offset never passes what is on disk in the store below.
    """

    min_offset: int
    max_offset: int


@runtime_checkable
class DispatchSource(Protocol):
    """Thread-safe reads of a local store, in batches."""

    def queues(self) -> Iterable[QueueKey]:
        """Return all queues that have (or had) messages, system topics included."""
        ...

    def queue_range(self, key: QueueKey) -> QueueRange | None:
        """Return the range of a queue; None for an unknown queue."""
        ...

    def flush(self) -> None:
        """Bring what was put to disk, so that `queue_range` covers it. Does nothing where others
        own the store. Raises what stops a flush."""
        ...

    def read_units(self, key: QueueKey, offset: int, count: int) -> npt.NDArray[np.void]:
        """Read up to `count` consume queue units from `offset` on, as an array of
        `message.consume_queue.UNIT_DTYPE` (physical_offset, size, tags_code). Fewer where a file
        ends; empty where nothing is."""
        ...

    def read_records(self, units: npt.NDArray[np.void]) -> Sequence[memoryview]:
        """Read the records of those units, in order, in the fewest possible pieces: each buffer
        holds one or more whole records. Raises Corrupt when one is missing or its size or magic
        differs from its unit. The buffers stay valid while they are referenced; one that can be
        written to is the caller's own."""
        ...

    def is_in_store(self, key: QueueKey, offset: int) -> bool:
        """Tell whether the local commit log still holds that message."""
        ...

    def is_in_memory(self, key: QueueKey, offset: int, count: int) -> bool:
        """Tell whether the pages of these messages are resident (page cache)."""
        ...

    def offset_by_time(self, key: QueueKey, timestamp_ms: int) -> int:
        """Find the first queue offset whose store time is at or after the time, clamped to the
        range."""
        ...

    def earliest_message_time(self, key: QueueKey | None = None) -> int:
        """Return the store time of the first message, -1 when there is none."""
        ...

    def topic_reserve_hours(self) -> dict[str, int]:
        """Return `reserve.time` of the topics that set it, in hours."""
        ...

    def topic_storage_levels(self) -> dict[str, StorageLevel]:
        """Return `tiered.storage.level` of the topics that set it."""
        ...

    def find_excluded_topics(self) -> Mapping[str, str]:
        """Return the topics with messages that `queues` leaves out, since a tier cannot hold them
        as queues (BatchCQ, compaction: D25), and why."""
        ...

    def set_retention_guard(self, guard: Callable[[QueueKey], int | None]) -> None:
        """Let cleaning ask `guard(queue)` for the queue offset from which the tier still needs the
        messages; None when it needs nothing of that queue."""
        ...


@runtime_checkable
class NotedChanges(Protocol):
    """A source that knows which queues have got messages, so that nobody need look at all of them.
    Optional."""

    def take_changed(self) -> Iterable[QueueKey]:
        """Return the queues of which `queue_range` may show messages that it did not show at the
        call before; who calls for the first time looks at all `queues` after it. For one caller."""
        ...


class ArrivedRuns(NamedTuple):
    """Messages that a store got, in runs: each is of one queue, with consecutive offsets. A column
    each: queue, offset of the first message, messages, bytes of their records, store time of the
    first (epoch ms). Whoever is told of a run twice has seen these messages before."""

    queues: Sequence[QueueKey]
    offsets: npt.NDArray[np.int64]
    messages: npt.NDArray[np.int64]
    sizes: npt.NDArray[np.int64]
    timestamps_ms: npt.NDArray[np.int64]


@runtime_checkable
class ObservedSource(Protocol):
    """A source that tells what it gets, many messages at a time. Optional."""

    def set_observer(self, observer: Callable[[ArrivedRuns], object] | None) -> None:
        """Tell somebody of the messages that gets find from now on; None: nobody. It is called by
        the thread that makes them visible: it must be short."""
        ...


class EndOfLife(NamedTuple):
    """Where a queue ended that was deleted with its topic. offset: behind its last message;
    physical_offset: of the commit log, where the deletion is; timestamp_ms: store time of the
    deletion."""

    offset: int
    physical_offset: int
    timestamp_ms: int


@runtime_checkable
class HistorySource(Protocol):
    """The source of a store of which earlier messages are elsewhere: in the tier above it. To be
    used between the store's `load` and `start`, but for what is deleted."""

    @property
    def is_new(self) -> bool:
        """Whether nothing was ever put in the store."""
        ...

    def set_history(self, find_end_offsets: Callable[[str], Mapping[int, int]]) -> None:
        """Let queues that the store does not have begin behind what is elsewhere.

        find_end_offsets: the queues of a topic that are elsewhere, with the offset behind the last
        message of each. Called at the first put of a queue, and when a topic is deleted.
        """
        ...

    def begin_log_at(self, physical_offset: int) -> None:
        """Let the log of a new store begin at the first file boundary from a byte on, on disk when
        this returns. Raises Invalid for a store that is not new, Unavailable."""
        ...

    def find_deleted_queues(self) -> Mapping[QueueKey, EndOfLife]:
        """Find the queues of topics that were deleted, each with the end of its last deleted life.
        Raises Corrupt."""
        ...
