"""Facts as rows: one a queue, one a topic, one a frequent value, one a topic and age.

Sizes are bytes, times epoch ms, costs US dollars; a value that nothing is known of is None.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import TypeAlias

from tieredstore.config import StoreConfig
from tieredstore.contracts.usage import Prices
from tieredstore.jobs.reporting.costs import Cost, broker_cost, queue_cost
from tieredstore.jobs.reporting.facts import (
    AGE_NAMES,
    HOUR_MS,
    KINDS,
    Ages,
    Facts,
    QueueFacts,
    TopicFacts,
)
from tieredstore.jobs.reporting.sketches import Sizes
from tieredstore.jobs.reporting.tasks import queue_name, topic_name
from tieredstore.scan.catalogue import QueueFiles, SegmentExtent, TierCatalogue

Row: TypeAlias = dict[str, object]
QUANTILES = (("p50", 0.5), ("p90", 0.9), ("p99", 0.99))
_TOP = 20


@dataclass(frozen=True, slots=True)
class Summary:
    """totals: of the whole tier, what the JSON report has as well. The others are tables."""

    totals: Row
    topics: list[Row]
    queues: list[Row]
    values: list[Row]
    ages: list[Row]


def summarise(
    catalogue: TierCatalogue,
    facts: Facts,
    now_ms: int,
    config: StoreConfig,
    prices: Prices | None,
) -> Summary:
    """Make rows in the order of names. now_ms: ages and rates are told from there. prices: None
    where no price applies: costs are None then, and requests are told."""
    made = _summarise(catalogue, facts, now_ms, config, prices or Prices())
    if prices is None:
        for row in (made.totals, *made.topics, *made.queues):
            row.update({name: None for name in row if "_usd" in name})
    return made


def _summarise(
    catalogue: TierCatalogue, facts: Facts, now_ms: int, config: StoreConfig, prices: Prices
) -> Summary:
    queues: list[Row] = []
    topics: dict[str, _Topic] = {}
    for queue in catalogue.queues:
        found = facts.queues.get(queue_name(queue), QueueFacts())
        past_ms = now_ms - (now_ms if found.oldest_ms is None else found.oldest_ms)
        sizes = found.sizes
        # What waited for less than an hour says little about a rate.
        past_ms = max(past_ms, HOUR_MS)
        cost = queue_cost(queue, sizes.count, sizes.total, past_ms, config, prices)
        queues.append(_queue_row(queue, found, cost))
        topic = topics.setdefault(topic_name(queue), _Topic(show_name(queue.topic)))
        topic.add(queue, found, cost)
    indexes = [extent for extents in catalogue.indexes.values() for extent in extents]
    _share_index(topics, facts.topics, sum(e.size_bytes for e in indexes), prices)
    topic_rows = [topic.row(facts.topics.get(name, TopicFacts())) for name, topic in topics.items()]
    objects = sum(map(_objects, catalogue.queues)) + sum(map(_objects_of, indexes))
    whole = _Topic("")
    for topic in topics.values():
        whole.merge(topic)
    brokers = Cost()
    for _ in catalogue.brokers:
        brokers.add(broker_cost(objects, prices))
    cost = Cost()
    cost.add(whole.cost)
    cost.add(brokers)
    totals: Row = {
        "brokers": len(catalogue.brokers),
        "topics": len(topic_rows),
        "queues": len(queues),
        "messages": whole.facts.sizes.count,
        "commit_log_bytes": whole.log_bytes,
        "consume_queue_bytes": whole.unit_bytes,
        "index_bytes": sum(extent.size_bytes for extent in indexes),
        "segments": whole.segments + len(indexes),
        "objects": objects,
        "holes": whole.facts.holes,
        **_record_sizes(whole.facts.sizes),
        "min_store_timestamp": whole.facts.oldest_ms,
        "max_store_timestamp": whole.facts.newest_ms,
        **_costs(cost),
        "brokers_write_usd_month": brokers.write_usd_month,
        "damage": facts.findings,
    }
    return Summary(
        totals, topic_rows, queues, list(_values(facts, topics)), list(_ages(topics.values()))
    )


def show_name(name: str) -> str:
    """Return a name from a listing as text: bytes that are no UTF-8 become U+FFFD."""
    return name.encode(errors="surrogateescape").decode("utf-8", "replace")


class _Topic:
    """Sums over the queues of a topic."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.queues = 0
        self.log_bytes = 0
        self.unit_bytes = 0
        self.index_bytes = 0
        self.segments = 0
        self.objects = 0
        self.facts = QueueFacts()
        self.cost = Cost()

    def add(self, queue: QueueFiles, facts: QueueFacts, cost: Cost) -> None:
        self.queues += 1
        self.log_bytes += _size(queue.commit_log)
        self.unit_bytes += _size(queue.consume_queue)
        self.segments += len(queue.commit_log) + len(queue.consume_queue)
        self.objects += _objects(queue)
        self.facts.merge(facts)
        self.cost.add(cost)

    def merge(self, other: _Topic) -> None:
        self.queues += other.queues
        self.log_bytes += other.log_bytes
        self.unit_bytes += other.unit_bytes
        self.index_bytes += other.index_bytes
        self.segments += other.segments
        self.objects += other.objects
        self.facts.merge(other.facts)
        self.cost.add(other.cost)

    def row(self, topic: TopicFacts) -> Row:
        sizes = self.facts.sizes
        return {
            "topic": self.name,
            "queues": self.queues,
            "messages": sizes.count,
            "commit_log_bytes": self.log_bytes,
            "consume_queue_bytes": self.unit_bytes,
            "index_bytes": self.index_bytes,
            "segments": self.segments,
            "objects": self.objects,
            "holes": self.facts.holes,
            **_record_sizes(sizes),
            "min_store_timestamp": self.facts.oldest_ms,
            "max_store_timestamp": self.facts.newest_ms,
            "messages_read": topic.messages,
            **_distinct(topic),
            **_costs(self.cost),
        }


def _queue_row(queue: QueueFiles, facts: QueueFacts, cost: Cost) -> Row:
    objects = _objects(queue)
    return {
        "broker": show_name(queue.broker),
        "topic": show_name(queue.topic),
        "queue_id": queue.queue_id,
        "first_offset": facts.first_offset,
        "next_offset": queue.consume_queue_max_offset,
        "messages": facts.sizes.count,
        "commit_log_bytes": _size(queue.commit_log),
        "consume_queue_bytes": _size(queue.consume_queue),
        "segments": len(queue.commit_log) + len(queue.consume_queue),
        "objects": objects,
        "bytes_an_object": queue.size_bytes / objects if objects else None,
        "holes": facts.holes,
        "hole_offsets": facts.hole_offsets,
        **_record_sizes(facts.sizes),
        "min_store_timestamp": facts.oldest_ms,
        "max_store_timestamp": facts.newest_ms,
        **_costs(cost),
    }


def _record_sizes(sizes: Sizes) -> Row:
    return {
        "record_bytes": sizes.total,
        "record_bytes_mean": sizes.mean,
        "record_bytes_min": sizes.least if sizes.count else None,
        **{f"record_bytes_{name}": sizes.quantile(share) for name, share in QUANTILES},
        "record_bytes_max": sizes.most if sizes.count else None,
    }


def _costs(cost: Cost) -> Row:
    return asdict(cost)


def _distinct(topic: TopicFacts) -> Row:
    row: Row = {}
    for kind in KINDS:
        values = topic.values[kind]
        row[f"{kind.lower()}_values"] = values.frequent.total
        row[f"{kind.lower()}_distinct"] = values.distinct.estimate()
    return row


def _values(facts: Facts, topics: Mapping[str, _Topic]) -> Iterable[Row]:
    """Of each topic and kind the most frequent values. `share` is of all values of that kind that
    were read; of `count`, the true number is from `count` to `count_most`."""
    for name, topic in topics.items():
        for kind in KINDS:
            frequent = facts.topics.get(name, TopicFacts()).values[kind].frequent
            for rank, (text, count) in enumerate(frequent.top(_TOP), 1):
                yield {
                    "topic": topic.name,
                    "kind": kind,
                    "rank": rank,
                    "value": text,
                    "count": count,
                    "count_most": count + frequent.error,
                    "share": count / frequent.total,
                }


def _ages(topics: Iterable[_Topic]) -> Iterable[Row]:
    for topic in topics:
        ages: Ages = topic.facts.ages
        for name, messages, size in zip(AGE_NAMES, ages.messages, ages.size_bytes, strict=True):
            yield {"topic": topic.name, "age": name, "messages": messages, "record_bytes": size}


def _share_index(
    topics: Mapping[str, _Topic], facts: Mapping[str, TopicFacts], size_bytes: int, prices: Prices
) -> None:
    """Index files are one a broker: each topic has the part that its keys are of all keys, or its
    messages of all messages where no record was read."""
    weights: Counter[str] = Counter()
    for name, topic in topics.items():
        found = facts.get(name, TopicFacts())
        if found.messages:
            keys = sum(found.values[kind].frequent.total for kind in ("KEYS", "UNIQ_KEY"))
            weights[name] = round(keys * topic.facts.sizes.count / found.messages)
    if not weights.total():
        weights.update({name: topic.facts.sizes.count for name, topic in topics.items()})
    borders = [0]
    for name in topics:
        borders.append(borders[-1] + weights[name])
    for topic, (low, high) in zip(topics.values(), pairwise(borders), strict=True):
        if high > low:
            topic.index_bytes = size_bytes * high // borders[-1] - size_bytes * low // borders[-1]
            topic.cost.storage_usd_month += prices.price_storage(topic.index_bytes)


def _size(extents: Iterable[SegmentExtent]) -> int:
    return sum(extent.size_bytes for extent in extents)


def _objects(queue: QueueFiles) -> int:
    return sum(map(_objects_of, (*queue.commit_log, *queue.consume_queue)))


def _objects_of(extent: SegmentExtent) -> int:
    return 0 if extent.listing is None else extent.listing.objects
