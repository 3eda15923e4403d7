"""The fixture's messages are backfilled from a table. The result has only the expected differences
from a tier that `offload` made of the store."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.kit.jobs.backfill import backfill_target, contents, damage, new_run
from tieredstore.jobs.backfilling.job import run_backfill
from tieredstore.jobs.offloading.job import offload_store
from tieredstore.jobs.options import BackfillOptions, OffloadOptions
from tieredstore.scan.arrow.schema import TYPES
from tieredstore.scan.location import TierLocation
from tieredstore.table import Tier

TRANSACTIONS = "pub_trans"
PREPARED = slice(76, 84)
"""Bytes of a record with IPv4 hosts that contain the offset of the prepared half message. No column
has this offset, so a backfill cannot restore it."""
COMPRESSED = "pub_big"
SAME = [name for name in TYPES if name not in {"physical_offset", "stored_length", "body_crc"}]


@pytest.fixture(scope="module")
def offloaded(public_a: Path, tmp_path_factory: pytest.TempPathFactory) -> TierLocation:
    root = tmp_path_factory.mktemp("offloaded")
    url, conf = f"file://{root}/tier", public_a / "broker.conf"
    offload_store(OffloadOptions(url, public_a / "store", state=root / "state", config=conf))
    return backfill_target(url, root / "state", config=conf)


def rows_of(tier: TierLocation) -> pa.Table:
    columns = list(TYPES)
    rows = Tier(tier).scan(topic_pattern=".*", columns=columns).to_arrow()
    by = ("topic", "queue_id", "queue_offset")
    return rows.sort_by([(name, "ascending") for name in by])


@pytest.fixture(scope="module")
def backfilled(
    public_a: Path, offloaded: TierLocation, tmp_path_factory: pytest.TempPathFactory
) -> TierLocation:
    root = tmp_path_factory.mktemp("backfilled")
    pq.write_table(rows_of(offloaded), root / "rows.parquet", row_group_size=500)
    tier = backfill_target(f"file://{root}/tier", root / "state", config=public_a / "broker.conf")
    run_backfill(new_run(), tier, str(root / "rows.parquet"), BackfillOptions())
    return tier


def test_rows_are_equal_and_the_tier_is_sound(
    offloaded: TierLocation, backfilled: TierLocation
) -> None:
    before, after = rows_of(offloaded), rows_of(backfilled)
    assert before.num_rows == 2103
    for name in SAME:
        if name == "sys_flag":
            flags = [flag & ~0x701 for flag in before[name].to_pylist()]  # of compression
            assert after[name].to_pylist() == flags
        elif name != "offset_msg_id":  # which has the physical offset
            assert after[name].to_pylist() == before[name].to_pylist(), name
    assert damage(backfilled) == []


def test_bytes_are_those_of_offload_but_for_compressed_bodies_and_one_field(
    offloaded: TierLocation, backfilled: TierLocation
) -> None:
    before, after = contents(offloaded), contents(backfilled)
    queues = [name for name in before if "/INDEX@" not in name and COMPRESSED not in name]
    assert len(queues) == 34
    for name in queues:
        if TRANSACTIONS in name and "COMMIT_LOG" in name:
            assert without_prepared(after[name]) == without_prepared(before[name])
        else:
            assert after[name] == before[name], name


def without_prepared(log: bytes) -> bytes:
    found, position = bytearray(log), 0
    while position < len(found):
        at = slice(position + PREPARED.start, position + PREPARED.stop)
        found[at] = bytes(8)
        position += int.from_bytes(found[position : position + 4], "big")
    return bytes(found)


def test_keys_are_found_as_in_the_tier_of_offload(
    offloaded: TierLocation, backfilled: TierLocation
) -> None:
    keys = {key for row in rows_of(offloaded)["keys"].to_pylist() for key in row}
    some = sorted(keys)[::40]
    assert len(some) > 10
    answers = []
    for tier in (offloaded, backfilled):
        scan = Tier(tier).scan(
            topic_pattern=".*", keys=some, columns=["topic", "queue_id", "queue_offset"]
        )
        rows = scan.to_arrow().to_pylist()
        answers.append(sorted(tuple(row.values()) for row in rows))
    assert answers[0] == answers[1] != []
