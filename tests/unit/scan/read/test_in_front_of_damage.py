"""A scan yields all messages before a damaged one, and then raises an error."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

import tieredstore
from tests.kit.command_line import tieredstore as command
from tests.kit.growing_tier import GrowingTier
from tests.kit.memory_chunks import chunk_provider
from tieredstore.contracts.segment import FileSegmentType
from tieredstore.errors import Corrupt, Expired
from tieredstore.message.consume_queue import UNIT_SIZE
from tieredstore.scan.findings import Finding, Severity
from tieredstore.scan.listing import load_catalogue
from tieredstore.scan.plan import plan
from tieredstore.scan.read.batches import read_batches, read_batches_backwards
from tieredstore.scan.read.small_ranges import read_small_ahead

COUNT, BAD = 30, 17
LOG, UNITS = FileSegmentType.COMMIT_LOG, FileSegmentType.CONSUME_QUEUE
DAMAGED = {
    "a body": (LOG, 95),
    "a magic": (LOG, 4),
    "a unit's size": (UNITS, 11),
    "a unit that names nothing": (UNITS, 1),
}
"""Kinds of damage by name. Each changes one byte: in a file of this type, at this position of a
record or unit."""


def flip(tier: GrowingTier, kind: FileSegmentType, position: int, queue_id: int = 0) -> None:
    path = tier.segments("orders", queue_id, kind)[0]
    start = place_of(tier, queue_id, BAD) if kind is LOG else BAD * UNIT_SIZE
    data = bytearray(path.read_bytes())
    data[start + position] ^= 0x55
    path.write_bytes(data)


def place_of(tier: GrowingTier, queue_id: int, offset: int) -> int:
    units = tier.segments("orders", queue_id, UNITS)[0].read_bytes()
    return int.from_bytes(units[offset * UNIT_SIZE :][:8], "big")


@pytest.fixture
def tier(tmp_path: Path) -> GrowingTier:
    tier = GrowingTier(tmp_path)
    for queue_id in (0, 1):
        tier.append("orders", queue_id, COUNT)
    return tier


def until_error(offsets: Iterable[int]) -> tuple[list[int], type[Exception] | None]:
    found: list[int] = []
    try:
        for offset in offsets:
            found.append(offset)  # noqa: PERF402 - up to an error
    except Exception as error:
        return found, type(error)
    return found, None


def offsets_of(tier: GrowingTier, *, backwards: bool, is_ahead: bool) -> Iterator[int]:
    read = read_batches_backwards if backwards else read_batches
    ranges = list(plan(tier.provider, load_catalogue(tier.provider).queues))
    ranges.sort(key=lambda one: (one.queue.queue_id, -one.from_offset if backwards else 0))
    if is_ahead:
        batches = read_small_ahead(
            chunk_provider(),
            ranges,
            lambda one: one.size_bytes,
            lambda one, tell: read(tier.provider, one, on_finding=tell),
            stop_at_damage,
        )
    else:
        batches = (batch for one in ranges for batch in read(tier.provider, one))
    for batch in batches:
        found = batch.queue_offsets.tolist()
        yield from reversed(found) if backwards else found


def stop_at_damage(finding: Finding) -> None:
    if finding.severity is Severity.DAMAGE:
        raise finding.to_error()


@pytest.mark.parametrize("is_ahead", [False, True])
@pytest.mark.parametrize("damaged", DAMAGED)
def test_j40_rows_in_front_of_damage_come_before_its_error(
    tier: GrowingTier, damaged: str, is_ahead: bool
) -> None:
    flip(tier, *DAMAGED[damaged])
    found = until_error(offsets_of(tier, backwards=False, is_ahead=is_ahead))
    assert found == (list(range(BAD)), Corrupt)
    found = until_error(offsets_of(tier, backwards=True, is_ahead=is_ahead))
    assert found == (list(range(COUNT - 1, BAD, -1)), Corrupt)


@pytest.mark.parametrize("damaged", DAMAGED)
def test_j40_batches_a_limit_and_cat_have_the_rows_in_front(
    tier: GrowingTier, damaged: str
) -> None:
    flip(tier, *DAMAGED[damaged], queue_id=1)
    opened = tieredstore.open(tier.url)
    scan = opened.scan("orders", columns=["queue_id", "queue_offset", "body"])
    batches = (n for batch in scan.batches() for n in batch["queue_offset"].to_pylist())
    assert until_error(batches) == ([*range(COUNT), *range(BAD)], Corrupt)
    with scan.to_arrow_batch_reader() as reader:
        stream = (n for batch in reader for n in batch["queue_offset"].to_pylist())
        assert len(until_error(stream)[0]) == COUNT + BAD
    with pytest.raises(Corrupt):
        scan.to_arrow()
    limited = opened.scan("orders", limit=COUNT + BAD).to_arrow()
    assert limited.num_rows == COUNT + BAD
    with pytest.raises(Corrupt):
        opened.scan("orders", limit=COUNT + BAD + 1).to_arrow()
    arguments = ("cat", "--tier", tier.url, "--topic", "orders", "--output", "ndjson")
    ran = command(*arguments)
    assert (ran.code, len(ran.rows)) == (1, COUNT + BAD)
    ran = command(*arguments, "--limit", COUNT + BAD)
    assert (ran.code, len(ran.rows), ran.err) == (0, COUNT + BAD, "")
    ran = command(*arguments, "--reverse", "--queue", 1)
    assert [row["queue_offset"] for row in ran.rows] == list(range(COUNT - 1, BAD, -1))
    assert ran.code == 1


def test_j40_lost_units_are_told_behind_the_messages_in_front(tmp_path: Path) -> None:
    tier = GrowingTier(tmp_path)
    for _ in range(3):
        tier.append("orders", 0, 10)
        tier.roll("orders", 0)
    tier.segments("orders", 0, UNITS)[1].unlink()
    for backwards, expected in ((False, range(10)), (True, range(29, 19, -1))):
        found = until_error(offsets_of(tier, backwards=backwards, is_ahead=False))
        assert found == (list(expected), Corrupt)


@pytest.mark.parametrize("torn", ["cut", "zeros", "cut in the head"])
def test_j41_a_torn_last_record_ends_the_queue_for_every_reader(
    tier: GrowingTier, torn: str, tmp_path: Path
) -> None:
    path = tier.segments("orders", 1, LOG)[0]
    data, last = path.read_bytes(), place_of(tier, 1, COUNT - 1)
    left = {"cut": data[:-10], "zeros": data[:last], "cut in the head": data[: last + 7]}[torn]
    path.write_bytes(left + bytes(len(data) - last) * (torn == "zeros"))
    opened, whole = tieredstore.open(tier.url), 2 * COUNT - 1
    counts = {
        "count_rows": opened.scan("orders").count_rows(),
        "to_arrow": opened.scan("orders").to_arrow().num_rows,
        "offsets alone": opened.scan("orders", columns="queue_offset").to_arrow().num_rows,
        "export": opened.export(tmp_path / "out", work=tmp_path / "work")["rows"],
    }
    sql = command("sql", "--tier", tier.url, "select count(*) n from orders", "--output", "ndjson")
    counts["sql"] = sql.rows[0]["n"]
    cat = ("cat", "--tier", tier.url, "--topic", "orders", "--output", "ndjson")
    for name, more in (("cat", ()), ("reverse", ("--reverse",)), ("tail", ("--tail", 99))):
        ran = command(*cat, *more)
        counts[name] = len(ran.rows)
        assert ran.code == 0
        assert "not there (yet)" in ran.err
    assert set(counts.values()) == {whole}, counts
    assert command("verify", "--tier", tier.url, "--quiet").code == 1


@pytest.mark.parametrize("position", [3, 4, 5, 7])
def test_j60_a_damaged_head_of_the_last_record_is_damage_for_every_reader(
    tier: GrowingTier, position: int, tmp_path: Path
) -> None:
    """Every reader reports a damaged head of the last record. An interrupted write would leave
    zeros or no bytes."""
    path = tier.segments("orders", 1, LOG)[0]
    data = bytearray(path.read_bytes())
    data[place_of(tier, 1, COUNT - 1) + position] ^= 1
    path.write_bytes(data)
    opened = tieredstore.open(tier.url)
    assert opened.scan("orders", columns="queue_offset").to_arrow().num_rows == 2 * COUNT
    with pytest.raises(Corrupt):
        opened.scan("orders").to_arrow()
    with pytest.raises(Corrupt):
        opened.export(tmp_path / "out", work=tmp_path / "work")
    cat = ("cat", "--tier", tier.url, "--topic", "orders", "--queue", "1", "--output", "ndjson")
    for more, rows in (((), COUNT - 1), (("--reverse",), 0), (("--tail", 99), 0)):
        ran = command(*cat, *more)
        assert ran.code == 1, ran.err
        assert len(ran.rows) in (rows, COUNT - 1)
        assert "not there (yet)" not in ran.err
        skipped = command(*cat, *more, "--on-damage", "skip")
        assert (skipped.code, len(skipped.rows)) == (1, COUNT - 1), skipped.err
    assert command("verify", "--tier", tier.url, "--quiet").code == 1


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("torn", ["cut", "zeros", "nothing"])
def test_j71_a_queue_without_a_whole_message_is_empty_for_every_reader(
    tmp_path: Path, torn: str, count: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Every reader treats a queue without a complete message as empty."""
    tier = GrowingTier(tmp_path)
    tier.append("orders", 0, count)
    [path] = tier.segments("orders", 0, LOG)
    data = path.read_bytes()
    path.write_bytes({"cut": data[:50], "zeros": bytes(len(data)), "nothing": b""}[torn])
    opened = tieredstore.open(tier.url)
    counts = {
        "count_rows": opened.scan("orders").count_rows(),
        "to_arrow": opened.scan("orders").to_arrow().num_rows,
        "offsets alone": opened.scan("orders", columns="queue_offset").to_arrow().num_rows,
        "export": opened.export(tmp_path / "out", work=tmp_path / "work")["rows"],
    }
    assert "not there (yet)" in caplog.text
    sql = command("sql", "--tier", tier.url, "select count(*) n from orders", "--output", "ndjson")
    counts["sql"] = sql.rows[0]["n"]
    for more in ((), ("--reverse",), ("--tail", 9)):
        ran = command("cat", "--tier", tier.url, "--topic", "orders", *more)
        assert (ran.code, "not there (yet)" in ran.err) == (0, True)
    assert set(counts.values()) == {0}, counts
    assert command("verify", "--tier", tier.url, "--quiet").code == 1


def test_j71_a_queue_whose_whole_commit_log_is_lost_is_damaged_for_every_reader(
    tmp_path: Path,
) -> None:
    tier = GrowingTier(tmp_path)
    tier.append("orders", 0, 3)
    tier.segments("orders", 0, LOG)[0].unlink()
    opened = tieredstore.open(tier.url)
    for read in (
        opened.scan("orders").to_arrow,
        opened.scan("orders").count_rows,
        lambda: opened.export(tmp_path / "out", work=tmp_path / "work"),
        lambda: list(opened.scan("orders", columns="queue_offset").batches()),
    ):
        with pytest.raises(Corrupt, match="no commit log segment holds whole"):
            read()
    assert command("cat", "--tier", tier.url, "--topic", "orders").code == 1


def test_j41_a_torn_last_record_that_the_metadata_knows_is_damage(tier: GrowingTier) -> None:
    tier.metadata.flush()
    path = tier.segments("orders", 1, LOG)[0]
    path.write_bytes(path.read_bytes()[:-10])
    opened = tieredstore.open(tier.url, state=tier.root / "state")
    scan = opened.scan("orders", columns=["queue_offset", "body"])
    found = (n for batch in scan.batches() for n in batch["queue_offset"].to_pylist())
    assert until_error(found) == ([*range(COUNT), *range(COUNT - 1)], Corrupt)


@pytest.mark.parametrize("columns", ["queue_offset", "body"])
def test_j42_expiry_during_a_read_is_no_damage(tmp_path: Path, columns: str) -> None:
    tier = GrowingTier(tmp_path)
    for _ in range(4):
        tier.append("orders", 0, 10)
        tier.roll("orders", 0)
    scan = tieredstore.open(tier.url).scan("orders", columns=[columns])
    [task] = scan.plan()
    small = scan.plan(target_bytes=1000)
    tier.expire("orders", 0)
    findings: list[Finding] = []
    with pytest.raises(Expired, match="now begins at 10"):
        list(task.read())
    with pytest.raises(Expired):
        list(task.read(on_finding=findings.append))
    assert findings == []
    read = [batch.num_rows for one in small if one.range.from_offset >= 10 for batch in one.read()]
    assert sum(read) == 28  # the task of 8 to 11 has what expired
    for _ in range(3):
        tier.expire("orders", 0)
    with pytest.raises(Expired, match="no message of the queue is left"):
        list(task.read())
