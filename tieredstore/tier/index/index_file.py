"""Common parts of the tier's index files: status, items and queries."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt


class IndexStatus(Enum):
    """State of an index file, with Java's names."""

    UNSEALED = "unsealed"
    """On the local disk and accepting keys. A broker has at most one such file."""
    SEALED = "sealed"
    """On the local disk, and full or closed to further keys. Uploaded next."""
    UPLOAD = "upload"
    """Compacted and stored in an INDEX segment of the tier. Read only."""
    SHUTDOWN = "shutdown"
    """Closed by the process, or removed. Accepts no keys. A query that began before can finish."""


class IndexStoreFile:
    """Common part of `LocalIndexStoreFile` and `UploadedIndexStoreFile`. `begin_ms`: time from
    which item times are counted, also the name of a local file."""

    def __init__(self, begin_ms: int, status: IndexStatus) -> None:
        self.begin_ms = begin_ms
        self.status = status

    def seal(self) -> None:
        """Stop accepting keys. No-op unless the file is UNSEALED."""
        if self.status is IndexStatus.UNSEALED:
            self.status = IndexStatus.SEALED

    def close(self) -> None:
        """Release the system resources of the file, and set its status to SHUTDOWN."""
        self.status = IndexStatus.SHUTDOWN


class IndexItem(NamedTuple):
    """Message whose key has the wanted hash. The caller must still verify topic and key.
    `topic_id`: id of the topic in the metadata store. Offset and size are bytes in the queue's
    tiered commit log. `timestamp_ms`: store time, accurate to within 999 ms
    (`docs/formats/tiered-index.md`)."""

    topic_id: int
    queue_id: int
    offset: int
    size: int
    timestamp_ms: int


MAX_CHAIN_ITEMS = 1 << 20
"""Maximum number of items of one hash slot or one hash that a query reads in one file."""

CREDIBLE_SECONDS = 10 * 366 * 86_400
"""Maximum plausible difference between the time of an item and the begin time of its file, in
seconds. A larger difference is an error of Java, which reads the times of messages from IPv6 hosts
at a wrong position, and cuts off values beyond 32 bits. In these cases only the message has the
correct time."""

_ANY_MS: Final = 1 << 62


class Wanted(NamedTuple):
    """Query of one index file.

    `hashes`: possible hashes of the key.
    `limit`: maximum number of items.
    `begin_ms`, `end_ms`: store times, both inclusive.
    `topic_id`: None for any topic.
    """

    hashes: tuple[int, ...]
    limit: int
    begin_ms: int
    end_ms: int
    topic_id: int | None = None

    def at_any_time(self) -> Wanted:
        """Return this query without time limits, for files whose times are wrong. The caller must
        compare the times of the messages."""
        return self._replace(begin_ms=-_ANY_MS, end_ms=_ANY_MS)

    def take(
        self,
        rows: Iterable[tuple[int, ...]],
        key_hash: int,
        file_begin_ms: int,
        found: list[IndexItem],
    ) -> None:
        """Add matching items to `found`, up to `limit`. Does the same as `select`, for a few items
        given as tuples."""
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
        """Return the matching items of one hash in their order, at most `limit`. Times are stored
        in whole seconds, rounded toward the begin time of the file. So an item matches if any time
        that rounds to its time matches, or if its time is not plausible (`CREDIBLE_SECONDS`)."""
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
