"""The two files of a queue: its commit log and its consume queue."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from tieredstore.contracts.block_checksums import BlocksDamaged
from tieredstore.contracts.metadata_store import NEVER_WRITTEN_MS
from tieredstore.message.consume_queue import UNIT_DTYPE, UNIT_SIZE
from tieredstore.tier.flat.append_file import FlatAppendFile
from tieredstore.tier.reading import Reading


class FlatCommitLogFile(FlatAppendFile):
    """Commit log segments of one queue. Offsets are bytes of the queue's own commit log."""

    __slots__ = ()

    def is_rolling_due(self, now_ms: int, interval_ms: int, minimum_size_bytes: int) -> bool:
        """Return whether the last segment is old enough and large enough to be rolled."""
        segments = self.segments
        if not segments:
            return False
        last = segments[-1]
        return (
            last.begin_ms != NEVER_WRITTEN_MS
            and last.begin_ms + interval_ms < now_ms
            and last.commit_position >= minimum_size_bytes
        )


class FlatConsumeQueueFile(FlatAppendFile):
    """Consume queue segments of one queue. The `unit_…` properties are queue offsets."""

    __slots__ = ()
    unit_bytes = UNIT_SIZE

    def _find_max_size_bytes(self) -> int:
        return max(self._config.consume_queue_max_size_bytes // UNIT_SIZE, 1) * UNIT_SIZE

    @property
    def commit_unit(self) -> int:
        """Queue offset after the last complete committed unit."""
        return self.commit_offset // UNIT_SIZE

    @property
    def append_unit(self) -> int:
        return self.append_offset // UNIT_SIZE

    @property
    def unit_holes(self) -> Sequence[tuple[int, int]]:
        """Holes of the queue, as ranges of queue offsets [first missing, next existing)."""
        return [(begin // UNIT_SIZE, end // UNIT_SIZE) for begin, end in self.holes]

    def read_units(
        self, unit: int, count: int, damaged: list[BlocksDamaged] | None = None
    ) -> Reading[npt.NDArray[np.void]]:
        """Read up to `count` units (UNIT_DTYPE), starting at the queue offset `unit`. Returns fewer
        units at the end of a contiguous run, and none if there is no unit at the offset. `damaged`:
        list to which damaged blocks among the units are added. A unit in such a block can be
        checked against its record, except for its tags code."""
        if unit < 0 or count <= 0:
            return np.empty(0, UNIT_DTYPE)
        found = yield from self.read(unit * UNIT_SIZE, count * UNIT_SIZE, damaged)
        return np.frombuffer(found, UNIT_DTYPE, count=len(found) // UNIT_SIZE)
