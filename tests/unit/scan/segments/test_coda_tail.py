"""The last message of a queue is found, even if its unit points to the coda that an old writer put
before it."""

from __future__ import annotations

from pathlib import Path

import pytest

import tieredstore
from tests.kit.histories import QueuePlan, build
from tieredstore.scan.extents import QueueReader
from tieredstore.scan.read.tail import Proof, find_tail


@pytest.mark.parametrize("count", [1, 3])
def test_a_queue_ends_behind_a_message_with_a_coda_in_front(tmp_path: Path, count: int) -> None:
    plan = QueuePlan("orders", 0, count, 0, 1_000, codas=frozenset({count - 1}))
    history = build(tmp_path, [plan])
    tier = tieredstore.open(history.url)
    [queue] = tier.catalogue().queues
    provider = tier.location.connect()
    for proof in Proof:
        with QueueReader(provider, queue) as reader:
            assert find_tail(reader, proof) == (count, queue.commit_log_max_offset)
    provider.close()
    assert tier.export(tmp_path / "out")["rows"] == count
    assert tier.export(tmp_path / "out")["rows"] == 0  # the same queue, not a recreated one


@pytest.mark.parametrize("coda", [1, 2, 3])
def test_a_hole_beside_a_coda_is_the_dispatchers(tmp_path: Path, coda: int) -> None:
    plan = QueuePlan(
        "orders", 0, 6, 0, 1_000, rolls=frozenset({3}), holes=((3, 5),), codas=frozenset({coda})
    )
    history = build(tmp_path, [plan])
    read = tieredstore.open(history.url).scan("orders").to_arrow()
    assert read["queue_offset"].to_pylist() == [0, 1, 2, 8, 9, 10]
