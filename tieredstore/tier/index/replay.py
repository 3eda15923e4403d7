"""Which keys are in the index already, so that putting them again after a crash adds nothing.

After a crash the dispatcher puts the keys of everything above a queue's watermark once more; some
of them are in the local files. The rows found there at recovery are kept here, by queue, until the
queue has been put past them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


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
        """Remember rows of any number of queues; call once for all rows of a queue."""
        order = np.lexsort((queue_ids, topic_ids))
        topics, queues = topic_ids[order], queue_ids[order]
        starts = np.flatnonzero((topics[1:] != topics[:-1]) | (queues[1:] != queues[:-1])) + 1
        for rows in np.split(order, starts):
            if len(rows):
                key = (int(topic_ids[rows[0]]), int(queue_ids[rows[0]]))
                distinct, ranks = np.unique(offsets[rows], return_inverse=True)
                self._queues[key] = _QueueRows(distinct, _pairs(ranks, hashes[rows]))

    def unknown(
        self,
        key: tuple[int, int],
        offsets: npt.NDArray[np.int64],
        hashes: npt.NDArray[np.int32],
    ) -> npt.NDArray[np.bool_] | None:
        """Which rows of a batch are new; None when all are."""
        known = self._queues.get(key)
        if known is None or not len(offsets):
            return None
        if int(offsets.min()) > int(known.offsets[-1]):
            del self._queues[key]
            return None
        ranks = np.searchsorted(known.offsets, offsets).astype(np.intp)
        ranks[ranks == len(known.offsets)] = 0
        present: npt.NDArray[np.bool_] = known.offsets[ranks] == offsets
        present &= np.isin(_pairs(ranks, hashes), known.pairs)
        return ~present

    def forget(self, key: tuple[int, int]) -> None:
        """The queue starts anew."""
        self._queues.pop(key, None)


def _pairs(ranks: npt.NDArray[np.intp], hashes: npt.NDArray[np.integer]) -> npt.NDArray[np.uint64]:
    low = hashes.astype(np.int64) & 0xFFFFFFFF
    return ranks.astype(np.uint64) << np.uint64(32) | low.astype(np.uint64)
