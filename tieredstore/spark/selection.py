"""Queues to read, and their offsets."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from tieredstore.errors import Invalid
from tieredstore.scan.catalogue import QueueFiles, TierCatalogue
from tieredstore.scan.extents import QueueReader
from tieredstore.scan.location import TierLocation
from tieredstore.scan.selection import Selection, require_match
from tieredstore.scan.time_search.modes import SearchTimes
from tieredstore.scan.time_search.search import find_first, find_unrecorded, warn_unrecorded
from tieredstore.spark.offsets import EARLIEST, LATEST, QueueKey, show_queue
from tieredstore.spark.options import Bound, SourceOptions
from tieredstore.table import Tier


def key_of(queue: QueueFiles) -> QueueKey:
    return queue.topic, queue.broker, queue.queue_id


def select_queues(
    options: SourceOptions, catalogue: TierCatalogue, *, strict: bool = True
) -> list[QueueFiles]:
    """Return the queues that the options select. `strict`: raise Invalid, with similar names, if a
    topic or assigned queue is missing."""
    if strict:
        for topic, broker, queue_id in (options.assigned or set()) - {
            *map(key_of, catalogue.queues)
        }:
            catalogue.select(topic, queue_id, broker)  # raises with the existing ones
    topics = options.topics
    if not strict and topics is not None:
        topics = tuple(set(topics).intersection(catalogue.topic_names()))
    selection = Selection(topics=topics, topic_pattern=options.topic_pattern)
    found = selection.queues(catalogue)  # raises for a bad pattern
    if strict:
        require_match(selection, catalogue)
    if options.assigned is None:
        return found
    return [queue for queue in found if key_of(queue) in options.assigned]


def chooses(options: SourceOptions, key: QueueKey) -> bool:
    """Return whether the options select a queue, which need not exist."""
    topic, broker, _ = key
    if options.broker is not None and broker != options.broker:
        return False
    if options.assigned is not None:
        return key in options.assigned
    if options.topics is not None:
        return topic in options.topics
    return re.fullmatch(options.topic_pattern or "", topic) is not None


def check_named(bound: Bound | None, option: str, queues: Sequence[QueueFiles]) -> None:
    """Raise Invalid if offsets name a queue that is not selected."""
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
    search_times: SearchTimes = SearchTimes.EXACT,
) -> int:
    """Return the queue offset of a bound. `on_out_of_range`: called for an offset outside of the
    queue, with this offset and the queue's min and max offset. It returns the offset to use
    instead."""
    key = key_of(reader.queue)
    wanted, time_ms = bound.of(key), bound.time_of(key)
    most = reader.max_offset()
    if wanted == LATEST and time_ms is None:
        return most
    least = reader.min_offset()
    if time_ms is not None:
        if search_times is SearchTimes.EXACT:
            warn_unrecorded(find_unrecorded(reader))
        first = find_first(reader, least, most, since_ms=time_ms, search_times=search_times)
        return most if first is None else first
    if wanted == EARLIEST:
        return least
    return wanted if least <= wanted <= most else on_out_of_range(wanted, least, most)


def listing_of(location: TierLocation) -> TierCatalogue:
    """Return the current content of the tier. Raises Corrupt, Unavailable."""
    return Tier(location).catalogue()
