"""The tests run `tieredstore backfill` in a shell."""

from __future__ import annotations

import sys
from pathlib import Path
from unittest import mock

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.kit.command_line import Ran, one_line, tieredstore
from tests.kit.jobs.backfill import messages
from tieredstore.providers.posix.provider import PosixProvider


@pytest.fixture
def conf(tmp_path: Path) -> Path:
    path = tmp_path / "broker.conf"
    path.write_text(
        "brokerName=broker-a\nbrokerClusterName=cluster-a\n"
        "tieredStoreIndexFileMaxHashSlotNum=64\ntieredStoreIndexFileMaxIndexNum=1000\n"
    )
    return path


def backfill(table: Path, root: Path, *options: object) -> Ran:
    return tieredstore(
        "backfill", "--from", table, "--tier", f"file://{root / 'tier'}", "--state",
        root / "state", "--work", root / "work", "--workers", "1", "--quiet", *options,
    )  # fmt: skip


def test_a_table_that_export_wrote_comes_back(conf: Path, tmp_path: Path) -> None:
    table = tmp_path / "t.parquet"
    pq.write_table(pa.concat_tables([messages(30, first=7), messages(20, topic="other")]), table)
    first = backfill(table, tmp_path, "--config", conf, "--output", "json")
    assert first.code == 0, first.err
    assert (first.record["messages"], first.record["done_before"]) == (50, False)
    assert list((tmp_path / "work").iterdir()) == []
    exported = tieredstore(
        "export", "--tier", f"file://{tmp_path / 'tier'}", "--state", tmp_path / "state",
        "--format", "parquet", "--to", tmp_path / "exported", "--work", tmp_path / "work",
        "--workers", "1", "--quiet",
    )  # fmt: skip
    assert exported.code == 0, exported.err
    again = backfill(
        tmp_path / "exported", tmp_path / "again", "--config", conf, "--output", "json",
        "--report", tmp_path / "report.json",
    )  # fmt: skip
    assert again.code == 0, again.err
    assert (tmp_path / "report.json").exists()
    for root in (tmp_path, tmp_path / "again"):
        rows = tieredstore(
            "cat", "--topic", "orders", "--tier", f"file://{root / 'tier'}", "--output", "ndjson"
        ).rows
        assert [row["body"] for row in rows] == [f"body {number} of 0" for number in range(7, 37)]
        found = tieredstore(
            "query", "--tier", f"file://{root / 'tier'}", "--state", root / "state",
            "--topic", "orders", "--key", "key-0-20", "--output", "ndjson",
        )  # fmt: skip
        assert [row["queue_offset"] for row in found.rows] == [20]


def test_what_is_wrong_is_one_line(conf: Path, tmp_path: Path) -> None:
    table = tmp_path / "t.parquet"
    pq.write_table(messages(3).drop_columns("topic"), table)
    no_names = backfill(table, tmp_path)
    assert "give --broker (or brokerName in --config) and --cluster" in one_line(no_names)
    assert no_names.code == 2
    no_topic = backfill(table, tmp_path, "--config", conf)
    assert "t.parquet: expected a column topic (or --topic NAME)" in one_line(no_topic)
    memory = tieredstore(
        "backfill", "--from", table, "--tier", "memory://x", "--state", tmp_path / "s",
        "--config", conf,
    )  # fmt: skip
    assert "a tier in memory is gone" in one_line(memory)
    with_topic = ("--config", conf, "--topic", "named", "--output", "json")
    provider = PosixProvider(tmp_path / "tier", "cluster-a", fsync=False)
    epoch = provider.acquire_writer("broker-a")
    fenced = backfill(table, tmp_path, *with_topic)
    assert fenced.code == 5
    assert "writer" in one_line(fenced)
    epoch.release()
    provider.close()
    fine = backfill(table, tmp_path, *with_topic)
    assert fine.code == 0, fine.err
    assert [queue["topic"] for queue in fine.record["queues"]] == ["named"]
    assert backfill(table, tmp_path, *with_topic).record["done_before"]


def test_a_table_that_was_mended_is_taken(conf: Path, tmp_path: Path) -> None:
    """A table is repaired after a failed run. The backfill ignores the failed run's journal,
    because it belongs to the earlier table."""
    table = tmp_path / "t.parquet"
    pq.write_table(
        messages(3).drop_columns("queue_id").append_column("queue_id", [[0, 0, -1]]), table
    )
    assert backfill(table, tmp_path, "--config", conf).code == 2
    pq.write_table(messages(3), table)
    mended = backfill(table, tmp_path, "--config", conf)
    assert mended.code == 0, mended.err


def test_a_gap_that_was_filled_is_none_any_more(conf: Path, tmp_path: Path) -> None:
    tables = {}
    for name, first in (("first", 0), ("second", 3), ("third", 6)):
        tables[name] = tmp_path / f"{name}.parquet"
        pq.write_table(messages(3, first=first), tables[name])
    assert backfill(tables["first"], tmp_path, "--config", conf).code == 0
    early = backfill(tables["third"], tmp_path, "--config", conf)
    assert "expected a first new queue offset of 3" in one_line(early)
    for name in ("second", "third"):
        ran = backfill(tables[name], tmp_path, "--config", conf)
        assert ran.code == 0, ran.err


def test_without_pyarrow_it_says_what_to_install(tmp_path: Path) -> None:
    hidden = {name: None for name in sys.modules if name.startswith("tieredstore.jobs.backfilling")}
    with mock.patch.dict(sys.modules, {**hidden, "pyarrow": None}):
        for name in hidden:
            del sys.modules[name]
        ran = backfill(tmp_path, tmp_path)
    assert "pip install 'tieredstore[jobs]'" in one_line(ran)
