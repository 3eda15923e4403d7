"""An operator's verbs run on a tier in an object store."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.kit.command_line import Ran, one_line, tieredstore
from tests.kit.object_store.fixtures import new_bucket
from tests.kit.object_store.servers import ObjectStore, Servers
from tests.kit.tier_builder import BROKER, START_MS, small_tier
from tieredstore.errors import Fenced
from tieredstore.scan.location import locate


def copy_into(bucket: ObjectStore, root: Path) -> Path:
    """Copy a small tier into the bucket. Return its state directory."""
    built = small_tier(root / "source")
    state = root / "state"
    copied = tieredstore(
        "copy", "--from", built.url, "--from-state", built.state, "--to", bucket.url(),
        "--to-state", state, "--quiet",
    )  # fmt: skip
    assert copied.code == 0, copied.err
    return state


def test_an_operator_changes_a_tier_of_objects(servers: Servers, tmp_path: Path) -> None:
    bucket = new_bucket(servers, "moto")
    state = copy_into(bucket, tmp_path)

    def run(*arguments: object) -> Ran:
        return tieredstore(
            *arguments, "--tier", bucket.url(), "--state", state, "--output", "json"
        )  # fmt: skip

    def operate(*arguments: object) -> dict[str, Any]:
        """Plan and execute an operation. Check that the tier is undamaged."""
        keys = sorted(bucket.keys(""))
        said = run("tier", *arguments)
        assert said.code == 0, said.err
        assert sorted(bucket.keys("")) == keys
        done = run("tier", *arguments, "--yes")
        assert done.code == 0, done.err
        for name in ("segments", "objects", "bytes", "messages"):
            assert done.record[name] == said.record[name]
        assert not done.record.get("undeleted")
        assert done.record["cost_usd"] > 0
        verified = run("verify", "--quiet", "--workers", 1)
        assert (verified.code, verified.record["damage"]) == (0, 0)
        record: dict[str, Any] = done.record
        return record | {"left": verified.record["messages"]}

    expired = operate("expire", "orders", "--queue", 0, "--before", START_MS + 5 * 1_500)
    assert (expired["messages"], expired["left"]) == (5, 22 - 5)
    assert expired["objects"] >= 2
    assert expired["storage_saved_usd_month"] > 0
    assert operate("skip", "orders", "--queue", 1, "--to", 9)["left_out_messages"] == 5
    emptied = operate("reset", "orders", "--queue", 0, "--to", 50)
    assert (emptied["messages"], emptied["left"]) == (7, 10)
    deleted = operate("delete", "over6")
    assert (deleted["messages"], deleted["left"]) == (6, 4)
    took = [
        row
        for row in deleted["requests_by_operation"]
        if row["file_type"] in ("COMMIT_LOG", "CONSUME_QUEUE")
    ]
    assert deleted["delete_requests"] == sum(row["requests"] for row in took) == 3 * 4
    assert deleted["delete_usd"] == pytest.approx(sum(row["cost_usd"] for row in took))
    # Tombstones stay until the sweep: they keep late writes of others out.
    left = [key for key in bucket.keys("tier") if "/over6/" in key]
    assert {key[-2:] for key in left} == {"/t"}
    rows = {
        (row["topic"], row["queue_id"]): (row["min_offset"], row["max_offset"])
        for row in run("ls").record
    }
    assert rows["orders", 1][0] == 0
    assert ("over6", 0) not in rows
    health = run("health", "--list")
    assert (health.code, health.record["status"], health.record["undeleted"]) == (0, "up", 0)
    probe = run("health", "--needs-writer")
    assert (probe.code, probe.record["is_writing"]) == (8, False)
    assert probe.record["requests"] <= 7  # whatever the tier holds


def test_w02_a_writer_elsewhere_is_told_of_and_replaced_when_asked_to(
    servers: Servers, tmp_path: Path
) -> None:
    bucket = new_bucket(servers, "moto")
    state = copy_into(bucket, tmp_path)
    verb = (
        "tier", "reset", "orders", "--queue", 1, "--tier", bucket.url(), "--state", state,
        "--output", "json",
    )  # fmt: skip
    elsewhere = locate(bucket.url()).connect()
    epoch = elsewhere.acquire_writer(BROKER)
    try:
        keys = bucket.keys()
        said = tieredstore(*verb)
        assert (said.code, said.record["messages"]) == (0, 4)
        refused = tieredstore(*verb, "--yes")
        assert (refused.code, epoch.owner in one_line(refused)) == (5, True)
        assert bucket.keys() == keys
        done = tieredstore(*verb, "--yes", "--take-over")
        assert (done.code, done.record["messages"]) == (0, 4)
        with pytest.raises(Fenced):
            epoch.confirm()
    finally:
        elsewhere.close()
    assert tieredstore(*verb).record["messages"] == 0
