"""Tests of reading ranges as record batches: omitted rows, rejected options, and bytes that are not
read."""

from __future__ import annotations

import os
import pickle
import struct
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.kit.record_forms import compress
from tests.kit.tier_builder import (
    BROKER,
    BuiltTier,
    TierBuilder,
    flip,
    message,
    small_tier,
)
from tieredstore.contracts.segment import FileSegmentType, SegmentId
from tieredstore.errors import Corrupt, Invalid
from tieredstore.message.encoding import Message
from tieredstore.message.sysflag import CompressionType, set_compression
from tieredstore.scan.arrow import read as arrow_read
from tieredstore.scan.arrow.read import arrow_batches
from tieredstore.scan.arrow.schema import DEFAULT_COLUMNS, TYPES, UNIT_COLUMNS, schema
from tieredstore.scan.findings import Finding
from tieredstore.scan.plan import ScanBounds, plan
from tieredstore.scan.read.options import ReadOptions


@pytest.fixture(scope="module")
def tier(tmp_path_factory: pytest.TempPathFactory) -> BuiltTier:
    return small_tier(tmp_path_factory.mktemp("arrow"))


def table(
    tier: BuiltTier,
    columns: Any = None,
    options: ReadOptions = ReadOptions(),  # noqa: B008
    **given: Any,
) -> pa.Table:
    bounds = {name: given.pop(name) for name in ("since_ms", "until_ms") if name in given}
    batches = [
        batch
        for scan_range in plan(tier.provider, tier.catalogue().queues, ScanBounds(**bounds))
        for batch in arrow_batches(tier.provider, scan_range, columns, options, **given)
    ]
    return pa.Table.from_batches(batches, schema(columns))


def places(found: pa.Table) -> list[tuple[str, int, int]]:
    names = ["topic", "queue_id", "queue_offset"]
    return [tuple(row.values()) for row in found.select(names).to_pylist()]


def everything(tier: BuiltTier) -> list[tuple[str, int, int]]:
    return [
        (*queue, item.queue_offset) for queue in sorted(tier.stored) for item in tier.stored[queue]
    ]


@pytest.mark.parametrize("batch_bytes", [1, 500, 1 << 22])
def test_batches_of_any_size_give_every_message_once(tier: BuiltTier, batch_bytes: int) -> None:
    found = table(tier, TYPES, ReadOptions(batch_bytes=batch_bytes))
    assert places(found) == everything(tier)
    bodies = [bytes(i.message.body) for queue in sorted(tier.stored) for i in tier.stored[queue]]
    assert found["body"].to_pylist() == bodies


def test_types_are_those_that_spark_takes(tier: BuiltTier) -> None:
    found = table(tier, TYPES).schema
    assert found.field("body").type == pa.binary()
    assert found.field("store_timestamp").type == pa.timestamp("us", "UTC")
    assert found.field("properties").type == pa.map_(pa.string(), pa.string())
    assert all(field.nullable for field in found)
    assert set(TYPES) - set(DEFAULT_COLUMNS) == {"properties"}


def test_columns_come_in_the_order_asked_for(tier: BuiltTier) -> None:
    assert table(tier, ["body", "topic"]).column_names == ["body", "topic"]
    for columns in (["bodi"], ["body", "body"], []):
        with pytest.raises(Invalid, match=r"bodi.*body|twice|at least one"):
            table(tier, columns)


def test_units_alone_answer_without_the_commit_log(tmp_path: Path) -> None:
    tier = small_tier(tmp_path)
    expected = table(tier, [*sorted(UNIT_COLUMNS), "flag"]).drop_columns("flag")
    ranges = list(plan(tier.provider, tier.catalogue().queues))
    for path in (tmp_path / "tier").rglob("COMMIT_LOG/[!.]*"):
        path.write_bytes(b"")
    found = [b for r in ranges for b in arrow_batches(tier.provider, r, sorted(UNIT_COLUMNS))]
    assert pa.Table.from_batches(found).to_pylist() == expected.to_pylist()
    with pytest.raises(Corrupt):
        next(arrow_batches(tier.provider, ranges[0], ["queue_offset", "tags"]))


def test_time_bounds_hold_for_columns_of_the_units_too(tier: BuiltTier) -> None:
    stored = tier.stored["orders", 0]
    since, until = stored[3].store_timestamp_ms, stored[7].store_timestamp_ms
    found = table(tier, ["topic", "queue_id", "queue_offset"], since_ms=since, until_ms=until)
    assert places(found) == [("orders", 0, offset) for offset in range(103, 107)]


def test_tags_and_keys_are_compared_as_text(tmp_path: Path) -> None:
    builder = TierBuilder(tmp_path)
    same_hash = ["Aa", "BB", "C", None]
    messages = [
        Message.create(
            "t", b"%d" % n, tags=same_hash[n % 4], keys=[f"k{n}", "all"], uniq_key=f"u{n}"
        )
        for n in range(12)
    ]
    builder.queue("t", 0, messages)
    tier = builder.built
    columns = ["queue_offset", "tags"]
    assert table(tier, columns, ReadOptions(tags=("Aa",)))["queue_offset"].to_pylist() == [0, 4, 8]
    both = table(tier, columns, ReadOptions(tags=("C", "BB")))
    assert set(both["tags"].to_pylist()) == {"C", "BB"}
    assert both.num_rows == 6
    keys = table(tier, ["queue_offset"], ReadOptions(keys=("k3", "u5", "nobody")))
    assert keys["queue_offset"].to_pylist() == [3, 5]
    one = table(tier, ["queue_offset"], ReadOptions(keys=("all",), tags=("Aa",)))
    assert one["queue_offset"].to_pylist() == [0, 4, 8]


@pytest.mark.parametrize(
    ("field", "position", "kind"),
    [
        ("size", 3, "record-size"),
        ("magic", 7, "record-magic"),
        ("body CRC", 11, "record-body-crc"),
        ("queue id", 15, "record-queue-id"),
        ("queue offset", 27, "record-queue-offset"),
        ("physical offset", 35, "record-physical-offset"),
        ("sysFlag, IPv6", 39, "record-structure"),
        ("body length", 87, "record-structure"),
        ("body", 90, "record-body-crc"),
        ("topic length", None, "record-structure"),
        ("topic", None, "record-topic"),
        ("properties length", None, "record-structure"),
    ],
)
def test_a_corrupt_field_names_segment_and_byte_or_is_counted(
    tmp_path: Path, field: str, position: int | None, kind: str
) -> None:
    tier = small_tier(tmp_path)
    item = tier.stored["orders", 0][7]
    segment = SegmentId(
        f"{BROKER}/orders/0", FileSegmentType.COMMIT_LOG, tier.stored["orders", 0][5].offset
    )
    start = item.offset - segment.base_offset
    behind_body = 88 + len(item.message.body)
    if position is None:
        position = behind_body + {"topic length": 0, "topic": 3, "properties length": 8}[field]
    flip(tier.path(segment), start + position, 0x10)

    with pytest.raises(Corrupt, match=rf"COMMIT_LOG@{segment.base_offset} byte \d+") as caught:
        table(tier)
    assert caught.value.path == str(segment)
    assert caught.value.offset == item.queue_offset
    findings: list[Finding] = []
    found = table(tier, on_finding=findings.append)
    assert places(found) == [p for p in everything(tier) if p != ("orders", 0, item.queue_offset)]
    assert {finding.kind for finding in findings} == {kind}
    assert all(start <= (f.position or 0) < start + len(item.record) for f in findings)


def test_no_byte_of_a_record_breaks_more_than_its_message(tmp_path: Path) -> None:
    """A changed byte in a record affects only its own message, which is returned or reported."""
    tier = small_tier(tmp_path)
    item = tier.stored["over6", 0][1]
    path = tier.path(SegmentId(f"{BROKER}/over6/0", FileSegmentType.COMMIT_LOG, 0))
    data = path.read_bytes()
    [scan_range] = plan(tier.provider, tier.catalogue().select("over6"))
    for position in range(item.offset, item.offset + len(item.record)):
        flip(path, position)
        findings: list[Finding] = []
        offsets: list[int] = []
        for batch in arrow_batches(tier.provider, scan_range, TYPES, on_finding=findings.append):
            batch.validate(full=True)
            offsets += batch["queue_offset"].to_pylist()
        path.write_bytes(data)
        assert offsets in ([0, 1, 2, 3, 4, 5], [0, 2, 3, 4, 5])
        assert {f.queue_offset for f in findings} == ({1} if len(offsets) == 5 else set())


def test_body_crcs_are_left_unchecked_when_told_so(tmp_path: Path) -> None:
    tier = small_tier(tmp_path)
    item = tier.stored["orders", 0][0]
    flip(tier.path(SegmentId(f"{BROKER}/orders/0", FileSegmentType.COMMIT_LOG, 0)), 90)
    found = table(tier, options=ReadOptions(body_crcs=False))
    assert places(found) == everything(tier)
    assert found["body"][0].as_py() != bytes(item.message.body)


@pytest.mark.parametrize(
    ("at", "field", "value", "kind"),
    [
        (0, ">q", 1 << 30, "record-missing"),
        (8, ">i", 120, "record-size"),
        (8, ">i", 7, "unit-invalid"),
    ],
)
def test_a_corrupt_unit_is_counted(
    tmp_path: Path, at: int, field: str, value: int, kind: str
) -> None:
    tier = small_tier(tmp_path)
    path = tier.path(SegmentId(f"{BROKER}/orders/0", FileSegmentType.CONSUME_QUEUE, 2000))
    data = bytearray(path.read_bytes())
    struct.pack_into(field, data, 20 + at, value)
    path.write_bytes(data)
    findings: list[Finding] = []
    found = table(tier, on_finding=findings.append)
    assert places(found) == [p for p in everything(tier) if p != ("orders", 0, 101)]
    assert [finding.kind for finding in findings] == [kind]


def packed(body: bytes, kind: CompressionType = CompressionType.ZLIB) -> Message:
    return Message.create("z", compress(body, kind), sys_flag=set_compression(0, kind))


def test_i04_a_body_inflates_under_a_cap_and_a_batch_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arrow_read, "_INFLATED_BYTES", 100_000)
    builder = TierBuilder(tmp_path, messages_per_segment=100)
    bodies = [os.urandom(8) + bytes(30_000) for _ in range(10)]
    kinds = list(CompressionType)
    messages = [packed(body, kinds[n % 3]) for n, body in enumerate(bodies)]
    messages[4:4] = [Message.create("z", b"plain"), packed(bytes(1 << 20))]
    builder.queue("z", 0, messages)
    [scan_range] = plan(builder.built.provider, builder.built.catalogue().queues)

    found = list(
        arrow_batches(
            builder.built.provider,
            scan_range,
            ["queue_offset", "body", "body_length", "stored_length", "body_error"],
            ReadOptions(body_limit_bytes=40_000),
        )
    )

    assert [body for batch in found for body in batch["body"].to_pylist()] == [
        *bodies[:4], b"plain", None, *bodies[4:],
    ]  # fmt: skip
    lengths = [[n or 0 for n in batch["body_length"].to_pylist()] for batch in found]
    assert all(sum(of_batch) <= 100_000 for of_batch in lengths)
    assert len(found) > 2
    errors = [error for batch in found for error in batch["body_error"].to_pylist()]
    assert [row for row, error in enumerate(errors) if error is not None] == [5]
    assert max(length for batch in found for length in batch["stored_length"].to_pylist()) < 1_100
    # What needs no body inflates none.
    columns = ["queue_offset", "stored_length"]
    [whole] = arrow_batches(builder.built.provider, scan_range, columns)
    assert whole.num_rows == 12


@pytest.mark.parametrize("kind", CompressionType)
def test_a_body_of_one_byte_is_no_compressed_one_and_an_empty_body_is_what_it_is(
    tmp_path: Path, kind: CompressionType
) -> None:
    """Of two bodies marked as compressed, one of a single byte is reported, and an empty one is
    returned unchanged."""
    flag = set_compression(0, kind)
    builder = TierBuilder(tmp_path)
    bodies = [b"", b"x"]
    builder.queue("z", 0, [Message.create("z", body, sys_flag=flag) for body in bodies])
    columns = ["queue_offset", "body", "body_length"]
    assert table(builder.built, columns).to_pylist() == [
        {"queue_offset": 0, "body": b"", "body_length": 0},
        {"queue_offset": 1, "body": None, "body_length": None},
    ]
    errors = table(builder.built, ["body_error"])["body_error"].to_pylist()
    assert [error is None for error in errors] == [True, False]


def test_a_lost_segment_is_named(tmp_path: Path) -> None:
    tier = small_tier(tmp_path)
    items = tier.stored["orders", 0]
    tier.path(SegmentId(f"{BROKER}/orders/0", FileSegmentType.COMMIT_LOG, items[5].offset)).unlink()
    findings: list[Finding] = []
    found = table(tier, on_finding=findings.append)
    assert ("orders", 0, 104) in places(found)
    assert ("orders", 0, 105) not in places(found)
    assert findings
    with pytest.raises(Corrupt):
        table(tier)


def test_options_survive_pickling() -> None:
    options = ReadOptions(tags=("a",), keys=("k",), body_crcs=False)
    assert pickle.loads(pickle.dumps(options)) == options


def test_messages_of_utf8_that_is_none_are_text_with_replacements(tmp_path: Path) -> None:
    builder = TierBuilder(tmp_path)
    odd = Message("t", b"x", properties=b"TAGS\x01a\xff\x02KEYS\x01k\xe2\x82 l\x02")
    builder.queue("t", 0, [odd, message("t", 0, 1)])
    row = table(builder.built, TYPES).to_pylist()[0]
    assert row["tags"] == "a\ufffd"
    assert row["keys"] == ["k\ufffd", "l"]
    assert dict(row["properties"]) == {"TAGS": "a\ufffd", "KEYS": "k\ufffd l"}
