"""Tests of the recommendations of `tieredstore advise` for different workloads."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from benchmarks.advise import steady_arrivals
from tieredstore.config import StorageLevel, StoreConfig, config_from_properties
from tieredstore.contracts.dispatch_source import QueueKey
from tieredstore.contracts.usage import Prices
from tieredstore.errors import Invalid
from tieredstore.jobs.advising.job import AdviceOptions, advise
from tieredstore.jobs.advising.upload_costs import model_upload_costs
from tieredstore.jobs.advising.weighing import (
    Limits,
    LocalRates,
    disk_bytes,
    find_longest_gap_hours,
    make_leaving,
)
from tieredstore.jobs.advising.workload import (
    EXACT_QUEUES,
    QueueLoad,
    Reading,
    Workload,
    classify,
    find_cold_runs,
)
from tieredstore.providers.chunks.modelling.queue import ChunkRequestModel
from tieredstore.providers.chunks.settings import ChunkSettings

HOUR_MS = 3_600_000
END_MS = 1_700_000_000_000.0
BEGIN_MS = END_MS - 2 * HOUR_MS
MODEL = ChunkRequestModel(ChunkSettings(group_bytes=0))
CONFIG = StoreConfig(local_file_reserved_time_hours=24, read_ahead_cache_size_bytes=256 << 20)


def _queue(topic: str, queue_id: int = 0, *, interval_ms: float = 2_000) -> QueueLoad:
    """Return a queue that gets one message per `interval_ms` for four days."""
    arrivals = steady_arrivals(END_MS - 96 * HOUR_MS, interval_ms, 1024, END_MS)
    return QueueLoad(QueueKey(topic, queue_id), arrivals, 72)


def _reading(topic: str, age_hours: float, *, messages: int = 3_000) -> Reading:
    """Return a reader that reads messages at about the given age."""
    arrivals = _queue(topic).arrivals
    first = int(arrivals.messages - age_hours * HOUR_MS / 2_000)
    return Reading("late", QueueKey(topic, 0), first, first + messages, BEGIN_MS, END_MS)


def _workload(*readings: Reading) -> Workload:
    queues = [_queue("orders"), _queue("orders", 1), _queue("audit", interval_ms=60_000)]
    return Workload(BEGIN_MS, END_MS, queues, readings)


def _advise(workload: Workload, **options: Any) -> dict[str, Any]:
    return advise(workload, CONFIG, MODEL, AdviceOptions(**options))


@pytest.fixture(scope="module")
def priced() -> dict[str, Any]:
    return _advise(_workload(_reading("orders", 60)), prices=Prices())


def test_the_best_comes_first_and_is_no_dearer_than_what_there_is(priced: dict[str, Any]) -> None:
    now, *best = priced["choices"]
    assert now["choice"] == "now"
    assert now["level"] == "NOT_IN_DISK"
    assert now["interval_s"] == 600
    costs = [choice["cost_usd"] for choice in best]
    assert costs == sorted(costs)
    assert 0 < costs[0] <= now["cost_usd"]
    # Of two choices none is better in everything.
    for first, second in pairwise(best):
        assert any(
            second[name] < first[name] for name in ("loss_s", "read_p99_ms", "disk_bytes")
        ), (first, second)


def test_every_level_is_shown_and_without_a_tier_the_disk_keeps_and_loses_all(
    priced: dict[str, Any],
) -> None:
    levels = {row["level"]: row for row in priced["levels"]}
    assert list(levels) == [level.name for level in StorageLevel]
    without = levels["DISABLE"]
    assert without["local_hours"] == 72
    assert without["loss_s"] is None
    assert without["requests"] == without["stored_bytes"] == 0
    assert without["disk_bytes"] > levels["NOT_IN_DISK"]["disk_bytes"]
    assert without["level"] not in {row["level"] for row in priced["choices"]}


def test_the_fragment_is_a_configuration_with_the_best_choice(priced: dict[str, Any]) -> None:
    lines = dict(line.split("=") for line in priced["broker_conf"].splitlines())
    loaded = config_from_properties(lines, origin="fragment")
    best = priced["choices"][1]
    assert loaded.warnings == ()
    if "fileReservedTime" in lines:
        assert loaded.config.local_file_reserved_time_hours == best["local_hours"]
    assert loaded.config.adaptive_commit_max_interval_ms == best["interval_s"] * 1000
    assert loaded.config.read_ahead_cache_size_bytes in {best["cache_bytes"], 0}


def test_topics_add_up_to_the_whole(priced: dict[str, Any]) -> None:
    best = priced["choices"][1]
    assert [row["topic"] for row in priced["topics"]] == ["audit", "orders"]
    assert sum(row["stored_bytes"] for row in priced["topics"]) == pytest.approx(
        best["stored_bytes"], abs=2
    )
    # Fence checks and deletions are shared, and belong to no topic.
    assert sum(row["requests"] for row in priced["topics"]) <= best["requests"]
    assert sum(row["requests"] for row in priced["requests_by_operation"]) == pytest.approx(
        best["requests"], rel=0.01
    )


def test_without_prices_requests_and_bytes_are_compared() -> None:
    found = _advise(_workload(_reading("orders", 60)))
    requests = [choice["requests"] for choice in found["choices"][1:]]
    assert not found["is_priced"]
    assert {choice["cost_usd"] for choice in found["choices"]} == {None}
    assert requests == sorted(requests)


def test_limits_hold_and_what_none_meets_is_told_with_the_nearest() -> None:
    workload = _workload(_reading("orders", 60))
    strict = _advise(workload, prices=Prices(), limits=Limits(loss_ms=90_000))
    assert all(choice["loss_s"] <= 90 for choice in strict["choices"][1:])
    assert strict["choices"][1]["cost_usd"] > 0
    with pytest.raises(Invalid, match="loss_s"):
        _advise(workload, limits=Limits(loss_ms=1_000))


def test_a_longer_local_retention_leaves_the_tier_fewer_reads() -> None:
    config = StoreConfig()
    rates = LocalRates(1e6, 1_000)
    arrivals = _queue("orders").arrivals
    reading = _reading("orders", 60)
    cold = []
    for hours in (1, 12, 24, 48, 72):
        leaves = make_leaving(StorageLevel.NOT_IN_DISK, config, rates, hours, 0, 0)
        cold.append(sum(run.messages for run in find_cold_runs(reading, arrivals, leaves)))
    assert cold == sorted(cold, reverse=True)
    assert cold[0] == reading.messages
    assert cold[-1] == 0


@pytest.mark.parametrize(
    ("level", "age_hours", "is_cold"),
    [
        (StorageLevel.DISABLE, 90, False),
        (StorageLevel.NOT_IN_DISK, 1, False),
        (StorageLevel.NOT_IN_DISK, 90, True),
        (StorageLevel.NOT_IN_MEM, 3, True),
        (StorageLevel.NOT_IN_MEM, 0.5, False),
        (StorageLevel.FORCE, 0.5, True),
        (StorageLevel.FORCE, 0.05, False),
    ],
)
def test_which_store_answers_by_level_and_age(
    level: StorageLevel, age_hours: float, is_cold: bool
) -> None:
    memory_bytes = 2 * 3600 * 1_000_000  # the arrivals of two hours
    upload_ms = 600_000
    leaves = make_leaving(level, CONFIG, LocalRates(1e6, 1_000), 24, memory_bytes, upload_ms)
    stored_ms = END_MS
    assert (stored_ms + age_hours * HOUR_MS >= leaves(stored_ms)) is is_cold


def test_the_disk_has_room_for_what_waits_for_its_hour_of_deletion() -> None:
    once, twice = StoreConfig(delete_when="04"), StoreConfig(delete_when="04;16")
    assert [find_longest_gap_hours(config) for config in (once, twice)] == [24, 12]
    rates = LocalRates(1_000_000, 1_000)
    assert disk_bytes(once, rates, 24) > disk_bytes(twice, rates, 24) > disk_bytes(twice, rates, 1)


def test_many_queues_are_modelled_as_few_and_count_as_many() -> None:
    def load(count: int) -> Workload:
        queues = [_queue("many", number, interval_ms=5_000) for number in range(count)]
        return Workload(BEGIN_MS, END_MS, queues, ())

    few, many = load(EXACT_QUEUES), load(20 * EXACT_QUEUES)
    assert len(classify(few)) == EXACT_QUEUES
    classes = classify(many)
    assert len(classes) == 1
    assert len(classes[0].members) == 20 * EXACT_QUEUES
    one = sum(model_upload_costs(classify(few), CONFIG, MODEL).topics["many"].requests.values())
    all_of_them = model_upload_costs(classes, CONFIG, MODEL).topics["many"]
    puts = sum(all_of_them.requests[kind] for kind in all_of_them.requests if "Put" in kind[0])
    assert puts < 20 * one < sum(all_of_them.requests.values())
    # Each has less of the write cache, so merging reads written bytes again: twice a commit.
    assert puts < all_of_them.requests["GetObject", "COMMIT_LOG"] < 2 * puts


def test_a_topic_that_never_goes_to_the_tier_only_takes_disk() -> None:
    orders = _queue("orders")
    system = QueueLoad(QueueKey("RMQ_SYS_X", 0), orders.arrivals, 72, is_tiered=False)
    found = _advise(Workload(BEGIN_MS, END_MS, [orders, system], ()))
    assert [row["topic"] for row in found["topics"]] == ["orders"]
    assert found["bytes_per_s"] == pytest.approx(2 * 512, rel=0.01)


def test_a_broker_that_got_nothing_has_nothing_to_pay_for() -> None:
    found = _advise(Workload(BEGIN_MS, END_MS, [], (), ["the store has no messages"]))
    assert found["assumed"] == ["the store has no messages"]
    assert found["choices"][0]["stored_bytes"] == 0


def test_many_slow_queues_are_told_what_group_objects_save() -> None:
    queues = [_queue("orders", number, interval_ms=5_000) for number in range(1_000)]
    found = _advise(Workload(BEGIN_MS, END_MS, queues, []), prices=Prices())
    now, best, *_ = found["choices"]
    assert now["group_bytes"] == 0
    assert best["group_bytes"] == 16 << 20
    assert best["cost_usd"] < now["cost_usd"]
    assert best["loss_s"] <= 60 < now["loss_s"]
    assert "tieredStoreChunkGroupSize=16777216\n" in found["broker_conf"]
    operations = {(row["operation"], row["file_type"]) for row in found["requests_by_operation"]}
    assert ("PutObject", "GROUP") in operations


def test_what_has_group_objects_is_told_what_it_is_without() -> None:
    queues = [_queue("orders", interval_ms=60_000)]
    workload = Workload(BEGIN_MS, END_MS, queues, [])
    grouped = MODEL.with_group_bytes(16 << 20)
    found = advise(workload, CONFIG, grouped, AdviceOptions(prices=Prices()))
    choices: Any = found["choices"]
    assert choices[0]["group_bytes"] == 16 << 20
    assert choices[1]["group_bytes"] == 0
    assert choices[1]["requests"] < choices[0]["requests"]
    assert "tieredStoreChunkGroupSize=0\n" in str(found["broker_conf"])
