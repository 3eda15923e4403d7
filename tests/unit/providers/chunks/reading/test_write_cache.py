"""Tests of the cache of recent writes, which stores parts of objects."""

from __future__ import annotations

import pytest

from tieredstore.clock import ManualClock
from tieredstore.providers.chunks.reading.reader import WriteCache


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(0)


@pytest.fixture
def cache(clock: ManualClock) -> WriteCache:
    return WriteCache(20, 1_000, clock.now_ms)


def test_bytes_are_asked_for_by_their_place_in_the_object(cache: WriteCache) -> None:
    cache.put("a", b"0123456789")
    assert cache.get("a", 0, 10) == b"0123456789"
    assert cache.get("a", 4, 3) == b"456"
    assert cache.get("a", 8, 3) is None
    assert cache.get("b", 0, 1) is None


def test_the_end_of_an_object_may_be_kept_alone(cache: WriteCache) -> None:
    cache.put("a", b"789", position=7)
    assert cache.get("a", 7, 3) == b"789"
    assert cache.get("a", 8, 1) == b"8"
    assert cache.get("a", 6, 2) is None


@pytest.mark.parametrize(
    ("position", "length", "left"),
    [
        pytest.param(0, 7, (7, b"789"), id="the beginning"),
        pytest.param(7, 3, (0, b"0123456"), id="the end"),
        pytest.param(7, 100, (0, b"0123456"), id="beyond the end"),
        pytest.param(0, 10, None, id="all"),
        pytest.param(3, 3, None, id="the middle, which leaves two rests"),
    ],
)
def test_what_is_forgotten_leaves_the_rest(
    cache: WriteCache, position: int, length: int, left: tuple[int, bytes] | None
) -> None:
    cache.put("a", b"0123456789")
    cache.forget("a", position, length)
    if left is None:
        assert cache.size_bytes == 0
    else:
        start, rest = left
        assert cache.get("a", start, len(rest)) == rest
        assert cache.size_bytes == len(rest)
    assert cache.get("a", position, 1) is None


@pytest.mark.parametrize("messages_first", [True, False])
def test_both_parts_go_in_either_order(cache: WriteCache, messages_first: bool) -> None:
    cache.put("a", b"messages12")
    for place in [(0, 8), (8, 2)][:: 1 if messages_first else -1]:
        cache.forget("a", *place)
    assert cache.size_bytes == 0
    cache.forget("a", 0, 8)


def test_what_is_forgotten_makes_room_and_ages_as_before(
    cache: WriteCache, clock: ManualClock
) -> None:
    cache.put("a", b"0" * 15)
    clock.advance(600)
    cache.put("b", b"1" * 10)
    assert cache.get("b", 0, 1) is None, "what does not fit is refused"
    cache.forget("a", 0, 10)
    cache.put("b", b"1" * 10)
    assert cache.get("b", 0, 10) == b"1" * 10
    clock.advance(600)
    cache.put("c", b"2" * 10)
    assert cache.get("a", 10, 5) is None, "it is older than 1,000 ms"
    assert cache.get("c", 0, 10) == b"2" * 10
