"""DispatchSource: reads of the local store that the tier needs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
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
    """Queue offsets [min_offset, max_offset) of the messages that may be dispatched. `max_offset`
    never exceeds the flushed messages of the local store."""

    min_offset: int
    max_offset: int


@runtime_checkable
class DispatchSource(Protocol):
    """Batched reads of a local store. Thread-safe."""

    def queues(self) -> Iterable[QueueKey]:
        """Return all queues that ever had messages, including system topics. The store of a
        running broker leaves out light queues."""

    def queue_range(self, key: QueueKey) -> QueueRange | None:
        """Return the offsets of a queue that may be dispatched, or None for an unknown queue."""

    def flush(self) -> None:
        """Flush pending puts to disk, so that `queue_range` includes them. No-op if another process
        owns the store. Raises the error of a failed flush."""

    def read_units(self, key: QueueKey, offset: int, count: int) -> npt.NDArray[np.void]:
        """Read up to `count` consume queue units, starting at `offset`, as an array of
        `message.consume_queue.UNIT_DTYPE` (physical_offset, size, tags_code). The array is shorter
        at the end of a file, and empty outside the queue."""

    def read_records(self, units: npt.NDArray[np.void]) -> Sequence[memoryview]:
        """Read the records of these units, in order. Each buffer holds one or more whole records,
        and stays valid while it is referenced. The caller may change writable buffers. Raises
        Corrupt if a record is missing, or if its size or magic differs from its unit."""

    def is_in_store(self, key: QueueKey, offset: int) -> bool:
        """Return whether the local commit log still has the message."""

    def is_in_memory(self, key: QueueKey, offset: int, count: int) -> bool:
        """Return whether the pages of these messages are in the page cache."""

    def offset_by_time(self, key: QueueKey, timestamp_ms: int) -> int:
        """Return the first queue offset whose store time is at or after `timestamp_ms`, clamped to
        the `queue_range` of the queue."""

    def earliest_message_time(self, key: QueueKey | None = None) -> int:
        """Return the store time of the first message (epoch ms), or -1 for an empty queue."""

    def topic_reserve_hours(self) -> dict[str, int]:
        """Return `reserve.time` of the topics that set it, in hours."""

    def topic_storage_levels(self) -> dict[str, StorageLevel]:
        """Return `tiered.storage.level` of the topics that set it."""

    def find_excluded_topics(self) -> Mapping[str, str]:
        """Return the topics that `queues` leaves out, with the reason for each. A tier cannot store
        topics with batch consume queues, nor compaction topics."""

    def set_retention_guard(self, guard: Callable[[QueueKey], int | None]) -> None:
        """Set the retention guard. Before the local store deletes expired messages, it calls
        `guard(queue)`. The guard returns the first queue offset that the tier still needs, or None
        if the tier needs no message of the queue."""


@runtime_checkable
class NotedChanges(Protocol):
    """Source that reports the queues with new messages, so that no caller scans all queues.
    Optional."""

    def take_changed(self) -> Iterable[QueueKey]:
        """Return the queues whose `queue_range` may have grown since the previous call. Before the
        first call, the caller reads all `queues`. Only one caller is supported."""


@runtime_checkable
class LiteSource(Protocol):
    """Source that knows the topics of type LITE, and light queues. Optional."""

    def find_lite_topics(self) -> Collection[str]:
        """Return the topics whose messages may have a lite topic."""

    def list_light_queues(self, prefix: str, after: str = "") -> Iterable[tuple[str, int]]:
        """Return name and end offset of each light queue whose name begins with `prefix`, in an
        order that does not change, from the queue after the one named `after`."""

    def count_light_queues(self, prefix: str) -> int:
        """Return the number of light queues. `prefix`: that of all light queues, or that of the
        lite topics of one parent."""


def find_light(source: DispatchSource) -> LiteSource:
    """Return the source of a broker's store, which knows light queues."""
    assert isinstance(source, LiteSource)
    return source


class ArrivedRuns(NamedTuple):
    """Arrived messages, grouped into runs. A run has messages of one queue with consecutive
    offsets. Each field has one value per run: queue, offset of the first message, number of
    messages, bytes of their records, store time of the first message (epoch ms). A run may be
    reported twice."""

    queues: Sequence[QueueKey]
    offsets: npt.NDArray[np.int64]
    messages: npt.NDArray[np.int64]
    sizes: npt.NDArray[np.int64]
    timestamps_ms: npt.NDArray[np.int64]


@runtime_checkable
class ObservedSource(Protocol):
    """Source that reports arrived messages in batches. Optional."""

    def set_observer(self, observer: Callable[[ArrivedRuns], object] | None) -> None:
        """Set the observer of messages that become readable from now on, or None to remove the
        observer. The observer runs in the thread that publishes the messages, so it must be
        short."""


class DeletedEnd(NamedTuple):
    """End of a queue that was deleted with its topic. `offset`: queue offset after its last
    message. `physical_offset`: position of the deletion in the commit log (bytes). `timestamp_ms`:
    store time of the deletion."""

    offset: int
    physical_offset: int
    timestamp_ms: int


@runtime_checkable
class HistorySource(Protocol):
    """Source of a store whose earlier messages are in a tier. Call these methods between `load` and
    `start` of the store. The methods about deletions may also be called later."""

    @property
    def is_empty(self) -> bool:
        """Whether the store never received a message."""

    @property
    def log_end(self) -> int:
        """End of the commit log (bytes)."""

    @property
    def is_dispatched(self) -> bool:
        """Whether all messages of the log are in their queues."""

    def find_next_offset(self, key: QueueKey) -> int:
        """Return the offset of the next message of a queue. The offset is computed from the
        dispatched messages, and from the end offsets that the functions of `set_history` return.
        Raises Corrupt."""

    def refuse_puts(self, reason: str) -> None:
        """Refuse all puts, including the broker's own, until the process ends. Reads and dispatch
        continue."""

    def set_history(
        self,
        find_end_offsets: Callable[[str], Mapping[int, int]],
        find_deleted_ends: Callable[[str], Mapping[int, int]] | None = None,
    ) -> None:
        """Set the functions that find the history of a queue in other places, such as a tier. A
        queue that is new to the store begins at the end of this history. `find_end_offsets`:
        returns the queues of a topic that have a history elsewhere, with the end offset of each.
        Called at the first put of a queue, and at the deletion of a topic. `find_deleted_ends`: the
        same for queues that existed elsewhere and were deleted."""

    def begin_log_at(self, physical_offset: int) -> None:
        """Begin the log of a new store at the first file boundary at or after a byte offset. The
        start of the log is on disk on return. Raises Invalid for a store that is not new,
        Unavailable."""

    def find_deleted_queues(self) -> Mapping[QueueKey, DeletedEnd]:
        """Return the queues of deleted topics, with the end of each queue. If a topic was deleted
        several times, the last deletion counts. Raises Corrupt."""

    def forget_deletions(self, topics: Collection[str]) -> None:
        """Forget the deletions of these topics as soon as the store's commit log no longer contains
        them. Call this method when the tier has recorded the deletions permanently. Raises
        Unavailable."""
