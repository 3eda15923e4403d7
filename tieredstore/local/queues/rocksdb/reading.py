"""The queues of a database, for reading: each is opened when somebody asks for it."""

from __future__ import annotations

from collections.abc import Iterator

from tieredstore.contracts.dispatch_source import QueueKey
from tieredstore.errors import Invalid
from tieredstore.local.queues.rocksdb.consume_queue import LogMinimum, RocksDBConsumeQueue
from tieredstore.local.queues.rocksdb.database import QueueDatabase
from tieredstore.local.queues.rocksdb.layout import (
    CHECKPOINT_KEY,
    CHECKPOINT_TOPIC,
    Place,
    is_max_key,
    pack_number,
    unpack_number,
    unpack_offset_key,
    unpack_place,
)


class QueueReads:
    """The queues that a database has. Thread-safe."""

    def __init__(self, database: QueueDatabase) -> None:
        self._database = database
        self._log_minimum = LogMinimum()
        value = database.get_offset(CHECKPOINT_KEY)
        name = f"{database.directory}: checkpoint"
        self._checkpoint = 0 if value is None else unpack_number(value, name)

    def read_queue(self, key: QueueKey) -> RocksDBConsumeQueue | None:
        """Read where a queue begins and ends; None when there is no such queue. Raises Invalid for
        the one queue whose keys are the checkpoint's."""
        if key == (CHECKPOINT_TOPIC, 0):
            raise Invalid(
                f"topic {CHECKPOINT_TOPIC}: queue 0 cannot be used, since a RocksDB consume queue "
                "keeps its own position there",
                topic=key.topic,
                queue_id=key.queue_id,
            )
        queue = self.make_queue(key)
        return queue if queue.load() else None

    def make_queue(self, key: QueueKey) -> RocksDBConsumeQueue:
        """Make a queue without messages."""
        return RocksDBConsumeQueue(key, self._database, self._log_minimum)

    def scan_lasts(
        self, first: bytes | None = None, end: bytes | None = None
    ) -> Iterator[tuple[QueueKey, Place]]:
        """Scan the queues, with the last message of each, in the order of the database. first,
        end: keys between which to look."""
        for key, value in self._database.scan_offsets(first, end):
            if not is_max_key(key) or key == CHECKPOINT_KEY:
                continue
            queue = unpack_offset_key(key).queue
            place = unpack_place(value, "last message of", queue)
            if place.offset >= 0:
                yield queue, place

    def find_lasts_after(
        self, physical_offset: int
    ) -> tuple[Iterator[QueueKey], Iterator[QueueKey]]:
        """Find the queues whose last message begins at a byte of the log or behind it, and those
        with the furthest one in front of it: one, but for light queues that share a message."""
        border, best = pack_number(physical_offset), b""
        behind: list[bytes] = []
        before: list[bytes] = []
        # Numbers are big-endian: of two places the greater bytes are the further one. Few are
        # unpacked of the very many that there may be.
        for key, value in self._database.scan_offsets():
            place = value[:8]
            if place < best or not is_max_key(key) or key == CHECKPOINT_KEY:
                continue
            if place >= border:
                behind.append(key)
                continue
            if place > best:
                best, before = place, []
            before.append(key)
        return (
            (unpack_offset_key(key).queue for key in behind),
            (unpack_offset_key(key).queue for key in before),
        )

    def list_queues(self) -> Iterator[QueueKey]:
        """List the queues that have, or had, messages, in the order of the database."""
        for key, _ in self.scan_lasts():
            yield key

    @property
    def dispatch_from(self) -> int:
        """Byte of the commit log up to which records were put."""
        return self._checkpoint

    def correct_min_offset(self, min_physical_offset: int) -> None:
        """Set where the log begins: each queue looks for its minimum when it is asked for."""
        self._log_minimum.offset = min_physical_offset

    def close(self) -> None:
        """Close the database. Idempotent."""
        self._database.close()
