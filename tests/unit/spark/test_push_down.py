"""Tests of which filters are pushed down, and which rows remain to be read."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringStartsWith,
)

from tieredstore.scan.catalogue import QueueFiles
from tieredstore.spark.push_down import Narrowing, narrow_by_filters

TOPIC, QUEUE, OFFSET = ("topic",), ("queue_id",), ("queue_offset",)
TIME = ("store_timestamp",)
ORDERS_0, ORDERS_1 = QueueFiles("b", "orders", 0), QueueFiles("b", "orders", 1)
PAID_1 = QueueFiles("c", "paid", 1)
AT = datetime(2023, 11, 14, 22, 13, 20, 500, tzinfo=UTC)  # half a millisecond behind AT_MS
AT_MS = 1_700_000_000_000


def taken(*filters: Filter) -> Narrowing:
    return narrow_by_filters(Narrowing(), filters)


@pytest.mark.parametrize(
    ("one", "kept"),
    [
        (EqualTo(TOPIC, "orders"), [ORDERS_0, ORDERS_1]),
        (EqualNullSafe(TOPIC, "paid"), [PAID_1]),
        (In(TOPIC, ("paid", "gone")), [PAID_1]),
        (StringStartsWith(TOPIC, "ord"), [ORDERS_0, ORDERS_1]),
        (EqualTo(("broker",), "c"), [PAID_1]),
        (In(QUEUE, (0, 7)), [ORDERS_0]),
        (GreaterThan(QUEUE, 0), [ORDERS_1, PAID_1]),
        (LessThanOrEqual(QUEUE, 0), [ORDERS_0]),
    ],
)
def test_queues_are_chosen(one: Filter, kept: list[QueueFiles]) -> None:
    found = taken(one)
    assert [queue for queue in (ORDERS_0, ORDERS_1, PAID_1) if found.keeps(queue)] == kept


def test_all_filters_hold_together() -> None:
    found = taken(EqualTo(TOPIC, "orders"), EqualTo(QUEUE, 1))
    assert not found.keeps(ORDERS_0)
    assert found.keeps(ORDERS_1)


def test_offsets() -> None:
    found = taken(GreaterThan(OFFSET, 4), LessThanOrEqual(OFFSET, 9), GreaterThanOrEqual(OFFSET, 3))
    assert (found.from_offset, found.until_offset) == (5, 10)
    found = taken(EqualTo(OFFSET, 7), LessThan(OFFSET, 100))
    assert (found.from_offset, found.until_offset) == (7, 8)
    found = taken(In(OFFSET, (3, 9, None)))
    assert (found.from_offset, found.until_offset) == (3, 10)


@pytest.mark.parametrize(
    ("kind", "since", "until"),
    [
        (GreaterThan, AT_MS + 1, None),
        (GreaterThanOrEqual, AT_MS + 1, None),
        (LessThan, None, AT_MS + 1),
        (LessThanOrEqual, None, AT_MS + 1),
        (EqualTo, AT_MS + 1, AT_MS + 1),
    ],
)
def test_times_are_bounds(kind: type[GreaterThan], since: int | None, until: int | None) -> None:
    found = taken(kind(TIME, AT))
    assert (found.since_ms, found.until_ms) == (since, until)
    found = taken(kind(TIME, AT.replace(microsecond=0)))
    exact = {
        GreaterThan: (AT_MS + 1, None),
        GreaterThanOrEqual: (AT_MS, None),
        LessThan: (None, AT_MS),
        LessThanOrEqual: (None, AT_MS + 1),
        EqualTo: (AT_MS, AT_MS + 1),
    }
    assert (found.since_ms, found.until_ms) == exact[kind]


def test_tags_and_nulls() -> None:
    assert taken(In(("tags",), ("a", "b")), EqualTo(("tags",), "b")).tags == frozenset("b")
    assert taken(IsNotNull(TOPIC), IsNotNull(OFFSET)) == Narrowing()


@pytest.mark.parametrize(
    "one",
    [
        Not(EqualTo(TOPIC, "orders")),
        IsNull(TOPIC),
        IsNotNull(("tags",)),
        EqualTo(("body_length",), 7),
        EqualTo(("msg_id",), "x"),
        EqualNullSafe(TOPIC, None),
        StringStartsWith(("tags",), "x"),
        EqualTo(("properties", "topic"), "x"),
    ],
)
def test_other_filters_choose_nothing(one: Filter) -> None:
    assert taken(one) == Narrowing()
