"""A scan that is used as a dataset reads only what is needed, and returns all matching rows."""

from __future__ import annotations

import operator
import pickle
from collections.abc import Generator
from functools import reduce

import hypothesis.strategies as st
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings

import tieredstore
from tests.kit.tier_builder import BuiltTier, small_tier
from tieredstore.scan.arrow.dataset import ScanDataset
from tieredstore.scan.arrow.pruning import NOTHING, Narrowing, find_columns, narrow
from tieredstore.scan.arrow.schema import schema_of

NAMES = ("queue_id", "queue_offset", "store_timestamp", "tags", "body_length", "body")
SCHEMA = schema_of(NAMES)
queue, offset, time = pc.field("queue_id"), pc.field("queue_offset"), pc.field("store_timestamp")


def moment(time_us: int) -> pa.Scalar:
    return pa.scalar(time_us, SCHEMA.field("store_timestamp").type)


@pytest.mark.parametrize(
    ("condition", "narrowing"),
    [
        (None, Narrowing()),
        (pc.field("tags") == "a", Narrowing()),
        (queue == 3, Narrowing(queue_ids=(3,))),
        ((queue == 3) | (queue == 9), Narrowing(queue_ids=(3, 9))),
        (queue.isin([5, 7]), Narrowing(queue_ids=(5, 7))),
        (queue >= 5, Narrowing()),
        ((queue == 3) & (queue == 4), NOTHING),
        (queue == -1, NOTHING),
        ((offset >= 5) & (offset < 9), Narrowing(from_offset=5, until_offset=9)),
        (offset == 2**40, Narrowing(from_offset=2**40, until_offset=2**40 + 1)),
        ((offset == 4) | (offset == 40), Narrowing(from_offset=4, until_offset=41)),
        (offset <= 7, Narrowing(until_offset=8)),
        (time >= moment(1_000_001), Narrowing(since_ms=1_000)),
        (time < moment(2_000_000), Narrowing(until_ms=2_000)),
        (time <= moment(2_000_000), Narrowing(until_ms=2_001)),
        ((queue == 3) | (pc.field("tags") == "a"), Narrowing()),
        (
            (queue == 3) & (pc.field("tags") == "a") & (offset > 7),
            Narrowing(queue_ids=(3,), from_offset=8),
        ),
        (~(offset < 7), Narrowing(from_offset=7)),
        (pc.field("body_length") > pc.field("queue_offset"), Narrowing()),
        (
            ((offset == 0) & (offset == 1)) | (offset == 5) | ((offset == 8) & (offset == 9)),
            Narrowing(None, 5, 6),
        ),
        (((queue == 0) & (queue == 1)) | (queue == 5), Narrowing((5,))),
    ],
)
def test_a_condition_leaves_queues_offsets_and_times(
    condition: pc.Expression | None, narrowing: Narrowing
) -> None:
    found = narrow(condition, SCHEMA)
    if narrowing.queue_ids is None and found.queue_ids is not None:
        pytest.fail(str(found))
    assert found == narrowing


def test_columns_of_a_condition_are_found_by_whole_words() -> None:
    condition = (pc.field("body_length") > 1) & (queue == 0)
    assert find_columns(condition, SCHEMA) == ["queue_id", "body_length"]


_COMPARISONS = st.tuples(
    st.sampled_from(["queue_id", "queue_offset"]),
    st.sampled_from(["eq", "ne", "lt", "le", "gt", "ge"]),
    st.integers(-1, 12),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(_COMPARISONS, st.booleans(), st.booleans()), min_size=1, max_size=4))
def test_what_a_condition_is_true_for_is_within_what_it_leaves(
    parts: list[tuple[tuple[str, str, int], bool, bool]],
) -> None:
    def make(part: tuple[tuple[str, str, int], bool, bool]) -> pc.Expression:
        (name, comparison, number), is_not, _ = part
        found = getattr(operator, comparison)(pc.field(name), number)
        return ~found if is_not else found

    condition = reduce(
        lambda left, part: left & make(part) if part[2] else left | make(part),
        parts[1:],
        make(parts[0]),
    )
    table = pa.table(
        {
            "queue_id": pa.array([q for q in range(4) for _ in range(12)], pa.int32()),
            "queue_offset": pa.array(list(range(12)) * 4, pa.int64()),
        }
    )
    found = narrow(condition, SCHEMA)
    for row in table.filter(condition).to_pylist():
        assert not found.is_empty
        assert found.queue_ids is None or row["queue_id"] in found.queue_ids
        assert row["queue_offset"] >= (found.from_offset or 0)
        assert found.until_offset is None or row["queue_offset"] < found.until_offset


@pytest.fixture(scope="module")
def tier(tmp_path_factory: pytest.TempPathFactory) -> BuiltTier:
    return small_tier(tmp_path_factory.mktemp("dataset"))


def test_only_what_is_needed_is_read() -> None:
    asked: list[tuple[tuple[str, ...], Narrowing]] = []

    def read(columns: tuple[str, ...], narrowing: Narrowing) -> Generator[pa.RecordBatch]:
        asked.append((columns, narrowing))
        yield from ()

    dataset = ScanDataset(SCHEMA, read)
    dataset.to_table(columns=["body"], filter=queue == 1)
    dataset.count_rows()
    assert asked == [
        (("queue_id", "body"), Narrowing(queue_ids=(1,))),
        (("queue_id",), Narrowing()),
    ]


def test_a_filter_is_exact_and_goes_with_the_choice_of_the_scan(tier: BuiltTier) -> None:
    scan = tieredstore.open(tier.url).scan("orders", queue_ids=[0], since=1_700_000_004_500)
    found = scan.to_dataset().to_table(columns=["queue_offset"], filter=offset < 106)
    assert found.to_pydict() == {"queue_offset": [103, 104, 105]}
    assert scan.to_dataset().count_rows(filter=queue == 1) == 0
    assert scan.to_dataset().head(2, columns=["queue_offset"]).num_rows == 2
    batches = scan.to_dataset().to_batches(columns=["tags"], filter=offset == 104)
    assert [batch.to_pydict() for batch in batches] == [{"tags": ["Tag1"]}]
    assert scan.to_dataset().count_rows(filter=queue.isin([0, 1])) == 9
    with pytest.raises(TypeError, match="does not pickle"):
        pickle.dumps(scan.to_dataset())


def test_a_limit_is_that_of_the_scan_and_not_of_what_a_filter_leaves(tier: BuiltTier) -> None:
    scan = tieredstore.open(tier.url).scan("orders", limit=3)
    rows = set(scan.to_arrow().column("queue_offset").to_pylist())
    assert scan.to_dataset().count_rows() == 3
    kept = scan.to_dataset().to_table(columns=["queue_offset"], filter=offset > min(rows))
    assert set(kept.column(0).to_pylist()) == rows - {min(rows)}


def test_duckdb_and_polars_say_what_they_need(
    tier: BuiltTier, monkeypatch: pytest.MonkeyPatch
) -> None:
    import duckdb
    import polars as pl

    asked: list[tuple[set[str], Narrowing]] = []
    read = tieredstore.table.Scan._read_narrowed

    def spy(
        self: tieredstore.table.Scan, columns: tuple[str, ...], narrowing: Narrowing
    ) -> Generator[pa.RecordBatch]:
        asked.append((set(columns), narrowing))
        return read(self, columns, narrowing)

    monkeypatch.setattr(tieredstore.table.Scan, "_read_narrowed", spy)
    scan = tieredstore.open(tier.url).scan("orders")
    connection = duckdb.connect()
    connection.register("orders", scan.to_dataset())
    query = "select sum(body_length) from orders where queue_offset < 2"
    assert connection.execute(query).fetchall() == [(57,)]
    frame = pl.scan_pyarrow_dataset(scan.to_dataset())
    chosen = frame.filter(pl.col("queue_id") == 1).select("tags").collect()
    assert chosen["tags"].to_list() == ["Tag0", "Tag1", "Tag2", "Tag0"]
    assert asked == [
        ({"body_length", "queue_offset"}, Narrowing(until_offset=2)),
        ({"tags", "queue_id"}, Narrowing(queue_ids=(1,))),
    ]
