"""Deletions of topics, as recorded in the log by messages of DELETION_TOPIC.

Nothing is cached in memory. The units of deletions have the topic's hash as their tags code. A
lookup reads 20 bytes for each deletion in the log, and the deletion messages of one topic.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec
import numpy as np

from tieredstore.contracts.dispatch_source import DeletedEnd, QueueKey
from tieredstore.disk.errors import wrap_os_errors
from tieredstore.disk.file_operations import FILES
from tieredstore.disk.notes import read_note
from tieredstore.errors import Corrupt
from tieredstore.local.log.commit_log import CommitLogReader
from tieredstore.local.queues.interface import ConsumeQueueReader, Units
from tieredstore.local.queues.topic_deletion import TopicDeletion, deletion_tags_code
from tieredstore.local.queues.unit_search import find_first
from tieredstore.message.consume_queue import MIN_EXTENDED_ADDRESS, UNIT_DTYPE
from tieredstore.message.names import DELETION_TOPIC
from tieredstore.message.record import StoredMessage, decode_record
from tieredstore.skipped_records import SkippedRecords

KEPT_FILE: Final = "tieredstore.deletions.json"
"""Name of the file in the store's folder that keeps deletions until a tier has recorded them. Java
ignores it."""
_MARKS_OF_A_TIER: Final = ("config/tieredStoreMetadata.json", "config/tieredStoreMetadata.json.bak")
_FORMAT: Final = 1
_log = logging.getLogger(__name__)


class _File(msgspec.Struct, frozen=True):
    """Content of KEPT_FILE. `topics`: end offset of each deleted queue, by topic and queue id."""

    format: int
    topics: dict[str, dict[int, DeletedEnd]]


class KeptDeletions:
    """File of deletions that a tier has not recorded yet. Thread-safe. `root`: the store's
    folder."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._path = root / KEPT_FILE
        self._backup = root / f"{KEPT_FILE}.bak"
        self._lock = threading.Lock()
        self._found: dict[str, dict[int, DeletedEnd]] | None = None

    def keep(self, deletions: Mapping[QueueKey, DeletedEnd]) -> None:
        """Add deletions, if the store belongs to a tier. Raises Unavailable."""
        if not any((self._root / mark).exists() for mark in _MARKS_OF_A_TIER):
            return
        with self._lock:
            known = self._load()
            new = {topic: dict(queues) for topic, queues in known.items()}
            for key, end in deletions.items():
                before = new.setdefault(key.topic, {}).get(key.queue_id)
                if before is None or before.offset <= end.offset:
                    new[key.topic][key.queue_id] = end
            if new != known:
                self._write(new)

    def find_all(self) -> dict[QueueKey, DeletedEnd]:
        """Return the deleted queues, each with its end at the last deletion."""
        with self._lock:
            return {
                QueueKey(topic, queue_id): end
                for topic, queues in self._load().items()
                for queue_id, end in queues.items()
            }

    def forget(self, topics: Collection[str]) -> None:
        """Drop the deletions of topics that the tier has recorded. Raises Unavailable."""
        with self._lock:
            known = self._load()
            rest = {topic: queues for topic, queues in known.items() if topic not in topics}
            if rest != known:
                self._write(rest)

    def _load(self) -> dict[str, dict[int, DeletedEnd]]:
        if self._found is None:
            self._found = self._read(self._path)
            if self._found is None:
                self._found = self._read(self._backup) or {}
        return self._found

    def _read(self, path: Path) -> dict[str, dict[int, DeletedEnd]] | None:
        try:
            found = read_note(path, _File, "deletions of topics")
        except Corrupt as error:
            _log.warning("%s: not read", error)
            return None
        return None if found is None else found.topics

    def _write(self, topics: dict[str, dict[int, DeletedEnd]]) -> None:
        data = msgspec.json.encode(_File(_FORMAT, topics))
        with wrap_os_errors("write", self._path):
            FILES.replace_file(self._path, data, backup=self._backup)
        self._found = topics


_CHUNK_UNITS: Final = 65_536


@dataclass(eq=False)
class TopicDeletions:
    """Deletions whose messages are still in the log. Thread-safe. `_find_queue`, `_commit_log`:
    functions of the store, which may not be open when this object is created. `_skipped`: counter
    of messages of DELETION_TOPIC that are not deletions."""

    _find_queue: Callable[[str, int], ConsumeQueueReader | None]
    _commit_log: Callable[[], CommitLogReader]
    _skipped: SkippedRecords

    def find_end_offset(self, topic: str, queue_id: int) -> int:
        """Return the end of a queue when its topic was last deleted, or 0 if the log has no such
        deletion. Raises Corrupt."""
        for _, deletion in self._walk(topic):
            if queue_id in deletion.end_offsets:
                return deletion.end_offsets[queue_id]
        return 0

    def find_position(self, topic: str) -> int:
        """Return the position of the last deletion of a topic in the commit log (bytes), or -1.
        Messages before it do not belong to the current topic. Raises Corrupt."""
        return next((message.physical_offset for message, _ in self._walk(topic)), -1)

    def find_all(self) -> dict[QueueKey, DeletedEnd]:
        """Return all deleted queues, each with its end at the last deletion. Raises Corrupt."""
        found: dict[QueueKey, DeletedEnd] = {}
        for message, deletion in self._walk(None):
            for queue_id, offset in deletion.end_offsets.items():
                end = DeletedEnd(offset, message.physical_offset, message.store_timestamp_ms)
                found.setdefault(QueueKey(deletion.topic, queue_id), end)
        return found

    def _walk(self, topic: str | None) -> Iterator[tuple[StoredMessage, TopicDeletion]]:
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
                # An address that cannot be resolved may belong to any topic.
                is_unknown = codes <= MIN_EXTENDED_ADDRESS
                rows = np.flatnonzero((codes == deletion_tags_code(topic)) | is_unknown)
            for row in rows[::-1].tolist():
                position, size, _ = units[row].item()
                record = self._commit_log().get(position, size)
                if record is None:
                    return  # and all before it: they have expired
                message = decode_record(record)
                deletion = TopicDeletion.parse(message, self._skipped)
                if deletion is not None and topic in (None, deletion.topic):
                    yield message, deletion
            stop = start


def _read_units(queue: ConsumeQueueReader, start: int, stop: int) -> Units:
    parts = [np.empty(0, dtype=UNIT_DTYPE)]
    while start < stop and len(part := queue.read_units(start, stop - start)):
        parts.append(part)
        start += len(part)
    return np.concatenate(parts)


def find_first_behind(queue: ConsumeQueueReader, physical_offset: int) -> int:
    """Return the first queue offset whose message is after `physical_offset`, or the queue's
    max_offset."""

    def is_behind(offset: int) -> bool:
        unit = queue.unit(offset)
        return unit is not None and unit[0] >= physical_offset

    return find_first(queue.min_offset, queue.max_offset, is_behind)
