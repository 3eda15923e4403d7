"""A read ends with Expired if its topic is deleted and recreated. As in Java's tiers, both
generations have segments of the same names, offsets and sizes."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pytest

import tieredstore
from tests.kit.command_line import tieredstore as command
from tests.kit.growing_tier import START_MS, GrowingTier
from tests.kit.jobs.export import Export
from tests.kit.spark.stream_reader import latest, reader_of, through_json
from tieredstore.cli.sql.session import SqlSession
from tieredstore.contracts.segment import FileSegmentType
from tieredstore.errors import Expired, Unavailable
from tieredstore.jobs.exporting import job
from tieredstore.jobs.exporting.request import Format
from tieredstore.jobs.exporting.work import WriteOutcome, WriteTask, write
from tieredstore.message.layout import MAGIC_V1
from tieredstore.scan.arrow import read as arrow_read
from tieredstore.scan.keys import plan as keys_plan
from tieredstore.scan.listing import load_catalogue
from tieredstore.scan.plan import ScanBounds, ScanRange, plan
from tieredstore.scan.read import batches
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
    """A read ends with Expired and reports no damage, even if the records of the recreated topic
    have another size."""
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


@pytest.fixture
def small(tmp_path: Path) -> GrowingTier:
    """A tier with a topic of two small queues, whose plan needs no read."""
    tier = GrowingTier(tmp_path)
    fill_small(tier)
    return tier


def fill_small(tier: GrowingTier, queues: tuple[int, ...] = (0, 1)) -> None:
    for queue_id in queues:
        tier.append("orders", queue_id, 20, body_bytes=4000)


def recreate_before_second(
    tier: GrowingTier, monkeypatch: pytest.MonkeyPatch, queues: tuple[int, ...] = (0, 1)
) -> None:
    """Recreate the topic between reading its first and its second queue."""
    read, done = batches.unit_blocks, list[str]()

    def late(reader: Any, *args: Any, **options: Any) -> Any:
        done.append(reader.queue.path)
        if len(done) == 2:
            assert done[0] != done[1]
            tier.make_again("orders")
            fill_small(tier, queues)
        return read(reader, *args, **options)

    monkeypatch.setattr(batches, "unit_blocks", late)
    monkeypatch.setattr(arrow_read, "unit_blocks", late)


def query(url: str, text: str) -> None:
    with closing(SqlSession(tieredstore.open(url))) as session:
        list(session.run(text)[1])


def in_dataset(url: str, read: Callable[[Any], object]) -> None:
    dataset = scan(url).to_dataset()
    with pytest.raises(pa.ArrowInvalid):
        read(dataset)
    assert dataset.failure is not None
    raise dataset.failure


def scan(url: str, **options: Any) -> Any:
    return tieredstore.open(url).scan("orders", **options)


def print_rows(url: str, *options: object) -> None:
    ran = command("cat", "--tier", url, "--topic", "orders", "--output", "ndjson", *options)
    raise {4: Expired}.get(ran.code, AssertionError)(ran.err)


FACES: dict[str, Callable[[str], object]] = {
    "scan": lambda url: scan(url).to_arrow(),
    "scan with a limit": lambda url: scan(url, limit=30).to_arrow(),
    "scan of units": lambda url: scan(url, columns="queue_offset").to_arrow(),
    "count": lambda url: scan(url).count_rows(),
    "tags without a message": lambda url: scan(url, tags=["T1", "none"]).to_arrow(),
    "dataset": lambda url: in_dataset(url, lambda one: one.scanner(["body"]).to_table()),
    "dataset, first rows": lambda url: in_dataset(url, lambda one: one.scanner().head(25)),
    "dataset, a condition": lambda url: in_dataset(
        url, lambda one: one.scanner(filter=ds.field("queue_offset") < 5).to_table()
    ),
    "sql": lambda url: query(url, "select * from orders"),
    "sql with a limit": lambda url: query(url, "select body from orders limit 30"),
    "sql count": lambda url: query(url, "select count(*) from orders"),
    "cat": print_rows,
    "cat with a limit": lambda url: print_rows(url, "--limit", 25),
    "cat backwards": lambda url: print_rows(url, "--reverse"),
    "last messages": lambda url: print_rows(url, "--tail", 30),
}


@pytest.mark.parametrize("queues", [(0, 1), (1,), ()])
@pytest.mark.parametrize("face", FACES)
def test_two_queues_of_a_topic_are_of_one_generation(
    small: GrowingTier, monkeypatch: pytest.MonkeyPatch, face: str, queues: tuple[int, ...]
) -> None:
    """A scan never returns two queues of different generations. `queues` are the queues with
    messages in the recreated topic."""
    recreate_before_second(small, monkeypatch, queues)
    with pytest.raises(Expired):
        FACES[face](small.url)
    monkeypatch.undo()
    if queues:
        assert scan(small.url).count_rows() == 20 * len(queues)


def test_tasks_of_two_queues_are_of_one_generation(small: GrowingTier) -> None:
    plans = [scan(small.url, columns=one).plan() for one in (None, "queue_offset")]
    pairs = [pickle.loads(pickle.dumps(task)) for tasks in plans for task in tasks]
    assert len(pairs) == 4
    for task in pairs[::2]:
        assert sum(batch.num_rows for batch in task.read()) == 20
    small.make_again("orders")
    fill_small(small)
    for task in pairs[1::2]:
        with pytest.raises(Expired, match="orders/1: the topic was recreated"):
            list(task.read())


@pytest.mark.parametrize("keys", [{}, {"keys": "KEY-3"}])
def test_spark_partitions_of_two_queues_are_of_one_generation(
    small: GrowingTier, keys: dict[str, str]
) -> None:
    given = {"path": small.url, "subscribe": "orders", "maxPartitionBytes": "90000", **keys}
    reader = TieredBatchReader(parse_options(given), Shape.of(spark_schema(("body",)), None))
    first, second = reader.partitions()
    assert list(reader.read(first))
    small.make_again("orders")
    fill_small(small)
    with pytest.raises(Expired, match="orders/1: the topic was recreated"):
        list(reader.read(second))


def test_an_export_has_one_generation_of_two_queues(
    small: GrowingTier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    export, done = Export(tmp_path / "export", Format.PARQUET, small), list[WriteTask]()

    def late(task: WriteTask) -> WriteOutcome:
        if done:
            small.make_again("orders")
            fill_small(small)
        done.append(task)
        return write(pickle.loads(pickle.dumps(task)))  # as in another process

    monkeypatch.setattr(job, "write", late)
    with pytest.raises(Expired, match="recreated"):
        export.run(task_bytes=90_000)
    assert len(done) == 2
    monkeypatch.undo()
    assert export.run(task_bytes=90_000)["rows"] == 40


@pytest.mark.parametrize("is_older", [False, True])
def test_a_killed_export_compares_a_queue_with_its_plan(
    small: GrowingTier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_older: bool
) -> None:
    """A resumed export ends with Expired if a queue has been recreated since its plan. Journals of
    older versions have no marks to compare."""
    export = Export(tmp_path / "export", Format.PARQUET, small)

    def fail(task: WriteTask) -> WriteOutcome:
        raise Unavailable(f"task {task.number} was killed")

    monkeypatch.setattr(job, "write", fail)
    with pytest.raises(Unavailable):
        export.run(task_bytes=90_000, journal="a")
    monkeypatch.undo()
    path = export.root / "a.jsonl"
    lines = [json.loads(line) for line in path.read_bytes().splitlines()]
    step, pin = lines[1]
    assert step == "pin"
    assert set(pin["marks"]) == {"broker-a/orders/0", "broker-a/orders/1"}
    if is_older:
        pin["marks"] = {}
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
        assert export.run(task_bytes=90_000, journal="a")["rows"] == 40
        return
    small.make_again("orders")
    fill_small(small)
    with pytest.raises(Expired, match="recreated"):
        export.run(task_bytes=90_000, journal="a")
    assert export.run(task_bytes=90_000, journal="a")["rows"] == 40


def test_an_export_goes_on_behind_a_damaged_mark(small: GrowingTier, tmp_path: Path) -> None:
    """An export continues even if the head of the last exported message is damaged."""
    export = Export(tmp_path / "export", Format.PARQUET, small)
    assert export.run()["rows"] == 40
    [path] = small.segments("orders", 0, FileSegmentType.COMMIT_LOG)
    data = bytearray(path.read_bytes())
    last = data.rindex(MAGIC_V1.to_bytes(4, "big"))
    data[last : last + 4] = b"none"
    path.write_bytes(data)
    small.append("orders", 0, 3, body_bytes=4000)
    assert export.run()["rows"] == 3


@pytest.mark.parametrize("columns", [None, "queue_offset"])
def test_a_limit_ends_before_rows_of_another_generation(
    tier: GrowingTier, monkeypatch: pytest.MonkeyPatch, columns: str | None
) -> None:
    """Each batch is compared with the earlier ones before its rows are delivered."""
    monkeypatch.setattr(arrow_read, "_UNITS_PER_BATCH", 5)
    monkeypatch.setattr(batches, "_FIRST_UNITS", 5)
    found = scan(tier.url, columns=columns, limit=9, batch_bytes=20_000).plan()[0].read()
    assert next(found).num_rows < 9
    recreate(tier)
    with pytest.raises(Expired, match=RECREATED):
        next(found)


def test_a_filter_that_leaves_nothing_of_a_batch_is_compared_too(tier: GrowingTier) -> None:
    """A batch is compared with the earlier ones even if a filter omits all of its messages."""
    [one] = ranges_of(tier, until_ms=START_MS + 3_000)
    found = read_batches(tier.provider, one, batch_bytes=4_500)
    next(found)
    recreate(tier)
    with pytest.raises(Expired, match=RECREATED):
        list(found)


def test_a_witness_that_expires_is_replaced(tier: GrowingTier) -> None:
    """A recreation is detected even after the first segment of a queue has expired."""
    [one] = ranges_of(tier)
    found = read_batches(tier.provider, one, batch_bytes=20_000)
    rows = 0
    while rows < 25:
        rows += len(next(found))
    tier.expire("orders", 0)
    rows += len(next(found))
    recreate(tier)
    with pytest.raises(Expired, match=RECREATED):
        list(found)
