"""Consume queues of a store that this process does not own, and three ways to read them.

The queues are in files, or in a RocksDB database whose owner has stopped. The newest units of a
database with a running owner are in the owner's memory, so such queues are rebuilt from the commit
log (`rebuilt`). After an unclean stop, valid units of files are joined with rebuilt units.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Final, Protocol

from tieredstore.contracts.dispatch_source import QueueKey
from tieredstore.contracts.message_store import BoundaryType
from tieredstore.local.log.foreign_log import ForeignCommitLog
from tieredstore.local.positional_files import PositionalFiles
from tieredstore.local.queues.consume_queue import ConsumeQueue
from tieredstore.local.queues.consume_queue_store import CONSUME_QUEUE_DIRECTORY, list_queues
from tieredstore.local.queues.extension_files import (
    EXTENSION_DIRECTORY,
    ConsumeQueueExt,
    ExtendedConsumeQueue,
)
from tieredstore.local.queues.interface import ConsumeQueueReader, HeldBack
from tieredstore.local.queues.missing.completed import CompletedQueue
from tieredstore.local.queues.names import can_be_folder
from tieredstore.local.queues.rebuilt import RebuiltQueues
from tieredstore.local.queues.rocksdb.consume_queue import QueueReads, RocksDBConsumeQueue
from tieredstore.local.queues.rocksdb.database import ReadOnlyDatabase
from tieredstore.local.queues.unit_search import offset_by_time

_NEAR: Final = 16


class ForeignQueues(Protocol):
    """Reader of a store's queues."""

    def list_queues(self) -> Iterable[QueueKey]:
        """Return the existing queues."""

    def open_queue(self, key: QueueKey) -> ConsumeQueueReader | None:
        """Open one queue, or return None."""

    def close(self) -> None:
        """Close all resources. Idempotent."""


class ForeignFileQueues:
    """Queues in files. `before_ms`: serve only messages with an earlier store time (None: all
    messages). `record_time`: returns the store time of the record at a log offset."""

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
        return list_queues(self._directory)

    def open_queue(self, key: QueueKey) -> ConsumeQueue | None:
        queue = self._open_unbounded(key)
        if queue is not None:
            self._bound(queue)
        return queue

    def find_held_back(self, is_taken: Callable[[str], bool]) -> dict[QueueKey, HeldBack]:
        """Return, for each queue, the messages that are not served because their store time is not
        before `before_ms`. `is_taken`: returns whether to include the queues of a topic."""
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

    def find_end(self, key: QueueKey) -> int:
        """Return the end of a queue, including messages that may not be served yet, or 0 without
        files."""
        queue = self._open_unbounded(key)
        return 0 if queue is None else queue.max_offset

    def _open_unbounded(self, key: QueueKey) -> ConsumeQueue | None:
        directory = self._directory / key.topic / str(key.queue_id)
        if not can_be_folder(key.topic) or not directory.is_dir():
            return None
        queue = self._make_queue(key, directory)
        queue.load(owner=False)
        queue.correct_min_offset(self._log.min_offset)
        return queue

    def _bound(self, queue: ConsumeQueue) -> int:
        """End a queue at the first message that may not be served yet, and return that offset."""
        before_ms = self._before_ms
        if before_ms is not None:
            # Incomplete units at the end point nowhere. A single damaged unit or time must not end
            # a queue, so the earlier time of two messages counts.
            def time_of(offset: int) -> int:
                near = range(offset, min(offset + _NEAR, queue.max_offset))
                times = (queue.store_time(one, self._record_time) for one in near)
                return min(islice((time for time in times if time >= 0), 2), default=before_ms)

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
        """Do nothing: the files belong to the store."""


class NoQueues:
    """`ForeignQueues` of a store whose queues cannot be read."""

    def list_queues(self) -> Iterable[QueueKey]:
        """Return no queues."""
        return ()

    def open_queue(self, key: QueueKey) -> None:
        """Return None."""

    def close(self) -> None:
        """Do nothing."""


class ClosedDatabaseQueues:
    """Queues in a RocksDB database that no process has open. Raises the errors of opening it."""

    def __init__(self, directory: Path, log: ForeignCommitLog) -> None:
        self._log = log
        database = ReadOnlyDatabase(directory)
        try:
            self._reads = QueueReads(database)
        except BaseException:
            database.close()
            raise

    def list_queues(self) -> Iterable[QueueKey]:
        return self._reads.list_queues()

    def open_queue(self, key: QueueKey) -> RocksDBConsumeQueue | None:
        self._reads.correct_min_offset(self._log.min_offset)
        return self._reads.read_queue(key)

    def close(self) -> None:
        self._reads.close()


@dataclass(eq=False)
class JoinedQueues:
    """`ForeignQueues` with the units in the queues' files, followed by units rebuilt from the
    commit log. `_units_until`: position in the commit log. The units in files are used only for
    messages that end at or before it."""

    _files: ForeignFileQueues
    _units_until: int
    _rebuilt: RebuiltQueues

    def list_queues(self) -> Iterable[QueueKey]:
        return {*self._files.list_queues(), *self._rebuilt.list_queues()}

    def open_queue(self, key: QueueKey) -> ConsumeQueueReader | None:
        rebuilt, queue = self._rebuilt.open_queue(key), self._files.open_queue(key)
        if queue is None:
            return rebuilt
        # Units before a deletion are gone, later ones were rebuilt.
        expired = self._rebuilt.deleted_ends.get(key, 0)
        middle = max(queue.find_cut(self._units_until), expired)
        queue.max_offset = middle
        queue.min_offset = min(max(queue.min_offset, expired), middle)
        if rebuilt is None or rebuilt.max_offset <= middle:
            return queue
        if rebuilt.min_offset > middle:  # the messages between have expired
            return rebuilt
        rebuilt.drop_before(middle)
        return CompletedQueue(queue, [rebuilt], rebuilt.path_of(middle))

    def close(self) -> None:
        self._files.close()
        self._rebuilt.close()
