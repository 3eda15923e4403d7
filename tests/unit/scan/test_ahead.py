"""Several things at once over a network, one after the other elsewhere, always in order."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.growing_tier import GrowingTier
from tieredstore.errors import Unavailable
from tieredstore.providers.memory.provider import MemoryProvider
from tieredstore.scan.ahead import THREADS, map_ahead
from tieredstore.scan.catalogue import load_catalogue
from tieredstore.scan.plan import plan
from tieredstore.testing.chunks import chunk_provider


def test_over_a_network_they_wait_together() -> None:
    together = threading.Barrier(THREADS, timeout=30)

    def work(number: int) -> int:
        together.wait()  # breaks unless so many are at work
        return number * 2

    numbers = range(2 * THREADS)
    assert list(map_ahead(chunk_provider(), work, numbers)) == [n * 2 for n in numbers]


def test_elsewhere_each_is_done_when_it_is_asked_for() -> None:
    done: list[int] = []
    found = map_ahead(MemoryProvider(), done.append, range(5))
    next(found)
    assert done == [0]


def test_few_are_done_before_they_are_asked_for() -> None:
    taken: list[int] = []

    def items() -> Iterator[int]:
        for number in range(10_000):
            taken.append(number)
            yield number

    found = map_ahead(chunk_provider(), lambda number: number, items())
    assert next(found) == 0
    assert len(taken) <= 4 * THREADS + 1
    found.close()  # type: ignore[attr-defined]
    assert not [one for one in threading.enumerate() if one.name.startswith("tiered-plan")]


def test_an_error_comes_in_its_place() -> None:
    def work(number: int) -> int:
        if number == 3:
            raise Unavailable("away")
        return number

    found = map_ahead(chunk_provider(), work, range(9))
    assert [next(found) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(Unavailable, match="away"):
        next(found)


def test_small_queues_are_planned_without_a_read_and_many_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a queue that is cut, the reads of several wait for the backend together."""
    tier = GrowingTier(tmp_path, chunk_provider())
    for queue_id in range(2 * THREADS):
        tier.append("orders", queue_id, 4)
    queues = load_catalogue(tier.provider).queues
    kind = type(tier.provider.open(queues[0].consume_queue[0].id))
    read, threads = kind.read, set()
    together = threading.Barrier(THREADS, timeout=30)

    def counted(self: object, position: int, length: int) -> memoryview:
        name = threading.current_thread().name
        if name not in threads:
            threads.add(name)
            together.wait()
        return read(self, position, length)  # type: ignore[arg-type]

    monkeypatch.setattr(kind, "read", counted)
    assert len(list(plan(tier.provider, queues, narrow=True))) == len(queues)
    assert not threads
    assert len(list(plan(tier.provider, queues, range_bytes=600, narrow=True))) == 2 * len(queues)
    assert len(threads) == THREADS
