"""The consume queues of a store that was not stopped cleanly, as a recovery would leave them: the
units in its files, as far as they count, and those made from the log in front of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from tieredstore.contracts.dispatch_source import QueueKey
from tieredstore.local.queues.consume_queue import ConsumeQueue
from tieredstore.local.queues.foreign import ForeignFileQueues
from tieredstore.local.queues.interface import Units
from tieredstore.local.queues.rebuilt import RebuiltQueue, RebuiltQueues


class JoinedQueue:
    """A `ConsumeQueueReader`: units of files up to `middle` (a queue offset), then rebuilt ones."""

    def __init__(self, files: ConsumeQueue, middle: int, rebuilt: RebuiltQueue) -> None:
        self.topic, self.queue_id = files.topic, files.queue_id
        self.min_offset = min(files.min_offset, middle)
        self.max_offset = max(rebuilt.max_offset, middle)
        self._files = files
        self._middle = middle
        self._rebuilt = rebuilt

    def read_units(self, offset: int, count: int) -> Units:
        """Read up to `count` units from an offset on; none outside [min_offset, max_offset)."""
        if offset >= self._middle:
            return self._rebuilt.read_units(offset, count)
        return self._files.read_units(offset, min(count, self._middle - offset))

    def unit(self, offset: int) -> tuple[int, int, int] | None:
        """Read (physical offset, size, tags code) of one message; None outside the queue."""
        units = self.read_units(offset, 1)
        return None if not len(units) else units[0].item()

    def store_time(self, offset: int, record_time: Callable[[int], int]) -> int:
        """Return the store time (epoch ms) of one message; -1 outside the queue."""
        part = self._rebuilt if offset >= self._middle else self._files
        return part.store_time(offset, record_time)

    def roll_next_file(self, offset: int) -> int:
        """Return the first offset of the next file, or the end of what was rebuilt."""
        part = self._rebuilt if offset >= self._middle else self._files
        return part.roll_next_file(offset)

    def path_of(self, offset: int) -> str:
        """Return what holds the unit of an offset: a file, or the folder of the log."""
        part = self._rebuilt if offset >= self._middle else self._files
        return part.path_of(offset)


class JoinedQueues:
    """A `ForeignQueues`. units_until: byte of the commit log; no unit of the files counts whose
    message ends behind it."""

    def __init__(self, files: ForeignFileQueues, units_until: int, rebuilt: RebuiltQueues) -> None:
        self._files = files
        self._units_until = units_until
        self._rebuilt = rebuilt

    def list_queues(self) -> Iterable[QueueKey]:
        """List the queues with messages, in files or in the log."""
        return {*self._files.list_queues(), *self._rebuilt.list_queues()}

    def open_queue(self, key: QueueKey) -> JoinedQueue | RebuiltQueue | ConsumeQueue | None:
        """Open one queue, None when there is none."""
        rebuilt, queue = self._rebuilt.open_queue(key), self._files.open_queue(key)
        if queue is None:
            return rebuilt
        # What was in front of a deletion is gone, what is behind it was rebuilt.
        expired = self._rebuilt.deleted_ends.get(key, 0)
        middle = max(queue.find_cut(self._units_until), expired)
        queue.max_offset = middle
        queue.min_offset = min(max(queue.min_offset, expired), middle)
        if rebuilt is None or rebuilt.max_offset <= middle:
            return queue
        if rebuilt.min_offset > middle:  # what is between has expired
            return rebuilt
        return JoinedQueue(queue, middle, rebuilt)

    def close(self) -> None:
        """Forget what was rebuilt; the files are the store's."""
        self._files.close()
        self._rebuilt.close()
