"""What the store needs of consume queues, whatever keeps them: files, or RocksDB.

Queue q of a topic has a unit for each of its messages (physical offset, size, tags code:
`docs/formats/consume-queue.md`). Offsets are queue offsets unless named physical, which are bytes
of the commit log. `tests/kit/consume_queues.py` has the contract as tests.
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
    """Messages of one queue that are in a store and may not be taken yet. messages: how many;
    first_ms: store time (epoch ms) of the first, -1 when it cannot be read."""

    messages: int
    first_ms: int


class ConsumeQueueReader(Protocol):
    """One queue, for reading. Its messages are those in [min_offset, max_offset)."""

    @property
    def topic(self) -> str: ...
    @property
    def queue_id(self) -> int: ...
    @property
    def min_offset(self) -> int: ...
    @property
    def max_offset(self) -> int: ...

    def read_units(self, offset: int, count: int) -> Units:
        """Read up to `count` units from an offset on, one at least; none outside [min_offset,
        max_offset)."""
        ...

    def unit(self, offset: int) -> tuple[int, int, int] | None:
        """Read (physical offset, size, tags code) of one message; None outside the queue."""
        ...

    def store_time(self, offset: int, record_time: Callable[[int], int]) -> int:
        """Return the store time (epoch ms) of one message; -1 outside the queue.

        record_time: reads it from the record at a byte of the commit log (-1 when there is none),
        for queues whose units do not hold it.
        """
        ...

    def roll_next_file(self, offset: int) -> int:
        """Return where a get that begins at an offset stops walking: the first offset of the next
        file, as in Java; at `max_offset` or behind it where there are no files."""
        ...

    def path_of(self, offset: int) -> str:
        """Name the file (or the database) that holds the unit of an offset, for messages."""
        ...


class LogSpan(NamedTuple):
    """Bytes of a commit log: the first one, and the one behind the last record."""

    begin: int
    end: int


class QueueUnits(NamedTuple):
    """Consecutive units of one queue, from one round of dispatch. offset: queue offset of the first
    one; store_timestamps_ms: store time of each, epoch ms."""

    key: QueueKey
    offset: int
    units: Units
    store_timestamps_ms: Int64s


class ConsumeQueueInterface(ConsumeQueueReader, Protocol):
    """One queue of the owner: one writer, any number of readers, which see whole units only."""

    @property
    def max_physical_offset(self) -> int:
        """End of the last message that was put in the queue; 0 when unknown."""
        ...

    def initialize_with_offset(self, offset: int) -> None:
        """Drop all units; the queue is empty and begins (min and max) at an offset, also after it
        was opened again. At 0 nothing is left of it."""
        ...


class ConsumeQueueStoreInterface(Protocol):
    """All queues of the owner. What is not asked for costs nothing where there are very many: a
    queue may be opened when it is first used."""

    def load(self) -> None:
        """Open the queues and find their tails; their minima are only right once
        `correct_min_offset` was called. Raises Corrupt, Invalid or Unavailable."""
        ...

    def load_kept(self) -> LogSpan | None:
        """Take the queues as `keep` left them, which costs less, and return the log of then: when
        that is not the log of now, `load` is to follow. None, and nothing is taken, where nothing
        was left, or anything has changed since."""
        ...

    def keep(self, log: LogSpan) -> None:
        """Leave the queues to the next start, at a clean stop: all is synced, nothing is written
        any more. What cannot be left is found again."""
        ...

    def get(self, key: QueueKey) -> ConsumeQueueInterface | None: ...

    def get_or_create(self, key: QueueKey) -> ConsumeQueueInterface:
        """Return the queue; a new one is nowhere on disk until a unit is put in it. Raises Corrupt
        for a topic that can be none."""
        ...

    def list_queues(self) -> Iterable[QueueKey]: ...

    def find_queue_ids(self, topic: str) -> Iterable[int]:
        """Find the queues of a topic."""
        ...

    def append(self, groups: Sequence[QueueUnits], dispatched_offset: int) -> None:
        """Put the units of a round of dispatch.

        Units that a queue already has are skipped, so records may be dispatched again. A new queue
        may begin anywhere. Raises Corrupt for units that leave a hole behind the last one, and for
        another message at an offset that is taken; the groups before that one may be put then.
        dispatched_offset: byte of the commit log up to which all records have been put.
        """
        ...

    @property
    def dispatch_from(self) -> int:
        """Byte of the commit log up to which, as far as the queues know, records were put."""
        ...

    @property
    def max_physical_offset(self) -> int:
        """End of the last message that any queue knows."""
        ...

    def find_last_message(self) -> tuple[int, int] | None:
        """Find (physical offset, size) of the last message in the log that any queue knows."""
        ...

    def find_queues_after(self, physical_offset: int) -> Iterator[ConsumeQueueInterface]:
        """Find the queues with a message that ends behind a byte of the commit log."""
        ...

    def correct_min_offset(self, min_physical_offset: int) -> None:
        """Set each min_offset to the first message that the commit log still holds; max_offset when
        there is none."""
        ...

    def truncate(self, physical_offset: int) -> None:
        """Drop the units at the tails whose messages are not wholly before a commit log offset."""
        ...

    def delete_expired(self, min_physical_offset: int) -> int:
        """Let go of the units that lead to messages before a commit log offset, the log's minimum:
        correct each queue's minimum, then free what space that gives. max_offset stays, also when
        nothing is left. Returns how many files, or queues in a database, something was deleted
        from. Readers meet no error. Raises Unavailable; then the next call goes on."""
        ...

    def drop_units_before(self, key: QueueKey, offset: int) -> None:
        """Drop the units of a queue before an offset; after a crash they are all there, or none. A
        queue with none behind it is no queue any more: nothing is kept of it."""
        ...

    def sync(self, least_pages: int = 0) -> None:
        """Sync the queues that were written since the last time: all their units put so far are on
        disk when this returns. least_pages: leave out those with fewer dirty pages (4,096 bytes).
        Raises Exhausted; the next call goes on then."""
        ...

    def close(self) -> None:
        """Give up what is open. Idempotent; nothing is synced."""
        ...
