"""Over a network, several small ranges are read concurrently and yielded in order."""

from __future__ import annotations

import threading
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

import tieredstore
from tests.kit.growing_tier import CLUSTER, GrowingTier
from tests.kit.memory_chunks import chunk_provider
from tieredstore.contracts.segment import SegmentProvider
from tieredstore.errors import Unavailable
from tieredstore.providers.memory.provider import MemoryProvider
from tieredstore.providers.naming import cluster_directory_name
from tieredstore.scan.findings import Finding, OnFinding, note, raise_on_damage
from tieredstore.scan.location import TierLocation
from tieredstore.scan.read.small_ranges import AHEAD_BYTES, SMALL_BYTES, read_small_ahead

THREADS = chunk_provider().capabilities.concurrent_reads


def read_thrice(item: int, tell: OnFinding) -> Generator[tuple[int, int]]:
    """Yield three batches of an item, each followed by a finding."""
    for number in range(3):
        yield item, number
        tell(note("seen", f"{item} {number}"))


ALL = [(item, number) for item in range(40) for number in range(3)]


@pytest.mark.parametrize("provider", [chunk_provider(), MemoryProvider()])
@pytest.mark.parametrize("sizes", [(0,), (SMALL_BYTES,), (100, SMALL_BYTES + 1), (AHEAD_BYTES,)])
def test_batches_and_findings_come_in_their_order(
    provider: SegmentProvider, sizes: tuple[int, ...]
) -> None:
    events: list[object] = []
    batches = read_small_ahead(
        provider, range(40), lambda item: sizes[item % len(sizes)], read_thrice,
        lambda finding: events.append(finding.message),
    )  # fmt: skip
    while (batch := next(batches, None)) is not None:
        events.append(batch)
    assert events == [
        event for item, number in ALL for event in ((item, number), f"{item} {number}")
    ]


def test_small_ones_wait_together() -> None:
    together = threading.Barrier(THREADS, timeout=30)

    def read(item: int, _: OnFinding) -> Generator[int]:
        together.wait()  # breaks unless so many are at work
        yield item

    found = read_small_ahead(
        chunk_provider(), range(2 * THREADS), lambda _: 9, read, raise_on_damage
    )
    assert list(found) == [*range(2 * THREADS)]


def test_few_bytes_are_read_ahead_and_all_is_closed() -> None:
    taken, opened, closed = [], set[int](), set[int]()

    def items() -> Iterator[int]:
        for number in range(1000):
            taken.append(number)
            yield number

    def read(item: int, _: OnFinding) -> Generator[int]:
        opened.add(item)
        try:
            for _number in range(5):
                yield item
        finally:
            closed.add(item)

    found = read_small_ahead(chunk_provider(), items(), lambda _: SMALL_BYTES, read, print)
    assert next(found) == 0
    assert len(taken) <= min(THREADS, AHEAD_BYTES // SMALL_BYTES) + 1
    found.close()
    assert opened
    assert opened == closed
    assert not [one for one in threading.enumerate() if one.name.startswith("tiered-small")]


def test_an_error_comes_in_its_place() -> None:
    def read(item: int, _: OnFinding) -> Generator[int]:
        yield item
        if item == 3:
            raise Unavailable("away")

    found = read_small_ahead(chunk_provider(), range(9), lambda _: 9, read, raise_on_damage)
    assert [next(found) for _ in range(4)] == [0, 1, 2, 3]
    with pytest.raises(Unavailable, match="away"):
        next(found)


def test_a_scan_reads_small_queues_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tier = GrowingTier(tmp_path, chunk_provider())
    (tmp_path / "tier" / cluster_directory_name(CLUSTER)).mkdir()
    for queue_id in range(THREADS):
        tier.append("orders", queue_id, 4)
    monkeypatch.setattr(TierLocation, "connect", lambda _: tier.provider)
    [listing, *_] = tier.provider.list()
    kind = type(tier.provider.open(listing.id))
    read, waiting = kind.read, set[str]()
    together = threading.Barrier(THREADS, timeout=30)

    def counted(self: object, position: int, length: int) -> memoryview:
        path = self.id.path  # type: ignore[attr-defined]
        if path not in waiting:
            waiting.add(path)
            together.wait()
        return read(self, position, length)  # type: ignore[arg-type]

    monkeypatch.setattr(kind, "read", counted)
    found: list[Finding] = []
    scan = tieredstore.open(tier.url, cluster=CLUSTER).scan("orders", on_finding=found.append)
    rows = scan.to_arrow().select(["queue_id", "queue_offset"]).to_pylist()
    assert [(row["queue_id"], row["queue_offset"]) for row in rows] == [
        (queue_id, offset) for queue_id in range(THREADS) for offset in range(4)
    ]
    assert len(waiting) == THREADS
    assert not found
