"""FlatConsumeQueueFile: 20-byte units of one queue, at queue offset times 20.

Format: `docs/formats/consume-queue.md`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from tieredstore.contracts.block_checksums import BlocksDamaged
from tieredstore.message.consume_queue import UNIT_DTYPE, UNIT_SIZE
from tieredstore.tier.flat.append_file import FlatAppendFile
from tieredstore.tier.reading import Reading


class FlatConsumeQueueFile(FlatAppendFile):
    """Consume queue segments of one queue. The `unit_…` properties are queue offsets."""

    __slots__ = ()
    unit_bytes = UNIT_SIZE

    def _find_max_size_bytes(self) -> int:
        return max(self._config.consume_queue_max_size_bytes // UNIT_SIZE, 1) * UNIT_SIZE

    @property
    def min_unit(self) -> int:
        return self.min_offset // UNIT_SIZE

    @property
    def commit_unit(self) -> int:
        """Behind the last unit that is committed whole."""
        return self.commit_offset // UNIT_SIZE

    @property
    def append_unit(self) -> int:
        return self.append_offset // UNIT_SIZE

    @property
    def unit_holes(self) -> Sequence[tuple[int, int]]:
        """[first missing, next present) queue offsets."""
        return [(begin // UNIT_SIZE, end // UNIT_SIZE) for begin, end in self.holes]

    def read_units(
        self, unit: int, count: int, damaged: list[BlocksDamaged] | None = None
    ) -> Reading[npt.NDArray[np.void]]:
        """Read up to `count` units (UNIT_DTYPE) from a queue offset on; fewer where a contiguous
        run ends, none where nothing is. damaged: told which are in damaged blocks; what a unit
        names tells whether it is right, but for its tags code."""
        if unit < 0 or count <= 0:
            return np.empty(0, UNIT_DTYPE)
        found = yield from self.read(unit * UNIT_SIZE, count * UNIT_SIZE, damaged)
        return np.frombuffer(found, UNIT_DTYPE, count=len(found) // UNIT_SIZE)
