"""Tasks run concurrently if the tier is remote, otherwise one after another. Results are always in
order."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.growing_tier import GrowingTier
from tests.kit.memory_chunks import chunk_provider
from tieredstore.errors import Unavailable
from tieredstore.providers.memory.provider import MemoryProvider
from tieredstore.scan.ahead import map_ahead
from tieredstore.scan.listing import load_catalogue
from tieredstore.scan.plan import ScanBounds, plan

THREADS = chunk_provider().capabilities.concurrent_reads


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


def test_calls_within_an_item_share_its_threads_and_come_to_an_end() -> None:
    provider = chunk_provider()
    names: set[str] = set()

    def leaf(number: int) -> int:
        names.add(threading.current_thread().name)
        return number

    def work(number: int) -> list[int]:
        return list(map_ahead(provider, leaf, range(number, number + 5)))

    def outer(number: int) -> list[list[int]]:
        return list(map_ahead(provider, work, range(number, number + 3)))

    found = list(map_ahead(provider, outer, range(4 * THREADS)))
    assert found == [[[*range(m, m + 5)] for m in range(n, n + 3)] for n in range(4 * THREADS)]
    assert len(names) <= THREADS


def test_a_call_within_the_only_item_at_work_is_done_by_several_threads() -> None:
    provider = chunk_provider()
    others = THREADS - 1  # one waits for them
    together = threading.Barrier(others, timeout=30)  # breaks unless so many are at work

    def work(number: int) -> int:
        if number:
            return 0
        return len(list(map_ahead(provider, lambda _: together.wait(), range(others))))

    assert list(map_ahead(provider, work, range(2))) == [others, 0]


def test_an_error_within_an_item_ends_it_when_those_under_way_are_done() -> None:
    provider = chunk_provider()
    at_work = threading.Semaphore(0)
    begun: list[int] = []
    ended: list[int] = []

    def leaf(number: int) -> None:
        if number == 0:
            at_work.acquire(timeout=30)  # another one is at work
            raise Unavailable("away")
        at_work.release()
        ended.append(number)

    def work(item: int) -> None:
        begun.append(item)
        try:
            list(map_ahead(provider, leaf, range(THREADS)))
        finally:
            ended.append(-1)

    with pytest.raises(Unavailable, match="away"):
        list(map_ahead(provider, work, range(2)))
    assert 1 <= ended.count(-1) == len(begun)  # the second may not have begun


def test_what_waits_for_nothing_is_done_by_who_asks_for_it() -> None:
    def name_thread(_: int) -> str:
        return threading.current_thread().name

    own = threading.current_thread().name
    found = list(map_ahead(chunk_provider(), name_thread, range(9), waits=lambda n: n == 4))
    assert [name == own for name in found] == [n != 4 for n in range(9)]


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
    """Small queues are planned without a read. If they are split into ranges, the reads of several
    queues run concurrently."""
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
    assert len(list(plan(tier.provider, queues, ScanBounds(narrow=True)))) == len(queues)
    assert not threads
    assert len(
        list(plan(tier.provider, queues, ScanBounds(range_bytes=600, narrow=True)))
    ) == 2 * len(queues)
    assert len(threads) == THREADS
