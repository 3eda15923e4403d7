"""An export continues at the right position after other programs have changed the table."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow.dataset as ds
import pytest
from deltalake import DeltaTable, Field
from deltalake.schema import PrimitiveType
from pyiceberg.catalog import load_catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.transforms import BucketTransform, MonthTransform
from pyiceberg.types import StringType, TimestamptzType

from tests.kit.growing_tier import GrowingTier
from tests.kit.jobs.export import Export, places_of
from tieredstore.errors import Invalid
from tieredstore.jobs.exporting.request import Format


@pytest.fixture
def delta(tier: GrowingTier, tmp_path: Path) -> Export:
    return Export(tmp_path / "exported", Format.DELTA, tier)


@pytest.fixture
def iceberg(tier: GrowingTier, tmp_path: Path) -> Export:
    return Export(tmp_path / "exported", Format.ICEBERG, tier)


def test_iceberg_namespace_that_another_exporter_makes_at_the_same_time(
    iceberg: Export, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = 0
    exists = SqlCatalog.namespace_exists

    def look(catalog: SqlCatalog, namespace: Any) -> bool:
        nonlocal looks
        looks += 1
        if looks == 1:  # the other one is faster from here on
            catalog.create_namespace(namespace)
            return False
        return exists(catalog, namespace)

    monkeypatch.setattr(SqlCatalog, "namespace_exists", look)
    iceberg.run()
    assert looks > 2
    assert iceberg.places() == places_of(iceberg.tier)


def test_delta_log_that_was_cleaned(delta: Export) -> None:
    for _ in range(3):
        delta.run()
        delta.tier.append("orders", 0, 2)
    table = DeltaTable(str(delta.target))
    table.alter.set_table_properties({"delta.logRetentionDuration": "interval 0 days"})
    table = DeltaTable(str(delta.target))
    table.create_checkpoint()
    table.cleanup_metadata()
    table.vacuum(0, enforce_retention_duration=False, dry_run=False)
    log = delta.target / "_delta_log"
    assert not (log / f"{0:020d}.json").exists()
    assert delta.run()["rows"] == 2
    assert delta.places() == places_of(delta.tier)


def test_delta_files_are_pruned_by_their_bounds(delta: Export) -> None:
    delta.run()
    delta.tier.append("orders", 0, 5)
    delta.run()
    table = DeltaTable(str(delta.target))
    actions = table.get_add_actions(flatten=True)
    bounds = {
        (row["partition.topic"], row["min.queue_offset"], row["max.queue_offset"])
        for row in _rows(actions)
    }
    assert bounds == {("orders", 0, 11), ("other", 0, 6), ("orders", 12, 16)}


def _rows(actions: Any) -> list[dict[str, Any]]:
    import pyarrow as pa

    rows: list[dict[str, Any]] = pa.table(actions).to_pylist()
    return rows


def test_iceberg_that_was_rolled_back_is_exported_again(iceberg: Export) -> None:
    first = iceberg.run()["commit"]
    iceberg.tier.append("orders", 0, 4)
    iceberg.run()
    catalog = load_catalog("test", **iceberg.catalog)
    table = catalog.load_table("lake.messages")
    table.manage_snapshots().rollback_to_snapshot(int(first)).commit()
    catalog.close()
    assert sum(iceberg.places().values()) == 24
    assert iceberg.run()["rows"] == 4
    assert iceberg.places() == places_of(iceberg.tier)


def test_iceberg_whose_snapshots_were_expired(iceberg: Export) -> None:
    ours = int(iceberg.run()["commit"])
    catalog = load_catalog("test", **iceberg.catalog)
    table = catalog.load_table("lake.messages")
    table.delete("topic = 'other'")
    table.refresh()
    table.maintenance.expire_snapshots().by_id(ours).commit()
    catalog.close()
    iceberg.tier.append("orders", 1, 3)
    assert iceberg.run()["rows"] == 3
    assert iceberg.run()["rows"] == 0
    assert all(place[0] == "orders" for place in iceberg.places())


def test_delta_that_was_optimized_and_vacuumed(delta: Export) -> None:
    delta.run()
    steps: tuple[Callable[[DeltaTable], object], ...] = (
        lambda table: table.optimize.compact(),
        lambda table: table.vacuum(0, enforce_retention_duration=False, dry_run=False),
        lambda table: table.optimize.z_order(["queue_offset"]),
    )
    for maintain in steps:
        delta.tier.append("orders", 0, 4)
        assert delta.run()["rows"] == 4
        maintain(DeltaTable(str(delta.target)))
        assert delta.places() == places_of(delta.tier)
    dataset = DeltaTable(str(delta.target)).to_pyarrow_dataset()
    for column, value in (("tags", "T1"), ("queue_id", 1), ("body_length", 100)):
        condition = ds.field(column) == value
        wanted = delta.table().filter(condition).num_rows
        assert dataset.to_table(["topic"], filter=condition).num_rows == wanted > 0


def test_columns_added_to_delta_stay_null(delta: Export) -> None:
    delta.run()
    DeltaTable(str(delta.target)).alter.add_columns([Field("enriched", PrimitiveType("string"))])
    delta.tier.append("orders", 0, 4)
    assert delta.run()["rows"] == 4
    assert delta.run()["rows"] == 0
    assert delta.places() == places_of(delta.tier)
    table = DeltaTable(str(delta.target))
    assert "enriched" in [field.name for field in table.schema().fields]
    assert delta.table()["enriched"].null_count == 28
    assert pl.read_delta(table)["enriched"].null_count() == 28


def test_columns_added_to_iceberg_stay_null(iceberg: Export) -> None:
    iceberg.run()
    with closing(load_catalog("test", **iceberg.catalog)) as catalog:
        with catalog.load_table("lake.messages").update_schema() as update:
            update.add_column("enriched", StringType())
            update.add_column(("more",), TimestamptzType())
        iceberg.tier.append("orders", 0, 4)
        assert iceberg.run()["rows"] == 4
        assert iceberg.run()["rows"] == 0
        table = catalog.load_table("lake.messages")
        assert table.scan(row_filter="enriched is null").count() == 28
    assert iceberg.places() == places_of(iceberg.tier)
    assert iceberg.table()["enriched"].null_count == 28


def test_columns_of_the_export_may_not_go(iceberg: Export, tmp_path: Path) -> None:
    iceberg.run()
    delta = Export(tmp_path / "other", Format.DELTA, iceberg.tier, columns=("body", "tags"))
    delta.run()
    with closing(load_catalog("test", **iceberg.catalog)) as catalog:
        with catalog.load_table("lake.messages").update_schema() as update:
            update.rename_column("tags", "labels")
        iceberg.tier.append("orders", 0, 4)
        with pytest.raises(Invalid, match=r"a table of other columns: expected .*'tags'.*'labels'"):
            iceberg.run()
        with catalog.load_table("lake.messages").update_schema() as update:
            update.rename_column("labels", "tags")
    assert iceberg.run()["rows"] == 4
    assert iceberg.table()["tags"].null_count == 0
    with pytest.raises(Invalid, match="another columns"):
        replace(delta, columns=("body",)).run()


def test_rows_of_iceberg_are_deleted_by_pyiceberg(iceberg: Export) -> None:
    """pyiceberg can delete rows of an exported table. A file that keeps some rows is rewritten into
    the same partition."""
    iceberg.run()
    with closing(load_catalog("test", **iceberg.catalog)) as catalog:
        catalog.load_table("lake.messages").delete("queue_offset < 5")
    assert sum(iceberg.places().values()) == 24 - 15
    iceberg.tier.append("orders", 0, 4)
    assert iceberg.run()["rows"] == 4
    assert sum(iceberg.places().values()) == 24 - 15 + 4


def test_iceberg_that_was_overwritten_goes_on(iceberg: Export) -> None:
    iceberg.run()
    with closing(load_catalog("test", **iceberg.catalog)) as catalog:
        table = catalog.load_table("lake.messages")
        table.overwrite(table.scan().to_arrow().slice(0, 3))
    iceberg.tier.append("orders", 0, 4)
    assert iceberg.run()["rows"] == 4
    assert sum(iceberg.places().values()) == 3 + 4


def test_iceberg_of_a_finer_partition_is_refused(iceberg: Export) -> None:
    iceberg.run()
    with closing(load_catalog("test", **iceberg.catalog)) as catalog:
        with catalog.load_table("lake.messages").update_spec() as update:
            update.add_field("queue_id", BucketTransform(4), "bucket")
        iceberg.tier.append("orders", 0, 4)
        message = (
            r"partitioned by bucket\[4\] of queue_id, files are cut by topic, day .*: expected"
        )
        with pytest.raises(Invalid, match=message):
            iceberg.run()
        with catalog.load_table("lake.messages").update_spec() as update:
            update.remove_field("bucket").remove_field("store_timestamp_day")
            update.add_field("store_timestamp", MonthTransform(), "month")
    assert iceberg.run()["rows"] == 4
    assert iceberg.places() == places_of(iceberg.tier)


def test_commits_of_iceberg_read_no_data_files(
    iceberg: Export, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A commit to an Iceberg table does not read data files."""
    iceberg.run()
    iceberg.tier.append("orders", 0, 4)
    opened: list[str] = []
    new_input = PyArrowFileIO.new_input

    def open_input(self: PyArrowFileIO, location: str) -> Any:
        opened.append(location)
        return new_input(self, location)

    monkeypatch.setattr(PyArrowFileIO, "new_input", open_input)
    assert iceberg.run(task_bytes=1 << 20)["rows"] == 4
    assert opened
    assert not [name for name in opened if name.endswith(".parquet")]
    manifests = [name for name in opened if name.endswith("-m0.avro")]
    assert not manifests
