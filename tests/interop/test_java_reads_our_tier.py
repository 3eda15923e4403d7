"""The published Java broker reads a tier that `tieredstore offload` wrote."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np

from tests.kit.java import JavaTools, Report, copy_tree, key_queries
from tests.kit.offloaded import Offloaded, stored_messages
from tieredstore.contracts.backups import BackupKind, BackupName
from tieredstore.message.lite_runs import UNIT_DTYPE, RunNotes, encode_run, sort_units

V4_BODY_POSITION = 88


def writable_copy(offloaded: Offloaded, target: Path) -> Path:
    for name in ("store", "tiered"):
        copy_tree(offloaded.root / name, target / name)
    return target


def all_right(report: Report) -> bool:
    return report.wanted == report.right and report.key_queries == report.key_queries_right


def test_java_reads_every_message_and_finds_every_key_of_our_tier(
    java: JavaTools, offloaded: Offloaded, tmp_path: Path
) -> None:
    wanted = offloaded.manifest["messages"]
    topics = {message["topic"] for message in wanted}
    ours = [
        {"topic": message.topic, "uniqKey": message.uniq_key, "keys": message.keys or None}
        for message in stored_messages(offloaded.source, topics)
    ]

    report = java.check("tiered", offloaded.root, offloaded.manifest, tmp_path / "check")

    assert report.passed, report.text
    assert report.wanted == report.right == len(ours) > 0
    assert report.key_queries == report.key_queries_right == key_queries(ours) > 0


def test_runs_of_lite_topics_beside_the_segments_are_ignored(
    java: JavaTools, offloaded: Offloaded, tmp_path: Path
) -> None:
    root = writable_copy(offloaded, tmp_path / "with-runs")
    [broker] = (root / "tiered").glob("*/labBroker")
    (broker / ".backups").mkdir(exist_ok=True)
    units = np.zeros(3, UNIT_DTYPE)
    units["offset"] = range(3)
    run = encode_run(RunNotes(), sort_units(np.ones(3, np.uint64), units, {}))
    (broker / ".backups" / str(BackupName(1, 1, BackupKind.LITE))).write_bytes(run)

    report = java.check("tiered", root, offloaded.manifest, tmp_path / "check")

    assert report.passed, report.text
    assert all_right(report)


def test_a_flipped_body_byte_makes_the_check_fail(
    java: JavaTools, offloaded: Offloaded, tmp_path: Path
) -> None:
    root = writable_copy(offloaded, tmp_path / "damaged")
    segment = min(
        (root / "tiered").glob("*/labBroker/pub_normal/0/COMMIT_LOG/[!.]*"), key=base_offset
    )
    with segment.open("r+b") as file:
        file.seek(V4_BODY_POSITION)
        (byte,) = file.read(1)
        file.seek(V4_BODY_POSITION)
        file.write(bytes([byte ^ 1]))

    report = java.check("tiered", root, offloaded.manifest, tmp_path / "check")

    assert not report.passed
    assert report.right == report.wanted - 1
    assert report.errors
    assert report.errors[0].startswith("pub_normal/0/0 bodySHA256: want ")


def test_an_index_taken_away_makes_the_key_queries_fail(
    java: JavaTools, offloaded: Offloaded, tmp_path: Path
) -> None:
    root = writable_copy(offloaded, tmp_path / "without-index")
    for index in (root / "tiered").glob("*/labBroker/rmq_sys_INDEX"):
        shutil.rmtree(index)
    shutil.rmtree(root / "store" / "tiered_index_file", ignore_errors=True)
    metadata = root / "store" / "config" / "tieredStoreMetadata.json"
    tables = json.loads(metadata.read_bytes())
    assert tables["indexFileSegmentTable"], "offload left no index in the tier"
    tables["indexFileSegmentTable"] = {}
    metadata.write_text(json.dumps(tables))

    report = java.check("tiered", root, offloaded.manifest, tmp_path / "check")

    assert not report.passed
    assert report.right == report.wanted > 0, "only the index is gone"
    assert report.key_queries_right == 0 < report.key_queries
    assert report.errors[0].startswith("key query misses ")


def base_offset(segment: Path) -> int:
    return int(segment.name[-20:])
