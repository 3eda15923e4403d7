"""A Java broker expires and deletes segments with block checksums, and continues correctly. The
tiers of the other Java tests have block checksums too."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.kit.block_checksums import checksums_of
from tests.kit.java import JavaTools, copy_tree, tieredstore
from tests.kit.offloaded import Offloaded
from tests.kit.waiting import wait_for
from tieredstore.providers.posix.sum_files import SUFFIX

EXPIRY = {
    "messageStorePlugIn": "org.apache.rocketmq.tieredstore.TieredMessageStore",
    "tieredBackendServiceProvider": "org.apache.rocketmq.tieredstore.provider.PosixFileSegment",
    "tieredStorageLevel": "FORCE",
    "tieredStoreFileReservedTime": "1",
    "tieredStoreDeleteFileInterval": "500",
}

PLACES = ("storePathRootDir", "listenPort", "namesrvAddr")
"""Configuration keys of the fixture's broker that get another value in each run."""


def segments(root: Path) -> set[Path]:
    return {path for path in (root / "tiered").rglob("*/[!.]*") if path.parent.name.isupper()}


def verify(root: Path, *options: str) -> dict[str, Any]:
    text = tieredstore(
        "verify", "--tier", f"file://{root / 'tiered'}", "--state", root / "store",
        "--broker", "labBroker", "--output", "json", "--quiet", *options,
    )  # fmt: skip
    found: dict[str, Any] = json.loads(text)
    return found


def test_java_expires_and_goes_on_beside_checksums(
    java: JavaTools, offloaded: Offloaded, tmp_path: Path
) -> None:
    root = tmp_path / "shared"
    copy_tree(offloaded.root / "tiered", root / "tiered")
    copy_tree(offloaded.root / "store", root / "store")
    before = segments(root)
    assert all(checksums_of(path).exists() for path in before)
    report = verify(root)
    assert (report["damage"], report["uncovered_bytes"]) == (0, 0)

    conf = {**offloaded.manifest["brokerConf"], **EXPIRY, "tieredStoreFilePath": root / "tiered"}
    settings = [f"{key}={value}" for key, value in conf.items() if key not in PLACES]
    with java.hold(root / "store", *settings) as broker:
        broker.put("java_new", 0, 30)
        wait_for(lambda: all(path not in segments(root) for path in before if is_message(path)))
        broker.stop()

    gone = before - segments(root)
    assert gone
    assert all(checksums_of(path).exists() for path in gone)
    report = verify(root, "--seal")
    assert report["damage"] == 0, report["findings"]
    assert report["sealed"]["deleted"] == len(gone)
    assert verify(root)["uncovered_bytes"] == 0
    left = {path.name for path in (root / "tiered").rglob(f".*{SUFFIX}")}
    assert left >= {checksums_of(path).name for path in segments(root) if path.stat().st_size}


def is_message(path: Path) -> bool:
    return path.parent.name != "INDEX" and path.stat().st_size > 0 if path.exists() else False
