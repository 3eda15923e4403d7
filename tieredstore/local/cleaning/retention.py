"""Which files of the commit log have expired, and from where on somebody needs it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from tieredstore.contracts.dispatch_source import QueueKey
from tieredstore.local.dispatch_source import LocalDispatchSource
from tieredstore.local.log.commit_log import CommitLogReader
from tieredstore.local.queues.interface import ConsumeQueueStoreInterface
from tieredstore.local.store_reads import record_time


class CleanableLog(CommitLogReader, Protocol):
    """A commit log from which old files may be deleted."""

    def delete_files_before(self, offset: int) -> list[Path]:
        """Delete the files that end at or before an offset, oldest first, and return their paths:
        never one that is not flushed, so never the last."""
        ...


def find_expired_end(log: CommitLogReader, now_ms: int, reserved_ms: int, max_files: int) -> int:
    """Return the end (bytes) of the leading files, at most `max_files`, whose newest message was
    stored more than `reserved_ms` ago.

    The newest message of a file is about as old as the first one of the next. A time later than
    `now_ms` was never true, so the first later file with a credible one says it instead; and where
    times went back, the later of a file's two ends counts.
    """
    size, end = log.file_size, log.min_offset
    limit_ms = now_ms - reserved_ms

    def first_time(begin: int) -> int:
        time = record_time(log, begin)
        return time if time <= now_ms else -1

    for _ in range(max_files):
        following = end - end % size + size
        ages = [first_time(end)]
        while following < log.readable_offset and len(ages) == 1:
            time = first_time(following)
            if time >= 0:
                ages.append(time)
            following += size
        if len(ages) == 1 or max(ages) >= limit_ms:
            break
        end += size - end % size
    return end


@dataclass(frozen=True, slots=True)
class NeededFrom:
    """The first byte of the commit log that somebody still needs, and for which queue."""

    physical_offset: int
    key: QueueKey
    queue_offset: int


class RetentionGuards:
    """What must not be deleted yet: what was not dispatched, and what the tier has not taken.

    dispatched: byte up to which the log was dispatched.
    """

    def __init__(
        self,
        source: LocalDispatchSource,
        queues: ConsumeQueueStoreInterface,
        dispatched: Callable[[], int],
    ) -> None:
        self._source = source
        self._queues = queues
        self.dispatched = dispatched

    def find_needed(self, before: int) -> NeededFrom | None:
        """Find the first byte before an offset that the tier still needs; None when there is
        none."""
        found: NeededFrom | None = None
        for key in self._source.queues():
            offset = self._source.find_needed_offset(key)
            if offset is None:
                continue
            queue = self._queues.get(key)
            if queue is None or offset >= queue.max_offset:
                continue
            offset = max(offset, queue.min_offset)
            unit = queue.unit(offset)
            if unit is not None and unit[0] < (before if found is None else found.physical_offset):
                found = NeededFrom(unit[0], key, offset)
        return found
