"""`tieredstore rebuild metadata` runs between two runs of `offload`. The second run continues as
with the original metadata."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.kit.command_line import Ran, one_line, tieredstore
from tieredstore.config import load_broker_conf
from tieredstore.local.message_store import DefaultMessageStore
from tieredstore.message.encoding import Message


@pytest.fixture
def conf(tmp_path: Path) -> Path:
    path = tmp_path / "broker.conf"
    path.write_text(
        f"brokerName=b\nbrokerClusterName=c\nstorePathRootDir={tmp_path / 'store'}\n"
        "mappedFileSizeCommitLog=65536\nmappedFileSizeConsumeQueue=2000\n"
        "maxHashSlotNum=100\nmaxIndexNum=400\n"
        "tieredStoreCommitLogMaxSize=3000\ntieredStoreConsumeQueueMaxSize=400\n"
        "tieredStoreIndexFileMaxHashSlotNum=20\ntieredStoreIndexFileMaxIndexNum=50\n"
    )
    return path


def put(conf: Path, first: int, count: int) -> None:
    """Put messages of three topics into a local store. One topic is new in each call."""
    store = DefaultMessageStore(load_broker_conf(conf).config)
    store.load()
    store.start()
    try:
        for number in range(first, first + count):
            for topic in ("T", "%RETRY%g", f"since-{first}"):
                message = Message.create(
                    topic, f"body {number}".encode(), queue_id=number % 2, keys=[f"k{number}"]
                )
                assert store.put_message(message).ok
    finally:
        store.shutdown()


def run(verb: tuple[object, ...], root: Path, conf: Path, tier: str = "tier") -> Ran:
    ran = tieredstore(
        *verb, "--tier", f"file://{root / tier}", "--state", root / f"{tier}-state",
        "--config", conf, "--output", "json",
    )  # fmt: skip
    assert ran.code == 0, ran.err
    return ran


def test_an_offload_goes_on_with_metadata_that_was_made_anew(conf: Path, tmp_path: Path) -> None:
    offload = ("offload", tmp_path / "store", "--upload-index")
    rebuild = ("rebuild", "metadata", "--work", tmp_path / "work", "--workers", "1", "--quiet")
    put(conf, 0, 30)
    run(offload, tmp_path, conf)
    shutil.rmtree(tmp_path / "tier-state")
    refused = tieredstore(
        *offload, "--tier", f"file://{tmp_path / 'tier'}", "--state", tmp_path / "tier-state",
        "--config", conf,
    )  # fmt: skip
    assert "tieredstore rebuild metadata" in one_line(refused)

    assert run(rebuild, tmp_path, conf).record["findings"] == []
    assert run(offload, tmp_path, conf).record["messages"] == 0
    put(conf, 30, 25)
    assert run(offload, tmp_path, conf).record["messages"] == 75

    verified = run(("verify",), tmp_path, conf).record
    assert (verified["findings"], verified["messages"]) == ([], 165)
    run(offload, tmp_path, conf, "whole")  # what one run makes of it
    for topic in ("T", "%RETRY%g", "since-0", "since-30"):
        cat = ("cat", "--topic", topic)
        once, twice = (run(cat, tmp_path, conf, tier).record for tier in ("whole", "tier"))
        assert once == twice != []
        for key in ("k0", "k29", "k30", "k54"):
            query = tieredstore(
                "query", "--topic", topic, "--key", key, "--output", "ndjson",
                "--tier", f"file://{tmp_path / 'tier'}", "--state", tmp_path / "tier-state",
                "--config", conf,
            )  # fmt: skip
            assert {row["keys"][0] for row in query.rows} <= {key}
            assert len(query.rows) == sum(row["keys"] == [key] for row in once)


def test_items_of_a_former_life_are_no_damage_when_a_topic_comes_again(
    conf: Path, tmp_path: Path
) -> None:
    """Index items of a deleted topic do not count as damage after the topic is recreated. All
    messages of the deleted topic had expired, the metadata was lost, and no backup has the ends of
    the topic's queues. The recreated topic therefore has another id, and uses the same offsets
    again."""
    offload = ("offload", tmp_path / "store", "--upload-index")
    rebuild = ("rebuild", "metadata", "--work", tmp_path / "work", "--workers", "1", "--quiet")
    put(conf, 0, 30)
    run(offload, tmp_path, conf)
    tier = ("--tier", f"file://{tmp_path / 'tier'}", "--state", tmp_path / "tier-state")
    assert tieredstore("tier", "expire", "T", "--before", "now", *tier, "--yes").code == 0
    shutil.rmtree(tmp_path / "tier-state")
    for path in (tmp_path / "tier").glob("*/*/.backups/*"):
        path.unlink()
    run(rebuild, tmp_path, conf)
    put(conf, 30, 10)
    run(offload, tmp_path, conf)
    found = run(("verify",), tmp_path, conf).record
    assert {finding["kind"] for finding in found["findings"]} == {"index-item-dangling"}
    assert found["messages"] == 120
    for key in ("k3", "k33"):
        query = tieredstore("query", "--topic", "T", "--key", key, "--output", "ndjson", *tier)
        assert [row["keys"] for row in query.rows] == [[key]]


def test_the_index_of_an_emptied_tier_is_compacted_and_rebuilt(conf: Path, tmp_path: Path) -> None:
    put(conf, 0, 30)
    run(("offload", tmp_path / "store", "--upload-index"), tmp_path, conf)
    tier = ("--tier", f"file://{tmp_path / 'tier'}", "--state", tmp_path / "tier-state")
    ran = tieredstore("tier", "expire", "--all-topics", "--before", "now", *tier, "--yes")
    assert ran.code == 0
    work = ("--work", tmp_path / "work", "--workers", "1", "--quiet")
    assert run(("compact", "index", *work), tmp_path, conf).record["items"] == 0
    run(("rebuild", "index", "--force", *work), tmp_path, conf)
    found = run(("verify",), tmp_path, conf).record
    assert (found["findings"], found["segments"]) == ([], 0)
    run(("compact", "index", *work), tmp_path, conf)
    put(conf, 30, 10)
    assert (
        run(("offload", tmp_path / "store", "--upload-index"), tmp_path, conf).record["messages"]
        == 30
    )
    assert run(("verify",), tmp_path, conf).record["index_items"] == 30
