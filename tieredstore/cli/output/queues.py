"""Rows of queues for `ls` and `stat`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

from tieredstore.contracts.segment import SegmentProvider
from tieredstore.errors import Corrupt
from tieredstore.scan.ahead import map_ahead
from tieredstore.scan.catalogue import QueueFiles
from tieredstore.scan.expired import open_queue
from tieredstore.scan.plan import store_time
from tieredstore.scan.read.tail import find_committed_end

QUEUE_COLUMNS = (
    "broker",
    "topic",
    "queue_id",
    "min_offset",
    "max_offset",
    "messages",
    "segments",
    "bytes",
    "min_store_timestamp",
    "max_store_timestamp",
)


def queue_rows(provider: SegmentProvider, queues: list[QueueFiles]) -> Iterator[dict[str, object]]:
    """Yield a row for each queue. Over a network, several queues are read concurrently. A queue
    ends after the last message that readers can read. The times are those of the first and last
    message. The times and `min_offset` are null if damage hides them."""
    return map_ahead(provider, lambda queue: _make_row(provider, queue), queues)


def _make_row(provider: SegmentProvider, queue: QueueFiles) -> dict[str, object]:
    low: int | None = None
    first: int | None = None
    last: int | None = None
    with open_queue(provider, queue) as reader:
        high = reader.max_offset()
        with suppress(Corrupt):
            low = reader.min_offset()
            high = find_committed_end(reader)
            if low < high:
                first = store_time(reader, low)
                last = store_time(reader, high - 1)
                first, last = min(first, last), max(first, last)  # if a clock was set back
    return {
        "broker": queue.broker,
        "topic": queue.topic,
        "queue_id": queue.queue_id,
        "min_offset": low,
        "max_offset": high,
        "messages": None if low is None else max(high - low, 0),
        "segments": len(queue.commit_log) + len(queue.consume_queue),
        "bytes": queue.size_bytes,
        "min_store_timestamp": first,
        "max_store_timestamp": last,
    }
