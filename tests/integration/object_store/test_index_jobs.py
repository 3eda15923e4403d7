"""Several processes build index files of a tier in an object store. They exchange data through
another prefix."""

from __future__ import annotations

from pathlib import Path

from tests.kit.command_line import tieredstore
from tests.kit.object_store.fixtures import new_bucket
from tests.kit.object_store.servers import Servers
from tests.kit.tier_builder import START_MS, small_tier


def test_processes_make_the_index_of_a_tier_of_objects(servers: Servers, tmp_path: Path) -> None:
    object_store = new_bucket(servers, "versitygw")
    built = small_tier(tmp_path / "source")
    state = tmp_path / "state"
    conf = tmp_path / "broker.conf"
    conf.write_text(
        "tieredStoreIndexFileMaxHashSlotNum=8\ntieredStoreIndexFileMaxIndexNum=33\n"
        "brokerName=broker-a\nbrokerClusterName=cluster-a\n"
    )
    copied = tieredstore(
        "copy", "--from", built.url, "--from-state", built.state, "--to", object_store.url(),
        "--to-state", state, "--quiet",
    )  # fmt: skip
    assert copied.code == 0, copied.err
    shared = (
        "--tier", object_store.url(), "--state", state, "--config", conf, "--work", tmp_path / "w",
        "--staging", object_store.url("staging"), "--workers", 2, "--quiet", "--output", "json",
    )  # fmt: skip
    rebuilt = tieredstore("rebuild", "index", *shared, "--force")
    assert rebuilt.code == 0, rebuilt.err
    assert [file["items"] for file in rebuilt.record["files"]] == [32, 12]
    assert not object_store.keys("staging")
    added = tieredstore("rebuild", "index", *shared, "--until", START_MS + 3000)
    assert added.code == 0, added.err
    compacted = tieredstore("compact", "index", *shared)
    assert compacted.code == 0, compacted.err
    assert [file["items"] for file in compacted.record["files"]] == [32, 12 + 4]
    verified = tieredstore(
        "verify", "--tier", object_store.url(), "--state", state, "--output", "json"
    )
    assert (verified.code, verified.record["findings"]) == (0, [])
    assert verified.record["index_items"] == 48
    for key in ("orders-0-0", "over6-0-5"):
        found = tieredstore(
            "query", "--tier", object_store.url(), "--state", state, "--topic", key.split("-")[0],
            "--key", key, "--output", "ndjson",
        )  # fmt: skip
        assert [row["keys"] for row in found.rows] == [[key]]
