"""Pickled tasks read a tier in an object store as a table. The table equals that of a tier on the
file system."""

from __future__ import annotations

import pickle
from pathlib import Path

import tieredstore as package
from tests.kit.command_line import tieredstore
from tests.kit.object_store.servers import ObjectStore
from tests.kit.tier_builder import small_tier


def test_tables_over_objects_are_those_over_files(
    object_store: ObjectStore, tmp_path: Path
) -> None:
    built = small_tier(tmp_path / "source")
    ran = tieredstore(
        "copy", "--from", built.url, "--to", object_store.url(), "--to-state", tmp_path / "state",
        "--quiet",
    )  # fmt: skip
    assert ran.code == 0, ran.err
    there, here = package.open(object_store.url()), package.open(built.url)
    scan = there.scan(["orders", "over6"])
    table = here.scan(["orders", "over6"]).to_arrow()
    assert scan.to_arrow().equals(table)
    tasks = pickle.loads(pickle.dumps(scan.plan(target_bytes=500)))
    assert len(tasks) > 3
    batches = [batch for task in tasks for batch in task.read()]
    assert [row for b in batches for row in b.to_pylist()] == table.to_pylist()
    assert there.scan(keys="orders-0-3").to_arrow()["queue_offset"].to_pylist() == [103]
    assert "testing" not in repr(there)
