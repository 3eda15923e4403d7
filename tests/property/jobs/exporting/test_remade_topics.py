"""Topics are recreated between exports. The target has each message of the old and of the new
topics once."""

from __future__ import annotations

import shutil
from dataclasses import replace
from typing import Any

import pyarrow.dataset as ds
import pytest
from hypothesis import given, settings

import tieredstore
from tests.kit.histories import COLUMNS, QueuePlan, Row, build, histories, rows_of

DAY_MS = 86_400_000


def later_life(plans: list[QueuePlan]) -> list[QueuePlan]:
    """Return the same plans one day later, so that all messages differ from those of the first
    topics. The new plans have no damage and no expiry: without its first message, a new topic could
    not be distinguished from the old one."""
    return [
        replace(
            plan, steps=((0, DAY_MS), *plan.steps), odd_times=(), damaged=(), lost=(),
            expired=(0, 0), tail="whole",
        )
        for plan in plans
    ]  # fmt: skip


@settings(max_examples=12)
@given(histories(), histories())
def test_an_export_gives_every_message_of_both_lives(
    tmp_path_factory: pytest.TempPathFactory, first: list[QueuePlan], second: list[QueuePlan]
) -> None:
    root = tmp_path_factory.mktemp("lives")
    options: dict[str, Any] = {
        "to": root / "target", "format": "parquet", "columns": COLUMNS, "on_damage": "skip",
        "accept": ["gap", "remade", "topics"],
    }  # fmt: skip
    before = build(root / "tier", first)
    first_rows = tieredstore.open(before.url).export(**options)["rows"]
    assert first_rows == len(before.rows())

    shutil.rmtree(root / "tier")
    after = build(root / "tier", later_life(second))
    tieredstore.open(after.url).export(**options)

    table = ds.dataset(str(root / "target"), partitioning="hive").to_table()
    found: list[Row] = rows_of(table.select(COLUMNS).to_batches()) if table.num_rows else []

    def order(row: Row) -> tuple[Any, ...]:
        return *row.place, row.store_ms

    assert sorted(found, key=order) == sorted([*before.rows(), *after.rows()], key=order)
