"""Tests of exported data files: sizes, row groups, and the number of open files."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tieredstore.jobs.exporting import files as files_module
from tieredstore.jobs.exporting.files import FileForm, PartitionedFiles, merge_files
from tieredstore.jobs.exporting.partition import Partition
from tieredstore.jobs.exporting.state import ColumnStatistics, DataFile
from tieredstore.jobs.exporting.targets.storage import ArrowFolder
from tieredstore.scan.arrow.schema import TYPES

DAY_US = 86_400_000_000
COLUMNS = ("queue_offset", "store_timestamp", "body")


def batch(days: list[int | None], first: int = 0, body_bytes: int = 1000) -> pa.RecordBatch:
    source = random.Random(first)
    return pa.RecordBatch.from_pydict(
        {
            "queue_offset": pa.array(range(first, first + len(days)), pa.int64()),
            "store_timestamp": pa.array(
                [None if day is None else day * DAY_US + 5 for day in days],
                TYPES["store_timestamp"],
            ),
            "body": pa.array([source.randbytes(body_bytes) for _ in days], pa.binary()),
        }
    )


def form(target_bytes: int = 1 << 30) -> FileForm:
    return FileForm(COLUMNS, "task", ".parquet", target_bytes, 1)


def offsets(folder: Path, files: list[DataFile]) -> list[int]:
    return sorted(
        offset
        for file in files
        for offset in pq.read_table(folder / file.name)["queue_offset"].to_pylist()
    )


def test_a_file_ends_at_the_wanted_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files_module, "ROW_GROUP_BYTES", 200_000)
    writer = PartitionedFiles(ArrowFolder(str(tmp_path)).connect(), form(1_000_000))
    for first in range(0, 3000, 100):
        writer.write("t", batch([3] * 100, first))
    found = writer.close()
    assert offsets(tmp_path, found) == list(range(3000))
    assert [file.size_bytes // 100_000 for file in found] == [10, 10, 10]
    assert [file.size_bytes for file in found] == [
        (tmp_path / file.name).stat().st_size for file in found
    ]
    groups = pq.read_metadata(tmp_path / found[0].name)
    assert [groups.row_group(i).num_rows for i in range(groups.num_row_groups)] == [200] * 5
    assert found[0].statistics["queue_offset"] == ColumnStatistics(0, 0, 999)


def test_rows_of_all_days_and_of_none(tmp_path: Path) -> None:
    writer = PartitionedFiles(ArrowFolder(str(tmp_path)).connect(), form())
    writer.write("a", batch([]))
    writer.write("a", batch([1, 2, 1, None]))
    writer.write("b", batch([2, 2], 4))
    writer.write("a", batch([None, 1], 6))
    found = {(file.partition.topic, file.partition.day): file for file in writer.close()}
    assert {key: offsets(tmp_path, [file]) for key, file in found.items()} == {
        ("a", 1): [0, 2, 7],
        ("a", 2): [1],
        ("a", None): [3, 6],
        ("b", 2): [4, 5],
    }


def test_few_files_are_open_and_little_is_pending(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files_module, "_MOST_PENDING_BYTES", 50_000)
    monkeypatch.setattr(files_module, "_MOST_FILES", 4)
    writer = PartitionedFiles(ArrowFolder(str(tmp_path)).connect(), form())
    for first in range(0, 400, 10):
        writer.write("t", batch([day % 7 for day in range(10)], first))
        assert sum(part.pending_bytes for part in writer._parts.values()) <= 50_000
        assert sum(part.file is not None for part in writer._parts.values()) <= 4
    found = writer.close()
    assert offsets(tmp_path, found) == list(range(400))
    counts = Counter(file.partition.day for file in found)
    assert set(counts) == set(range(7))
    assert len({file.name for file in found}) == len(found)


def test_files_merge_into_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files_module, "ROW_GROUP_BYTES", 30_000)
    parts = []
    folder = ArrowFolder(str(tmp_path)).connect()
    for first in range(0, 100, 20):
        writer = PartitionedFiles(folder, form())
        writer.write("t", batch([5] * 20, first))
        parts += writer.close()
    whole = merge_files(folder, tuple(parts), form())
    assert (whole.partition, whole.rows) == (Partition("t", 5), 100)
    assert offsets(tmp_path, [whole]) == list(range(100))
    assert pq.read_metadata(tmp_path / whole.name).num_row_groups == 3
