"""`on_damage` means the same on the command line, in Python, in SQL and in Spark."""

from __future__ import annotations

import logging
import pickle
from pathlib import Path

import pytest

import tieredstore
from tests.kit.command_line import tieredstore as command
from tests.kit.growing_tier import GrowingTier
from tieredstore.contracts.segment import FileSegmentType
from tieredstore.errors import Corrupt, Invalid

COUNT, BAD = 30, (7, 8, 20)


@pytest.fixture
def tier(tmp_path: Path) -> GrowingTier:
    """A tier of 30 messages, three of which are damaged: in the body, the magic and the unit."""
    tier = GrowingTier(tmp_path)
    tier.append("orders", 0, COUNT)
    units = tier.segments("orders", 0, FileSegmentType.CONSUME_QUEUE)[0]
    log = tier.segments("orders", 0, FileSegmentType.COMMIT_LOG)[0]
    named, data = bytearray(units.read_bytes()), bytearray(log.read_bytes())
    places = [int.from_bytes(named[20 * number :][:8], "big") for number in BAD]
    data[places[0] + 95] ^= 1
    data[places[1] + 4] ^= 1
    named[20 * BAD[2] + 11] ^= 1
    log.write_bytes(data)
    units.write_bytes(named)
    return tier


@pytest.mark.parametrize("form", ["ndjson", "json", "csv", "table"])
def test_j44_what_is_left_out_is_counted_and_ends_with_exit_code_1(
    tier: GrowingTier, tmp_path: Path, form: str
) -> None:
    cat = ("cat", "--tier", tier.url, "--topic", "orders", "--output", form)
    sql = ("sql", "--tier", tier.url, "select queue_offset, body from orders", "--output", form)
    export = ("export", "--tier", tier.url, "--format", "parquet", "--to", tmp_path / "out")
    heads = {"json": 2, "csv": 1, "table": 1}.get(form, 0)
    for arguments in (cat, (*cat, "--reverse"), (*cat, "--tail", 99), sql):
        ran = command(*arguments, "--on-damage", "skip")
        assert (ran.code, len(ran.out.splitlines())) == (1, COUNT - len(BAD) + heads), arguments
        assert "left out for damage: 3 messages (3 pieces of it). The first: " in ran.err
        assert len(ran.err.splitlines()) == 1
    whole = command(*cat, "--on-damage", "skip", "--until-offset", BAD[0])
    assert (whole.code, whole.err) == (0, "")
    for failing in (cat, sql, export):
        ran = command(*failing)
        assert (ran.code, "queue offset 7" in ran.err) == (1, True), failing
    assert command(*sql).out == ""
    ran = command(*export, "--on-damage", "skip", "--output", "json", "--quiet")
    assert (ran.code, ran.record["rows"], ran.record["corrupt_messages"]) == (1, 27, 3)


def test_j44_python_and_its_tasks_take_the_same_option(
    tier: GrowingTier, caplog: pytest.LogCaptureFixture
) -> None:
    opened = tieredstore.open(tier.url)
    scan = opened.scan("orders", columns=["queue_offset", "body"], on_damage="skip")
    with caplog.at_level(logging.WARNING):
        found = scan.to_arrow()["queue_offset"].to_pylist()
    assert found == [number for number in range(COUNT) if number not in BAD]
    assert (scan.left_out.messages, scan.left_out.count) == (3, 3)
    assert "left out for damage: 3 messages" in caplog.text
    caplog.clear()
    [task] = pickle.loads(pickle.dumps(scan.plan()))
    assert sum(batch.num_rows for batch in task.read()) == 27
    assert "left out for damage: 3 messages" in caplog.text
    assert scan.to_dataset().to_table().num_rows == 27
    with pytest.raises(Corrupt):
        opened.scan("orders").to_arrow()
    with pytest.raises(Invalid, match="on_damage: expected fail or skip, found 'eat'"):
        opened.scan("orders", on_damage="eat")
    with pytest.raises(Invalid, match="on_damage"):
        opened.export("/nowhere", on_damage="eat")


def test_j44_a_statement_is_whole_or_nothing(tmp_path: Path) -> None:
    """An SQL statement returns all rows or fails. The test damages one of the last of 20,000
    rows."""
    tier = GrowingTier(tmp_path)
    tier.append("orders", 0, 20_000)
    log = tier.segments("orders", 0, FileSegmentType.COMMIT_LOG)[0]
    data = bytearray(log.read_bytes())
    data[-160] ^= 1
    log.write_bytes(data)
    ran = command(
        *("sql", "--tier", tier.url, "select queue_offset, body from orders; -- all"),
        *("--output", "ndjson"),
    )
    assert (ran.code, ran.out) == (1, "")
    count = "select count(*) n from orders -- units alone\n;"
    assert command("sql", "--tier", tier.url, count, "--output", "ndjson").rows == [{"n": 20_000}]
