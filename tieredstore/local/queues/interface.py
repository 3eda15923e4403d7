"""Interfaces of consume queues, in files or in RocksDB.

A queue has one unit per message (physical offset, size, tags code:
`docs/formats/consume-queue.md`). Offsets are queue offsets. Physical offsets are bytes of the
commit log. `tests/kit/consume_queues.py` has the contract as tests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from tieredstore.contracts.dispatch_source import QueueKey

Units = npt.NDArray[np.void]
"""Units as an array of `message.consume_queue.UNIT_DTYPE`."""
Int64s = npt.NDArray[np.int64]


class HeldBack(NamedTuple):
    """Messages of one queue that are stored but may not be read yet. `messages`: number of
    messages. `first_ms`: store time (epoch ms) of the first one, or -1 if it cannot be read."""

    messages: int
    first_ms: int


class ConsumeQueueReader(Protocol):
    """Reader of one queue with messages [min_offset, max_offset)."""

    @property
    def topic(self) -> str: ...
    @property
    def queue_id(self) -> int: ...
    @property
    def min_offset(self) -> int: ...
    @property
    def max_offset(self) -> int: ...

    def read_units(self, offset: int, count: int) -> Units:
        """Read one to `count` units, starting at `offset`. Returns none for an offset outside
        [min_offset, max_offset)."""

    def unit(self, offset: int) -> tuple[int, int, int] | None:
        """Return (physical offset, size, tags code) of one message, or None outside the queue."""

    def store_time(self, offset: int, record_time: Callable[[int], int]) -> int:
        """Return the store time (epoch ms) of one message, or -1 outside the queue. `record_time`:
        returns the store time of the record at a commit log offset, or -1. Used for queues whose
        units have no time."""

    def roll_next_file(self, offset: int) -> int:
        """Return the offset at which a get that begins at `offset` must stop. As in Java, this is
        the first offset of the next file. A queue that is not in files returns at least
        `max_offset`."""

    def path_of(self, offset: int) -> str:
        """Return the name of the file or database that contains the unit of `offset`, for
        errors."""


class LogSpan(NamedTuple):
    """Range of a commit log in bytes: its first byte, and the end of its last record."""

    begin: int
    end: int


class QueueUnits(NamedTuple):
    """Consecutive units of one queue, from one pass of the dispatch. `offset`: queue offset of the
    first unit. `store_timestamps_ms`: store time of each unit (epoch ms)."""

    key: QueueKey
    offset: int
    units: Units
    store_timestamps_ms: Int64s


class ConsumeQueueInterface(ConsumeQueueReader, Protocol):
    """Queue of the owner. One writer and any number of readers, which see only whole units."""

    @property
    def max_physical_offset(self) -> int:
        """End of the last message in the queue, or 0 if unknown."""

    def initialize_with_offset(self, offset: int) -> None:
        """Drop all units. The empty queue then begins and ends at the given offset, even after a
        restart. At offset 0, the queue is deleted completely."""


class ConsumeQueueStoreInterface(Protocol):
    """All queues of the owner, opened on demand."""

    def load(self) -> None:
        """Open the queues and find their tails. Their minima are not correct until
        `correct_min_offset`. Raises Corrupt, Invalid or Unavailable."""

    def load_kept(self) -> LogSpan | None:
        """Load the queues from the state that `keep` saved, which is cheaper than `load`. Returns
        the log's range at the time of `keep`. If the current log has another range, the caller must
        call `load`. Returns None, without loading, if no state was saved or anything has changed
        since."""

    def keep(self, log: LogSpan) -> None:
        """Save the state of the queues at a clean stop, for the next start. All units must be
        synced, and no writer may be left. If this fails, the next start recomputes the state."""

    def get(self, key: QueueKey) -> ConsumeQueueInterface | None: ...

    def get_or_create(self, key: QueueKey) -> ConsumeQueueInterface:
        """Return the queue. A new queue is not on disk until a unit is put. Raises Corrupt for an
        invalid topic."""

    def find_fault(self, key: QueueKey) -> str | None:
        """Return why a queue name is invalid, so that no unit can be put, or None."""

    def list_queues(self) -> Iterable[QueueKey]: ...

    def list_topic_queues(self) -> Iterable[QueueKey]:
        """Return the queues that are not light queues."""

    def list_light_queues(self, prefix: str, after: str = "") -> Iterable[tuple[str, int]]:
        """List light queues like `DispatchSource.list_light_queues`. A database reads no other
        queues."""

    def count_light_queues(self, prefix: str) -> int: ...

    def find_queue_ids(self, topic: str) -> Iterable[int]:
        """Return the queues of a topic."""

    def append(self, groups: Sequence[QueueUnits], dispatched_offset: int) -> None:
        """Put the units from one pass of the dispatch. Existing units are skipped, so records may
        be dispatched again. A new queue may begin at any offset. `dispatched_offset`: end in the
        commit log of the records that have been put. Raises Corrupt for units that leave a hole
        after the last one, and for another message at an existing offset. After an error, earlier
        groups of the pass may be stored."""

    @property
    def dispatch_from(self) -> int:
        """End of the dispatched records (bytes of the commit log), as far as the queues record it.
        It may be too low, because not all queues do."""

    @property
    def max_physical_offset(self) -> int:
        """End of the last message in any queue."""

    def find_last_message(self) -> tuple[int, int] | None:
        """Return (physical offset, size) of the newest message in the log that is in a queue, or
        None."""

    def find_queues_after(self, physical_offset: int) -> Iterator[ConsumeQueueInterface]:
        """Yield the queues with a message that ends after `physical_offset`."""

    def correct_min_offset(self, min_physical_offset: int) -> None:
        """Set each min_offset to the first message that is in the commit log, or to max_offset."""

    def truncate(self, physical_offset: int) -> None:
        """Drop the units at the tails whose messages end after `physical_offset`."""

    def delete_expired(self, min_physical_offset: int) -> int:
        """Drop the units of messages before `min_physical_offset`, the first byte of the commit
        log. The minimum of each queue is corrected before the space is freed, so readers get no
        error. A queue keeps its max_offset even if no unit is left. Returns the number of deleted
        files, or for a database the number of queues that lost units. Raises Unavailable if
        something cannot be deleted. The next call then continues."""

    def drop_units_before(self, key: QueueKey, offset: int) -> None:
        """Drop the units of a queue before `offset`, atomically. If no unit is left, the queue is
        deleted completely."""

    def sync(self, least_pages: int = 0) -> None:
        """Sync the queues that were written since the last sync. All units put before the call are
        then on disk. `least_pages`: skip queues with fewer dirty pages (4,096 bytes). Raises
        Exhausted. The next call then continues."""

    def close(self) -> None:
        """Close all resources without syncing. Idempotent."""
