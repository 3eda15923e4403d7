"""A topic that is deleted and recreated while it is read ends the read with Expired. As in a tier
that Java writes, the segments of the old and the new topic have the same names, offsets and
sizes."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import tieredstore
from tests.kit.growing_tier import START_MS, GrowingTier
from tests.kit.spark.stream_reader import latest, reader_of, through_json
from tieredstore.errors import Expired
from tieredstore.scan.keys import plan as keys_plan
from tieredstore.scan.listing import load_catalogue
from tieredstore.scan.plan import ScanBounds, ScanRange, plan
from tieredstore.scan.read.batches import read_batches, read_batches_backwards
from tieredstore.scan.tasks import ScanTask
from tieredstore.scan.time_search.modes import SearchTimes
from tieredstore.spark.batch import TieredBatchReader
from tieredstore.spark.options import parse_options
from tieredstore.spark.schema import Shape, spark_schema

RECREATED = "orders/0: the topic was recreated while it was read"


@pytest.fixture
def tier(tmp_path: Path) -> GrowingTier:
    tier = GrowingTier(tmp_path)
    fill(tier)
    return tier


def fill(tier: GrowingTier, count: int = 40) -> None:
    for _ in range(2):
        tier.append("orders", 0, count // 2, body_bytes=4000)
        tier.roll("orders", 0)


def recreate(tier: GrowingTier, count: int = 40) -> None:
    tier.make_again("orders")
    fill(tier, count)


def ranges_of(tier: GrowingTier, **bounds: Any) -> list[ScanRange]:
    queues = load_catalogue(tier.provider).queues
    return list(plan(tier.provider, queues, ScanBounds(narrow=True, **bounds)))


@pytest.mark.parametrize("count", [40, 10])
@pytest.mark.parametrize("columns", [None, "queue_offset"])
def test_tasks_of_a_scan_never_mix_generations(
    tier: GrowingTier, count: int, columns: str | None
) -> None:
    scan = tieredstore.open(tier.url).scan("orders", columns=columns)
    tasks: list[ScanTask] = pickle.loads(pickle.dumps(scan.plan(target_bytes=50_000)))
    assert len(tasks) > 2
    assert sum(batch.num_rows for batch in tasks[0].read()) > 0
    recreate(tier, count)
    for task in tasks:
        with pytest.raises(Expired):
            list(task.read())
    assert scan.to_arrow().num_rows == count


@pytest.mark.parametrize("read", [read_batches, read_batches_backwards])
@pytest.mark.parametrize("body_bytes", [4000, 4001])
def test_batches_of_a_range_never_mix_generations(
    tier: GrowingTier, read: Callable[..., Iterator[Any]], body_bytes: int
) -> None:
    """If the records of the recreated topic have another size, they look damaged to the running
    read. The read still ends with Expired, and reports no damage."""
    [one] = ranges_of(tier)
    found: list[object] = []
    batches = read(tier.provider, one, batch_bytes=20_000, on_finding=found.append)
    next(batches)
    tier.make_again("orders")
    tier.append("orders", 0, 40, body_bytes=body_bytes)
    with pytest.raises(Expired):
        list(batches)
    assert found == []


def test_a_search_by_time_and_its_read_see_one_generation(
    tier: GrowingTier, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tieredstore.scan.time_search.search.READ_WHOLE_BYTES", 0)
    [one] = ranges_of(tier, since_ms=START_MS + 5_000, search_times=SearchTimes.SAMPLED)
    recreate(tier)
    with pytest.raises(Expired, match=RECREATED):
        list(read_batches(tier.provider, one))


def test_a_scan_by_keys_sees_one_generation(
    tier: GrowingTier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keys_plan, "SMALL_QUEUE_BYTES", 0)
    tier.metadata.flush()
    small = {"tieredStoreIndexFileMaxHashSlotNum": "64", "tieredStoreIndexFileMaxIndexNum": "2048"}
    opened = tieredstore.open(tier.url, state=tmp_path / "state", properties=small)
    opened.rebuild_index()
    tasks = tieredstore.open(tier.url).scan("orders", keys=["KEY-3", "KEY-35"]).plan()
    recreate(tier)
    assert tasks
    for task in tasks:
        with pytest.raises(Expired, match=RECREATED):
            list(task.read())


@pytest.mark.parametrize("option", [{"maxPartitionBytes": "50000"}, {"minPartitions": "4"}])
def test_spark_batches_see_one_generation(tier: GrowingTier, option: dict[str, str]) -> None:
    columns = ("queue_id", "queue_offset", "body")
    options = parse_options({"path": tier.url, "subscribe": "orders", **option})
    reader = TieredBatchReader(options, Shape.of(spark_schema(columns), None))
    partitions = reader.partitions()
    assert len(partitions) > 2
    recreate(tier)
    for partition in partitions:
        with pytest.raises(Expired, match=RECREATED):
            list(reader.read(partition))


@pytest.mark.parametrize("skips", [False, True])
def test_spark_streams_see_one_generation(tier: GrowingTier, skips: bool) -> None:
    reader = reader_of(tier, failOnDataLoss=str(not skips).lower())
    start = through_json(reader.initialOffset())
    partitions = reader.partitions(start, latest(reader, start))
    recreate(tier)
    for partition in partitions:
        with pytest.raises(Expired, match=RECREATED):
            list(reader.read(partition))


def test_a_message_that_expires_or_grows_is_no_other_generation(tier: GrowingTier) -> None:
    ranges = ranges_of(tier, range_bytes=50_000)
    tier.append("orders", 0, 5)
    assert sum(len(found) for one in ranges for found in read_batches(tier.provider, one)) == 40
    tier.expire("orders", 0)
    late = [one for one in ranges if one.from_offset >= 20]
    assert sum(len(found) for one in late for found in read_batches(tier.provider, one)) == 20
