"""All file-based consume queues of a store: `consumequeue/<topic>/<queueId>/`."""

from __future__ import annotations

import itertools
import logging
import os
import threading
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

from tieredstore.contracts.dispatch_source import QueueKey
from tieredstore.disk.errors import translate_os_error
from tieredstore.disk.file_operations import Stamp
from tieredstore.disk.sync import sync_each
from tieredstore.errors import Corrupt, TieredStoreError
from tieredstore.local.positional_files import REMOVED_SUFFIX, PositionalFiles
from tieredstore.local.queues.consume_queue import (
    ConsumeQueue,
    KeptEnds,
    find_kept_ends,
    find_stamp,
    keep_ends,
    round_up_to_units,
)
from tieredstore.local.queues.interface import LogSpan, QueueUnits
from tieredstore.local.queues.names import check_queue_name, find_folder_fault
from tieredstore.message.names import LMQ_PREFIX

CONSUME_QUEUE_DIRECTORY: Final = "consumequeue"
BATCH_DIRECTORY: Final = "batchconsumequeue"
_log = logging.getLogger(__name__)


def list_queues(directory: Path) -> Iterator[QueueKey]:
    """Yield the queues that have a folder, in any order."""
    for topic in _folders(directory):
        for name in _folders(f"{directory}/{topic}"):
            if _is_queue(name):
                yield QueueKey(topic, int(name))


def _is_queue(name: str) -> bool:
    return name.isascii() and name.isdigit()


def _folders(directory: Path | str) -> list[str]:
    try:
        with os.scandir(directory) as entries:
            return [entry.name for entry in entries if entry.is_dir()]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise translate_os_error(error, "list", directory) from error


def batch_topics(root: Path) -> frozenset[str]:
    """Return the topics with batch consume queues."""
    return frozenset(_folders(root / BATCH_DIRECTORY))


def _depth(folder: Path) -> int:
    return len(folder.parts)


class ConsumeQueueStore:
    """`ConsumeQueueStoreInterface` in files. All of the owner's queues are loaded. `file_size`:
    bytes, rounded up to whole units."""

    def __init__(self, root: Path, files: PositionalFiles, file_size: int) -> None:
        self._root = root
        self._directory = root / CONSUME_QUEUE_DIRECTORY
        self._files = files
        self._file_size = round_up_to_units(file_size)
        self._queues: dict[QueueKey, ConsumeQueue] = {}
        self._dirty: set[ConsumeQueue] = set()  # written since the last sync
        self._new_folders: set[Path] = set()  # with files whose names are not synced
        self._dirty_lock = threading.Lock()
        self._corrected_for = -1  # byte of the log for which all minima are correct

    def load(self) -> None:
        """Open every queue and find its tail. Raises Corrupt, Invalid or Unavailable."""
        self._queues.clear()
        self._corrected_for = -1
        for key in sorted(self._find_kept(self._directory)):
            queue = self._make_queue(key)
            queue.load(owner=True)
            self._queues[key] = queue

    def load_kept(self) -> LogSpan | None:
        """Load the queues from the state that `keep` saved. Checks only folders and files, and
        reads no unit."""
        kept = find_kept_ends(self._root)
        if kept is None or kept.file_size != self._file_size:
            return None
        queues: dict[QueueKey, ConsumeQueue] = {}
        try:
            if kept.folders != self._find_folder_stamps(one.topic for one in kept.queues):
                return None
            for one in kept.queues:
                key = QueueKey(one.topic, one.queue_id)
                queue = queues[key] = self._make_queue(key)
                queue.load_kept(one)
                if queue.find_stamps() != one.stamps:
                    return None
        except (OSError, Corrupt):
            return None
        self._queues, self._corrected_for = queues, kept.log.begin
        return kept.log

    def keep(self, log: LogSpan) -> None:
        """Save the state of the queues in a file for the next start. A store that never had a
        message has no folder and nothing to save."""
        try:
            self.correct_min_offset(log.begin)
            queues = [queue.find_kept() for queue in self._all() if queue.has_files]
            if not queues and not self._directory.exists():
                return
            folders = self._find_folder_stamps(one.topic for one in queues)
        except (OSError, TieredStoreError) as error:
            _log.info("%s: the next start reads all queues: %s", self._directory, error)
        else:
            keep_ends(self._root, KeptEnds(log, self._file_size, folders, queues))

    def _find_folder_stamps(self, topics: Iterable[str]) -> dict[str, Stamp]:
        """Return the stamp of each topic's folder by topic, and of the top folder by ""."""
        stamps = {"": find_stamp(str(self._directory))}
        stamps |= {topic: find_stamp(f"{self._directory}/{topic}") for topic in set(topics)}
        return stamps

    def _find_kept(self, directory: Path) -> Iterator[QueueKey]:
        """Yield the queues that have a folder, and delete the remains of deleted queues."""
        for topic in _folders(directory):
            for name in _folders(f"{directory}/{topic}"):
                if name.endswith(REMOVED_SUFFIX):
                    self._files.delete_removed_folder(directory / topic / name)
                elif _is_queue(name):
                    yield QueueKey(topic, int(name))

    def _make_queue(self, key: QueueKey) -> ConsumeQueue:
        check_queue_name(key)
        directory = Path(f"{self._directory}/{key.topic}/{key.queue_id}")
        return ConsumeQueue(
            key.topic, key.queue_id, directory, self._files, self._file_size, self._note_dirty
        )

    def get(self, key: QueueKey) -> ConsumeQueue | None:
        return self._queues.get(key)

    def get_or_create(self, key: QueueKey) -> ConsumeQueue:
        queue = self._queues.get(key)
        if queue is None:
            queue = self._queues[key] = self._make_queue(key)
        return queue

    def find_fault(self, key: QueueKey) -> str | None:
        return find_folder_fault(*key)

    def list_queues(self) -> list[QueueKey]:
        return list(self._queues)

    def list_topic_queues(self) -> list[QueueKey]:
        return [key for key in self.list_queues() if not key.topic.startswith(LMQ_PREFIX)]

    def list_light_queues(self, prefix: str, after: str = "") -> Iterator[tuple[str, int]]:
        found = ((key.topic, queue.max_offset) for key, queue in list(self._queues.items()))
        return iter(sorted(one for one in found if one[0].startswith(prefix) and one[0] > after))

    def count_light_queues(self, prefix: str) -> int:
        return sum(key.topic.startswith(prefix) for key in self.list_queues())

    def find_queue_ids(self, topic: str) -> list[int]:
        return [key.queue_id for key in self.list_queues() if key.topic == topic]

    def _all(self) -> list[ConsumeQueue]:
        return list(self._queues.values())

    def append(self, groups: Sequence[QueueUnits], dispatched_offset: int) -> None:  # noqa: ARG002
        for group in groups:
            begin, size, _ = group.units[-1].item()
            self.get_or_create(group.key).append(group.offset, group.units.tobytes(), begin + size)

    @property
    def dispatch_from(self) -> int:
        return self.max_physical_offset

    @property
    def max_physical_offset(self) -> int:
        return max((queue.max_physical_offset for queue in self._all()), default=0)

    def find_last_message(self) -> tuple[int, int] | None:
        last = max(self._all(), key=lambda queue: queue.max_physical_offset, default=None)
        unit = None if last is None else last.unit(last.max_offset - 1)
        return None if unit is None else unit[:2]

    def find_queues_after(self, physical_offset: int) -> Iterator[ConsumeQueue]:
        for queue in self._all():
            if queue.max_physical_offset > physical_offset:
                yield queue

    def correct_min_offset(self, min_physical_offset: int) -> None:
        if min_physical_offset == self._corrected_for:
            return  # a queue created since begins after it
        for queue in self._all():
            queue.correct_min_offset(min_physical_offset)
        self._corrected_for = min_physical_offset

    def truncate(self, physical_offset: int) -> None:
        for queue in self.find_queues_after(physical_offset):
            queue.truncate(physical_offset)

    def delete_expired(self, min_physical_offset: int) -> int:
        """Move the beginning of each queue to the first message that is still in the log, and
        delete the files before it, except the queue's last file. Returns the number of deleted
        files. Raises Unavailable."""
        count = sum(queue.delete_expired(min_physical_offset) for queue in self._all())
        self._corrected_for = min_physical_offset
        return count

    def drop_units_before(self, key: QueueKey, offset: int) -> None:
        """Drop the units of a queue before `offset`, durably. If no unit is left, delete the queue
        and its files."""
        queue = self._queues.get(key)
        if queue is not None and queue.max_offset <= offset:
            queue.destroy()
            del self._queues[key]
        elif queue is not None:
            queue.drop_units_before(offset)

    def sync(self, least_pages: int = 0) -> None:
        """Sync the queues that were written since the last sync. All units put before the call are
        then on disk."""
        with self._dirty_lock:
            dirty, self._dirty = self._dirty, set()
        due = [queue for queue in dirty if queue.has_dirty_pages(least_pages)]
        try:
            sync_each(self._sync_queue, due)
        finally:
            with self._dirty_lock:
                self._dirty |= {queue for queue in dirty if queue.dirty_from >= 0}
        depths = itertools.groupby(sorted(self._new_folders, key=_depth, reverse=True), _depth)
        for _, folders in depths:  # the innermost first
            sync_each(self._sync_new_folder, list(folders))

    def _sync_queue(self, queue: ConsumeQueue) -> None:
        folders = queue.sync()
        with self._dirty_lock:
            self._new_folders |= folders

    def _sync_new_folder(self, folder: Path) -> None:
        self._files.sync_folder(folder)
        with self._dirty_lock:
            self._new_folders.discard(folder)

    def _note_dirty(self, queue: ConsumeQueue) -> None:
        with self._dirty_lock:
            self._dirty.add(queue)

    def close(self) -> None:
        """Do nothing: the files belong to the store."""
