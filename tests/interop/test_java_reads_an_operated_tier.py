"""The published Java broker reads a tier that an operator changed by hand."""

from __future__ import annotations

import re
from pathlib import Path

from tests.kit.java import JavaTools, copy_tree, tieredstore
from tests.kit.offloaded import Offloaded, offload

BEGUN_ANEW = ("pub_multi", 1)
EMPTIED = ("pub_normal", 0)
DELETED = "pub_fifo"


def test_java_reads_what_was_uploaded_again_and_what_is_left(
    java: JavaTools, offloaded: Offloaded, tmp_path: Path
) -> None:
    root = tmp_path / "root"
    for name in ("source", "store", "tiered"):
        copy_tree(offloaded.root / name, root / name)
    place = ("--tier", f"file://{root / 'tiered'}", "--state", root / "store", "--yes")
    tieredstore("tier", "reset", BEGUN_ANEW[0], "--queue", "1", "--to", "0", *place)
    offload(root / "source", root, offloaded.manifest)
    tieredstore("tier", "reset", EMPTIED[0], "--queue", "0", *place)
    tieredstore("tier", "delete", DELETED, *place)
    assert not list((root / "tiered").rglob(f"{DELETED}/*/*/*"))

    messages = offloaded.manifest["messages"]
    queues = {(message["topic"], message["queueId"]) for message in messages}
    assert {BEGUN_ANEW, EMPTIED} < queues
    assert DELETED in {topic for topic, _ in queues}
    left = [
        message
        for message in messages
        if (message["topic"], message["queueId"]) != EMPTIED and message["topic"] != DELETED
    ]
    wanted = {**offloaded.manifest, "messages": left}
    report = java.check("tiered", root, wanted, tmp_path / "check")

    verified = tieredstore(
        "verify", "--tier", f"file://{root / 'tiered'}", "--state", root / "store", "--quiet"
    )
    assert re.search(r"^damage +0$", verified, re.MULTILINE), verified
    assert report.passed, report.text
    assert report.right == report.wanted == len(left) < len(messages)
    assert report.key_queries_right == report.key_queries > 0
