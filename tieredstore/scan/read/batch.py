"""Messages of one queue as columns over one buffer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tieredstore.message.columns.records import RecordColumns
from tieredstore.message.record import StoredMessage, decode_record
from tieredstore.scan.catalogue import QueueFiles

Int64s = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class MessageBatch:
    """Messages of one queue over one buffer, in queue offset order; arrays have one item each.

    buffer: commit log bytes from `base_offset` (of the queue's log) on. columns: positions are
    bytes in the buffer. tags_codes: from the consume queue.
    """

    queue: QueueFiles
    buffer: memoryview
    base_offset: int
    queue_offsets: Int64s
    tags_codes: Int64s
    columns: RecordColumns

    def __len__(self) -> int:
        return len(self.queue_offsets)

    @property
    def stored_bytes(self) -> int:
        return int(self.columns.sizes.sum())

    def owners(self) -> Iterator[tuple[QueueFiles, int]]:
        """Yield the queue, and how many rows are its own: all."""
        yield self.queue, len(self)

    def message(self, index: int) -> StoredMessage:
        return decode_record(
            self.buffer,
            int(self.columns.positions[index]),
            tags_code=int(self.tags_codes[index]),
        )

    def messages(self) -> Iterator[StoredMessage]:
        for index in range(len(self)):
            yield self.message(index)

    def select(self, mask: Bools) -> MessageBatch:
        """Return the messages where `mask` is true, over the same buffer."""
        return self if mask.all() else self.rows(mask)

    def rows(self, mask: Bools | slice) -> MessageBatch:
        """Return the messages of a mask or a slice, over the same buffer."""
        return MessageBatch(
            self.queue,
            self.buffer,
            self.base_offset,
            self.queue_offsets[mask],
            self.tags_codes[mask],
            self.columns.take(mask),
        )


@dataclass(frozen=True, slots=True)
class UnitRun:
    """Units that one read of the commit log serves; tiered offsets and sizes in bytes."""

    queue_offsets: Int64s
    offsets: Int64s
    sizes: Int64s
    tags_codes: Int64s

    def take(self, rows: Bools | npt.NDArray[np.intp] | slice) -> UnitRun:
        """Take the units of a mask, of indices or of a slice."""
        return UnitRun(
            self.queue_offsets[rows], self.offsets[rows], self.sizes[rows], self.tags_codes[rows]
        )

    @property
    def start(self) -> int:
        return int(self.offsets[0])

    @property
    def end(self) -> int:
        return int((self.offsets + self.sizes).max())
