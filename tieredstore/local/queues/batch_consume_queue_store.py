"""All batch consume queues of a store: `batchconsumequeue/<topic>/<queueId>/`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tieredstore.contracts.dispatch_source import QueueKey
from tieredstore.local.positional_files import PositionalFiles
from tieredstore.local.queues.batch_consume_queue import BatchConsumeQueue
from tieredstore.local.queues.consume_queue_store import BATCH_DIRECTORY, list_queues
from tieredstore.local.queues.names import check_queue_name
from tieredstore.message.consume_queue import BatchUnit
from tieredstore.message.hashes import tags_code
from tieredstore.message.record import StoredMessage
from tieredstore.message.sysflag import (
    INNER_BATCH,
    TRANSACTION_MASK,
    TRANSACTION_PREPARED,
    TRANSACTION_ROLLBACK,
)

_MAX_COUNT: Final = 2**15 - 1


class BatchConsumeQueueStore:
    """The batch queues that there are, found by `load`. Files are as long as those of the same
    folder, a first one as long as Java's (13,800,000 bytes)."""

    def __init__(self, root: Path, files: PositionalFiles) -> None:
        self._directory = root / BATCH_DIRECTORY
        self._files = files
        self._queues: dict[QueueKey, BatchConsumeQueue] = {}
        self.topics: frozenset[str] = frozenset()

    def load(self, *, owner: bool) -> None:
        """Find the queues and their last units. Raises Corrupt, Invalid or Unavailable."""
        self._queues = {}
        for key in sorted(list_queues(self._directory)):
            queue = self._queues[key] = self._make_queue(key)
            queue.load(owner=owner)
        self.topics = frozenset(key.topic for key in self._queues)

    def _make_queue(self, key: QueueKey) -> BatchConsumeQueue:
        check_queue_name(key)
        directory = self._directory / key.topic / str(key.queue_id)
        return BatchConsumeQueue(key.topic, key.queue_id, directory, self._files, None)

    def get(self, key: QueueKey) -> BatchConsumeQueue | None:
        return self._queues.get(key)

    def append_record(self, message: StoredMessage, physical_offset: int) -> None:
        """Put the unit of a record of several messages; one of a single message, or that does not
        say how many it has, is in no queue. Raises Exhausted or Unavailable."""
        base, count = (message.get_property(name) for name in ("INNER_BASE", "INNER_NUM"))
        if not message.sys_flag & INNER_BATCH or not base or not count:
            return
        if message.sys_flag & TRANSACTION_MASK in (TRANSACTION_PREPARED, TRANSACTION_ROLLBACK):
            return
        if not base.isdigit() or not count.isdigit() or not 0 < int(count) <= _MAX_COUNT:
            return
        key = QueueKey(message.topic, message.queue_id)
        queue = self._queues.get(key)
        if queue is None:
            queue = self._queues[key] = self._make_queue(key)
        queue.append(
            BatchUnit(
                physical_offset,
                message.size,
                tags_code(message.tags),
                message.store_timestamp_ms,
                int(base),
                int(count),
            )
        )

    def truncate(self, physical_offset: int) -> None:
        """Drop the units of records that are not wholly before a commit log offset."""
        for queue in self:
            queue.truncate(physical_offset)

    def correct_min_offset(self, min_physical_offset: int) -> None:
        """Let each queue begin at the first record that the commit log still holds."""
        for queue in self:
            queue.correct_min_offset(min_physical_offset)

    def delete_expired(self, min_physical_offset: int) -> int:
        """Correct the minima and delete the files in front of them; returns how many. Raises
        Unavailable; then the next call goes on."""
        return sum(queue.delete_expired(min_physical_offset) for queue in self)

    def sync(self) -> None:
        """Sync the queues: all units put so far are on disk when this returns."""
        for queue in self:
            queue.sync()

    def __iter__(self) -> Iterator[BatchConsumeQueue]:
        return iter(list(self._queues.values()))

    @property
    def max_physical_offset(self) -> int:
        """End of the last record that any queue knows, bytes of the commit log; 0 without one."""
        return max((queue.max_physical_offset for queue in self), default=0)
