"""Reduction of a read by the filters of a query, which are Spark's own filter objects."""

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
_OF_A_QUEUE: dict[str, Callable[[QueueFiles], object]] = {
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
    """Bounds of a query after its filters. `of_queue`: filters that a queue must pass. The other
    fields are queue offsets [from, until), store times [since, until) and TAGS values. None means
    no bound."""

    of_queue: tuple[Filter, ...] = ()
    from_offset: int = 0
    until_offset: int | None = None
    since_ms: int | None = None
    until_ms: int | None = None
    tags: frozenset[str] | None = None

    @property
    def has_times(self) -> bool:
        return self.since_ms is not None or self.until_ms is not None

    def keeps(self, queue: QueueFiles) -> bool:
        return all(_passes(one, queue) for one in self.of_queue)


def narrow_by_filters(narrowing: Narrowing, filters: Iterable[Filter]) -> Narrowing:
    """Reduce the read by more filters. Unsupported filters are ignored, because Spark applies all
    filters again."""
    for one in filters:
        narrowing = _take_filter(narrowing, one)
    return narrowing


def _take_filter(narrowing: Narrowing, one: Filter) -> Narrowing:
    column, value = _column(one), getattr(one, "value", None)
    if value is None:  # Spark judges a comparison with null
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
    if isinstance(one, In):
        values = [number for number in value if number is not None]
        low, high = min(values, default=0), max(values, default=-1) + 1
    else:
        low, high = _bounds_of(one, value, value)
    return replace(
        narrowing,
        from_offset=most(narrowing.from_offset, low) or 0,
        until_offset=least(narrowing.until_offset, high),
    )


def _by_time(narrowing: Narrowing, one: Filter, value: datetime) -> Narrowing:
    """Reduce the read by a comparison of the store time with `value`. Store times are whole
    milliseconds."""
    moment = value if value.tzinfo is not None else value.replace(tzinfo=UTC)
    floor_ms, beyond = divmod(moment - _EPOCH, _MS)
    low, high = _bounds_of(one, floor_ms, floor_ms + bool(beyond))
    since_ms, until_ms = most(narrowing.since_ms, low), least(narrowing.until_ms, high)
    return replace(narrowing, since_ms=since_ms, until_ms=until_ms)


def _bounds_of(one: Filter, floor: int, ceiling: int) -> tuple[int | None, int | None]:
    """Return the range [low, high) of integers for which a comparison with a value is true.
    `floor`, `ceiling`: the value, rounded down and up."""
    match one:
        case GreaterThan():
            return floor + 1, None
        case GreaterThanOrEqual():
            return ceiling, None
        case LessThan():
            return None, ceiling
        case LessThanOrEqual():
            return None, floor + 1
        case EqualTo() | EqualNullSafe():
            return ceiling, floor + 1
    return None, None


def most(*values: int | None) -> int | None:
    """Return the largest value, or None without values."""
    return max((value for value in values if value is not None), default=None)


def least(*values: int | None) -> int | None:
    """Return the smallest value, or None without values."""
    return min((value for value in values if value is not None), default=None)
