"""The published Java broker over tiers whose metadata `tieredstore rebuild metadata` made anew."""

from __future__ import annotations

import json
from pathlib import Path

from tests.interop.conftest import Offloaded, tier_manifest
from tests.interop.harness import JavaTools, Manifest, copy_tree, key_queries, tieredstore

APPENDED = 30
QUEUES = (("pub_normal", 0), ("pub_fifo", 1), ("java_new", 0))


def rebuild(tier: Path, state: Path, work: Path) -> dict[str, object]:
    record: dict[str, object] = json.loads(
        tieredstore(
            "rebuild", "metadata", "--tier", f"file://{tier}", "--state", state,
            "--work", work, "--workers", "1", "--quiet", "--output", "json",
        )
    )  # fmt: skip
    return record


def test_java_reads_its_own_tier_and_finds_every_key(
    java: JavaTools, public_a: Path, public_a_manifest: Manifest, tmp_path: Path
) -> None:
    root = tmp_path / "java"
    copy_tree(public_a / "tiered", root / "tiered")
    record = rebuild(root / "tiered", root / "store", tmp_path / "work")
    assert record["findings"] == []
    kept = [message for message in public_a_manifest["messages"] if message.get("tiered")]
    manifest = {**tier_manifest(public_a_manifest), "messages": kept}

    report = java.check("tiered", root, manifest, tmp_path / "check")

    assert report.wanted == report.right == record["messages"] == len(kept)
    assert report.key_queries == report.key_queries_right == key_queries(kept) > 0


def test_java_goes_on_writing_our_tier(
    java: JavaTools, offloaded: Offloaded, tmp_path: Path
) -> None:
    root = tmp_path / "java"
    copy_tree(offloaded.source, root / "store")
    copy_tree(offloaded.root / "tiered", root / "tiered")
    (root / "store" / "config" / "tieredStoreMetadata.json").unlink(missing_ok=True)
    (root / "store" / "config" / "tieredStoreMetadata.json.bak").unlink(missing_ok=True)
    record = rebuild(root / "tiered", root / "store", tmp_path / "work")
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
