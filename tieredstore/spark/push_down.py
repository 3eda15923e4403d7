"""Filters of a query that choose what is read: Spark's own objects, as far as they can be taken."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
    StringContains,
    StringEndsWith,
    StringStartsWith,
)

from tieredstore.scan.catalogue import QueueFiles

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MS = timedelta(milliseconds=1)
_OF_A_QUEUE: dict[str, Callable[[QueueFiles], Any]] = {
    "topic": lambda queue: queue.topic,
    "broker": lambda queue: queue.broker,
    "queue_id": lambda queue: queue.queue_id,
}
_TESTS: dict[type[Filter], Callable[[Any, Any], bool]] = {
    EqualTo: operator.eq,
    EqualNullSafe: operator.eq,
    GreaterThan: operator.gt,
    GreaterThanOrEqual: operator.ge,
    LessThan: operator.lt,
    LessThanOrEqual: operator.le,
    In: lambda value, wanted: value in wanted,
    StringStartsWith: str.startswith,
    StringEndsWith: str.endswith,
    StringContains: operator.contains,
}


@dataclass(frozen=True, slots=True)
class Narrowing:
    """What filters leave to read: queues that pass all of `of_queue`; queue offsets [from, until);
    store times [since, until); TAGS values. None for no bound."""

    of_queue: tuple[Filter, ...] = ()
    from_offset: int = 0
    until_offset: int | None = None
    since_ms: int | None = None
    until_ms: int | None = None
    tags: frozenset[str] | None = None

    def keeps(self, queue: QueueFiles) -> bool:
        return all(_passes(one, queue) for one in self.of_queue)


def narrow_by_filters(narrowing: Narrowing, filters: Iterable[Filter]) -> Narrowing:
    """Return what the filters leave to read. Filters that choose nothing change nothing: Spark has
    to apply all of them in any case."""
    for one in filters:
        narrowing = _take_filter(narrowing, one)
    return narrowing


def _take_filter(narrowing: Narrowing, one: Filter) -> Narrowing:
    column, value = _column(one), getattr(one, "value", None)
    if value is None:  # a comparison with null is Spark's to judge
        return narrowing
    if column in _OF_A_QUEUE and type(one) in _TESTS:
        return replace(narrowing, of_queue=(*narrowing.of_queue, one))
    if column == "queue_offset":
        return _by_offset(narrowing, one, value)
    if column == "store_timestamp" and isinstance(value, datetime):
        return _by_time(narrowing, one, value)
    if column == "tags" and isinstance(one, EqualTo | EqualNullSafe | In):
        wanted = frozenset(value if isinstance(one, In) else [value]) - {None}
        return replace(
            narrowing, tags=wanted if narrowing.tags is None else narrowing.tags & wanted
        )
    return narrowing


def _column(one: Filter) -> str | None:
    attribute: tuple[str, ...] = getattr(one, "attribute", ())  # a Not has none
    return attribute[0] if len(attribute) == 1 else None


def _passes(one: Filter, queue: QueueFiles) -> bool:
    column = _column(one)
    assert column is not None
    return _TESTS[type(one)](_OF_A_QUEUE[column](queue), one.value)  # type: ignore[attr-defined]


def _by_offset(narrowing: Narrowing, one: Filter, value: Any) -> Narrowing:
    low, high = narrowing.from_offset, narrowing.until_offset
    match one:
        case GreaterThan():
            low = max(low, value + 1)
        case GreaterThanOrEqual():
            low = max(low, value)
        case LessThan():
            high = value if high is None else min(high, value)
        case LessThanOrEqual():
            high = value + 1 if high is None else min(high, value + 1)
        case EqualTo() | EqualNullSafe():
            low, high = max(low, value), value + 1 if high is None else min(high, value + 1)
        case In():
            values = [number for number in value if number is not None]
            low = max([low, min(values, default=0)])
            most = max(values, default=-1) + 1
            high = most if high is None else min(high, most)
    return replace(narrowing, from_offset=low, until_offset=high)


def _by_time(narrowing: Narrowing, one: Filter, value: datetime) -> Narrowing:
    """Store times are whole milliseconds."""
    moment = value if value.tzinfo is not None else value.replace(tzinfo=UTC)
    floor_ms, beyond = divmod(moment - _EPOCH, _MS)
    ceiling_ms = floor_ms + bool(beyond)
    since, until = narrowing.since_ms, narrowing.until_ms
    match one:
        case GreaterThan():
            since = _later(since, floor_ms + 1)
        case GreaterThanOrEqual():
            since = _later(since, ceiling_ms)
        case LessThan():
            until = _earlier(until, ceiling_ms)
        case LessThanOrEqual():
            until = _earlier(until, floor_ms + 1)
        case EqualTo() | EqualNullSafe():
            since, until = _later(since, ceiling_ms), _earlier(until, floor_ms + 1)
    return replace(narrowing, since_ms=since, until_ms=until)


def _later(bound: int | None, time_ms: int) -> int:
    return time_ms if bound is None else max(bound, time_ms)


def _earlier(bound: int | None, time_ms: int) -> int:
    return time_ms if bound is None else min(bound, time_ms)
