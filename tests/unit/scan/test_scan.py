"""Tests of planning and reading ranges: bytes read, division into ranges, and damage."""

from __future__ import annotations

import pickle
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.kit.tier_builder import (
    BROKER,
    CLUSTER,
    BuiltTier,
    TierBuilder,
    flip,
    message,
    small_tier,
)
from tieredstore.contracts.segment import FileSegmentType, SegmentId
from tieredstore.errors import Corrupt, Invalid, TieredStoreError
from tieredstore.message.consume_queue import UNIT_SIZE
from tieredstore.providers.naming import cluster_directory_name, segment_file_name
from tieredstore.scan.catalogue import QueueFiles
from tieredstore.scan.extents import QueueReader
from tieredstore.scan.findings import Finding
from tieredstore.scan.keys.search import find_by_key, find_by_message_id
from tieredstore.scan.listing import load_catalogue
from tieredstore.scan.plan import ScanBounds, ScanRange, plan
from tieredstore.scan.read.batches import read_batches
from tieredstore.scan.rows import COLUMNS, BodyForm, message_row
from tieredstore.scan.time_search.search import find_first
from tieredstore.scan.verify.verification import verify

Key = tuple[str, int, int]


@pytest.fixture(scope="module")
def tier(tmp_path_factory: pytest.TempPathFactory) -> BuiltTier:
    return small_tier(tmp_path_factory.mktemp("scan"))


def ranges(tier: BuiltTier, **bounds: Any) -> list[ScanRange]:
    return list(plan(tier.provider, tier.catalogue().queues, ScanBounds(**bounds)))


def read(tier: BuiltTier, found: list[ScanRange], **options: Any) -> list[Key]:
    return [
        (message.topic, message.queue_id, message.queue_offset)
        for scan_range in found
        for batch in read_batches(tier.provider, scan_range, **options)
        for message in batch.messages()
    ]


def everything(tier: BuiltTier) -> list[Key]:
    return [
        (topic, queue_id, item.queue_offset)
        for (topic, queue_id), items in sorted(tier.stored.items())
        for item in items
    ]


@pytest.mark.parametrize("range_bytes", [1, 300, 1000, 1 << 27])
@pytest.mark.parametrize("batch_bytes", [1, 400, 1 << 22])
def test_ranges_and_batches_of_any_size_give_every_message_once(
    tier: BuiltTier, range_bytes: int, batch_bytes: int
) -> None:
    found = ranges(tier, range_bytes=range_bytes)
    assert read(tier, found, batch_bytes=batch_bytes) == everything(tier)
    records = [item.record for items in tier.stored.values() for item in items]
    assert sum(item.size_bytes for item in found) == sum(map(len, records))
    assert sum(item.count for item in found) == len(records)


def test_ranges_survive_pickling(tier: BuiltTier) -> None:
    found = pickle.loads(pickle.dumps(ranges(tier, range_bytes=500)))
    assert read(tier, found) == everything(tier)
    catalogue = pickle.loads(pickle.dumps(tier.catalogue(with_state=True)))
    assert catalogue.topic_names() == ["orders", "over6"]


def test_batches_stay_within_their_limit(tier: BuiltTier) -> None:
    for scan_range in ranges(tier):
        for batch in read_batches(tier.provider, scan_range, batch_bytes=600):
            assert batch.stored_bytes <= 600 or len(batch) == 1


def test_columns_are_those_of_the_messages(tier: BuiltTier) -> None:
    for scan_range in ranges(tier):
        stored = tier.stored[scan_range.queue.topic, scan_range.queue.queue_id]
        at = 0
        for batch in read_batches(tier.provider, scan_range, batch_bytes=900):
            items = stored[at : at + len(batch)]
            at += len(batch)
            assert batch.queue_offsets.tolist() == [item.queue_offset for item in items]
            assert batch.tags_codes.tolist() == [item.message.tags_code for item in items]
            times = [item.store_timestamp_ms for item in items]
            assert batch.columns.store_timestamps.tolist() == times
            for row, item in enumerate(items):
                assert bytes(batch.message(row).raw) == item.record


def test_rows_have_the_documented_fields(tier: BuiltTier) -> None:
    [first, *_] = ranges(tier)
    [batch, *_] = read_batches(tier.provider, first)
    row = message_row(batch.message(0), BROKER, BodyForm.TEXT)
    assert tuple(row) == COLUMNS
    assert row["body"] == "body 0 of orders/0 "
    assert row["born_host"] == "10.1.2.3:4567"
    assert message_row(batch.message(0), BROKER, BodyForm.NONE)["body"] is None
    assert (
        message_row(batch.message(0), BROKER, BodyForm.BASE64)["body"]
        == "Ym9keSAwIG9mIG9yZGVycy8wIA=="
    )


def test_offsets_bound_what_is_read(tier: BuiltTier) -> None:
    assert read(tier, ranges(tier, from_offset=105, until_offset=107)) == [
        ("orders", 0, 105),
        ("orders", 0, 106),
    ]
    assert ranges(tier, from_offset=10_000) == []
    assert ranges(tier, until_offset=0) == []


def test_times_bound_what_is_read_on_both_sides(tier: BuiltTier) -> None:
    times = {
        (topic, queue_id, item.queue_offset): item.store_timestamp_ms
        for (topic, queue_id), items in tier.stored.items()
        for item in items
    }
    for since in sorted(times.values()):
        for until in (since, since + 1, since + 4_000):
            expected = sorted(key for key, time in times.items() if since <= time < until)
            assert sorted(read(tier, ranges(tier, since_ms=since, until_ms=until))) == expected


def test_the_first_message_at_or_after_a_time(tier: BuiltTier) -> None:
    for queue in tier.catalogue().queues:
        items = tier.stored[queue.topic, queue.queue_id]
        with QueueReader(tier.provider, queue) as reader:
            bounds = reader.min_offset(), reader.max_offset()
            for item in items:
                time_ms, offset = item.store_timestamp_ms, item.queue_offset
                assert find_first(reader, *bounds, since_ms=time_ms) == offset
                behind = offset + 1 if offset + 1 < bounds[1] else None
                assert find_first(reader, *bounds, since_ms=time_ms + 1) == behind
            assert find_first(reader, *bounds, until_ms=items[0].store_timestamp_ms) is None


def test_expired_messages_are_left_out_although_their_units_are_there(tmp_path: Path) -> None:
    tier = small_tier(tmp_path)
    tier.path(SegmentId(f"{BROKER}/orders/0", FileSegmentType.COMMIT_LOG, 0)).unlink()
    [queue] = tier.catalogue().select("orders", 0)
    with QueueReader(tier.provider, queue) as reader:
        assert (reader.min_offset(), reader.max_offset()) == (105, 112)
    found = list(plan(tier.provider, [queue]))
    assert read(tier, found) == [("orders", 0, offset) for offset in range(105, 112)]


def test_an_empty_tier_and_an_empty_queue_have_nothing(tmp_path: Path) -> None:
    tier = TierBuilder(tmp_path).built
    assert tier.catalogue().queues == ()
    assert ranges(tier) == []
    # Java makes the file before it has anything to write.
    folder = (
        tmp_path / "tier" / cluster_directory_name(CLUSTER) / BROKER / "empty" / "0" / "COMMIT_LOG"
    )
    folder.mkdir(parents=True)
    (folder / segment_file_name(0)).touch()
    [queue] = tier.catalogue().queues
    assert ranges(tier) == []
    report, findings = tier.verify()
    assert (report.messages, findings, queue.size_bytes) == (0, [], 0)


def test_a_message_behind_a_coda_of_an_old_writer_is_read(tmp_path: Path) -> None:
    tier = small_tier(tmp_path)
    items = tier.stored["orders", 1]
    segment = SegmentId(f"{BROKER}/orders/1", FileSegmentType.COMMIT_LOG, 0)
    coda = (16).to_bytes(4, "big") + bytes.fromhex("cbd43194") + bytes(8)
    path = tier.path(segment)
    # Units may name the coda itself or the message after it.
    for shift in (0, 16):
        at = items[3].offset
        record = bytearray(items[3].record)
        record[28:36] = (at + 16).to_bytes(8, "big")
        path.write_bytes(b"".join(item.record for item in items[:3]) + coda + record)
        units = tier.path(SegmentId(f"{BROKER}/orders/1", FileSegmentType.CONSUME_QUEUE, 0))
        data = bytearray(units.read_bytes())
        data[60:68] = (at + shift).to_bytes(8, "big")
        units.write_bytes(data)
        [queue] = tier.catalogue().select("orders", 1)
        found = read(tier, list(plan(tier.provider, [queue])))
        assert found == [("orders", 1, offset) for offset in range(4)]


def test_select_names_what_is_there() -> None:
    from tieredstore.providers.memory.provider import MemoryProvider

    catalogue = load_catalogue(MemoryProvider())
    with pytest.raises(Invalid, match="no topic 'x'"):
        catalogue.select("x")
    with pytest.raises(Invalid, match="no broker 'b'"):
        catalogue.select(broker="b")


def test_paths_that_are_no_queue_are_noted(tmp_path: Path) -> None:
    from tieredstore.providers.memory.provider import MemoryProvider

    provider = MemoryProvider()
    for path in ("b/t/x", "b/t/01", "b/t/-1", "b/t"):
        try:
            provider.open(SegmentId(path, FileSegmentType.COMMIT_LOG, 0)).write(0, [b"1"])
        except TieredStoreError:
            continue
    catalogue = load_catalogue(provider)
    assert all(finding.kind == "path-foreign" for finding in catalogue.findings)
    assert {queue.path for queue in catalogue.queues} <= {"b/t/01"}


# Keys


@pytest.mark.parametrize("with_state", [False, True])
def test_every_key_finds_its_message(tier: BuiltTier, with_state: bool) -> None:
    catalogue = tier.catalogue(with_state=with_state)
    for (topic, queue_id), items in tier.stored.items():
        for item in items:
            for key in (*item.message.keys, item.message.uniq_key or ""):
                hits = find_by_key(tier.provider, catalogue, catalogue.queues, topic, key)
                assert (queue_id, item.queue_offset) in {
                    (hit.message.queue_id, hit.message.queue_offset) for hit in hits
                }
                assert all(hit.message.topic == topic for hit in hits)
    assert find_by_key(tier.provider, catalogue, catalogue.queues, "orders", "nothing") == []


def test_key_queries_respect_time_queue_and_limit(tmp_path: Path) -> None:
    builder = TierBuilder(tmp_path)
    for queue_id in (0, 1):
        builder.queue("t", queue_id, [message("t", queue_id, n, keys=["same"]) for n in range(6)])
    builder.index()
    tier = builder.built
    catalogue = tier.catalogue()

    def find(queues: Sequence[QueueFiles], **options: Any) -> list[tuple[int, int]]:
        hits = find_by_key(tier.provider, catalogue, queues, "t", "same", **options)
        return [(hit.message.queue_id, hit.message.queue_offset) for hit in hits]

    both = [(queue_id, offset) for queue_id in (0, 1) for offset in range(6)]
    assert find(catalogue.queues) == both
    assert find(catalogue.select("t", 1)) == both[6:]
    assert len(find(catalogue.queues, limit=5)) == 5
    times = [item.store_timestamp_ms for item in tier.stored["t", 0]]
    assert find(catalogue.queues, since_ms=times[2], until_ms=times[4]) == [(0, 2), (0, 3)]


def test_keys_are_found_on_both_sides_of_a_hole(tmp_path: Path) -> None:
    builder = TierBuilder(tmp_path)
    stored = builder.queue("t", 0, [message("t", 0, n) for n in range(10)], hole=(5, 100))
    builder.index()
    tier = builder.built
    catalogue = tier.catalogue()
    assert catalogue.queues[0].unit_spans() == [(0, 5), (105, 110)]
    for item in stored:
        [key] = item.message.keys
        [hit] = find_by_key(tier.provider, catalogue, catalogue.queues, "t", key)
        assert hit.message.queue_offset == item.queue_offset


def test_d19_items_that_name_other_bytes_are_no_hits(tmp_path: Path) -> None:
    tier = small_tier(tmp_path)
    index = tier.path(SegmentId(f"{BROKER}/rmq_sys_INDEX/0", FileSegmentType.INDEX, 0))
    data = bytearray(index.read_bytes())
    for at in range(28 + 8 * 8, len(data), 28):
        data[at + 12 : at + 20] = (0).to_bytes(8, "big")  # all name the first message
    index.write_bytes(data)
    catalogue = tier.catalogue()
    hits = find_by_key(tier.provider, catalogue, catalogue.queues, "orders", "orders-0-5")
    assert hits == []


def test_message_ids(tier: BuiltTier) -> None:
    catalogue = tier.catalogue()
    item = tier.stored["over6", 0][2]
    [hit] = find_by_message_id(
        tier.provider, catalogue, catalogue.select("over6"), item.message.uniq_key or ""
    )
    assert hit.message.queue_offset == 2
    offset_id = hit.message.offset_message_id
    [again] = find_by_message_id(
        tier.provider, catalogue, catalogue.select("over6"), offset_id.lower()
    )
    assert bytes(again.message.raw) == bytes(hit.message.raw)
    elsewhere = offset_id[:-1] + ("0" if offset_id[-1] != "0" else "1")
    assert find_by_message_id(tier.provider, catalogue, catalogue.queues, elsewhere) == []
    assert find_by_message_id(tier.provider, catalogue, catalogue.queues, "no id") == []


def test_what_is_missing_is_told_where_it_is_searched(tmp_path: Path) -> None:
    tier = small_tier(tmp_path)
    catalogue = tier.catalogue()
    [queue] = catalogue.select("orders", 0)
    item = next(
        item for item in tier.stored["orders", 0] if item.offset == queue.commit_log[1].base_offset
    )
    key = item.message.keys[0]
    places = tier.provider, catalogue, catalogue.select("orders", 0)
    [hit] = find_by_key(*places, "orders", key)
    offset_id = hit.message.offset_message_id
    path = tier.path(queue.commit_log[1].id)
    data = path.read_bytes()
    path.unlink()
    found: list[Finding] = []
    catalogue = tier.catalogue()
    places = tier.provider, catalogue, catalogue.select("orders", 0)
    assert find_by_key(*places, "orders", key, on_finding=found.append) == []
    assert [(f.kind, f.queue_offset) for f in found] == [("record-missing", item.queue_offset)]
    path.write_bytes(data)
    lost = next(e for e in queue.consume_queue if e.base_offset == item.queue_offset * UNIT_SIZE)
    tier.path(lost.id).unlink()
    catalogue = tier.catalogue()
    places = tier.provider, catalogue, catalogue.select("orders", 0)
    found = []
    assert find_by_message_id(*places, offset_id, on_finding=found.append) == []
    assert [(f.kind, f.segment) for f in found] == [("units-missing", lost.id)]


# Damage


@pytest.fixture(scope="module")
def victim(tmp_path_factory: pytest.TempPathFactory) -> BuiltTier:
    return small_tier(tmp_path_factory.mktemp("victim"))


@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(seed=st.integers(0, 2**32))
def test_l06_whatever_is_damaged_nothing_wrong_is_served_and_nothing_crashes(
    victim: BuiltTier, seed: int
) -> None:
    dice = random.Random(seed)
    files = sorted(path for path in (victim.root / "tier").rglob("*") if path.is_file())
    before = {path: path.read_bytes() for path in files}
    try:
        for path in dice.sample(files, dice.randint(1, 3)):
            _damage(path, dice)
        _check_nothing_wrong_is_served(victim)
    finally:
        for path, data in before.items():
            path.write_bytes(data)


def _damage(path: Path, dice: random.Random) -> None:
    data = bytearray(path.read_bytes())
    match dice.randrange(5):
        case 0:
            for _ in range(dice.randint(1, 8)):
                flip(path, dice.randrange(len(data)), dice.randint(1, 255))
        case 1:
            path.write_bytes(data[: dice.randrange(len(data))])
        case 2:
            path.write_bytes(data + dice.randbytes(dice.randint(1, 200)))
        case 3:
            at = dice.randrange(len(data))
            data[at : at + dice.randint(1, 64)] = bytes(dice.randint(1, 64))
            path.write_bytes(data)
        case 4:
            path.unlink()


def _check_nothing_wrong_is_served(tier: BuiltTier) -> None:
    right = {
        (topic, queue_id, item.queue_offset): bytes(item.message.body)
        for (topic, queue_id), items in tier.stored.items()
        for item in items
    }
    catalogue = tier.catalogue()
    findings: list[Finding] = []
    report = verify(tier.provider, catalogue, findings.append)
    assert report.messages <= len(right)
    for queue in catalogue.queues:
        try:
            for scan_range in plan(tier.provider, [queue]):
                for batch in read_batches(tier.provider, scan_range, batch_bytes=500):
                    for row, found in enumerate(batch.messages()):
                        key = (found.topic, found.queue_id, int(batch.queue_offsets[row]))
                        assert bytes(found.body) == right[key]
        except Corrupt:
            assert report.damage
    for topic, wanted in (("orders", "orders-0-5"), ("over6", "over6-0-1")):
        hits = find_by_key(
            tier.provider, catalogue, catalogue.queues, topic, wanted, on_finding=findings.append
        )
        for hit in hits:
            place = (topic, hit.message.queue_id, hit.message.queue_offset)
            assert right.get(place, b"") == bytes(hit.message.body)


def test_i06_units_with_offsets_near_the_limits_do_not_wrap(tmp_path: Path) -> None:
    tier = small_tier(tmp_path)
    path = tier.path(SegmentId(f"{BROKER}/orders/1", FileSegmentType.CONSUME_QUEUE, 0))
    data = bytearray(path.read_bytes())
    whole = bytes(data)
    for offset in (2**63 - 1, 2**63 - 100, -1, -(2**63), 2**31, 2**32):
        for size in (2**31 - 1, -1, 0, -(2**31), 91):
            data[20:32] = offset.to_bytes(8, "big", signed=True) + size.to_bytes(
                4, "big", signed=True
            )
            path.write_bytes(data)
            assert {finding.queue_offset for finding in tier.damage()} >= {1}
    path.write_bytes(whole)
    assert tier.damage() == []
    assert np.iinfo(np.int64).max == 2**63 - 1
