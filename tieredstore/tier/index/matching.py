"""Which items of an index file answer a query."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tieredstore.tier.index.item import IndexItem

MAX_CHAIN_ITEMS = 1 << 20
"""Most items of one hash slot, or of one hash, that a query looks at in one file."""

_INT32_MAX = 2**31 - 1
_INT32_MIN = -(2**31)
_FAR_MS = 1 << 61


@dataclass(frozen=True, slots=True)
class Wanted:
    """A query, as one file sees it.

    hashes: those under which the key may be; limit: most items wanted; begin_ms, end_ms: store
    times, both inclusive; topic_id: None for any.
    """

    hashes: tuple[int, ...]
    limit: int
    begin_ms: int
    end_ms: int
    topic_id: int | None = None

    def take(
        self,
        rows: Iterable[tuple[int, ...]],
        key_hash: int,
        file_begin_ms: int,
        found: list[IndexItem],
    ) -> None:
        """`select` for few items, as tuples of the fields; adds to `found` up to `limit`."""
        for row in rows:
            if row[0] != key_hash or row[4] <= 0:
                continue
            if self.topic_id is not None and row[1] != self.topic_id:
                continue
            seconds = row[5]
            time_ms = seconds * 1000 + file_begin_ms
            latest = time_ms + (0 if seconds < 0 else 999 if seconds < _INT32_MAX else _FAR_MS)
            earliest = time_ms - (0 if seconds > 0 else 999 if seconds > _INT32_MIN else _FAR_MS)
            if latest >= self.begin_ms and earliest <= self.end_ms:
                found.append(IndexItem(row[1], row[2], row[3], row[4], time_ms))
                if len(found) >= self.limit:
                    return

    def select(
        self, items: npt.NDArray[np.void], key_hash: int, file_begin_ms: int
    ) -> list[IndexItem]:
        """The items of one hash that fit, in their order, at most `limit`.

        Times are kept in whole seconds, cut toward the file's begin and to 32 bits, so an item
        fits when any time that it may stand for does.
        """
        seconds = items["time_diff_seconds"].astype(np.int64)
        times = seconds * 1000 + file_begin_ms
        latest = times + np.where(seconds == _INT32_MAX, _FAR_MS, np.where(seconds < 0, 0, 999))
        earliest = times - np.where(seconds == _INT32_MIN, _FAR_MS, np.where(seconds > 0, 0, 999))
        fits = (
            (items["hash"] == key_hash)
            & (items["size"] > 0)
            & (latest >= self.begin_ms)
            & (earliest <= self.end_ms)
        )
        if self.topic_id is not None:
            fits &= items["topic_id"] == self.topic_id
        rows = np.flatnonzero(fits)[: self.limit]
        chosen = items[rows]
        return list(
            map(
                IndexItem,
                chosen["topic_id"].tolist(),
                chosen["queue_id"].tolist(),
                chosen["offset"].tolist(),
                chosen["size"].tolist(),
                times[rows].tolist(),
            )
        )
