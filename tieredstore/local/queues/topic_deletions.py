"""Which topics were deleted, as the log tells it: the messages of DELETION_TOPIC.

Nothing is kept in memory. The units of the deletions have the topic's hash as their tags code, so a
look-up reads 20 bytes a deletion that the log holds, and the messages of one topic.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

import numpy as np

from tieredstore.contracts.dispatch_source import EndOfLife, QueueKey
from tieredstore.local.log.commit_log import CommitLogReader
from tieredstore.local.queues.interface import ConsumeQueueReader, Units
from tieredstore.message.consume_queue import MIN_EXTENDED_ADDRESS, UNIT_DTYPE
from tieredstore.message.names import DELETION_TOPIC
from tieredstore.message.record import StoredMessage, decode_record
from tieredstore.message.topic_deletion import TopicDeletion, deletion_tags_code

_CHUNK_UNITS: Final = 65_536


class TopicDeletions:
    """The deletions whose messages the log still holds. Thread-safe.

    find_queue, commit_log: of the store; it may not be open yet.
    """

    def __init__(
        self,
        find_queue: Callable[[str, int], ConsumeQueueReader | None],
        commit_log: Callable[[], CommitLogReader],
    ) -> None:
        self._find_queue = find_queue
        self._commit_log = commit_log

    def find_end_offset(self, topic: str, queue_id: int) -> int:
        """Find the queue offset at which the last deleted life of a queue ended; 0 when the log
        knows of none. Raises Corrupt."""
        for _, deletion in self._walk(topic):
            if queue_id in deletion.end_offsets:
                return deletion.end_offsets[queue_id]
        return 0

    def find_position(self, topic: str) -> int:
        """Find where the last deletion of a topic is in the commit log, bytes: what lies before is
        no message of it any more. -1 when the log knows of none. Raises Corrupt."""
        return next((message.physical_offset for message, _ in self._walk(topic)), -1)

    def find_all(self) -> dict[QueueKey, EndOfLife]:
        """Find all queues that were deleted, with the end of their last deleted life. Raises
        Corrupt."""
        found: dict[QueueKey, EndOfLife] = {}
        for message, deletion in self._walk(None):
            for queue_id, offset in deletion.end_offsets.items():
                end = EndOfLife(offset, message.physical_offset, message.store_timestamp_ms)
                found.setdefault(QueueKey(deletion.topic, queue_id), end)
        return found

    def _walk(self, topic: str | None) -> Iterator[tuple[StoredMessage, TopicDeletion]]:
        """The deletions of a topic (None: of all), newest first, with their messages."""
        queue = self._find_queue(DELETION_TOPIC, 0)
        if queue is None:
            return
        stop = queue.max_offset
        while stop > queue.min_offset:
            start = max(stop - _CHUNK_UNITS, queue.min_offset)
            units = _read_units(queue, start, stop)
            rows = np.arange(len(units))
            if topic is not None:
                codes = units["tags_code"]
                # An address that could not be followed may be anybody's.
                is_unknown = codes <= MIN_EXTENDED_ADDRESS
                rows = np.flatnonzero((codes == deletion_tags_code(topic)) | is_unknown)
            for row in rows[::-1].tolist():
                position, size, _ = units[row].item()
                record = self._commit_log().get(position, size)
                if record is None:
                    return  # and all before it: the log has let go of them
                message = decode_record(record)
                deletion = TopicDeletion.parse(message)
                if topic is None or deletion.topic == topic:
                    yield message, deletion
            stop = start


def _read_units(queue: ConsumeQueueReader, start: int, stop: int) -> Units:
    """The units of [start, stop), which may lie in several files; fewer when some are gone."""
    parts = [np.empty(0, dtype=UNIT_DTYPE)]
    while start < stop and len(part := queue.read_units(start, stop - start)):
        parts.append(part)
        start += len(part)
    return np.concatenate(parts)


def find_first_behind(queue: ConsumeQueueReader, physical_offset: int) -> int:
    """Find the first offset of a queue whose message is behind a byte of the commit log; its
    max_offset when none is."""
    low, high = queue.min_offset, queue.max_offset
    while low < high:
        middle = (low + high) // 2
        unit = queue.unit(middle)
        if unit is None or unit[0] < physical_offset:
            low = middle + 1
        else:
            high = middle
    return low
