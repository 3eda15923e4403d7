"""Batch of records prepared for the tier, in one buffer with rewritten physical offsets."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tieredstore.errors import Corrupt
from tieredstore.message import layout
from tieredstore.message.buffers import find_least
from tieredstore.message.columns import records as columns
from tieredstore.message.consume_queue import UNIT_DTYPE

Int64s = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class RecordBatch:
    """Consecutive messages of one queue, as they are written to the tier. The arrays have one value
    per message.

    `first_offset`: queue offset of the first message.
    `buffer`: the adjacent records, with their physical offsets in the tier.
    `starts`, `ends`: positions in `buffer` (bytes).
    `sizes`: bytes.
    `offsets`: positions in the queue's commit log (bytes).
    `store_timestamps`: epoch ms.
    """

    first_offset: int
    buffer: memoryview
    starts: Int64s
    ends: Int64s
    sizes: Int64s
    offsets: Int64s
    tags_codes: Int64s
    store_timestamps: Int64s

    @property
    def count(self) -> int:
        return len(self.sizes)

    def take_first(self, count: int) -> RecordBatch:
        """Return a batch with only the first `count` messages."""
        if count == self.count:
            return self
        return RecordBatch(
            self.first_offset,
            self.buffer[: int(self.ends[count - 1]) if count else 0],
            self.starts[:count],
            self.ends[:count],
            self.sizes[:count],
            self.offsets[:count],
            self.tags_codes[:count],
            self.store_timestamps[:count],
        )

    def unit_bytes(self, first: int, stop: int) -> memoryview:
        """Return the consume queue units of messages [first, stop), packed."""
        units = np.empty(stop - first, UNIT_DTYPE)
        units["physical_offset"] = self.offsets[first:stop]
        units["size"] = self.sizes[first:stop]
        units["tags_code"] = self.tags_codes[first:stop]
        return memoryview(units.tobytes())


def prepare(
    units: npt.NDArray[np.void],
    records: Sequence[memoryview],
    commit_log_offset: int,
    *,
    first_offset: int,
    path: str,
) -> RecordBatch:
    """Copy records into one buffer and give them physical offsets that start at
    `commit_log_offset`. A single writable buffer is not copied. `units`: the consume queue units of
    the records, for sizes and tags codes. Raises Corrupt, naming `path` and the queue offset, if a
    size or magic in a record does not match its unit."""
    sizes = units["size"].astype(np.int64)
    ends = sizes.cumsum()
    starts = ends - sizes
    buffer = records[0] if len(records) == 1 else memoryview(bytearray().join(records))
    if buffer.readonly:
        buffer = memoryview(bytearray(buffer))
    total = int(ends[-1]) if len(ends) else 0
    if len(buffer) != total or (total and find_least(sizes) < layout.MIN_RECORD_SIZE):
        raise Corrupt(
            f"{path}: {len(sizes)} units from queue offset {first_offset} on name {total} "
            f"bytes, their records have {len(buffer)}",
            offset=first_offset,
            path=path,
        )
    bad = columns.find_bad_head(buffer, starts, sizes)
    if bad is not None:
        row, size, magic = bad
        raise Corrupt(
            f"{path}: record of queue offset {first_offset + row}: expected size "
            f"{int(sizes[row])}, found size {size} and magic {magic:08x}",
            offset=first_offset + row,
            path=path,
        )
    offsets = starts + commit_log_offset
    columns.rewrite_physical_offsets(buffer, starts, offsets)
    return RecordBatch(
        first_offset,
        buffer,
        starts,
        ends,
        sizes,
        offsets,
        units["tags_code"].astype(np.int64),
        columns.store_timestamps(buffer, starts),
    )


@dataclass(frozen=True, slots=True)
class Mark:
    """Messages that were appended together to one segment.

    `first_unit`: queue offset of the first message.
    `log_begin`: position of that message in the commit log.
    `log_ends`: end of each message in the commit log.
    `times`: store times (epoch ms).
    `heads`: first bytes of some messages, by index of the message (`take_heads`).
    """

    first_unit: int
    log_begin: int
    log_ends: Int64s
    times: Int64s
    heads: Mapping[int, bytes]

    @property
    def behind(self) -> int:
        """Queue offset after the last message."""
        return self.first_unit + len(self.log_ends)

    def take_first(self, behind: int) -> Mark:
        """Return a copy with only the messages below the queue offset `behind`."""
        count = behind - self.first_unit
        ends, times = self.log_ends[:count], self.times[:count]
        return Mark(self.first_unit, self.log_begin, ends, times, self.heads)


class Marks:
    """Messages of one queue that are appended but not committed, in order. `on_commit`: called with
    each mark whose messages become committed."""

    __slots__ = ("_marks", "_on_commit")

    def __init__(self, on_commit: Callable[[Mark], None]) -> None:
        self._marks: list[Mark] = []
        self._on_commit = on_commit

    def __bool__(self) -> bool:
        return bool(self._marks)

    def add(self, mark: Mark) -> None:
        """Add messages that were just appended together."""
        self._marks.append(mark)

    def commit(self, until: int) -> None:
        """Remove the marks that end at or before the queue offset `until`, because they are
        committed."""
        while self._marks and self._marks[0].behind <= until:
            self._on_commit(self._marks.pop(0))

    def keep_first(self, until: int) -> int:
        """Drop the messages from the queue offset `until` on, and return its position in the commit
        log. There must be at least one mark."""
        end = self._marks[0].log_begin
        kept = [one.take_first(until) for one in self._marks if one.first_unit < until]
        self._marks = kept
        return int(kept[-1].log_ends[-1]) if kept else end

    def clear(self) -> None:
        """Remove all marks."""
        self._marks.clear()
