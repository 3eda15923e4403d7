"""Spark's own queries over generated tiers return the same rows as a plain list."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.kit.histories import COLUMNS, QueuePlan, Row, build, filters, histories, rows_of
from tieredstore.scan.arrow.schema import schema

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession


def conditions(chosen: dict[str, Any]) -> list[Column]:
    from pyspark.sql import functions as f

    made: dict[str, Callable[[Any], Column]] = {
        "since_ms": lambda value: f.col("store_timestamp") >= f.timestamp_millis(f.lit(value)),
        "until_ms": lambda value: f.col("store_timestamp") < f.timestamp_millis(f.lit(value)),
        "from_offset": lambda value: f.col("queue_offset") >= value,
        "until_offset": lambda value: f.col("queue_offset") < value,
        "queue_ids": lambda value: f.col("queue_id").isin(*value),
        "tags": lambda value: f.col("tags").isin(*value),
    }
    return [made[name](value) for name, value in chosen.items() if name in made]


def collect(frame: DataFrame) -> list[Row]:
    table = frame.select(*COLUMNS).toArrow()
    return rows_of(table.cast(schema(COLUMNS)).to_batches()) if table.num_rows else []


@settings(max_examples=4, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data(), histories())
def test_a_query_gives_the_rows_of_a_plain_list(
    spark: SparkSession,
    tmp_path_factory: pytest.TempPathFactory,
    data: st.DataObject,
    plans: list[QueuePlan],
) -> None:
    history = build(tmp_path_factory.mktemp("history"), plans)
    chosen = data.draw(filters(plans))
    chosen.pop("keys", None)
    frame = spark.read.format("rocketmq_tiered").options(
        path=history.url, subscribePattern=".*", onDamage="skip", failOnDataLoss="false"
    )
    found = frame.load()
    assert collect(found) == history.rows()
    for condition in conditions(chosen):
        found = found.where(condition)
    assert collect(found) == history.rows(**chosen)
    assert found.count() == len(history.rows(**chosen))
