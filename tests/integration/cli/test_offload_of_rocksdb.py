"""`offload` reads a store with its consume queues in RocksDB."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.kit.command_line import tieredstore
from tests.kit.local_stores import copy_store
from tieredstore.local.recovery.store_lock import StoreLock


@pytest.mark.parametrize("has_owner", [False, True])
def test_all_messages_of_a_rocksdb_store_are_in_the_tier(
    public_rocksdb: Path, tmp_path: Path, *, has_owner: bool
) -> None:
    manifest = json.loads((public_rocksdb / "manifest.json").read_bytes())
    right = {
        (row["topic"], row["queueId"], row["queueOffset"]): row["bodySHA256"]
        for row in manifest["messages"]
        if row["topic"].startswith("pub_")
    }
    store = public_rocksdb / "store"
    if has_owner:
        store = copy_store(store, tmp_path / "store")
        lock = StoreLock(store)
        lock.acquire()
    before = {path: path.stat().st_mtime_ns for path in store.rglob("*")}
    tier = ["--tier", f"file://{tmp_path / 'tier'}"]
    state = ["--state", tmp_path / "state"]
    conf = public_rocksdb / "broker.conf"
    ran = tieredstore("offload", store, *tier, *state, "--config", conf, "--output", "json")
    assert ran.code == 0, ran.err
    assert (ran.record["messages"], ran.record["failed"], ran.record["holes"]) == (
        len(right),
        [],
        [],
    )
    assert ("is in use by another process" in ran.err) == has_owner
    found: dict[tuple[str, int, int], str] = {}
    for topic in sorted({topic for topic, _, _ in right}):
        ran = tieredstore("cat", *tier, "--topic", topic, "--body", "sha256", "--output", "ndjson")
        for row in ran.rows:
            found[topic, row["queue_id"], row["queue_offset"]] = row["body"]
    assert found == right
    ran = tieredstore("verify", *tier, *state, "--output", "json")
    assert (ran.code, ran.record["findings"], ran.record["messages"]) == (0, [], len(right))
    again = tieredstore("offload", store, *tier, *state, "--config", conf, "--output", "json")
    assert (again.code, again.record["messages"]) == (0, 0)
    assert {path: path.stat().st_mtime_ns for path in store.rglob("*")} == before
    if has_owner:
        lock.release()
