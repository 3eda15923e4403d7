"""Read-ahead does not change the result of a scan."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from tests.kit.memory_chunks import chunk_provider
from tieredstore.errors import Corrupt, Unavailable
from tieredstore.providers.memory.provider import MemoryProvider
from tieredstore.scan.ahead import waits_for_network
from tieredstore.scan.findings import OnFinding, damage
from tieredstore.scan.read import read_ahead
from tieredstore.scan.read.batch import UnitRun
from tieredstore.scan.read.read_ahead import (
    RUNS_AHEAD,
    RUNS_AHEAD_IN_ALL,
    RUNS_PLANNED,
    load_ahead,
)


def run(number: int) -> UnitRun:
    one = np.array([number], dtype=np.int64)
    return UnitRun(one, one, one, one)


def read(found: UnitRun) -> Callable[[], memoryview]:
    return lambda: memoryview(b"%d" % found.start)


def test_runs_come_in_order_with_their_bytes() -> None:
    def runs(_: OnFinding) -> Iterator[UnitRun]:
        yield from map(run, range(20))

    loaded = [(item.run.start, bytes(item.load())) for item in load_ahead(runs, read, print)]
    assert loaded == [(number, b"%d" % number) for number in range(20)]


def test_findings_and_errors_come_at_their_place() -> None:
    seen: list[object] = []

    def runs(tell: OnFinding) -> Iterator[UnitRun]:
        yield run(0)
        tell(damage("unit-invalid", "first"))
        yield run(1)
        tell(damage("unit-invalid", "second"))
        raise Unavailable("the consume queue is away")

    items = load_ahead(runs, read, lambda finding: seen.append(finding.message))
    with pytest.raises(Unavailable, match="consume queue"):
        seen.extend(item.run.start for item in items)
    assert seen == [0, "first", 1, "second"]


def test_a_report_that_raises_ends_it_after_what_was_good() -> None:
    def runs(tell: OnFinding) -> Iterator[UnitRun]:
        yield run(0)
        tell(damage("unit-invalid", "bad"))
        yield run(1)

    def stop(_: object) -> None:
        raise Corrupt("bad")

    seen: list[int] = []
    with pytest.raises(Corrupt):
        seen.extend(item.run.start for item in load_ahead(runs, read, stop))
    assert seen == [0]


def test_the_error_of_a_read_is_raised_where_its_bytes_are_wanted() -> None:
    def failing(found: UnitRun) -> Callable[[], memoryview]:
        def load() -> memoryview:
            if found.start == 1:
                raise Corrupt("lost")
            return memoryview(b"x")

        return load

    lost = []
    for item in load_ahead(lambda _: map(run, range(3)), failing, print):
        try:
            item.load()
        except Corrupt:
            lost.append(item.run.start)
    assert lost == [1]


def test_only_a_few_runs_are_held() -> None:
    planned: list[int] = []
    loaded: list[int] = []

    def runs(_: OnFinding) -> Iterator[UnitRun]:
        for number in range(100):
            planned.append(number)
            yield run(number)

    def noted(found: UnitRun) -> Callable[[], memoryview]:
        def load() -> memoryview:
            loaded.append(found.start)
            return memoryview(b"x")

        return load

    loading = load_ahead(runs, noted, print)
    for _ in range(10):
        next(loading)
    assert len(planned) <= 10 + RUNS_PLANNED + 1
    assert len(loaded) <= 10 + RUNS_AHEAD
    loading.close()  # type: ignore[attr-defined]
    assert not [t for t in threading.enumerate() if t.name.startswith("tiered-scan")]


def test_only_object_stores_are_read_ahead() -> None:
    assert waits_for_network(chunk_provider())
    assert not waits_for_network(MemoryProvider())


def test_many_readers_share_what_is_read_ahead() -> None:
    loaded: list[int] = []

    def noted(found: UnitRun) -> Callable[[], memoryview]:
        def load() -> memoryview:
            loaded.append(found.start)
            return memoryview(b"x")

        return load

    readers = [load_ahead(lambda _: map(run, range(50)), noted, print) for _ in range(16)]
    for _ in range(5):
        for reader in readers:
            next(reader).load()
    assert len(loaded) <= 16 * 5 + RUNS_AHEAD_IN_ALL + 16
    for reader in readers:
        assert [item.run.start for item in reader] == list(range(5, 50))
    assert read_ahead._IN_ALL._value == RUNS_AHEAD_IN_ALL
