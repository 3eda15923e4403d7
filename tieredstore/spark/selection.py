"""Which queues the data source reads, and from where to where."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from tieredstore.errors import Invalid
from tieredstore.scan.catalogue import QueueFiles, TierCatalogue
from tieredstore.scan.extents import QueueReader
from tieredstore.scan.location import TierLocation
from tieredstore.scan.selection import Selection
from tieredstore.scan.time_search.search import find_first
from tieredstore.spark.offsets import EARLIEST, LATEST, QueueKey, show_queue
from tieredstore.spark.options import Bound, SourceOptions
from tieredstore.table import Tier


def key_of(queue: QueueFiles) -> QueueKey:
    return queue.topic, queue.broker, queue.queue_id


def select_queues(
    options: SourceOptions, catalogue: TierCatalogue, *, strict: bool = True
) -> list[QueueFiles]:
    """Select the queues that the options choose. With `strict`, a topic or an assigned queue that
    the tier has not is an error (Invalid), with near names."""
    if strict:
        for topic, broker, queue_id in (options.assigned or set()) - {
            *map(key_of, catalogue.queues)
        }:
            catalogue.select(topic, queue_id, broker)  # says which there are
    topics = options.topics
    if not strict and topics is not None:
        topics = tuple(set(topics).intersection(catalogue.topic_names()))
    found = Selection(topics=topics, topic_pattern=options.topic_pattern).queues(catalogue)
    if options.assigned is None:
        return found
    return [queue for queue in found if key_of(queue) in options.assigned]


def chooses(options: SourceOptions, key: QueueKey) -> bool:
    """Tell whether the options choose a queue, be it there or not."""
    topic, broker, _ = key
    if options.broker is not None and broker != options.broker:
        return False
    if options.assigned is not None:
        return key in options.assigned
    if options.topics is not None:
        return topic in options.topics
    return re.fullmatch(options.topic_pattern or "", topic) is not None


def check_named(bound: Bound | None, option: str, queues: Sequence[QueueFiles]) -> None:
    """Raise Invalid where offsets name a queue that is not among those chosen."""
    known = {key_of(queue) for queue in queues}
    for key in sorted(bound.named) if bound is not None else ():
        if key not in known:
            raise Invalid(
                f"{option}: {show_queue(key)} is not among the queues that are read: "
                + (", ".join(map(show_queue, sorted(known)[:10])) or "none")
            )


def resolve_bound(
    reader: QueueReader,
    bound: Bound,
    on_out_of_range: Callable[[int, int, int], int],
    *,
    search_times: bool = True,
) -> int:
    """Return the offset that a bound means in a queue. An offset that the queue has not goes with
    min and max offset to `on_out_of_range`, which gives another. Without `search_times` each
    message's time is compared."""
    key = key_of(reader.queue)
    wanted, time_ms = bound.of(key), bound.time_of(key)
    most = reader.max_offset()
    if wanted == LATEST and time_ms is None:
        return most
    least = reader.min_offset()
    if time_ms is not None:
        first = find_first(reader, least, most, since_ms=time_ms, search_times=search_times)
        return most if first is None else first
    if wanted == EARLIEST:
        return least
    return wanted if least <= wanted <= most else on_out_of_range(wanted, least, most)


def listing_of(location: TierLocation) -> TierCatalogue:
    """Return what the tier holds now. Raises Corrupt, Unavailable."""
    return Tier(location).catalogue()
