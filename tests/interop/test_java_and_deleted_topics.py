"""The Java broker opens stores of this project in which topics were deleted, and stores that were
begun for an existing tier."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from tests.kit.java import JavaTools, Manifest, copy_tree
from tests.kit.tiered_local import POSIX, TieredLocal

BROKER_CONF = {
    "brokerClusterName": "LabCluster",
    "brokerName": "labBroker",
    **{key: str(POSIX[key]) for key in ("mappedFileSizeCommitLog", "mappedFileSizeConsumeQueue")},
    "maxHashSlotNum": "100",
    "maxIndexNum": "4000",
}


def put(world: TieredLocal, topic: str, count: int, key: str) -> list[dict[str, Any]]:
    """Put messages. Return the messages that Java must find."""
    bodies = [b"%s %s %d" % (topic.encode(), key.encode(), number) for number in range(count)]
    offsets = world.put(topic, *bodies, key=key)
    found = [world.local.get_message("g", topic, 0, offset, 1).messages[0] for offset in offsets]
    return [
        {
            "topic": topic,
            "queueId": 0,
            "queueOffset": message.queue_offset,
            "uniqKey": None,
            "keys": key,
            "bodySHA256": hashlib.sha256(message.body).hexdigest(),
            "storeTimestamp": message.store_timestamp_ms,
        }
        for message in found
    ]


def ranges_java_sees(
    java: JavaTools, root: Path, wanted: list[dict[str, Any]], work: Path
) -> dict[str, tuple[int, int]]:
    """Let Java read all expected messages. Return the minimum and maximum offset of queue 0 of each
    topic."""
    manifest: Manifest = {"brokerConf": BROKER_CONF, "messages": wanted}
    report = java.check("local", root, manifest, work)
    assert report.passed, report.text
    assert report.right == len(wanted)
    saved = json.loads((work / "out" / "report-local.json").read_bytes())
    return {
        queue["topic"]: (queue["localMin"], queue["localMax"])
        for queue in saved["queueState"]["queues"]
        if queue["queueId"] == 0
    }


def make_world(root: Path) -> TieredLocal:
    keys = {key: value for key, value in BROKER_CONF.items() if not key.startswith("mapped")}
    return TieredLocal(root, **keys)


@pytest.mark.parametrize("is_killed", [False, True])
def test_java_opens_a_store_in_which_topics_were_deleted(
    java: JavaTools, tmp_path: Path, is_killed: bool
) -> None:
    """After a crash, Java restores only those deleted topics that were not recreated."""
    world = make_world(tmp_path / "ours")
    wanted = put(world, "kept", 5, "kept")
    put(world, "gone", 6, "old")
    put(world, "again", 6, "old")
    world.local.delete_topics({"gone", "again"})
    wanted += put(world, "again", 4, "new")
    if is_killed:
        copy_tree(world.root / "store", tmp_path / "seen" / "store")
        world.close()
        assert (tmp_path / "seen" / "store" / "abort").exists()
    else:
        world.close()
        copy_tree(world.root / "store", tmp_path / "seen" / "store")
    ranges = ranges_java_sees(java, tmp_path / "seen", wanted, tmp_path / "check")
    assert ranges["kept"] == (0, 5)
    assert ranges["again"] == (0, 10)  # its minimum is 0 while the log's is (E1)
    assert ranges.get("gone", (0, 0)) == ((0, 6) if is_killed else (0, 0))


def test_java_opens_a_store_that_was_adopted_above_a_tier(java: JavaTools, tmp_path: Path) -> None:
    world = make_world(tmp_path)
    put(world, "A", 7, "old")
    put(world, "B", 3, "old")
    world.upload()
    world.lose_disk()
    world.open(tieredStoreAdopt=True)
    wanted = put(world, "A", 5, "new") + put(world, "C", 2, "new")
    world.upload()
    world.close()
    (tmp_path / "seen").mkdir()
    copy_tree(tmp_path / "store", tmp_path / "seen" / "store")
    ranges = ranges_java_sees(java, tmp_path / "seen", wanted, tmp_path / "check")
    assert ranges["A"] == (7, 12)
    assert ranges["C"] == (0, 2)
    assert ranges.get("B", (0, 0)) == (0, 0)
