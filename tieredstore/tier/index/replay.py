"""Which keys are in the index already, so that putting them again after a crash adds nothing.

After a crash the dispatcher puts the keys of everything above a queue's watermark once more; some
of them are in the local files. The rows found there at recovery are kept here, by queue, until the
queue has been put past them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

_MASK = 0xFFFFFFFF
_SHIFT = np.uint64(32)


@dataclass(slots=True)
class _QueueRows:
    """offsets: distinct commit log offsets, ascending; pairs: `rank of offset << 32 | hash`."""

    offsets: npt.NDArray[np.int64]
    pairs: npt.NDArray[np.uint64]


class ReplayFilter:
    """Rows known at recovery. Not thread-safe: the index service's put lock guards it."""

    def __init__(self) -> None:
        self._queues: dict[tuple[int, int], _QueueRows] = {}

    def __len__(self) -> int:
        return len(self._queues)

    def add(
        self,
        topic_ids: npt.NDArray[np.integer],
        queue_ids: npt.NDArray[np.integer],
        offsets: npt.NDArray[np.int64],
        hashes: npt.NDArray[np.integer],
    ) -> None:
        """Remember rows of any number of queues."""
        order = np.lexsort((queue_ids, topic_ids))
        topics, queues = topic_ids[order], queue_ids[order]
        starts = np.flatnonzero((topics[1:] != topics[:-1]) | (queues[1:] != queues[:-1])) + 1
        for rows in np.split(order, starts):
            if len(rows):
                key = (int(topic_ids[rows[0]]), int(queue_ids[rows[0]]))
                self.add_queue(key, offsets[rows].astype(np.int64), hashes[rows])

    def add_queue(
        self,
        key: tuple[int, int],
        offsets: npt.NDArray[np.int64],
        hashes: npt.NDArray[np.integer],
    ) -> None:
        """Remember rows of one queue."""
        before = self._queues.get(key)
        low = hashes.astype(np.int64) & _MASK
        if before is not None:
            offsets = np.append(before.offsets[before.pairs >> _SHIFT], offsets)
            low = np.append((before.pairs & np.uint64(_MASK)).astype(np.int64), low)
        distinct, ranks = np.unique(offsets, return_inverse=True)
        self._queues[key] = _QueueRows(distinct, _pairs(ranks, low))

    def find_unknown(
        self,
        key: tuple[int, int],
        offsets: npt.NDArray[np.int64],
        hashes: npt.NDArray[np.int32],
    ) -> npt.NDArray[np.bool_] | None:
        """Find which rows of a batch are new; None when all are."""
        known = self._queues.get(key)
        if known is None or not len(offsets):
            return None
        ranks = np.searchsorted(known.offsets, offsets).astype(np.intp)
        ranks[ranks == len(known.offsets)] = 0
        present: npt.NDArray[np.bool_] = known.offsets[ranks] == offsets
        present &= np.isin(_pairs(ranks, hashes.astype(np.int64) & _MASK), known.pairs)
        return ~present

    def advance(self, key: tuple[int, int], offset: int) -> None:
        """Let nothing of the queue below an offset be put again."""
        known = self._queues.get(key)
        if known is not None and offset > int(known.offsets[-1]):
            del self._queues[key]

    def forget(self, key: tuple[int, int]) -> None:
        """Forget the queue: it starts anew."""
        self._queues.pop(key, None)


def _pairs(ranks: npt.NDArray[np.intp], low: npt.NDArray[np.int64]) -> npt.NDArray[np.uint64]:
    return ranks.astype(np.uint64) << _SHIFT | low.astype(np.uint64)
