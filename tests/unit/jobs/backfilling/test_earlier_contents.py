"""Tests of a backfill into a tier whose broker already has messages, and of a second run after the
tier has lost messages."""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.kit.generations import TOPICS, make_world
from tests.kit.jobs.backfill import BROKER, backfill_target, damage, fill, found, messages, tier_at
from tests.kit.tiered_local import TieredLocal
from tieredstore import jobs
from tieredstore.errors import Invalid
from tieredstore.jobs.operating.delete import delete_topic
from tieredstore.scan.location import TierLocation

LATER_MS = 1_800_000_000_000
CLUSTER = "DefaultCluster"


def later(count: int, topic: str = "orders", queue_id: int = 0) -> pa.Table:
    """Return messages without offsets, which a backfill appends to a queue."""
    times = pa.array([LATER_MS] * count, pa.int64())
    table = messages(count, topic=topic, queue_id=queue_id).drop_columns("queue_offset")
    return table.set_column(
        table.schema.get_field_index("store_timestamp"), "store_timestamp", times
    )


def tier_of(world: TieredLocal) -> TierLocation:
    url, state = f"file://{world.root / 'tier'}", world.root / "store"
    return backfill_target(url, state, cluster=CLUSTER, broker=BROKER)


@pytest.mark.parametrize("store_type", ["default", "defaultRocksDB"])
@pytest.mark.parametrize("count", [1, 9])  # fewer than the store has, and more
def test_w94_queues_of_the_store_are_not_backfilled(
    tmp_path: Path, store_type: str, count: int
) -> None:
    world = make_world(tmp_path, storeType=store_type)
    world.put("orders", b"a", b"b")
    world.upload()
    world.store.dispatcher.stop()
    world.put("orders", b"c", b"d")
    world.close()
    with pytest.raises(Invalid, match="orders/0, and continues it at queue offset 4"):
        fill(tmp_path, later(count), tier=tier_of(world))
    fill(tmp_path, later(count, queue_id=1), name="other", tier=tier_of(world))
    world.open()
    assert [offset for offset, _ in world.read("orders", 1)] == list(range(count))
    assert world.put("orders", b"e") == [4]
    world.upload()
    assert world.read("orders") == list(enumerate([b"a", b"b", b"c", b"d", b"e"]))
    world.close()


def test_w94_the_messages_of_a_killed_store_count(tmp_path: Path) -> None:
    world = make_world(tmp_path)
    world.put("orders", b"a")
    world.local.flush()
    shutil.copytree(
        tmp_path / "store", tmp_path / "killed", ignore=shutil.ignore_patterns("lock", "*.lock")
    )
    world.close()
    shutil.rmtree(tmp_path / "store")
    shutil.move(tmp_path / "killed", tmp_path / "store")
    assert (tmp_path / "store" / "abort").exists()
    with pytest.raises(Invalid, match="orders/0, and continues it at queue offset 1"):
        fill(tmp_path, later(1), tier=tier_of(world))


def test_w94_the_procedure_appends_to_the_queues(tmp_path: Path) -> None:
    world = make_world(tmp_path)
    (tmp_path / "store" / "config" / "topics.json").write_text(TOPICS)
    world.put("orders", b"a", b"b")
    world.upload()
    world.store.backup.run_once(is_last=True)
    world.close()
    shutil.move(tmp_path / "store", tmp_path / "away")
    jobs.restore(f"file://{tmp_path / 'tier'}", tmp_path / "store")
    fill(tmp_path, later(1), tier=tier_of(world))
    world.open()
    assert world.put("orders", b"c") == [3]
    world.upload()
    assert world.read("orders") == list(enumerate([b"a", b"b", b"body 0 of 0", b"c"]))
    world.close()


def write(root: Path, table: pa.Table) -> str:
    path = root / "table.parquet"
    pq.write_table(table, path)
    return str(path)


def test_j85_a_table_whose_topic_was_deleted_is_not_reported_as_done(tmp_path: Path) -> None:
    table = write(tmp_path, messages(5))
    fill(tmp_path, table)
    delete_topic(tier_at(tmp_path), "orders", yes=True)
    with pytest.raises(Invalid, match="has lost that: the topic was deleted since"):
        fill(tmp_path, table)
    [note] = (tmp_path / "state" / "backfill").iterdir()
    note.unlink()
    assert fill(tmp_path, table)["done_before"] is False
    assert found(tmp_path)["queue_offset"].to_pylist() == list(range(5))
    assert {one.kind for one in damage(tier_at(tmp_path))} == {"index-item-dangling"}
    assert fill(tmp_path, table)["done_before"] is True


def test_j85_a_table_that_an_older_tier_lacks_is_not_reported_as_done(tmp_path: Path) -> None:
    first = tmp_path / "first.parquet"
    pq.write_table(messages(3, topic="first"), first)
    fill(tmp_path, str(first))
    shutil.copytree(tmp_path / "tier", tmp_path / "older")
    table = write(tmp_path, messages(5))
    assert fill(tmp_path, table)["done_before"] is False
    shutil.rmtree(tmp_path / "tier")
    shutil.move(tmp_path / "older", tmp_path / "tier")
    jobs.rebuild_metadata(tier_at(tmp_path).url, tmp_path / "state", force=True)
    with pytest.raises(Invalid, match="has lost that: the queue ends at 0"):
        fill(tmp_path, table)
    assert fill(tmp_path, str(first))["done_before"] is True


@pytest.mark.parametrize("deletions", [1, 2])
def test_j85_a_deleted_topic_is_backfilled_after_its_deleted_messages(
    tmp_path: Path, deletions: int
) -> None:
    for number in range(deletions):
        fill(tmp_path, later(5), name=f"table{number}")
        delete_topic(tier_at(tmp_path), "orders", yes=True)
    fill(tmp_path, later(2), name="last")
    end = 5 * deletions
    assert found(tmp_path)["queue_offset"].to_pylist() == [end, end + 1]
    assert {one.kind for one in damage(tier_at(tmp_path))} == {"index-item-dangling"}
