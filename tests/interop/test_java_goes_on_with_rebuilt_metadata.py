"""The published Java broker continues a tier whose metadata was created by `tieredstore rebuild
metadata`."""

from __future__ import annotations

import json
from pathlib import Path

from tests.kit.java import JavaTools, copy_tree, key_queries, tieredstore
from tests.kit.offloaded import Offloaded

APPENDED = 30
QUEUES = (("pub_normal", 0), ("pub_fifo", 1), ("java_new", 0))


def test_java_goes_on_writing_our_tier(
    java: JavaTools, offloaded: Offloaded, tmp_path: Path
) -> None:
    root = tmp_path / "java"
    copy_tree(offloaded.source, root / "store")
    copy_tree(offloaded.root / "tiered", root / "tiered")
    (root / "store" / "config" / "tieredStoreMetadata.json").unlink(missing_ok=True)
    (root / "store" / "config" / "tieredStoreMetadata.json.bak").unlink(missing_ok=True)
    record: dict[str, object] = json.loads(
        tieredstore(
            "rebuild", "metadata", "--tier", f"file://{root / 'tiered'}", "--state",
            root / "store", "--work", tmp_path / "work", "--workers", "1", "--output", "json",
        )
    )  # fmt: skip
    assert record["findings"] == []
    assert record["messages"] == len(offloaded.manifest["messages"])

    seen = java.append(root, offloaded.manifest, QUEUES, APPENDED)

    assert seen["tieredComplete"]
    messages = [message for message in seen["messages"] if "tiered" in message]
    assert len(messages) == len(offloaded.manifest["messages"]) + APPENDED * len(QUEUES)
    manifest = {"brokerConf": offloaded.manifest["brokerConf"], "messages": messages}
    report = java.check("tiered", root, manifest, tmp_path / "check")
    assert report.passed, report.text
    assert report.wanted == report.right == len(messages)
    assert report.key_queries == report.key_queries_right == key_queries(messages)
