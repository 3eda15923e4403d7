"""What others do to a table between two exports does not make one of them forget its place."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyiceberg.catalog import load_catalog

from tests.kit.growing_tier import GrowingTier
from tests.kit.jobs.export import Export, places_of
from tieredstore.jobs.exporting import Format


@pytest.fixture
def delta(tier: GrowingTier, tmp_path: Path) -> Export:
    return Export(tmp_path / "exported", Format.DELTA, tier)


@pytest.fixture
def iceberg(tier: GrowingTier, tmp_path: Path) -> Export:
    return Export(tmp_path / "exported", Format.ICEBERG, tier)


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
