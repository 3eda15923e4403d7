"""Java and Python use one store and one tier in turn, and read each other's messages."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

from tests.kit.java import JavaTools, Manifest, copy_tree, key_queries, tieredstore
from tests.kit.offloaded import Offloaded, offload
from tieredstore.config import config_from_properties
from tieredstore.local.message_store import DefaultMessageStore
from tieredstore.message.encoding import Message

APPENDED = 40
QUEUES = (("pub_normal", 0), ("pub_fifo", 1), ("java_new", 0))
STATE = ("config/tieredStoreMetadata.json", "tiered_index_file")
"""State files of a tier. Java keeps them in its store, this project in a state directory."""


def move_state(source: Path, target: Path) -> None:
    """Replace the state files in `target` by those in `source`. Deletes files that `source` does
    not have."""
    for name in STATE:
        shutil.rmtree(target / name, ignore_errors=True)
        (target / name).unlink(missing_ok=True)
        if (source / name).exists():
            copy_tree(source / name, target / name)


def our_view(root: Path, topic: str) -> dict[tuple[int, int], str]:
    """Return the hash of each body by (queue, offset). `tieredstore cat` reads the tier with its
    metadata."""
    text = tieredstore(
        "cat", "--tier", f"file://{root / 'tiered'}", "--state", root / "store",
        "--broker", "labBroker", "--topic", topic, "--body", "sha256", "--output", "ndjson",
    )  # fmt: skip
    rows = [json.loads(line) for line in text.splitlines()]
    return {(row["queue_id"], row["queue_offset"]): row["body"] for row in rows}


def wanted_view(messages: list[dict[str, Any]], topic: str) -> dict[tuple[int, int], str]:
    return {
        (m["queueId"], m["queueOffset"]): m["bodySHA256"] for m in messages if m["topic"] == topic
    }


def put_ours(store_root: Path, manifest: Manifest) -> list[dict[str, Any]]:
    """Append to the store that Java left, with this project's local store."""
    conf = {**manifest["brokerConf"], "storePathRootDir": str(store_root)}
    store = DefaultMessageStore(config_from_properties(conf, origin="test").config)
    store.load()
    store.start()
    wanted = []
    try:
        for topic, queue_id in QUEUES:
            for number in range(APPENDED):
                body = f"appended by Python {topic} {number}".encode()
                known = {"uniqKey": f"{topic}-{number:026X}", "keys": f"ours-{topic}-{number}"}
                result = store.put_message(
                    Message.create(
                        topic,
                        body,
                        queue_id=queue_id,
                        keys=known["keys"],
                        uniq_key=known["uniqKey"],
                    )
                )
                assert result.ok, result
                wanted.append(
                    {
                        "topic": topic,
                        "queueId": queue_id,
                        "queueOffset": result.queue_offset,
                        "bodySHA256": hashlib.sha256(body).hexdigest(),
                        "storeTimestamp": result.store_timestamp_ms,
                        "tiered": {},
                        **known,
                    }
                )
    finally:
        store.shutdown()
    return wanted


def test_p02_java_and_python_in_turn_on_the_same_store_and_tier(
    java: JavaTools, offloaded: Offloaded, tmp_path: Path
) -> None:
    # our tier and its state, under the whole store
    shared, ours = tmp_path / "java", tmp_path / "ours"
    copy_tree(offloaded.source, shared / "store")
    copy_tree(offloaded.root / "tiered", shared / "tiered")
    move_state(offloaded.root / "store", shared / "store")

    # Java continues where we stopped
    seen = java.append(shared, offloaded.manifest, QUEUES, APPENDED)
    assert seen["tieredComplete"]
    in_tier = [message for message in seen["messages"] if "tiered" in message]
    assert len(in_tier) == len(offloaded.manifest["messages"]) + APPENDED * len(QUEUES)

    # we read all of it
    for topic in sorted({message["topic"] for message in in_tier}):
        assert our_view(shared, topic) == wanted_view(in_tier, topic), topic

    # we continue where Java stopped, in the local store and in the tier
    in_tier += put_ours(shared / "store", offloaded.manifest)
    ours.mkdir()
    (shared / "tiered").rename(ours / "tiered")
    copy_tree(offloaded.root / "store", ours / "store")
    move_state(shared / "store", ours / "store")
    offload(shared / "store", ours, offloaded.manifest)
    for topic in sorted({message["topic"] for message in in_tier}):
        assert our_view(ours, topic) == wanted_view(in_tier, topic), topic

    # and Java reads that
    manifest = {"brokerConf": offloaded.manifest["brokerConf"], "messages": in_tier}
    report = java.check("tiered", ours, manifest, tmp_path / "check")
    assert report.passed, report.text
    assert report.wanted == report.right == len(in_tier)
    assert report.key_queries == report.key_queries_right == key_queries(in_tier)
