"""Tests of bodies that are marked as compressed but cannot be decompressed."""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Any

import pytest

import tieredstore
from tests.kit.command_line import tieredstore as command
from tests.kit.growing_tier import GrowingTier
from tieredstore.message.sysflag import CompressionType, set_compression

COMPRESSED = 1
POISON = {
    "no compression": (b"not compressed at all", COMPRESSED),
    "cut": (zlib.compress(b"good " * 100)[:-3], COMPRESSED),
    "another kind": (zlib.compress(b"good"), set_compression(0, CompressionType.LZ4)),
    "no kind": (zlib.compress(b"good"), COMPRESSED | 0x700),
    "bomb": (zlib.compress(bytes(65 << 20), 9), COMPRESSED),
}


@pytest.mark.parametrize("poison", POISON)
def test_j43_a_body_that_does_not_decompress_ends_no_reader(tmp_path: Path, poison: str) -> None:
    body, flag = POISON[poison]
    tier = GrowingTier(tmp_path)
    tier.append("orders", 0, 2)
    tier.append("orders", 0, 1, body=body, sys_flag=flag)
    tier.append("orders", 0, 2)
    opened = tieredstore.open(tier.url)
    scanned = opened.scan("orders").to_arrow().to_pylist()
    read: dict[str, list[dict[str, Any]]] = {"scan": scanned}
    cat = ("cat", "--tier", tier.url, "--topic", "orders", "--output", "ndjson")
    for name, more in (("cat", ()), ("reverse", ("--reverse",)), ("tail", ("--tail", 9))):
        read[name] = command(*cat, *more).rows
    sql = "select queue_offset, body, body_length, body_error from orders"
    read["sql"] = command("sql", "--tier", tier.url, sql, "--output", "ndjson").rows
    opened.export(tmp_path / "out", format="delta", work=tmp_path / "work")
    import deltalake

    read["export"] = deltalake.DeltaTable(str(tmp_path / "out")).to_pyarrow_table().to_pylist()
    reasons = set()
    for name, rows in read.items():
        rows.sort(key=lambda row: int(row["queue_offset"]))
        assert [row["body"] is None for row in rows] == [False, False, True, False, False], name
        assert rows[2]["body_length"] is None, name
        assert [bool(row.get("body_error")) for row in rows] == [n == 2 for n in range(5)], name
        reasons.add(rows[2]["body_error"])
    assert len(reasons) == 1
    assert ["body_error" in row for row in read["cat"]] == [n == 2 for n in range(5)]
    found = command(*cat, "--where", "body_error IS NOT NULL").rows
    assert [row["queue_offset"] for row in found] == [2]
    assert command(*cat, "--where", "body CONTAINS 'orders'").code == 0
    csv = command(*cat[:-1], "csv", "--columns", "queue_offset,body_error").out.splitlines()
    assert len(csv) == 6
