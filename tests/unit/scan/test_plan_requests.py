"""Tests of the requests to an object store that planning a scan needs for each queue."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.kit.counted_requests import WHOLE_LISTING, CountedTier
from tests.kit.growing_tier import BROKER, START_MS
from tests.kit.memory_chunks import chunk_provider
from tieredstore.cli.output.queues import queue_rows
from tieredstore.contracts.segment import SegmentProvider
from tieredstore.errors import Invalid
from tieredstore.jobs.exporting.plan import make_plan
from tieredstore.jobs.exporting.request import ExportRequest, Format
from tieredstore.jobs.exporting.state import TargetState
from tieredstore.scan.catalogue import TierCatalogue
from tieredstore.scan.findings import raise_on_damage
from tieredstore.scan.plan import ScanBounds, plan
from tieredstore.scan.selection import Selection
from tieredstore.scan.verify.verification import verify
from tieredstore.table import Tier

QUEUES = 40
WIDTH = chunk_provider().capabilities.concurrent_reads
LATE_MS = START_MS + 2_000
Work = Callable[[SegmentProvider, TierCatalogue], object]


@pytest.fixture
def tier(tmp_path: Path) -> CountedTier:
    """A tier of forty queues with four messages each."""
    made = CountedTier(tmp_path)
    for queue_id in range(QUEUES):
        made.written.append("orders", queue_id, 4)
    return made


def plan_all(provider: SegmentProvider, catalogue: TierCatalogue) -> None:
    assert len(list(plan(provider, catalogue.queues, ScanBounds(narrow=True)))) == QUEUES


def plan_late(provider: SegmentProvider, catalogue: TierCatalogue) -> None:
    assert (
        len(list(plan(provider, catalogue.queues, ScanBounds(narrow=True, since_ms=LATE_MS))))
        == QUEUES
    )


def plan_halves(provider: SegmentProvider, catalogue: TierCatalogue) -> None:
    found = list(plan(provider, catalogue.queues, ScanBounds(narrow=True, range_bytes=600)))
    assert len(found) == 2 * QUEUES


def plan_export(provider: SegmentProvider, catalogue: TierCatalogue) -> None:
    request = ExportRequest(Format.PARQUET, "/tmp/none")
    assert len(make_plan(provider, catalogue, request, TargetState()).positions) == QUEUES


def list_queues(provider: SegmentProvider, catalogue: TierCatalogue) -> None:
    rows = list(queue_rows(provider, list(catalogue.queues)))
    assert {row["min_store_timestamp"] for row in rows} == {START_MS}


def verify_all(provider: SegmentProvider, catalogue: TierCatalogue) -> None:
    assert verify(provider, catalogue, raise_on_damage).messages == 4 * QUEUES


@pytest.mark.parametrize(
    ("work", "most"),
    [
        (plan_all, 0),
        (plan_late, 0),
        (plan_halves, 2),  # the units, and the message that identifies both halves
        (plan_export, 2),
        (list_queues, 2),
        (verify_all, 6),
    ],
)
def test_requests_of_a_queue(tier: CountedTier, work: Work, most: int) -> None:
    provider = tier.location.connect()
    work(provider, tier.list_whole(provider))
    assert tier.reads <= most * QUEUES
    assert not tier.client.requests["LIST"]


@pytest.mark.parametrize("work", [plan_halves, plan_export, list_queues, verify_all])
def test_several_queues_wait_together(tier: CountedTier, work: Work) -> None:
    provider = tier.location.connect()
    catalogue = tier.list_whole(provider)
    tier.client.together = threading.Barrier(WIDTH, timeout=30)  # breaks unless so many come
    work(provider, catalogue)
    assert not tier.client.together.broken


def test_a_queue_of_many_segments_is_planned_without_a_read(tmp_path: Path) -> None:
    tier = CountedTier(tmp_path)
    for _ in range(5):
        tier.written.append("orders", 0, 2)
        tier.written.roll("orders", 0)
    provider = tier.location.connect()
    [queue] = tier.list_whole(provider).queues
    [whole] = plan(provider, [queue], ScanBounds(narrow=True))
    assert (whole.from_offset, whole.until_offset, whole.queue) == (0, 10, queue)
    assert not tier.reads
    [part] = plan(provider, [queue], ScanBounds(narrow=True, from_offset=4, until_offset=6))
    assert [extent.base_offset for extent in part.queue.consume_queue] == [80]


def test_of_a_queue_whose_begin_has_expired_the_units_are_read_once(tmp_path: Path) -> None:
    tier = CountedTier(tmp_path)
    for queue_id in range(QUEUES):
        tier.written.append("orders", queue_id, 3)
        queue = tier.written._queues["orders", queue_id]
        queue.log_base = queue.log_end  # units continue in one segment
        tier.written.append("orders", queue_id, 3)
        tier.expire_first("orders", queue_id)
    provider = tier.location.connect()
    catalogue = tier.list_whole(provider)
    assert {
        one.from_offset for one in plan(provider, catalogue.queues, ScanBounds(narrow=True))
    } == {3}
    assert tier.reads <= 2 * QUEUES  # the units of each are in two objects


@pytest.mark.parametrize("since", [None, LATE_MS])
def test_a_scan_reads_two_objects_a_queue(tier: CountedTier, since: int | None) -> None:
    scan = Tier(tier.location).scan("orders", columns=["queue_offset", "body"], since=since)
    assert scan.to_arrow().num_rows == QUEUES * (4 if since is None else 2)
    assert tier.reads == 2 * QUEUES
    assert tier.client.requests["LIST"] == WHOLE_LISTING


def test_the_catalogue_is_not_searched_for_each_of_many_names(
    tier: CountedTier, monkeypatch: pytest.MonkeyPatch
) -> None:
    provider = tier.location.connect()
    catalogue = tier.list_whole(provider)
    chosen = Selection(topics=("orders",), brokers=(BROKER,), queue_ids=tuple(range(QUEUES)))
    with monkeypatch.context() as patched:
        patched.delattr(TierCatalogue, "select")
        assert chosen.queues(catalogue) == list(catalogue.queues)
    with pytest.raises(Invalid, match="Did you mean orders"):
        Selection(topics=("orders", "order")).queues(catalogue)


def test_the_first_row_comes_before_the_last_queue_is_read(tier: CountedTier) -> None:
    batches = Tier(tier.location).scan("orders", columns=["body"], batch_bytes=1).batches()
    assert next(batches).num_rows
    batches.close()
    assert tier.reads < 2 * QUEUES
