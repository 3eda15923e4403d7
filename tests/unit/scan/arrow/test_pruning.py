"""Conditions on columns never lose a matching row, including nulls and times before 1970."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import tieredstore
from tests.kit.tier_builder import TierBuilder, message
from tieredstore.table import Tier

duckdb = pytest.importorskip("duckdb")

TIMES = [-5, 0, 1_700_000_000_000, 253_402_300_800_000, 1 << 62, -86_400_000, -(1 << 62)]
CONDITIONS = (
    "store_timestamp < '1970-01-01 00:00:00+00'",
    "store_timestamp <= '1969-12-31 23:59:59.995+00'",
    "store_timestamp > '9999-12-31 23:59:59.999+00'",
    "store_timestamp is null",
    "store_timestamp is not null",
    "store_timestamp is null or store_timestamp < '2024-01-01 00:00:00+00'",
    "store_timestamp < '1970-01-01 00:00:00+00' or queue_offset = 2",
    "not (store_timestamp >= '1970-01-01 00:00:00+00')",
    "not (store_timestamp is null)",
    "store_timestamp is distinct from '2023-11-14 22:13:20+00'",
    "store_timestamp != '2023-11-14 22:13:20+00'",
    "coalesce(store_timestamp, '2000-01-01 00:00:00+00') < '2001-01-01 00:00:00+00'",
    "store_timestamp in ('1969-12-31 23:59:59.995+00', '2023-11-14 22:13:20+00')",
)


@pytest.fixture
def tier(tmp_path: Path) -> Tier:
    builder = TierBuilder(tmp_path, times=TIMES)
    builder.queue("orders", 0, [message("orders", 0, number) for number in range(len(TIMES))])
    return tieredstore.open(builder.built.url)


@pytest.mark.parametrize("condition", CONDITIONS)
def test_j30_sql_over_a_dataset_answers_as_over_a_table(tier: Tier, condition: str) -> None:
    connection = duckdb.connect()
    connection.execute("set timezone = 'UTC'")
    connection.register("dataset", tier.scan("orders").to_dataset())
    connection.register("plain", tier.scan("orders").to_arrow())
    found, expected = (
        connection.sql(f"select queue_offset from {name} where {condition} order by 1").fetchall()
        for name in ("dataset", "plain")
    )
    assert found == expected


def test_j30_pyarrow_and_polars_filters_keep_nulls_and_times_before_1970(tier: Tier) -> None:
    dataset, table = tier.scan("orders").to_dataset(), tier.scan("orders").to_arrow()
    epoch = pa.scalar(0, pa.timestamp("us", tz="UTC"))
    time = pc.field("store_timestamp")
    for condition in (time < epoch, time.is_null(), ~(time >= epoch), time >= epoch):
        expected = table.filter(condition)["queue_offset"].to_pylist()
        found = dataset.scanner(["queue_offset"], condition).to_table()
        assert found["queue_offset"].to_pylist() == expected
    lazy = pl.scan_pyarrow_dataset(dataset)
    early = pl.col("store_timestamp") < datetime(1970, 1, 1, tzinfo=UTC)
    assert lazy.filter(early).collect()["queue_offset"].to_list() == [0, 5]
    assert lazy.filter(pl.col("store_timestamp").is_null()).collect().height == 2


FRACTIONS = [
    pc.field("queue_offset") >= 3.5,
    pc.field("queue_offset") < 2.5,
    pc.field("queue_id") == 0.5,
    pc.field("queue_id") != 0.5,
    ~(pc.field("queue_id") > -0.5),
    (pc.field("queue_offset") > 1.5) & (pc.field("queue_id") <= 0.0),
    (pc.field("queue_offset") == 2) | (pc.field("queue_id") > 7.25),
    (pc.field("queue_offset") == 2) & (pc.field("queue_id") < 7.25),
    pc.field("queue_offset") < 1e300,
]


@pytest.mark.parametrize("condition", FRACTIONS)
def test_j30_a_whole_number_is_compared_with_a_fraction_as_over_a_table(
    tier: Tier, condition: pc.Expression
) -> None:
    dataset, table = tier.scan("orders").to_dataset(), tier.scan("orders").to_arrow()
    expected = table.filter(condition)["queue_offset"].to_pylist()
    found = dataset.scanner(["queue_offset"], condition).to_table()["queue_offset"].to_pylist()
    assert found == expected
    assert dataset.count_rows(condition) == len(expected)
