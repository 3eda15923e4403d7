"""`backfill` writes a table in an object store to a tier in the same store."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from tests.kit.command_line import tieredstore
from tests.kit.jobs.backfill import messages
from tests.kit.object_store.servers import ObjectStore


def test_a_table_there_becomes_a_tier_there(object_store: ObjectStore, tmp_path: Path) -> None:
    table = pa.concat_tables([messages(40, first=3), messages(30, queue_id=1)])
    client = object_store.client()
    for name, first in (("a", 0), ("b", 35)):
        path = tmp_path / f"{name}.parquet"
        pq.write_table(table.slice(first, 35), path)
        key = f"table/{path.name}"
        client.put_object(Bucket=object_store.bucket, Key=key, Body=path.read_bytes())
    client.close()
    conf = tmp_path / "broker.conf"
    conf.write_text(
        "brokerName=broker-a\nbrokerClusterName=cluster-a\n"
        "tieredStoreIndexFileMaxHashSlotNum=64\ntieredStoreIndexFileMaxIndexNum=1000\n"
    )
    place = ("--tier", object_store.url("tier"), "--state", tmp_path / "state")
    arguments = (
        "backfill", "--from", object_store.url("table"), *place, "--config", conf,
        "--segment-bytes", "3000", "--work", tmp_path / "work", "--workers", "1", "--quiet",
        "--output", "json",
    )  # fmt: skip
    ran = tieredstore(*arguments)
    assert ran.code == 0, ran.err
    assert ran.record["messages"] == 70
    verified = tieredstore("verify", *place, "--output", "json")
    assert (verified.code, verified.record["findings"]) == (0, [])
    rows = tieredstore("cat", "--topic", "orders", *place, "--output", "ndjson").rows
    assert sorted((row["queue_id"], row["queue_offset"], row["body"]) for row in rows) == sorted(
        (row["queue_id"], row["queue_offset"], row["body"].decode()) for row in table.to_pylist()
    )
    found = tieredstore(
        "query", *place, "--topic", "orders", "--key", "key-1-9", "--output", "ndjson"
    )
    assert [row["queue_offset"] for row in found.rows] == [9]
    assert tieredstore(*arguments).record["done_before"]
