"""Tests of the assignment of queues by the broker."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tieredstore.broker.clients.assignment import (
    ALL_QUEUES,
    STRATEGIES,
    AssignedQueue,
    allocate_averagely,
    allocate_by_circle,
    allocate_for_pop,
)


def make_queues(count: int, *brokers: str) -> list[AssignedQueue]:
    return sorted(AssignedQueue("T", name, n) for name in brokers or ("b",) for n in range(count))


def make_members(count: int) -> list[str]:
    return [f"c{number:02}" for number in range(count)]


def ids(queues: list[AssignedQueue]) -> list[int]:
    return [queue.queue_id for queue in queues]


@pytest.mark.parametrize(
    ("queues", "members", "expected"),
    [
        (8, 3, [[0, 1, 2], [3, 4, 5], [6, 7]]),
        (4, 4, [[0], [1], [2], [3]]),
        (2, 3, [[0], [1], []]),
        (5, 1, [[0, 1, 2, 3, 4]]),
    ],
)
def test_ranges_as_java_computes_them(queues: int, members: int, expected: list[list[int]]) -> None:
    names = make_members(members)
    found = [ids(allocate_averagely(name, make_queues(queues), names)) for name in names]
    assert found == expected


def test_turns_as_java_computes_them() -> None:
    names = make_members(3)
    found = [ids(allocate_by_circle(name, make_queues(8), names)) for name in names]
    assert found == [[0, 3, 6], [1, 4, 7], [2, 5]]


@given(st.sampled_from(sorted(STRATEGIES)), st.integers(1, 40), st.integers(1, 12))
def test_each_queue_has_one_member(strategy: str, queues: int, members: int) -> None:
    names, every = make_members(members), make_queues(queues)
    found = [queue for name in names for queue in STRATEGIES[strategy](name, every, names)]
    assert sorted(found) == every


@pytest.mark.parametrize("strategy", STRATEGIES.values())
def test_a_stranger_has_no_queue(strategy: object) -> None:
    assert callable(strategy)
    assert strategy("stranger", make_queues(4), make_members(2)) == []
    assert allocate_for_pop(allocate_averagely, "x", make_queues(4), make_members(4), 1) == []


@pytest.mark.parametrize("share_count", [-1, 0, 2, 9])
def test_members_that_pop_all_queues_have_one_entry_for_each_broker(share_count: int) -> None:
    queues = make_queues(4, "a", "b")
    found = allocate_for_pop(allocate_averagely, "c00", queues, make_members(3), share_count)
    assert found == [AssignedQueue("T", name, ALL_QUEUES) for name in ("a", "b")]


def test_members_that_share_pop_the_queues_of_the_next_ones_too() -> None:
    names = make_members(4)
    found = [
        ids(allocate_for_pop(allocate_averagely, name, make_queues(8), names, 1)) for name in names
    ]
    assert found == [[0, 1, 2, 3], [2, 3, 4, 5], [4, 5, 6, 7], [6, 7, 0, 1]]


def test_more_members_than_queues_share_single_queues() -> None:
    names = make_members(5)
    found = [
        ids(allocate_for_pop(allocate_averagely, name, make_queues(2), names, 1)) for name in names
    ]
    assert found == [[0], [1], [0], [1], [0]]
