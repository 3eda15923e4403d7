"""Tests of each queue's share of a micro-batch."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.kit.growing_tier import GrowingTier
from tieredstore.spark.offsets import QueueKey
from tieredstore.spark.options import parse_options
from tieredstore.spark.schema import Shape, spark_schema
from tieredstore.spark.stream.admission import Backlog, admit_messages, shares
from tieredstore.spark.stream.reader import TieredStreamReader


def share(wanted: dict[str, int], most: int) -> dict[str, int]:
    return shares(wanted, dict.fromkeys(wanted, 1), most)


def test_shares_are_fair_and_never_above_the_limit() -> None:
    assert share({"a": 5, "b": 5}, 100) == {"a": 5, "b": 5}
    assert share({"a": 90, "b": 10}, 10) == {"a": 9, "b": 1}
    assert share({"a": 1, "b": 1, "c": 1}, 1) == {"a": 1}
    assert share({"a": 5_000_000, "b": 3}, 1000) == {"a": 999, "b": 1}
    found = share({"a": 7, "b": 11, "c": 2}, 13)
    assert sum(found.values()) == 13


def test_what_is_larger_than_the_limit_goes_alone_when_it_comes_first() -> None:
    assert shares({"a": 500, "b": 10}, {"a": 100, "b": 5}, 20) == {"a": 100}
    assert shares({"b": 10, "a": 500}, {"b": 5, "a": 100}, 20) == {"b": 10}


@pytest.fixture
def views(tmp_path: Path) -> dict[QueueKey, Backlog]:
    """Return the views of eleven queues with six messages each."""
    tier = GrowingTier(tmp_path)
    for topic in ("busy", "large", "quiet"):
        for queue_id in range(3 if topic == "busy" else 4):
            tier.append(topic, queue_id, 6, body_bytes=3000 if topic == "large" else 100)
    given = {"path": tier.url, "subscribePattern": ".*"}
    reader = TieredStreamReader(parse_options(given), Shape.of(spark_schema(("topic",)), None))
    return {key: Backlog(view, 0, 6) for key, view in reader._look().items()}


def batches(
    views: dict[QueueKey, Backlog], order: Iterable[QueueKey], **limits: int | None
) -> list[set[QueueKey]]:
    """Return the queues of each batch until all messages are read."""
    starts = dict.fromkeys(order, 0)
    place: QueueKey | None = None
    found: list[set[QueueKey]] = []
    while any(start < 6 for start in starts.values()):
        backlogs = {key: Backlog(views[key].view, start, 6) for key, start in starts.items()}
        bounds = {"most_messages": None, "most_bytes": None, **limits}
        ends, place = admit_messages(
            backlogs,
            place,
            most_messages=bounds["most_messages"],
            most_bytes=bounds["most_bytes"],
        )
        found.append({key for key, end in ends.items() if end > starts[key]})
        assert found[-1]
        starts = ends
    return found


@pytest.mark.parametrize("backwards", [False, True])
@pytest.mark.parametrize("quota", [1, 2, 3, 5, 11])
def test_every_queue_is_served_within_its_turn_whatever_the_order(
    views: dict[QueueKey, Backlog], quota: int, backwards: bool
) -> None:
    turns = -(-len(views) // quota)
    served = batches(views, sorted(views, reverse=backwards), most_messages=quota)
    assert set.union(*served[:turns]) == set(views)
    # and again later on, for as long as it waits
    assert set.union(*served[turns : 2 * turns]) == set(views)


def test_every_queue_is_served_with_a_limit_of_bytes(views: dict[QueueKey, Backlog]) -> None:
    served = batches(views, views, most_bytes=800)  # less than one of the large messages
    assert all(len(one) <= 3 for one in served)
    assert set.union(*served[:11]) == set(views)
    both = batches(views, views, most_bytes=800, most_messages=2)
    assert all(len(one) <= 2 for one in both)
    assert set.union(*both[:11]) == set(views)


def test_with_room_for_all_each_gets_its_part(views: dict[QueueKey, Backlog]) -> None:
    ends, place = admit_messages(views, None, most_messages=22, most_bytes=None)
    assert set(ends.values()) == {2}
    assert place is None
