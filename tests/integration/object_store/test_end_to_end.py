"""A broker's store is uploaded to an object store, and all local data is lost. The tier can still
be listed, read, searched, verified, and copied back to files."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.kit.command_line import tieredstore
from tests.kit.java import write_broker_conf
from tests.kit.object_store.fixtures import new_bucket
from tests.kit.object_store.servers import NAMES, ObjectStore, Servers

MESSAGES = 2103
"""Number of messages of the public-a fixture in topics that are uploaded to the tier."""
GROUP_BYTES = 16 << 20
DAILY = [("moto", GROUP_BYTES), ("versitygw", 0)]
"""Pairs of server and group size for the daily run. The slow run tests all pairs."""


@dataclass(frozen=True, slots=True)
class Lost:
    """A tier whose broker has lost its store and its state directory."""

    store: ObjectStore
    report: dict[str, Any]
    stat: dict[str, Any]
    """Output of `stat` for the tier before the state was lost."""
    group_bytes: int

    @property
    def where(self) -> list[str]:
        return ["--tier", self.store.url(), "--broker", "labBroker"]


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(
            (name, size),
            id=f"{name}-{'groups' if size else 'plain'}",
            marks=() if (name, size) in DAILY else pytest.mark.slow,
        )
        for name in NAMES
        for size in (0, GROUP_BYTES)
    ],
)
def lost(
    request: pytest.FixtureRequest,
    servers: Servers,
    public_a: Path,
    public_a_manifest: dict[str, Any],
    tmp_path_factory: pytest.TempPathFactory,
) -> Lost:
    server, group_bytes = request.param
    store = new_bucket(servers, server)
    root = tmp_path_factory.mktemp("broker")
    shutil.copytree(public_a / "store", root / "store")
    keys = {"tieredStoreChunkGroupSize": str(group_bytes)}
    conf = write_broker_conf(root / "broker.conf", public_a_manifest, **keys)
    ran = tieredstore(
        *(
            "offload",
            root / "store",
            "--upload-index",
            "--tier",
            store.url(),
            "--state",
            root / "state",
        ),
        *("--config", conf, "--quiet", "--output", "json"),
    )
    assert ran.code == 0, ran.err
    where = ("--tier", store.url(), "--state", root / "state", "--broker", "labBroker")
    stat = tieredstore("stat", *where, "--output", "json")
    assert stat.code == 0, stat.err
    shutil.rmtree(root)
    return Lost(store, ran.record, stat.record, group_bytes)


def right_bodies(manifest: dict[str, Any]) -> dict[tuple[str, int, int], str]:
    return {
        (row["topic"], row["queueId"], row["queueOffset"]): row["bodySHA256"]
        for row in manifest["messages"]
        if row["topic"].startswith("pub_")
    }


def bodies(where: list[str], topics: set[str]) -> dict[tuple[str, int, int], str]:
    found = {}
    for topic in sorted(topics):
        ran = tieredstore("cat", *where, "--topic", topic, "--body", "sha256", "--output", "ndjson")
        assert ran.code == 0, ran.err
        for row in ran.rows:
            found[topic, row["queue_id"], row["queue_offset"]] = row["body"]
    return found


def test_offload_says_what_it_did(lost: Lost) -> None:
    assert (lost.report["queues"], lost.report["messages"]) == (15, MESSAGES)
    assert lost.report["failed"] == lost.report["holes"] == []
    assert lost.store.open_uploads() == 0


def test_queues_share_objects_where_that_is_wanted(lost: Lost) -> None:
    groups = [key for key in lost.store.keys("tier") if "/.groups/" in key]
    assert bool(groups) == bool(lost.group_bytes)


def test_stat_says_how_often_a_byte_was_written(lost: Lost) -> None:
    found = lost.stat
    in_tier = found["commit_log_bytes"] + found["consume_queue_bytes"] + found["index_bytes"]
    assert found["kept_bytes"] >= in_tier > 0
    assert 1 <= found["written_per_kept_byte"] <= 4
    without = tieredstore("stat", *lost.where, "--output", "json").record
    assert without["written_per_kept_byte"] is None


def test_every_message_is_read(lost: Lost, public_a_manifest: dict[str, Any]) -> None:
    right = right_bodies(public_a_manifest)
    assert len(right) == MESSAGES
    assert bodies(lost.where, {topic for topic, _, _ in right}) == right


def test_messages_are_found_by_their_keys(lost: Lost, public_a_manifest: dict[str, Any]) -> None:
    wanted = [
        row for row in public_a_manifest["messages"]
        if row["topic"] == "pub_normal" and row["uniqKey"]
    ][::37]  # fmt: skip
    assert len(wanted) > 5
    for row in wanted:
        ran = tieredstore(
            "query", *lost.where, "--topic", row["topic"], "--key", row["uniqKey"],
            "--body", "sha256", "--output", "ndjson",
        )  # fmt: skip
        found = [(r["queue_id"], r["queue_offset"], r["body"]) for r in ran.rows]
        assert found == [(row["queueId"], row["queueOffset"], row["bodySHA256"])]


def test_it_is_listed_and_verified(lost: Lost) -> None:
    listed = tieredstore("ls", *lost.where, "--output", "ndjson")
    assert listed.code == 0, listed.err
    assert sum(row["messages"] for row in listed.rows) == MESSAGES
    verified = tieredstore("verify", *lost.where, "--output", "json")
    assert (verified.code, verified.record["findings"]) == (0, []), verified.err
    assert verified.record["messages"] == MESSAGES
    assert verified.record["index_items"] > 6000


def test_it_is_copied_out_to_files(
    lost: Lost, public_a_manifest: dict[str, Any], tmp_path: Path
) -> None:
    tier, state = f"file://{tmp_path / 'tiered'}", tmp_path / "state"
    command = [
        "copy", "--from", lost.store.url(), "--to", tier, "--to-state", state,
        "--broker", "labBroker", "--quiet", "--output", "json",
    ]  # fmt: skip
    ran = tieredstore(*command)
    assert ran.code == 0, ran.err
    there = ["--tier", tier, "--state", str(state), "--broker", "labBroker"]
    verified = tieredstore("verify", *there, "--output", "json")
    assert (verified.code, verified.record["findings"]) == (0, [])
    right = right_bodies(public_a_manifest)
    assert bodies(there, {topic for topic, _, _ in right}) == right
    again = tieredstore(*command)
    assert again.code == 0
    assert again.record["copied_bytes"] == 0
    assert json.loads((state / "config/tieredStoreMetadata.json").read_bytes())


def test_it_is_copied_into_another_bucket(lost: Lost, servers: Servers, tmp_path: Path) -> None:
    other = new_bucket(servers, lost.store.server)
    ran = tieredstore(
        "copy", "--from", lost.store.url(), "--to", other.url("elsewhere"),
        "--to-state", tmp_path / "state", "--broker", "labBroker", "--quiet", "--output", "json",
    )  # fmt: skip
    assert ran.code == 0, ran.err
    verified = tieredstore("verify", "--tier", other.url("elsewhere"), "--output", "json")
    assert (verified.code, verified.record["findings"]) == (0, [])
    assert verified.record["messages"] == MESSAGES
