"""Tiers of every supported format can be read as record batches. Each row equals the message that
was written."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.kit.arrow_rows import rows_of, stored_row
from tests.kit.record_forms import compress
from tests.kit.tier_builder import BROKER, CODA, BuiltTier, Stored, TierBuilder, message
from tieredstore.contracts.segment import FileSegmentType, SegmentId
from tieredstore.message.consume_queue import UNIT_SIZE
from tieredstore.message.encoding import Message
from tieredstore.message.record import decode_record
from tieredstore.message.sysflag import CompressionType, set_compression
from tieredstore.scan.arrow.read import arrow_batches
from tieredstore.scan.arrow.schema import TYPES, UNIT_COLUMNS
from tieredstore.scan.plan import ScanBounds, plan
from tieredstore.scan.read.options import ReadOptions

LONG_TOPIC = "topic-of-more-than-127-bytes-" + "x" * 110
V2_MAGIC = bytes.fromhex("daa320ab")
SHAPES = list(itertools.product([1, 700, 1 << 22], [1, 900, 1 << 27], [False, True]))
"""Combinations of three settings: maximum size of a batch, maximum size of a range (both in bytes),
and whether the plan of a range contains only the segments with messages of the range."""


def read(
    tier: BuiltTier,
    columns: Any = None,
    batch_bytes: int = 1 << 22,
    range_bytes: int = 1 << 27,
    narrow: bool = False,
    **given: Any,
) -> list[dict[str, Any]]:
    names = tuple(TYPES) if columns is None else columns
    ranges = plan(
        tier.provider, tier.catalogue().queues, ScanBounds(range_bytes=range_bytes, narrow=narrow)
    )
    options = ReadOptions(batch_bytes=batch_bytes)
    batches = [
        batch
        for found in ranges
        for batch in arrow_batches(tier.provider, found, names, options, **given)
    ]
    return [row for batch in batches for row in rows_of(batch)]


def rows_written(stored: list[Stored]) -> list[dict[str, Any]]:
    return [stored_row(decode_record(item.record), BROKER) for item in stored]


def plain(number: int, topic: str) -> Message:
    return message(topic, 0, number)


def over_ipv6(number: int, topic: str) -> Message:
    host = ("fe80::1", 9) if number % 3 else ("10.0.0.9", 8)
    return message(topic, 0, number, born_host=host)


def compressed(number: int, topic: str) -> Message:
    made = message(topic, 0, number)
    if number % 4:
        kind = list(CompressionType)[number % len(CompressionType)]
        made.body = compress(bytes(made.body) * 50, kind)
        made.sys_flag = set_compression(made.sys_flag, kind)
    return made


@pytest.mark.parametrize(("batch_bytes", "range_bytes", "narrow"), SHAPES)
@pytest.mark.parametrize("make", [plain, over_ipv6, compressed])
@pytest.mark.parametrize("topic", ["short", LONG_TOPIC])
def test_all_columns_over_many_segments_from_a_first_offset_on(
    tmp_path: Path, make: Any, topic: str, batch_bytes: int, range_bytes: int, narrow: bool
) -> None:
    builder = TierBuilder(tmp_path, messages_per_segment=3)
    stored = builder.queue(topic, 0, [make(n, topic) for n in range(11)], first_offset=1_000_003)
    assert (stored[0].record[4:8] == V2_MAGIC) == (topic == LONG_TOPIC)
    rows = read(builder.built, None, batch_bytes, range_bytes, narrow)
    assert rows == rows_written(stored)
    assert rows[0]["queue_offset"] == 1_000_003


def place(kind: FileSegmentType, base: int) -> SegmentId:
    return SegmentId(f"{BROKER}/t/0", kind, base)


@pytest.mark.parametrize("named", ["the coda", "the message"])
@pytest.mark.parametrize(("batch_bytes", "range_bytes", "narrow"), SHAPES)
def test_a_coda_in_front_of_a_message_is_passed_over(
    tmp_path: Path, named: str, batch_bytes: int, range_bytes: int, narrow: bool
) -> None:
    builder = TierBuilder(tmp_path, messages_per_segment=100)
    items = builder.queue("t", 0, [message("t", 0, n) for n in range(6)])
    tier = builder.built
    log, queue = bytearray(), bytearray(units_path(tier).read_bytes())
    written = []
    for number, item in enumerate(items):
        record, at = bytearray(item.record), len(log)
        if number in {2, 5}:
            log += CODA
        record[28:36] = len(log).to_bytes(8, "big")
        names_coda = named == "the coda"
        queue[number * UNIT_SIZE : number * UNIT_SIZE + 8] = (
            at if names_coda else len(log)
        ).to_bytes(8, "big")
        log += record
        written.append(stored_row(decode_record(bytes(record)), BROKER))
    tier.path(place(FileSegmentType.COMMIT_LOG, 0)).write_bytes(log)
    units_path(tier).write_bytes(queue)
    assert read(tier, None, batch_bytes, range_bytes, narrow) == written


def units_path(tier: BuiltTier) -> Path:
    return tier.path(place(FileSegmentType.CONSUME_QUEUE, 0))


@pytest.mark.parametrize(("batch_bytes", "range_bytes", "narrow"), SHAPES)
def test_a_unit_may_name_the_coda_at_the_end_of_the_segment_before(
    tmp_path: Path, batch_bytes: int, range_bytes: int, narrow: bool
) -> None:
    builder = TierBuilder(tmp_path, messages_per_segment=3)
    items = builder.queue("t", 0, [message("t", 0, n) for n in range(6)])
    tier = builder.built
    # The first segment ends with a coda. The second one begins after it.
    end = items[3].offset
    first = tier.path(place(FileSegmentType.COMMIT_LOG, 0))
    first.write_bytes(first.read_bytes() + CODA)
    tier.path(place(FileSegmentType.COMMIT_LOG, end)).unlink()
    units = tier.path(place(FileSegmentType.CONSUME_QUEUE, 3 * UNIT_SIZE))
    data, log, written = bytearray(units.read_bytes()), b"", []
    for number, item in enumerate(items[3:]):
        at = end + len(CODA) + len(log)
        record = bytearray(item.record)
        record[28:36] = at.to_bytes(8, "big")
        named = end if number == 0 else at
        data[number * UNIT_SIZE : number * UNIT_SIZE + 8] = named.to_bytes(8, "big")
        log += record
        written.append(stored_row(decode_record(bytes(record)), BROKER))
    units.write_bytes(data)
    segment = tier.provider.open(place(FileSegmentType.COMMIT_LOG, end + len(CODA)))
    segment.write(0, [log])
    segment.close()
    rows = read(tier, None, batch_bytes, range_bytes, narrow)
    assert rows == [*rows_written(items[:3]), *written]
    # The consume queue alone says the same place.
    columns = sorted(UNIT_COLUMNS)
    found = read(tier, columns, batch_bytes, range_bytes, narrow)
    assert found == [{name: row[name] for name in columns} for row in rows]


@pytest.mark.parametrize("columns", [None, sorted(UNIT_COLUMNS)])
def test_a_hole_between_segments_parts_ranges_and_is_no_damage(
    tmp_path: Path, columns: list[str] | None
) -> None:
    builder = TierBuilder(tmp_path, messages_per_segment=3)
    builder.queue("t", 0, [message("t", 0, n) for n in range(6)], first_offset=50, hole=(3, 3))
    tier = builder.built
    ranges = list(plan(tier.provider, tier.catalogue().queues))
    assert [(r.from_offset, r.until_offset) for r in ranges] == [(50, 53), (56, 59)]
    rows = read(tier, columns)
    assert [row["queue_offset"] for row in rows] == [50, 51, 52, 56, 57, 58]


def test_a_body_that_inflates_beyond_its_cap_is_null_with_the_reason(tmp_path: Path) -> None:
    builder = TierBuilder(tmp_path, messages_per_segment=2)
    bomb = message("t", 0, 3)
    bomb.body = compress(bytes(1 << 20), CompressionType.ZLIB)
    bomb.sys_flag = set_compression(bomb.sys_flag, CompressionType.ZLIB)
    messages = [message("t", 0, n) for n in range(5)]
    messages[3] = bomb
    builder.queue("t", 0, messages, first_offset=9)
    [found] = plan(builder.built.provider, builder.built.catalogue().queues)
    options = ReadOptions(body_limit_bytes=1 << 16)
    columns = ["queue_offset", "body", "body_length", "body_error"]
    batches = arrow_batches(builder.built.provider, found, columns, options)
    rows = pa.Table.from_batches(batches).to_pylist()
    assert [row["queue_offset"] for row in rows] == [9, 10, 11, 12, 13]
    assert [row["body_error"] is None for row in rows] == [True, True, True, False, True]
    assert (rows[3]["body"], rows[3]["body_length"]) == (None, None)
    assert "expected at most 65536 bytes inflated" in rows[3]["body_error"]
