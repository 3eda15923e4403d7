"""Small ranges that are written together give the same rows as separate writes, even if some are
damaged."""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.kit.growing_tier import START_MS, GrowingTier
from tests.kit.jobs.export import Export
from tieredstore.contracts.segment import FileSegmentType
from tieredstore.jobs.exporting.partition import PartitionBy
from tieredstore.jobs.exporting.request import Format
from tieredstore.message.sysflag import COMPRESSED
from tieredstore.scan.findings import OnDamage
from tieredstore.scan.read import joined
from tieredstore.scan.selection import Selection

LOG = FileSegmentType.COMMIT_LOG
VOLATILE = {"started_ms", "seconds", "stages", "export", "commit", "target", "file_bytes"}


@pytest.fixture
def tier(tmp_path: Path) -> GrowingTier:
    """A tier of twelve queues with a few messages each."""
    made = GrowingTier(tmp_path / "source")
    for number in range(10):
        made.append(f"topic-{number}", 0, 1 + number % 3)
    made.append("topic-3", 1, 4)
    made.append("topic-4", 1, 2, times_ms=[2**63 - 1, START_MS])
    return made


def export(tier: GrowingTier, folder: Path, **changes: Any) -> tuple[dict[str, Any], pa.Table]:
    selection = changes.pop("selection", Selection())
    made = Export(folder, Format.PARQUET, tier, selection, changes.pop("columns", None))
    report = made.run(task_bytes=1 << 20, **changes)
    order = [("topic", "ascending"), ("queue_id", "ascending"), ("queue_offset", "ascending")]
    kept = {name: value for name, value in report.items() if name not in VOLATILE}
    return kept, made.table().sort_by(order)


def require_same(
    tier: GrowingTier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, **changes: Any
) -> tuple[dict[str, Any], pa.Table]:
    together = export(tier, tmp_path / "together", **changes)
    monkeypatch.setattr(joined, "MOST_BYTES", -1)  # each alone
    assert export(tier, tmp_path / "alone", **changes) == together
    return together


@pytest.mark.parametrize("by", [PartitionBy(), PartitionBy(topic=False)], ids=["topic", "day"])
def test_sound_ranges(
    tier: GrowingTier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by: PartitionBy
) -> None:
    report, table = require_same(tier, tmp_path, monkeypatch, partition_by=by)
    assert report["rows"] == table.num_rows == 25


def test_damaged_ones_between_them(
    tier: GrowingTier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for topic in ("topic-2", "topic-5", "topic-8"):
        [path] = tier.segments(topic, 0, LOG)
        data = bytearray(path.read_bytes())
        data[4] ^= 1  # the magic of the first
        path.write_bytes(data)
    report, _ = require_same(tier, tmp_path, monkeypatch, on_damage=OnDamage.SKIP)
    assert report["corrupt_messages"] == 3


def test_a_time_from_which_on(
    tier: GrowingTier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tier.append("topic-7", 1, 3, times_ms=[START_MS + 9, START_MS - 9, START_MS + 10])
    chosen = Selection(since_ms=START_MS + 1)
    report, table = require_same(tier, tmp_path, monkeypatch, selection=chosen)
    assert 0 < report["rows"] == table.num_rows < 25


def test_compressed_bodies(
    tier: GrowingTier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packed = zlib.compress(b"a body that was compressed")
    tier.append("topic-1", 0, 1, body=packed, sys_flag=COMPRESSED)
    tier.append("topic-1", 1, 2)
    _, table = require_same(tier, tmp_path, monkeypatch)
    assert b"a body that was compressed" in table.column("body").to_pylist()
