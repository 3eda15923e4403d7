"""Java and Python in turn on one store and one tier (fault P02): both read both."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

from tests.interop.conftest import Offloaded, offload
from tests.interop.harness import JavaTools, copy_tree, key_queries, tieredstore

APPENDED = 40
QUEUES = (("pub_normal", 0), ("pub_fifo", 1), ("java_new", 0))


def our_view(root: Path, topic: str) -> dict[tuple[int, int], str]:
    """(queue, offset) -> body hash, as `tieredstore cat` reads the tier with its metadata."""
    text = tieredstore(
        "cat", "--tier", f"file://{root / 'tiered'}", "--state", root / "store",
        "--broker", "labBroker", "--topic", topic, "--body", "sha256", "--output", "ndjson",
    )  # fmt: skip
    rows = [json.loads(line) for line in text.splitlines()]
    return {(row["queue_id"], row["queue_offset"]): row["body"] for row in rows}


def java_view(messages: list[dict[str, Any]], topic: str) -> dict[tuple[int, int], str]:
    return {
        (m["queueId"], m["queueOffset"]): m["bodySHA256"]
        for m in messages
        if m["topic"] == topic and "tiered" in m
    }


def test_p02_java_and_python_in_turn_on_the_same_store_and_tier(
    java: JavaTools, offloaded: Offloaded, tmp_path: Path
) -> None:
    # the whole store with our metadata and index in it, and our tier
    root = tmp_path / "shared"
    copy_tree(offloaded.source, root / "store")
    copy_tree(offloaded.root / "tiered", root / "tiered")
    tieredstore_files = tmp_path / "state"
    copy_tree(offloaded.root / "store", tieredstore_files)
    for path in tieredstore_files.rglob("*"):
        if path.is_file():
            target = root / "store" / path.relative_to(tieredstore_files)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(path.read_bytes())

    # Java goes on where we stopped
    seen = java.append(root, offloaded.manifest, QUEUES, APPENDED)
    assert seen["tieredComplete"]
    in_tier = [message for message in seen["messages"] if "tiered" in message]
    assert len(in_tier) == len(offloaded.manifest["messages"]) + APPENDED * len(QUEUES)
    assert all(m["tiered"]["commitLogOffset"] >= 0 for m in in_tier)

    # we read all of it
    for topic in sorted({message["topic"] for message in in_tier}):
        assert our_view(root, topic) == java_view(in_tier, topic), topic

    # we go on where Java stopped: offload from the store that Java left, into the same tier
    before = Counter(m["topic"] for m in in_tier)
    offload(root / "store", root, offloaded.manifest)
    after = {topic: len(our_view(root, topic)) for topic in before}
    assert after == before, "nothing new, nothing twice"

    # and Java reads that
    manifest = {"brokerConf": offloaded.manifest["brokerConf"], "messages": in_tier}
    report = java.check("tiered", root, manifest, tmp_path / "check")
    assert report.passed, report.text
    assert report.wanted == report.right == len(in_tier)
    assert report.key_queries == report.key_queries_right == key_queries(in_tier)
