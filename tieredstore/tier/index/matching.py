"""Which items of an index file answer a query."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tieredstore.tier.index.item import IndexItem

MAX_CHAIN_ITEMS = 1 << 20
"""Most items of one hash slot, or of one hash, that a query looks at in one file."""

CREDIBLE_SECONDS = 10 * 366 * 86_400
"""Most that an item's time may be away from its file's begin. What is farther off says nothing:
Java indexed messages of IPv6 hosts under times read from inside the address (D14), and what does
not fit in 32 bits is cut off. Only the message itself knows then."""


class Wanted(NamedTuple):
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
        """Take what `select` takes, for few items, as tuples of the fields; adds to `found` up to
        `limit`."""
        _, limit, begin_ms, end_ms, wanted_id = self
        for row in rows:
            item_hash, topic_id, queue_id, offset, size, seconds = row[:6]
            if item_hash != key_hash or size <= 0:
                continue
            if wanted_id is not None and topic_id != wanted_id:
                continue
            time_ms = seconds * 1000 + file_begin_ms
            latest = time_ms + (0 if seconds < 0 else 999)
            earliest = time_ms - (0 if seconds > 0 else 999)
            is_within = latest >= begin_ms and earliest <= end_ms
            if is_within or abs(seconds) > CREDIBLE_SECONDS:
                found.append(IndexItem(topic_id, queue_id, offset, size, time_ms))
                if len(found) >= limit:
                    return

    def select(
        self, items: npt.NDArray[np.void], key_hash: int, file_begin_ms: int
    ) -> list[IndexItem]:
        """Select the items of one hash that fit, in their order, at most `limit`.

        Times are kept in whole seconds, cut toward the file's begin, so an item fits when any time
        that it may stand for does, or when its time is not credible.
        """
        seconds = items["time_diff_seconds"].astype(np.int64)
        times = seconds * 1000 + file_begin_ms
        latest = times + np.where(seconds < 0, 0, 999)
        earliest = times - np.where(seconds > 0, 0, 999)
        is_within = (latest >= self.begin_ms) & (earliest <= self.end_ms)
        fits = (
            (items["hash"] == key_hash)
            & (items["size"] > 0)
            & (is_within | (np.abs(seconds) > CREDIBLE_SECONDS))
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
