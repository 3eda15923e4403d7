"""The published Java broker finds every key in index files that were rebuilt from the messages. The
rebuild first makes many small files, and then merges them."""

from __future__ import annotations

import shutil
from itertools import pairwise
from pathlib import Path

from tests.kit.command_line import tieredstore
from tests.kit.java import JavaTools, copy_tree, key_queries
from tests.kit.offloaded import Offloaded


def test_java_finds_every_key_through_a_rebuilt_and_compacted_index(
    java: JavaTools, offloaded: Offloaded, tmp_path: Path
) -> None:
    root = tmp_path / "rebuilt"
    for name in ("store", "tiered"):
        copy_tree(offloaded.root / name, root / name)
    for index in (root / "tiered").glob("*/labBroker/rmq_sys_INDEX"):
        shutil.rmtree(index)
    times = sorted(message["storeTimestamp"] for message in offloaded.manifest["messages"])
    borders = ["0", *(str(times[len(times) * part // 20]) for part in range(1, 20)), "now"]
    shared = (
        "--tier", f"file://{root / 'tiered'}", "--state", root / "store", "--quiet",
        "--config", offloaded.root / "broker.conf", "--work", tmp_path / "work", "--workers", 1,
    )  # fmt: skip

    windows = list(pairwise(borders))
    for since, until in windows[1::2] + windows[::2]:
        done = tieredstore("rebuild", "index", *shared, "--since", since, "--until", until)
        assert done.code == 0, done.err
    small = index_files(root)
    done = tieredstore("compact", "index", *shared)
    assert done.code == 0, done.err
    report = java.check("tiered", root, offloaded.manifest, tmp_path / "check")

    assert len(index_files(root)) < len(small) / 2
    assert not set(index_files(root)) & set(small)
    assert report.passed, report.text
    wanted = offloaded.manifest["messages"]
    assert report.wanted == report.right == len(wanted) > 0
    assert report.key_queries == report.key_queries_right == key_queries(wanted) > 0


def index_files(root: Path) -> list[str]:
    return sorted(path.name for path in (root / "tiered").rglob("rmq_sys_INDEX/0/INDEX/[!.]*"))
