"""A batch of records made ready for the tier: one buffer, physical offsets rewritten, columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tieredstore.errors import Corrupt
from tieredstore.message import layout
from tieredstore.message.columns import records as columns
from tieredstore.message.columns.bounds import find_least
from tieredstore.message.consume_queue import UNIT_DTYPE

Int64s = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class RecordBatch:
    """Consecutive messages of one queue, as they are in the tier.

    first_offset: queue offset of the first; buffer: the records, one behind the other, with the
    physical offsets of the tier; per message: starts and ends (bytes in `buffer`), sizes (bytes),
    offsets (bytes in the queue's commit log), tags_codes, store_timestamps (ms).
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
        """Return a batch of the first messages alone."""
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
    """Copy records into one buffer and give them physical offsets from `commit_log_offset` on.
    One buffer that can be written to is used as it is.

    units: the consume queue units of the records, for sizes and tags codes. Raises Corrupt, naming
    `path` and the queue offset, when sizes or magics in the records differ from the units.
    """
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
