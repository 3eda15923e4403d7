"""Rows of a report: one per queue, per topic, per frequent value, and per topic and age. Sizes are
bytes, times epoch ms, costs US dollars. Unknown values are None."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
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
    """Rows of a report. `totals`: sums of the whole tier. The other fields are tables."""

    totals: Row
    topics: list[Row]
    queues: list[Row]
    values: list[Row]
    ages: list[Row]


def summarise(
    catalogue: TierCatalogue, facts: Facts, now_ms: int, config: StoreConfig, prices: Prices | None
) -> Summary:
    """Build rows in the order of names. `now_ms`: reference time of ages and rates. `prices`: None
    if no price applies. Costs are then None, and only requests are reported."""
    made = _summarise(catalogue, facts, now_ms, config, prices or Prices())
    if prices is None:
        for row in (made.totals, *made.topics, *made.queues):
            row.update({name: None for name in row if "_usd" in name})
    return made


def _summarise(
    catalogue: TierCatalogue, facts: Facts, now_ms: int, config: StoreConfig, prices: Prices
) -> Summary:
    queues: list[Row] = []
    topics: dict[str, _Sums] = {}
    for queue in catalogue.queues:
        topic, found = show_name(queue.topic), facts.queues.get(queue_name(queue), QueueFacts())
        past_ms = now_ms - (now_ms if found.oldest_ms is None else found.oldest_ms)
        sizes = found.sizes
        # Less than an hour of messages gives no reliable rate.
        past_ms = max(past_ms, HOUR_MS)
        cost = queue_cost(queue, sizes.count, sizes.total, past_ms, config, prices)
        files = (*queue.commit_log, *queue.consume_queue)
        log_bytes, unit_bytes = _size(queue.commit_log), _size(queue.consume_queue)
        sums = _Sums(topic, 1, log_bytes, unit_bytes, 0, len(files), _objects(files), found, cost)
        queues.append(_queue_row(queue, sums))
        topics.setdefault(topic_name(queue), _Sums(topic)).add(sums)
    indexes = [extent for extents in catalogue.indexes.values() for extent in extents]
    index_bytes = _size(indexes)
    _share_index(topics, facts.topics, index_bytes, prices)
    rows = [_topic_row(name, sums, facts) for name, sums in topics.items()]
    whole = _Sums(segments=len(indexes), objects=_objects(indexes))
    for sums in topics.values():
        whole.add(sums)
    brokers = sum((broker_cost(whole.objects, prices) for _ in catalogue.brokers), Cost())
    whole.cost += brokers
    totals: Row = {
        "brokers": len(catalogue.brokers),
        "topics": len(rows),
        **whole.row(),
        "index_bytes": index_bytes,
        "brokers_write_usd_month": brokers.write_usd_month,
        "damage": facts.findings,
    }
    return Summary(totals, rows, queues, list(_values(facts, topics)), list(_ages(topics.values())))


def show_name(name: str) -> str:
    """Return a name from a listing as text. Bytes that are not UTF-8 become U+FFFD."""
    return name.encode(errors="surrogateescape").decode("utf-8", "replace")


@dataclass(slots=True)
class _Sums:
    """Sums over the queues of a topic. `name`: the topic as text."""

    name: str = ""
    queues: int = 0
    log_bytes: int = 0
    unit_bytes: int = 0
    index_bytes: int = 0
    segments: int = 0
    objects: int = 0
    facts: QueueFacts = field(default_factory=QueueFacts)
    cost: Cost = field(default_factory=Cost)

    def add(self, other: _Sums) -> None:
        for name in _COUNTS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.facts.merge(other.facts)

    def row(self) -> Row:
        sizes = self.facts.sizes
        return {
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
            **asdict(self.cost),
        }


_COUNTS = [field.name for field in fields(_Sums) if field.name not in {"name", "facts"}]


def _queue_row(queue: QueueFiles, sums: _Sums) -> Row:
    return {
        **sums.row(),
        "broker": show_name(queue.broker),
        "topic": sums.name,
        "queue_id": queue.queue_id,
        "first_offset": sums.facts.first_offset,
        "next_offset": queue.consume_queue_max_offset,
        "bytes_an_object": queue.size_bytes / sums.objects if sums.objects else None,
        "hole_offsets": sums.facts.hole_offsets,
    }


def _record_sizes(sizes: Sizes) -> Row:
    return {
        "record_bytes": sizes.total,
        "record_bytes_mean": sizes.mean,
        "record_bytes_min": sizes.least if sizes.count else None,
        **{f"record_bytes_{name}": sizes.quantile(share) for name, share in QUANTILES},
        "record_bytes_max": sizes.most if sizes.count else None,
    }


def _topic_row(name: str, sums: _Sums, facts: Facts) -> Row:
    topic = facts.topics.get(name, TopicFacts())
    row: Row = {**sums.row(), "topic": sums.name, "messages_read": topic.messages}
    for kind in KINDS:
        values = topic.values[kind]
        row[f"{kind.lower()}_values"] = values.frequent.total
        row[f"{kind.lower()}_distinct"] = values.distinct.estimate()
    return row


def _values(facts: Facts, topics: Mapping[str, _Sums]) -> Iterable[Row]:
    """Yield the most frequent values of each topic and kind. `share` is relative to all read values
    of that kind. The true count is between `count` and `count_most`."""
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


def _ages(topics: Iterable[_Sums]) -> Iterable[Row]:
    for topic in topics:
        ages: Ages = topic.facts.ages
        for name, messages, size in zip(AGE_NAMES, ages.messages, ages.size_bytes, strict=True):
            yield {"topic": topic.name, "age": name, "messages": messages, "record_bytes": size}


def _share_index(
    topics: Mapping[str, _Sums], facts: Mapping[str, TopicFacts], size_bytes: int, prices: Prices
) -> None:
    """Attribute the bytes of the index files to topics by their estimated numbers of keys, or of
    messages if no keys were read."""
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


def _objects(extents: Iterable[SegmentExtent]) -> int:
    return sum(0 if e.listing is None else e.listing.objects for e in extents)
