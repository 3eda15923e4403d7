"""All consume queues of a store that this process writes, in one RocksDB database."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Final

from tieredstore.contracts.dispatch_source import QueueKey
from tieredstore.local.queues.interface import LogSpan, QueueUnits
from tieredstore.local.queues.names import check_queue_name, find_queue_fault
from tieredstore.local.queues.rocksdb.consume_queue import QueueReads, RocksDBConsumeQueue
from tieredstore.local.queues.rocksdb.database import Batch, open_database
from tieredstore.local.queues.rocksdb.layout import (
    CHECKPOINT_KEY,
    VALUE_SIZE,
    Place,
    find_checkpoint_fault,
    pack_max_key,
    pack_min_key,
    pack_number,
    pack_numbers,
    pack_place,
    pack_topic,
    pack_topic_end,
    pack_unit_end,
    pack_unit_prefix,
    pack_values,
)
from tieredstore.local.queues.rocksdb.replacing import finish_replacement
from tieredstore.message.lite import find_parent
from tieredstore.message.names import LMQ_PREFIX

_QUEUES_A_WRITE: Final = 1_000
"""Number of queues whose expired units are deleted in one write."""
MAX_OPEN: Final = 100_000  # queues that stay open, about 700 bytes each
NOWHERE: Final = Place(0, 0)
_LAST_BYTE: Final = 2**63 - 1


class OwnedQueue(RocksDBConsumeQueue):
    """`ConsumeQueueInterface` of the owner. `first` and `last` are set once the database has
    them."""

    __slots__ = ("_store",)

    def __init__(self, queue: RocksDBConsumeQueue, store: RocksDBConsumeQueueStore) -> None:
        super().__init__(queue.key, queue.database, queue.log_minimum)
        self.first, self.last = queue.first, queue.last
        self._store = store

    def initialize_with_offset(self, offset: int) -> None:
        self._store.begin_queue(self, offset)


class RocksDBConsumeQueueStore:
    """`ConsumeQueueStoreInterface` in RocksDB. All units of a dispatch pass are one write, which is
    durable after the next `sync`. Queues are opened on demand. `directory`: folder of the
    database."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._queues: dict[QueueKey, OwnedQueue] = {}
        self._light: Counter[str] = Counter()  # number of light queues by parent
        self._lock = threading.RLock()
        self._is_dirty = False
        self._is_open = False

    def load(self) -> None:
        """Open or create the database. Raises Corrupt, Fenced, Invalid or Unavailable."""
        finish_replacement(self._directory)
        self._database = open_database(self._directory)
        self._is_open = True
        try:
            self._reads = QueueReads(self._database)
            self._light = self._reads.count_light_queues()
        except BaseException:
            self.close()
            raise
        self._checkpoint = self._written_checkpoint = self._reads.dispatch_from

    def load_kept(self) -> LogSpan | None:
        """Return None, because the database must be opened anyway and its queues are opened on
        demand."""
        return None

    def keep(self, log: LogSpan) -> None:
        """Do nothing, because the whole state is in the database."""

    def get(self, key: QueueKey) -> OwnedQueue | None:
        queue = self._queues.get(key)
        if queue is None:
            with self._lock:
                queue = self._queues.get(key)
                found = None if queue is not None else self._reads.read_queue(key)
                if found is not None:
                    queue = self._keep_open(OwnedQueue(found, self))
        return queue

    def _keep_open(self, queue: OwnedQueue) -> OwnedQueue:
        """Keep a queue open. If too many are open, close the oldest one."""
        if len(self._queues) >= MAX_OPEN:
            del self._queues[next(iter(self._queues))]
        self._queues[queue.key] = queue
        return queue

    def get_or_create(self, key: QueueKey) -> OwnedQueue:
        queue = self.get(key)
        if queue is None:
            check_queue_name(key)
            with self._lock:
                new = OwnedQueue(self._reads.make_queue(key), self)
                queue = self._queues.get(key) or self._keep_open(new)
        return queue

    def find_fault(self, key: QueueKey) -> str | None:
        return find_queue_fault(*key) or find_checkpoint_fault(key)

    def list_queues(self) -> Iterator[QueueKey]:
        return self._reads.list_queues()

    def list_topic_queues(self) -> Iterator[QueueKey]:
        return self._reads.list_topic_queues()

    def list_light_queues(self, prefix: str, after: str = "") -> Iterator[tuple[str, int]]:
        return self._reads.list_light_queues(prefix, after)

    def count_light_queues(self, prefix: str) -> int:
        return self._light.total() if prefix == LMQ_PREFIX else self._light[find_parent(prefix)]

    def _set_places(self, queue: OwnedQueue, first: Place, last: Place | None) -> None:
        if queue.topic.startswith(LMQ_PREFIX):
            change = (last is not None) - (queue.last is not None)
            self._light[find_parent(queue.topic)] += change
        queue.first, queue.last = first, last

    def append(self, groups: Sequence[QueueUnits], dispatched_offset: int) -> None:
        with self._lock:
            checkpoint = max(self._checkpoint, dispatched_offset)
            round_ = _Round()
            if groups:
                batch = self._database.make_batch()
                for group in groups:
                    self._put_group(batch, group, round_)
                for key, first in round_.firsts.items():
                    batch.put_offset(pack_min_key(key), pack_place(first))
                for key, last in round_.lasts.items():
                    batch.put_offset(pack_max_key(key), pack_place(last))
                batch.put_offset(CHECKPOINT_KEY, pack_number(checkpoint))
                self._database.write(batch)
                self._written_checkpoint = checkpoint
            self._is_dirty = True
            self._checkpoint = checkpoint
            for key, last in round_.lasts.items():
                queue = round_.queues[key]
                self._set_places(queue, round_.firsts.get(key, queue.first), last)

    def _put_group(self, batch: Batch, group: QueueUnits, round_: _Round) -> None:
        key, offset, count = group.key, group.offset, len(group.units)
        queue = round_.queues[key] = round_.queues.get(key) or self.get_or_create(key)
        last = round_.lasts.get(key, queue.last)
        places = group.units["physical_offset"]
        skip = 0
        if last is None:
            round_.firsts[key] = Place(int(places[0]), offset)
        else:
            skip = last.offset + 1 - offset
            if skip < 0:
                raise queue.make_corrupt_error(offset, f"message {last.offset + 1} next", "it")
            if skip:
                _check_same(queue, group)
            if skip >= count:
                return
        batch.put_units(
            pack_unit_prefix(key),
            pack_numbers(offset + skip, count - skip),
            pack_values(group)[skip * VALUE_SIZE :],
        )
        round_.lasts[key] = Place(int(places[-1]), offset + count - 1)

    @property
    def dispatch_from(self) -> int:
        return self._checkpoint

    @property
    def max_physical_offset(self) -> int:
        return self._checkpoint

    def find_last_message(self) -> tuple[int, int] | None:
        """Return (physical offset, size) of the newest message in the log that has a unit in any
        queue, or None."""
        _, last = self._reads.find_lasts_after(_LAST_BYTE)
        for queue in self._read_queues(last):
            unit = queue.unit(queue.max_offset - 1)
            if unit is not None:
                return unit[:2]
        return None

    def find_queues_after(self, physical_offset: int) -> Iterator[OwnedQueue]:
        if physical_offset >= self._checkpoint:
            return  # no message ends after it
        behind, before = self._reads.find_lasts_after(physical_offset)
        for key in behind:
            yield self.get_or_create(key)
        # Of the records that begin before it, only the last can end after it.
        for key in before:
            queue = self.get_or_create(key)
            if queue.max_physical_offset > physical_offset:
                yield queue

    def _read_queues(self, keys: Iterable[QueueKey]) -> Iterator[RocksDBConsumeQueue]:
        for key in keys:
            queue = self._reads.read_queue(key)
            if queue is not None:
                yield queue

    def correct_min_offset(self, min_physical_offset: int) -> None:
        self._reads.correct_min_offset(min_physical_offset)

    def delete_expired(self, min_physical_offset: int) -> int:
        """Set the beginning of the log, and delete the units below each queue's minimum. Returns
        the number of queues that lost units. Raises Exhausted or Unavailable."""
        self.correct_min_offset(min_physical_offset)
        deleted = 0
        keys = self._reads.list_queues()
        while some := list(islice(keys, _QUEUES_A_WRITE)):
            with self._lock:
                batch = self._database.make_batch()
                firsts: dict[QueueKey, Place] = {}
                for queue in self._read_queues(some):
                    before = queue.first
                    if before.physical_offset >= min_physical_offset:
                        continue
                    first = queue.find_first(min_physical_offset)
                    if first.offset == before.offset:
                        continue
                    key = queue.key
                    prefix = pack_unit_prefix(key)
                    batch.delete_units(
                        prefix + pack_number(before.offset), prefix + pack_number(first.offset)
                    )
                    batch.put_offset(pack_min_key(key), pack_place(first))
                    firsts[key] = first
                if firsts:
                    self._write(batch)
                for key, first in firsts.items():
                    if key in self._queues:
                        self._queues[key].first = first
                deleted += len(firsts)
        return deleted

    def truncate(self, physical_offset: int) -> None:
        with self._lock:
            if self._checkpoint <= physical_offset:
                return
            batch = self._database.make_batch()
            queues = list(self.find_queues_after(physical_offset))
            places = [_cut(batch, queue, queue.find_end(physical_offset)) for queue in queues]
            batch.put_offset(CHECKPOINT_KEY, pack_number(physical_offset))
            self._write(batch)
            self._checkpoint = self._written_checkpoint = physical_offset
            for queue, (first, last) in zip(queues, places, strict=True):
                self._set_places(queue, first, last)

    def begin_queue(self, queue: OwnedQueue, offset: int) -> None:
        """Drop all units of a queue. The empty queue then begins at `offset`."""
        with self._lock:
            batch = self._database.make_batch()
            batch.delete_units(pack_unit_prefix(queue.key), pack_unit_end(queue.key))
            first, last = _put_empty(batch, queue.key, offset)
            self._write(batch)
            self._set_places(queue, first, last)
            self._queues[queue.key] = queue

    def find_queue_ids(self, topic: str) -> list[int]:
        scan = self._reads.scan_lasts(pack_topic(topic), pack_topic_end(topic))
        return [key.queue_id for key, _ in scan]

    def drop_units_before(self, key: QueueKey, offset: int) -> None:
        """Drop the units of a queue before `offset`. If no unit is left, delete the queue
        completely."""
        with self._lock:
            queue = self.get(key)
            if queue is None:
                return
            batch = self._database.make_batch()
            prefix = pack_unit_prefix(key)
            if queue.max_offset <= offset:
                batch.delete_units(prefix, pack_unit_end(key))
                _put_empty(batch, key, 0)
                self._write(batch)
                self._queues.pop(key, None)
                self._set_places(queue, NOWHERE, None)
            elif queue.min_offset < offset and (unit := queue.unit(offset)) is not None:
                first = Place(unit[0], offset)
                batch.delete_units(prefix + pack_number(0), prefix + pack_number(offset))
                batch.put_offset(pack_min_key(key), pack_place(first))
                self._write(batch)
                queue.first = first

    def _write(self, batch: Batch) -> None:
        self._database.write(batch)
        self._is_dirty = True

    def sync(self, least_pages: int = 0) -> None:  # noqa: ARG002 - one log for all queues
        """Sync the write-ahead log, if there are new units. All units put before the call are then
        on disk. Raises Unavailable, or Exhausted if nothing was synced."""
        with self._lock:
            if not self._is_dirty:
                return
            if self._checkpoint != self._written_checkpoint:
                batch = self._database.make_batch()
                batch.put_offset(CHECKPOINT_KEY, pack_number(self._checkpoint))
                self._database.write(batch)
                self._written_checkpoint = self._checkpoint
            self._is_dirty = False
        try:
            self._database.sync()
        except BaseException:
            self._is_dirty = True
            raise

    def close(self) -> None:
        with self._lock:
            if self._is_open:
                self._is_open = False
                self._queues.clear()
                self._database.close()


class _Round:
    """Changes of one dispatch pass: the first message of each new queue and the last message of
    each changed queue."""

    def __init__(self) -> None:
        self.queues: dict[QueueKey, OwnedQueue] = {}
        self.firsts: dict[QueueKey, Place] = {}
        self.lasts: dict[QueueKey, Place] = {}


def _check_same(queue: RocksDBConsumeQueue, group: QueueUnits) -> None:
    """Raise Corrupt if the queue already has another message at the first offset of `group`. An
    append would lose that message."""
    known = queue.unit(group.offset)
    new = int(group.units["physical_offset"][0])
    if known is not None and known[0] != new:
        raise queue.make_corrupt_error(
            group.offset, f"the message at {known[0]} of the commit log", f"another at {new}"
        )


def _cut(batch: Batch, queue: RocksDBConsumeQueue, end: int) -> tuple[Place, Place | None]:
    key = queue.key
    batch.delete_units(pack_unit_prefix(key) + pack_number(end), pack_unit_end(key))
    first = queue.first
    if end <= first.offset or queue.unit(end - 1) is None:
        return _put_empty(batch, key, end)
    unit = queue.unit(end - 1)
    assert unit is not None
    last = Place(unit[0], end - 1)
    batch.put_offset(pack_max_key(key), pack_place(last))
    return first, last


def _put_empty(batch: Batch, key: QueueKey, offset: int) -> tuple[Place, Place | None]:
    """Make a queue without units begin at `offset`. At offset 0, the queue is deleted completely.
    Returns the first and the last message recorded for the empty queue. Both are placeholders
    without a record in the log. The last one has the offset before the first."""
    if not offset:
        batch.delete_offset(pack_max_key(key))
        batch.delete_offset(pack_min_key(key))
        return NOWHERE, None
    first, last = Place(0, offset), Place(0, offset - 1)
    batch.put_offset(pack_max_key(key), pack_place(last))
    batch.put_offset(pack_min_key(key), pack_place(first))
    return first, last
