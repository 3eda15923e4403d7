"""A scan returns the messages of a frame that was backfilled from pandas, Polars or Arrow."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import tieredstore
from tests.kit.jobs.backfill import START_MS, found, new_run, tier_at
from tests.kit.tier_builder import TierBuilder, message
from tieredstore.errors import Invalid
from tieredstore.jobs.backfilling.frames import backfill_frame
from tieredstore.message.encoding import Message
from tieredstore.scan.arrow.schema import TYPES
from tieredstore.table import Scan

OF_THE_PLACE = ("broker", "physical_offset", "offset_msg_id", "store_host")
"""Columns that depend on the location of a message."""


@pytest.fixture
def scan(tmp_path: Path) -> Scan:
    """Return a scan of messages with and without keys, tags and properties."""
    builder = TierBuilder(tmp_path / "source", messages_per_segment=100)
    bare = Message.create(
        "orders", b"", queue_id=0, born_timestamp_ms=START_MS, born_host=("1.2.3.4", 1)
    )
    several = message(
        "orders", 0, 9, keys=["a", "c"], properties={"k": "v", "empty": "", "é": "日本"}
    )
    builder.queue("orders", 0, [*(message("orders", 0, n) for n in range(4)), bare, several])
    builder.built.metadata.flush()
    return tieredstore.open(builder.built.url).scan("orders", columns=list(TYPES))


def filled(frame: Any, root: Path) -> list[dict[str, Any]]:
    """Return the messages of a tier after a backfill from a frame."""
    tier = tier_at(root)
    backfill_frame(new_run(), tier, frame, root / "staging")
    rows: list[dict[str, Any]] = found(root, tier).to_pylist()
    return rows


def content(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the parts of each message that do not depend on its location. Generated ids are
    omitted."""
    found = []
    for row in rows:
        left_out = {*OF_THE_PLACE, *(["msg_id"] if row["msg_id"] == row["offset_msg_id"] else [])}
        found.append({name: value for name, value in row.items() if name not in left_out})
    return found


FRAMES: dict[str, Callable[[Scan], Any]] = {
    "scan": lambda scan: scan,
    "arrow": lambda scan: scan.to_arrow(),
    "reader": lambda scan: scan.to_arrow_batch_reader(),
    "pandas": lambda scan: scan.to_pandas(),
    "pandas with arrow": lambda scan: scan.to_arrow().to_pandas(types_mapper=pd.ArrowDtype),
    "polars": lambda scan: scan.to_polars(),
    "polars to arrow": lambda scan: scan.to_polars().to_arrow(),
    "polars to pandas": lambda scan: scan.to_polars().to_pandas(),
    "lazy": lambda scan: scan.to_polars().lazy(),
    "duckdb": lambda scan: duckdb.from_arrow(scan.to_arrow()),
    "batches": lambda scan: pa.Table.from_batches([b.slice(2) for b in scan.batches()]),
}  # fmt: skip


@pytest.mark.parametrize("kind", FRAMES)
def test_what_a_scan_gives_comes_back(kind: str, scan: Scan, tmp_path: Path) -> None:
    wanted = content(scan.to_arrow().to_pylist())
    frame = FRAMES[kind](scan)
    assert content(filled(frame, tmp_path / "to")) == wanted[2 if kind == "batches" else 0 :]


MAP = pa.map_(pa.string(), pa.string())
LIST = pa.list_(pa.struct([("key", pa.string()), ("value", pa.string())]))
WITH_PROPERTIES: dict[str, Any] = {
    "map": pa.array([[("KEYS", "a"), ("x", "1")], None], MAP),
    "list": pa.array([[{"key": "KEYS", "value": "a"}, {"key": "x", "value": "1"}], None], LIST),
    "struct": pa.array([{"KEYS": "a", "x": "1", "y": None}, None]),
}


@pytest.mark.parametrize("kind", WITH_PROPERTIES)
def test_properties_in_every_shape(kind: str, tmp_path: Path) -> None:
    table = pa.table(
        {"topic": ["orders"] * 2, "body": [b"x", b"y"], "properties": WITH_PROPERTIES[kind]}
    )
    rows = {row["body"]: row for row in filled(table, tmp_path / "to")}
    assert dict(rows[b"x"]["properties"]) == {"KEYS": "a", "x": "1"}
    assert rows[b"x"]["keys"] == ["a"]
    assert not rows[b"y"]["properties"]


def test_properties_of_pandas_as_dicts(tmp_path: Path) -> None:
    frame = pd.DataFrame(
        {
            "topic": ["orders"] * 4,
            "body": [b"a", b"b", b"c", b"d"],
            "properties": [{"KEYS": "a", "n": None}, {"TAGS": "b"}, None, float("nan")],
        }
    )
    rows = {row["body"]: dict(row["properties"] or ()) for row in filled(frame, tmp_path / "to")}
    assert rows == {b"a": {"KEYS": "a"}, b"b": {"TAGS": "b"}, b"c": {}, b"d": {}}


def test_nulls_of_pandas_are_nulls(tmp_path: Path) -> None:
    """Missing values of a pandas frame become null. pandas stores them as NaN, and converts integer
    columns to floats."""
    frame = pd.DataFrame(
        {
            "topic": ["orders"] * 3,
            "queue_id": [0.0, 0.0, 0.0],
            "body": ["x", "y", "z"],
            "flag": [1, None, 3],
            "tags": ["a", float("nan"), None],
            "keys": [np.array(["k"]), None, ["l", "m"]],
            "store_timestamp": [float(START_MS), START_MS + 1.0, START_MS + 2.0],
        }
    )
    rows = filled(frame, tmp_path / "to")
    assert [row["flag"] for row in rows] == [1, 0, 3]
    assert [row["tags"] for row in rows] == ["a", None, None]
    assert [row["keys"] or [] for row in rows] == [["k"], [], ["l", "m"]]
    assert [row["body"] for row in rows] == [b"x", b"y", b"z"]
    assert [row["store_timestamp"].timestamp() * 1000 for row in rows] == [
        START_MS, START_MS + 1, START_MS + 2,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        ({"flag": [1.5, 2.0]}, "column flag: expected whole numbers, found 1.5"),
        ({"properties": [{"a": 1}, None]}, "column properties, row 0: expected texts by name"),
        ({"properties": ["a", None]}, "column properties, row 0: expected texts by name"),
        ({"keys": ["a", None]}, "column keys"),
    ],
)
def test_what_is_no_message_is_told(column: dict[str, Any], expected: str, tmp_path: Path) -> None:
    frame = pd.DataFrame({"topic": ["orders"] * 2, "body": [b"x", b"y"], **column})
    with pytest.raises(Invalid, match=expected):
        filled(frame, tmp_path / "to")


def test_what_is_no_frame_is_told(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match=r"expected a pandas, Polars or Spark DataFrame.*found list"):
        filled([1], tmp_path / "to")
