"""Our programs read tiers that brokers of RocketMQ 5.1 wrote."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path

import pytest

import tieredstore
from tests.kit.command_line import tieredstore as run
from tests.kit.older import OlderStore, Place, unpack_older
from tieredstore.config import read_broker_conf

KEYS = (
    ("old_normal", "n-K0"),
    ("old_fifo", "shared"),
    ("old_normal", "n-キー1"),
    ("old_v6", "in-3"),
)


@pytest.fixture(scope="module")
def java(tmp_path_factory: pytest.TempPathFactory) -> OlderStore:
    return unpack_older("5.1.4-tier", tmp_path_factory.mktemp("java") / "older")


def find_by_key(older: OlderStore, topic: str, key: str, *more: object) -> set[Place]:
    ran = run(
        "query", "--tier", older.tier, "--topic", topic, "--key", key, "--limit", "500",
        "--output", "ndjson", *more,
    )  # fmt: skip
    return {
        (row["topic"], row["queue_id"], row["queue_offset"])
        for row in map(json.loads, ran.out.splitlines())
    }


def find_expected(older: OlderStore, topic: str, key: str) -> set[Place]:
    return {
        place
        for place, row in older.read_by_java().items()
        if place[0] == topic and key in (row.get("keys") or "").split(" ")
    }


def test_j53_the_configuration_of_an_old_broker_is_taken(java: OlderStore) -> None:
    """A configuration with the class names of RocketMQ 5.1 and 5.2 is accepted."""
    checked = run("config", "check", java.conf)
    assert checked.code == 0, checked.out + checked.err
    planned = run(
        "offload", java.store, "--config", java.conf, "--tier", java.root / "t",
        "--state", java.root / "s", "--dry-run",
    )  # fmt: skip
    assert planned.code == 0, planned.err


def test_j53_what_an_old_broker_wrote_is_no_damage(java: OlderStore) -> None:
    for more in ((), ("--state", java.store)):
        checked = run("verify", "--tier", java.tier, *more, "--quiet", "--output", "json")
        assert checked.code == 0, checked.out[-2000:]
        assert (checked.record["damage"], checked.record["kinds"]["index-format"]) == (0, 1)


def test_j53_all_topics_of_an_old_tier_are_read(java: OlderStore) -> None:
    shown = run("cat", "--tier", java.tier, "--topic", "*", "--output", "ndjson")
    assert shown.code == 0, shown.err
    found = {(row["topic"], row["queue_id"], row["queue_offset"]) for row in shown.rows}
    expected = {one for one in java.read_by_java() if one[0] not in ("old_bcq", "old_compact")}
    assert {one for one in found if one[0] not in ("old_bcq", "old_compact")} == expected


@pytest.mark.parametrize(("topic", "key"), KEYS)
def test_j53_the_index_of_an_old_broker_is_read(java: OlderStore, topic: str, key: str) -> None:
    """An index file of 5.1.4 has 4 additional bytes, and times in milliseconds. The broker had not
    uploaded the file with the newest keys, so queries do not find those messages."""
    expected = find_expected(java, topic, key)
    assert expected
    found = find_by_key(java, topic, key)
    assert found <= expected
    assert found


def test_j53_times_do_not_keep_a_message_of_an_old_index_back(java: OlderStore) -> None:
    [row] = [row for place, row in java.read_by_java().items() if "n-K0" in (row.get("keys") or "")]
    around = ("--since", str(row["storeTimestamp"] - 1), "--until", str(row["storeTimestamp"] + 1))
    assert find_by_key(java, "old_normal", "n-K0", *around)
    before = ("--until", str(row["storeTimestamp"]))
    assert not find_by_key(java, "old_normal", "n-K0", *before)


def test_j53_a_cut_index_file_is_not_taken_for_one_of_an_old_broker(tmp_path: Path) -> None:
    older = unpack_older("5.1.4-tier", tmp_path / "older")
    [path] = older.tier.glob("*/*/rmq_sys_INDEX/0/INDEX/*")
    data = path.read_bytes()
    path.write_bytes(data[:-4] + data[:0] + bytes(4))
    assert run("verify", "--tier", older.tier, "--quiet").code == 1


def test_j53_our_broker_goes_on_with_the_tier_of_an_old_one(tmp_path: Path) -> None:
    older = unpack_older("5.1.4-tier", tmp_path / "older")
    conf = dict(read_broker_conf(older.conf)) | {"tieredStoreGroupCommitTimeout": "100"}
    with tieredstore.open_store(conf) as store:
        for place, row in older.read_by_java().items():
            if place[0] in ("old_bcq", "old_compact"):
                continue
            found = store.get_message("g", *place, 1)
            assert [one.queue_offset for one in found.messages] == [place[2]], (place, row)
        put = store.put_message(tieredstore.Message.create("old_normal", b"x", keys=["py-1"]))
        assert put.ok
        store.wait_until_visible(put)
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and not any(
            "py-1" in row["keys"]
            for row in run(
                "cat", "--tier", older.tier, "--topic", "old_normal", "--output", "ndjson"
            ).rows
        ):
            time.sleep(0.5)
    checked = run("verify", "--tier", older.tier, "--state", older.store, "--output", "json")
    assert checked.record["damage"] == 0, checked.out[-1000:]
    assert find_by_key(older, "old_normal", "py-1", "--state", older.store, "--config", older.conf)


def test_j53_what_an_old_broker_left_of_one_upload_is_no_damage_for_a_rebuild(
    tmp_path: Path,
) -> None:
    """At each start, an old broker left a segment that has only a coda. A rebuild does not report
    these segments as damage."""
    older = unpack_older("5.1.4-coda-only-tier", tmp_path / "older")
    state = tmp_path / "rebuilt"
    built = run("rebuild", "metadata", "--tier", older.tier, "--state", state, "--output", "json")
    assert (built.code, built.record["damage"]) == (0, 0), built.out
    [told] = [one for one in built.record["findings"] if one["kind"] == "segment-unreachable"]
    assert told["severity"] == "note"
    checked = run("verify", "--tier", older.tier, "--state", state, "--output", "json")
    assert (checked.code, checked.record["damage"]) == (0, 0), checked.out


def test_j94_keys_of_an_old_broker_that_were_not_uploaded_are_found(tmp_path: Path) -> None:
    """Keys in an index file that an old broker did not upload are found, before and after this
    project's broker takes over the store."""
    older = unpack_older("5.1.4-tier", tmp_path / "older")
    folder = older.store / "tiered_index_file"
    assert [path.name for path in folder.iterdir()] == ["0000"]
    shutil.rmtree(next(older.tier.rglob("rmq_sys_INDEX")))
    more = ("--state", older.store, "--config", older.conf, "--unindexed-bytes", "0")
    waiting = {
        (topic, key): found
        for topic, key in KEYS
        if (found := find_by_key(older, topic, key, *more))
    }
    assert waiting
    conf = dict(read_broker_conf(older.conf)) | {"tieredStoreGroupCommitTimeout": "100"}
    with tieredstore.open_store(conf):
        pass
    assert "0000" not in {path.name for path in folder.iterdir()}
    for (topic, key), found in waiting.items():
        assert find_by_key(older, topic, key, *more) == found
        assert found <= find_expected(older, topic, key)
