"""Search for a key in messages that are not indexed, up to a limit of bytes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import groupby

from tieredstore.contracts.segment import SegmentProvider
from tieredstore.scan.catalogue import QueueFiles, TierCatalogue
from tieredstore.scan.findings import OnFinding
from tieredstore.scan.keys.plan import plan_unindexed
from tieredstore.scan.keys.search import Hit, has_key
from tieredstore.scan.plan import ScanBounds, ScanRange
from tieredstore.scan.read.batches import BATCH_BYTES, read_batches_backwards
from tieredstore.scan.selection import Selection


@dataclass(slots=True)
class Unindexed:
    """Result of a search in messages that are not indexed. `hits`: found messages by queue and
    offset. `messages`: number of messages that were read. `left_messages`: number of messages
    beyond the limit."""

    hits: list[Hit]
    messages: int = 0
    size_bytes: int = 0
    left_messages: int = 0


def find_unindexed(
    provider: SegmentProvider,
    catalogue: TierCatalogue,
    queues: Sequence[QueueFiles],
    key: str,
    *,
    is_id: bool,
    since_ms: int | None,
    until_ms: int | None,
    limit: int,
    most_bytes: int,
    on_finding: OnFinding,
) -> Unindexed:
    """Search for messages with a key (`is_id` as for `find_by_key`) that the index files lack. Each
    queue is searched backwards from its newest message. In total, about `most_bytes` of the commit
    log are read. Raises Corrupt for queues that cannot be planned, Unavailable."""
    bounds = Selection(since_ms=since_ms, until_ms=until_ms).bounds()
    found = Unindexed([])
    for one in _plan(provider, catalogue, queues, key, bounds):
        left = one.count
        if len(found.hits) < limit and found.size_bytes < most_bytes:
            left -= _look_at(provider, one, key, found, limit, most_bytes, on_finding, is_id=is_id)
        if len(found.hits) < limit:
            found.left_messages += left
    found.hits.sort(key=lambda hit: (hit.queue.path, hit.message.queue_offset))
    return found


def _plan(
    provider: SegmentProvider,
    catalogue: TierCatalogue,
    queues: Sequence[QueueFiles],
    key: str,
    bounds: ScanBounds,
) -> Iterator[ScanRange]:
    ordered = sorted(queues, key=lambda queue: queue.broker)
    for broker, group in groupby(ordered, key=lambda queue: queue.broker):
        index = catalogue.indexes.get(broker, ())
        planned = plan_unindexed(provider, index, list(group), [key], bounds)
        for _, ranges in groupby(planned, key=lambda one: one.queue.path):
            yield from reversed(list(ranges))


def _look_at(
    provider: SegmentProvider,
    one: ScanRange,
    key: str,
    found: Unindexed,
    limit: int,
    most_bytes: int,
    on_finding: OnFinding,
    *,
    is_id: bool,
) -> int:
    """Search a range backwards and add the hits to `found`. Return the number of messages that were
    read."""
    batch_bytes = min(BATCH_BYTES, most_bytes - found.size_bytes)
    batches = read_batches_backwards(provider, one, batch_bytes=batch_bytes, on_finding=on_finding)
    with closing(batches):
        for batch in batches:
            found.messages += len(batch)
            found.size_bytes += batch.stored_bytes
            for message in batch.messages():
                if has_key(message, key, is_id=is_id):
                    found.hits.append(Hit(batch.queue, message))
            if found.size_bytes >= most_bytes or len(found.hits) >= limit:
                return one.until_offset - int(batch.queue_offsets[0])
    return one.count
