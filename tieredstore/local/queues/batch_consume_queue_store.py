"""All batch consume queues of a store: `batchconsumequeue/<topic>/<queueId>/`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from tieredstore.contracts.dispatch_source import QueueKey
from tieredstore.local.positional_files import PositionalFiles
from tieredstore.local.queues.batch_consume_queue import BatchConsumeQueue
from tieredstore.local.queues.consume_queue_store import BATCH_DIRECTORY, list_queues
from tieredstore.local.queues.names import check_queue_name


class BatchConsumeQueueStore:
    """The batch queues that there are, found by `load`. file_size: bytes, None to take it from the
    files."""

    def __init__(self, root: Path, files: PositionalFiles, file_size: int | None) -> None:
        self._directory = root / BATCH_DIRECTORY
        self._files = files
        self._file_size = file_size
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
        return BatchConsumeQueue(key.topic, key.queue_id, directory, self._files, self._file_size)

    def get(self, key: QueueKey) -> BatchConsumeQueue | None:
        return self._queues.get(key)

    def __iter__(self) -> Iterator[BatchConsumeQueue]:
        return iter(list(self._queues.values()))

    @property
    def max_physical_offset(self) -> int:
        """End of the last record that any queue knows, bytes of the commit log; 0 without one."""
        return max((queue.max_physical_offset for queue in self), default=0)
