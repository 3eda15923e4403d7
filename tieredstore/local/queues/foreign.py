"""The consume queues of a store that another process owns, or nobody: three ways to read them.

In files; in a RocksDB database whose owner is down; or made from the commit log, where a database
has an owner, who keeps what is in it to himself (`rebuilt`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Protocol

from tieredstore.contracts.dispatch_source import QueueKey
from tieredstore.contracts.message_store import BoundaryType
from tieredstore.local.log.foreign_log import ForeignCommitLog
from tieredstore.local.positional_files import PositionalFiles
from tieredstore.local.queues.consume_queue import ConsumeQueue
from tieredstore.local.queues.consume_queue_store import CONSUME_QUEUE_DIRECTORY, list_queues
from tieredstore.local.queues.extension.consume_queue import ExtendedConsumeQueue
from tieredstore.local.queues.extension.files import EXTENSION_DIRECTORY, ConsumeQueueExt
from tieredstore.local.queues.interface import ConsumeQueueReader, HeldBack
from tieredstore.local.queues.names import can_be_folder
from tieredstore.local.queues.rocksdb.consume_queue import RocksDBConsumeQueue
from tieredstore.local.queues.rocksdb.database import ReadOnlyDatabase
from tieredstore.local.queues.rocksdb.reading import QueueReads
from tieredstore.local.queues.time_search import offset_by_time


class ForeignQueues(Protocol):
    """What reads the queues of a store."""

    def list_queues(self) -> Iterable[QueueKey]:
        """List the queues that there are now."""
        ...

    def open_queue(self, key: QueueKey) -> ConsumeQueueReader | None:
        """Open one queue, None when there is none."""
        ...

    def close(self) -> None:
        """Give up what is open. Idempotent."""
        ...


class ForeignFileQueues:
    """Queues in files. before_ms: store time from which on nothing is served; None for no such
    bound. record_time: reads the store time of the record at a byte of the log."""

    def __init__(
        self,
        root: Path,
        files: PositionalFiles,
        log: ForeignCommitLog,
        before_ms: int | None,
        record_time: Callable[[int], int],
    ) -> None:
        self._directory = root / CONSUME_QUEUE_DIRECTORY
        self._extension_directory = root / EXTENSION_DIRECTORY
        self._files = files
        self._log = log
        self._before_ms = before_ms
        self._record_time = record_time

    def list_queues(self) -> Iterable[QueueKey]:
        """List the queues that have a folder."""
        return list_queues(self._directory)

    def open_queue(self, key: QueueKey) -> ConsumeQueue | None:
        """Open the files of one queue."""
        queue = self._open_unbounded(key)
        if queue is not None:
            self._bound(queue)
        return queue

    def find_held_back(self, is_taken: Callable[[str], bool]) -> dict[QueueKey, HeldBack]:
        """Find the messages behind the bound, of the queues of the topics that `is_taken` says."""
        found: dict[QueueKey, HeldBack] = {}
        for key in self.list_queues():
            queue = self._open_unbounded(key) if is_taken(key.topic) else None
            if queue is None:
                continue
            end = queue.max_offset
            first = self._bound(queue)
            if first < end:
                queue.max_offset = end
                found[key] = HeldBack(end - first, queue.store_time(first, self._record_time))
        return found

    def _open_unbounded(self, key: QueueKey) -> ConsumeQueue | None:
        directory = self._directory / key.topic / str(key.queue_id)
        if not can_be_folder(key.topic) or not directory.is_dir():
            return None
        queue = self._make_queue(key, directory)
        queue.load(owner=False)
        queue.correct_min_offset(self._log.min_offset)
        return queue

    def _bound(self, queue: ConsumeQueue) -> int:
        """End a queue where its messages are too late; returns there."""
        before_ms = self._before_ms
        if before_ms is not None:
            # A unit that is not whole yet leads nowhere: it is later than everything.
            def time_of(offset: int) -> int:
                time = queue.store_time(offset, self._record_time)
                return before_ms if time < 0 else time

            queue.max_offset = offset_by_time(
                time_of, queue.min_offset, queue.max_offset, before_ms, BoundaryType.LOWER
            )
        return queue.max_offset

    def _make_queue(self, key: QueueKey, directory: Path) -> ConsumeQueue:
        topic, queue_id = key
        extended = self._extension_directory / topic / str(queue_id)
        if not extended.is_dir():
            return ConsumeQueue(topic, queue_id, directory, self._files, None)
        extension = ConsumeQueueExt(extended, self._files, 0)
        extension.find_file_size()
        return ExtendedConsumeQueue(topic, queue_id, directory, self._files, None, extension)

    def close(self) -> None:
        """Do nothing: the files are the store's."""


class ClosedDatabaseQueues:
    """Queues in a RocksDB database that nobody has open. Raises what opening it raises."""

    def __init__(self, directory: Path, log: ForeignCommitLog) -> None:
        self._log = log
        database = ReadOnlyDatabase(directory)
        try:
            self._reads = QueueReads(database)
        except BaseException:
            database.close()
            raise

    def list_queues(self) -> Iterable[QueueKey]:
        """List the queues that have, or had, messages."""
        return self._reads.list_queues()

    def open_queue(self, key: QueueKey) -> RocksDBConsumeQueue | None:
        """Read where one queue begins and ends."""
        self._reads.correct_min_offset(self._log.min_offset)
        return self._reads.read_queue(key)

    def close(self) -> None:
        """Close the database."""
        self._reads.close()
