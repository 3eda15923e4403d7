"""What `ls` and `stat` say about a queue."""

from __future__ import annotations

from collections.abc import Iterator

from tieredstore.contracts.segment import SegmentProvider
from tieredstore.errors import Corrupt
from tieredstore.scan.ahead import map_ahead
from tieredstore.scan.catalogue import QueueFiles
from tieredstore.scan.extents import QueueReader
from tieredstore.scan.plan import store_time

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
    """Yield one row a queue; over a network, several are looked at together. min_offset and the
    times are null where damage hides them."""
    return map_ahead(provider, lambda queue: _make_row(provider, queue), queues)


def _make_row(provider: SegmentProvider, queue: QueueFiles) -> dict[str, object]:
    low: int | None = None
    first: int | None = None
    last: int | None = None
    with QueueReader(provider, queue) as reader:
        high = reader.max_offset()
        try:
            low = reader.min_offset()
            if low < high:
                first, last = store_time(reader, low), store_time(reader, high - 1)
        except Corrupt:
            pass
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
