"""DispatchSource: the reads from the local store that the tier needs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol, runtime_checkable

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from tieredstore.config import StorageLevel


class QueueKey(NamedTuple):
    """Queue of a topic."""

    topic: str
    queue_id: int


class QueueRange(NamedTuple):
    """Queue offsets [min_offset, max_offset) of the messages that may be dispatched. Messages that
    the local store has not flushed are excluded."""

    min_offset: int
    max_offset: int


@runtime_checkable
class DispatchSource(Protocol):
    """Batched reads of a local store. Thread-safe."""

    def queues(self) -> Iterable[QueueKey]:
        """Return all queues that ever had messages, including those of system topics. The store of
        a running broker omits light queues."""

    def queue_range(self, key: QueueKey) -> QueueRange | None:
        """Return the range of a queue that may be dispatched, or None for an unknown queue."""

    def flush(self) -> None:
        """Flush pending puts to disk, so that `queue_range` includes them. No-op if another process
        owns the store. Raises the error of a failed flush."""

    def read_units(self, key: QueueKey, offset: int, count: int) -> npt.NDArray[np.void]:
        """Read up to `count` consume queue units from `offset`, as an array of
        `message.consume_queue.UNIT_DTYPE` (physical_offset, size, tags_code). Returns fewer at the
        end of a file, and none outside the queue."""

    def read_records(self, units: npt.NDArray[np.void]) -> Sequence[memoryview]:
        """Read the records of these units, in order. Each buffer holds one or more whole records
        and stays valid while it is referenced. Callers may change writable buffers. Raises Corrupt
        if a record is missing or does not match its unit in size or magic."""

    def is_in_store(self, key: QueueKey, offset: int) -> bool:
        """Return whether the local commit log still has the message."""

    def is_in_memory(self, key: QueueKey, offset: int, count: int) -> bool:
        """Return whether these messages are in the page cache."""

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
        """Return the topics that `queues` omits, with the reason for each. A tier cannot store
        compaction topics or topics with batch consume queues."""

    def set_retention_guard(self, guard: Callable[[QueueKey], int | None]) -> None:
        """Set the function that protects messages from expiry. Before deleting expired messages,
        the local store calls `guard(queue)`. It returns the first queue offset that the tier still
        needs, or None if the tier needs none."""


@runtime_checkable
class NotedChanges(Protocol):
    """Source that tracks which queues have new messages, so that callers need not scan all queues.
    Optional."""

    def take_changed(self) -> Iterable[QueueKey]:
        """Return the queues whose `queue_range` may have grown since the previous call. Read all
        `queues` before the first call. Only one caller is supported."""


@runtime_checkable
class LiteSource(Protocol):
    """Source that knows light queues and topics of type LITE. Optional."""

    def find_lite_topics(self) -> Collection[str]:
        """Return the topics of type LITE."""

    def list_light_queues(self, prefix: str, after: str = "") -> Iterable[tuple[str, int]]:
        """Return the name and end offset of each light queue whose name starts with `prefix`, in a
        stable order. Starts after the queue named `after`."""

    def count_light_queues(self, prefix: str) -> int:
        """Return the number of light queues whose name starts with `prefix`."""


def find_light(source: DispatchSource) -> LiteSource:
    """Return the LiteSource that a broker's store provides."""
    assert isinstance(source, LiteSource)
    return source


class ArrivedRuns(NamedTuple):
    """Newly arrived messages, grouped into runs. A run is a range of consecutive offsets in one
    queue. Each field has one value per run: queue, first offset, number of messages, bytes of
    records, store time of the first message (epoch ms). A run may be reported twice."""

    queues: Sequence[QueueKey]
    offsets: npt.NDArray[np.int64]
    messages: npt.NDArray[np.int64]
    sizes: npt.NDArray[np.int64]
    timestamps_ms: npt.NDArray[np.int64]


@runtime_checkable
class ObservedSource(Protocol):
    """Source that reports arrived messages in batches. Optional."""

    def set_observer(self, observer: Callable[[ArrivedRuns], object] | None) -> None:
        """Set the function to call with messages as they become readable, or None to remove it. It
        runs in the thread that publishes the messages, so it must be fast."""


class DeletedEnd(NamedTuple):
    """End of a queue that was deleted with its topic. `offset`: queue offset after the last
    message. `physical_offset`: commit log position of the deletion (bytes). `timestamp_ms`: store
    time of the deletion."""

    offset: int
    physical_offset: int
    timestamp_ms: int


@runtime_checkable
class HistorySource(Protocol):
    """Source of a store whose older messages are in a tier. Call these methods between `load` and
    `start` of the store. Those about deletions may also be called later."""

    @property
    def is_empty(self) -> bool:
        """True if the store has never received a message."""

    @property
    def log_end(self) -> int:
        """End of the commit log, in bytes."""

    @property
    def is_dispatched(self) -> bool:
        """True if all messages of the log are in their queues."""

    def find_next_offset(self, key: QueueKey) -> int:
        """Return the offset of the next message of a queue. It takes into account the dispatched
        messages and the end offsets from `set_history`. Raises Corrupt."""

    def refuse_puts(self, reason: str) -> None:
        """Refuse all puts until the process ends, including the broker's own. Reads and dispatch
        continue."""

    def set_history(
        self,
        find_end_offsets: Callable[[str], Mapping[int, int]],
        find_deleted_ends: Callable[[str], Mapping[int, int]] | None = None,
    ) -> None:
        """Set the functions that look up the history of a queue elsewhere, such as in a tier. A
        queue that is new to the store starts at the end of that history.

        `find_end_offsets`: returns the end offset of each queue of a topic with a history
        elsewhere. Called at the first put into a queue and when a topic is deleted.
        `find_deleted_ends`: the same for deleted queues."""

    def begin_log_at(self, physical_offset: int) -> None:
        """Start the log of a new store at the first file boundary at or after a byte offset. The
        boundary is durable on return. Raises Invalid if the store is not new, or Unavailable."""

    def find_deleted_queues(self) -> Mapping[QueueKey, DeletedEnd]:
        """Return the queues of deleted topics with the end of each. If a topic was deleted more
        than once, its last deletion is used. Raises Corrupt."""

    def forget_deletions(self, topics: Collection[str]) -> None:
        """Forget the deletions of these topics once they are no longer in the commit log. Call this
        after the tier has recorded them durably. Raises Unavailable."""
