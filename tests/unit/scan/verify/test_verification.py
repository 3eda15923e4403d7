"""`verify` finds all detectable damage, and reports nothing for an undamaged tier."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.kit.tier_builder import (
    BROKER,
    SLOTS,
    BuiltTier,
    TierBuilder,
    flip,
    message,
    small_tier,
)
from tieredstore.contracts.segment import FileSegmentType, SegmentId
from tieredstore.message.consume_queue import UNIT_SIZE
from tieredstore.message.index.tiered import COMPACTED_ITEM_SIZE, HEADER_SIZE, SLOT_SIZE
from tieredstore.scan.catalogue import SegmentExtent
from tieredstore.scan.findings import Finding
from tieredstore.scan.verify.verification import verify

LOG, QUEUE, INDEX = (
    FileSegmentType.COMMIT_LOG,
    FileSegmentType.CONSUME_QUEUE,
    FileSegmentType.INDEX,
)
INDEX_ID = SegmentId(f"{BROKER}/rmq_sys_INDEX/0", INDEX, 0)


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> BuiltTier:
    return small_tier(tmp_path_factory.mktemp("sound"))


@pytest.fixture
def tier(tmp_path: Path) -> BuiltTier:
    return small_tier(tmp_path)


def log_id(tier: BuiltTier, topic: str, queue_id: int, number: int) -> tuple[SegmentId, int]:
    """Return the commit log segment of a message, and the message's position in it."""
    item = tier.stored[topic, queue_id][number]
    base = tier.stored[topic, queue_id][number - number % 5].offset
    return SegmentId(f"{BROKER}/{topic}/{queue_id}", LOG, base), item.offset - base


def queue_id_of(topic: str, queue_id: int, base: int) -> SegmentId:
    return SegmentId(f"{BROKER}/{topic}/{queue_id}", QUEUE, base)


@pytest.mark.parametrize("with_state", [False, True])
def test_a_sound_tier_has_no_findings_and_all_is_counted(
    sound: BuiltTier, with_state: bool
) -> None:
    report, findings = sound.verify(with_state=with_state)
    assert findings == []
    assert (report.queues, report.messages, report.index_items) == (3, 22, 44)
    assert (report.segments, report.index_segments) == (12, 1)
    records = [item.record for items in sound.stored.values() for item in items]
    assert report.message_bytes == sum(map(len, records))


FIELDS = {
    "size": range(4),
    "magic": range(4, 8),
    "body CRC": range(8, 12),
    "queue id": range(12, 16),
    "queue offset": range(20, 28),
    "physical offset": range(28, 36),
}


@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize("number", [0, 7, 11])
def test_l06_a_flipped_byte_of_a_record_header_is_found_in_its_message(
    sound: BuiltTier, field: str, number: int
) -> None:
    segment, at = log_id(sound, "orders", 0, number)
    path = sound.path(segment)
    for byte in FIELDS[field]:
        flip(path, at + byte, 0x10)
        found = sound.damage()
        flip(path, at + byte, 0x10)
        record = [f for f in found if f.kind.startswith("record-") and f.segment == segment]
        assert record, (field, byte)
        assert all(f.queue_offset == 100 + number for f in record)
        assert all(at <= (f.position or 0) < at + 40 for f in record)


def _sections(tier: BuiltTier, topic: str, number: int) -> dict[str, range]:
    from tieredstore.message.record import decode_record

    item = tier.stored[topic, 0][number]
    sections = decode_record(item.record).sections
    body, topic_at = sections.body_offset, sections.topic_offset
    properties = sections.properties_offset
    return {
        "body length": range(body - 4, body),
        "body": range(body, body + sections.body_length),
        "topic length": range(topic_at - 1, topic_at),
        "topic": range(topic_at, topic_at + sections.topic_length),
        "properties length": range(properties - 2, properties),
    }


@pytest.mark.parametrize("topic", ["orders", "over6"])
def test_l06_a_flipped_byte_of_lengths_topic_or_body_is_found(sound: BuiltTier, topic: str) -> None:
    first = 100 if topic == "orders" else 0
    segment, at = log_id(sound, topic, 0, 3)
    for field, places in _sections(sound, topic, 3).items():
        for byte in list(places)[:: max(len(places) // 6, 1)]:
            flip(sound.path(segment), at + byte, 0x04)
            found = sound.damage()
            flip(sound.path(segment), at + byte, 0x04)
            offsets = {f.queue_offset for f in found if f.segment == segment}
            assert offsets == {first + 3}, (field, byte)


def test_l06_a_flipped_byte_of_the_keys_or_tags_of_a_message_is_found(sound: BuiltTier) -> None:
    segment, at = log_id(sound, "orders", 0, 4)
    record = sound.stored["orders", 0][4].record
    for value in (b"orders-0-4", b"Tag1"):
        flip(sound.path(segment), at + record.index(value) + 1, 0x01)
        kinds = {finding.kind for finding in sound.damage()}
        flip(sound.path(segment), at + record.index(value) + 1, 0x01)
        assert kinds == ({"index-item"} if value.startswith(b"orders") else {"unit-tags-code"})


def test_l06_a_store_time_that_is_wrong_by_a_second_or_more_is_found(sound: BuiltTier) -> None:
    segment, at = log_id(sound, "over6", 0, 2)
    for byte in range(6):  # the last two bytes hold a minute
        flip(sound.path(segment), at + 68 + byte, 0x20)
        found = sound.damage()
        flip(sound.path(segment), at + 68 + byte, 0x20)
        assert any(finding.kind == "index-item" for finding in found), byte


def test_l06_unknown_flags_and_bodies_that_do_not_decompress_are_found(sound: BuiltTier) -> None:
    segment, at = log_id(sound, "orders", 0, 1)
    for byte, mask in ((36, 0x40), (39, 0x01)):
        flip(sound.path(segment), at + byte, mask)
        found = sound.damage()
        flip(sound.path(segment), at + byte, mask)
        assert [(f.kind, f.queue_offset) for f in found] == [("record-sys-flag", 101)]


@pytest.mark.parametrize("number", [0, 2, 4])
def test_l06_a_flipped_byte_of_a_unit_is_found(sound: BuiltTier, number: int) -> None:
    segment = queue_id_of("orders", 0, 105 * UNIT_SIZE)
    for byte in range(UNIT_SIZE):
        position = number * UNIT_SIZE + byte
        flip(sound.path(segment), position, 0x40)
        found = sound.damage()
        flip(sound.path(segment), position, 0x40)
        assert 105 + number in {finding.queue_offset for finding in found}, byte


def test_l06_a_flipped_byte_of_an_index_file_is_found(sound: BuiltTier) -> None:
    path = sound.path(INDEX_ID)
    size = path.stat().st_size
    slots = HEADER_SIZE + SLOTS * SLOT_SIZE
    places = [*range(slots), *range(slots, slots + 3 * COMPACTED_ITEM_SIZE), size - 1]
    for position in places:
        flip(path, position, 0x08)
        found = sound.damage()
        flip(path, position, 0x08)
        in_index = [finding for finding in found if finding.segment == INDEX_ID]
        # The low bytes of the two times are the only ones: see below.
        if position in (11, 19):
            continue
        assert in_index, position


def test_l06_the_times_of_an_index_header_are_those_of_the_metadata(sound: BuiltTier) -> None:
    path = sound.path(INDEX_ID)
    for position in (11, 19):
        flip(path, position, 0x01)
        found = sound.damage(with_state=True)
        flip(path, position, 0x01)
        assert "metadata-time" in {finding.kind for finding in found}


def test_all_damage_is_reported_not_only_the_first(tier: BuiltTier) -> None:
    for number in (0, 5, 6, 11):
        segment, at = log_id(tier, "orders", 0, number)
        flip(tier.path(segment), at + 8)
    segment, at = log_id(tier, "over6", 0, 5)
    flip(tier.path(segment), at + 8)
    report, findings = tier.verify()
    crc = [finding for finding in findings if finding.kind == "record-body-crc"]
    assert [finding.queue_offset for finding in crc] == [100, 105, 106, 111, 5]
    assert report.messages == 22 - 5


def test_l02_a_truncated_commit_log_segment_names_the_lost_messages(tier: BuiltTier) -> None:
    segment, at = log_id(tier, "orders", 0, 8)
    path = tier.path(segment)
    path.write_bytes(path.read_bytes()[: at + 30])
    found = {finding.kind: finding for finding in tier.damage()}
    assert found["segment-truncated"].segment == segment
    assert found["segment-truncated"].position == at + 30
    assert found["record-missing"].queue_offset == 108
    assert "109" in found["record-missing"].message


def test_l02_the_last_segment_cut_at_every_message_is_found_by_its_units(tier: BuiltTier) -> None:
    segment, at = log_id(tier, "orders", 0, 11)
    path = tier.path(segment)
    whole = path.read_bytes()
    for cut in (at - 1, at, at + 1, len(whole) - 1):
        path.write_bytes(whole[:cut])
        kinds = {finding.kind for finding in tier.damage()}
        path.write_bytes(whole)
        assert "record-missing" in kinds, cut


def test_d15_a_torn_consume_queue_is_found_and_whole_units_are_read(tier: BuiltTier) -> None:
    path = tier.path(queue_id_of("orders", 1, 0))
    path.write_bytes(path.read_bytes()[:-7])
    report, findings = tier.verify()
    torn = [finding for finding in findings if finding.kind == "unit-torn"]
    assert [(finding.position, finding.found) for finding in torn] == [(60, "13")]
    assert report.messages == 21


@pytest.mark.parametrize("with_state", [False, True])
def test_o09_a_missing_segment_is_found(tier: BuiltTier, with_state: bool) -> None:
    middle, _ = log_id(tier, "orders", 0, 5)
    tier.path(middle).unlink()
    found = {finding.kind: finding for finding in tier.damage(with_state=with_state)}
    assert found["record-missing"].queue_offset == 105
    assert "109" in found["record-missing"].message
    if with_state:
        assert found["segment-missing"].segment == middle
    else:
        assert found["segment-truncated"].expected is not None


def test_o09_a_missing_consume_queue_segment_is_damage_not_a_hole(tier: BuiltTier) -> None:
    tier.path(queue_id_of("orders", 0, 105 * UNIT_SIZE)).unlink()
    found = tier.damage()
    assert [(finding.kind, finding.queue_offset) for finding in found] == [("units-missing", 105)]
    assert "105 to 109" in found[0].message


def test_o09_a_missing_index_segment_is_known_from_the_metadata(tier: BuiltTier) -> None:
    tier.path(INDEX_ID).unlink()
    assert [f.kind for f in tier.damage(with_state=True)] == ["segment-missing"]


def test_a_hole_that_the_dispatcher_left_is_a_note(tier: BuiltTier) -> None:
    # The last consume queue segment is moved up, as if 110 to 119 had never been uploaded.
    items = tier.stored["orders", 0][10:]
    path = tier.path(queue_id_of("orders", 0, 110 * UNIT_SIZE))
    log_path = tier.path(log_id(tier, "orders", 0, 10)[0])
    data = bytearray(log_path.read_bytes())
    for index, item in enumerate(items):
        at = item.offset - items[0].offset
        data[at + 20 : at + 28] = (120 + index).to_bytes(8, "big")
    log_path.write_bytes(data)
    segment = tier.provider.open(queue_id_of("orders", 0, 120 * UNIT_SIZE))
    segment.write(0, [path.read_bytes()])
    path.unlink()
    report, findings = tier.verify()
    assert [(f.kind, f.severity.value, f.queue_offset) for f in findings] == [
        ("queue-hole", "note", 110)
    ]
    assert report.messages == 22


def test_units_of_expired_messages_are_no_damage(tier: BuiltTier) -> None:
    first, _ = log_id(tier, "orders", 0, 0)
    tier.path(first).unlink()
    tier.metadata.delete_segment(first)
    tier.metadata.flush()
    for with_state in (False, True):
        report, findings = tier.verify(with_state=with_state)
        assert [(f.kind, f.severity.value) for f in findings] == [("index-item-dangling", "note")]
        assert report.messages == 17


def test_a_unit_among_expired_ones_that_is_damaged_is_found(tier: BuiltTier) -> None:
    first, _ = log_id(tier, "orders", 0, 0)
    tier.path(first).unlink()
    path = tier.path(queue_id_of("orders", 0, 100 * UNIT_SIZE))
    flip(path, UNIT_SIZE + 5)
    assert [(f.kind, f.queue_offset) for f in tier.damage()] == [("unit-order", 101)]


def test_bytes_that_no_unit_names_are_a_note_and_the_rest_is_checked(tier: BuiltTier) -> None:
    segment, _ = log_id(tier, "orders", 0, 11)
    twice = tier.stored["orders", 0][10].record
    with tier.path(segment).open("ab") as file:
        file.write(twice + b"garbage")
    report, findings = tier.verify()
    assert [(f.kind, f.severity.value) for f in findings] == [("bytes-unnamed", "note")]
    assert "1 messages and bytes that are none" in findings[0].message
    assert report.messages == 22


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        (lambda entry: entry.update(size=entry["size"] + 1), "segment-truncated"),
        (lambda entry: entry.update(beginTimestamp=entry["beginTimestamp"] + 1), "metadata-time"),
        (lambda entry: entry.update(endTimestamp=entry["endTimestamp"] - 1), "metadata-time"),
    ],
)
@pytest.mark.parametrize("table", ["commitLog", "consumeQueue", "index"])
def test_l06_sizes_and_times_of_the_metadata_are_compared_with_the_contents(
    tier: BuiltTier, table: str, change: Callable[[dict[str, int]], None], kind: str
) -> None:
    content = json.loads(tier.metadata.path.read_bytes())
    segments = content[f"{table}FileSegmentTable"]
    change(segments[next(iter(segments))][min(segments[next(iter(segments))], key=int)])
    tier.metadata.path.write_text(json.dumps(content))
    assert kind in {finding.kind for finding in tier.damage(with_state=True)}


def test_an_index_segment_that_is_announced_but_not_recorded_is_a_note(tier: BuiltTier) -> None:
    """An index segment without a size in the metadata is reported as a note, not as damage. A
    killed Java broker can leave such a segment."""
    content = json.loads(tier.metadata.path.read_bytes())
    [[entry]] = [table.values() for table in content["indexFileSegmentTable"].values()]
    entry.update(size=0, beginTimestamp=2**63 - 1, endTimestamp=2**63 - 1)
    tier.metadata.path.write_text(json.dumps(content))
    report, findings = tier.verify(with_state=True)
    assert [(f.kind, f.severity.value) for f in findings] == [("metadata-size", "note")]
    assert report.index_items == 44


def test_metadata_without_a_topic_or_queue_of_the_tier_is_damage(tier: BuiltTier) -> None:
    tier.metadata.delete_queue("orders", 1)
    tier.metadata.delete_topic("over6")
    tier.metadata.flush()
    kinds = {finding.kind for finding in tier.damage(with_state=True)}
    assert kinds >= {"metadata-topic-missing", "metadata-queue-missing"}


def test_a_segment_that_the_metadata_does_not_know_is_damage(tier: BuiltTier) -> None:
    segment, _ = log_id(tier, "orders", 0, 5)
    tier.metadata.delete_segment(segment)
    tier.metadata.flush()
    assert "segment-unknown" in {finding.kind for finding in tier.damage(with_state=True)}


def test_another_broker_in_the_same_tier_is_a_note_with_the_state_of_one(tier: BuiltTier) -> None:
    [folder] = (tier.root / "tier").glob(f"*/{BROKER}")
    shutil.copytree(folder, folder.with_name("broker-b"))
    report, findings = tier.verify(with_state=True)
    assert [(f.kind, f.severity.value) for f in findings] == [("broker-foreign", "note")]
    assert report.messages == 22
    report, findings = tier.verify()
    assert (findings, report.messages) == ([], 44)


def test_a_segment_cut_to_nothing_is_known_from_the_metadata(tier: BuiltTier) -> None:
    tier.path(log_id(tier, "orders", 0, 11)[0]).write_bytes(b"")
    assert "segment-truncated" in {finding.kind for finding in tier.damage(with_state=True)}


def test_a_second_copy_of_a_segment_overlaps(tier: BuiltTier) -> None:
    source = tier.path(log_id(tier, "orders", 0, 0)[0])
    whole = source.read_bytes()
    source.write_bytes(whole + whole[:50])
    assert "segment-overlap" in {finding.kind for finding in tier.damage()}


def test_empty_index_segments_of_older_brokers_are_no_damage(tier: BuiltTier) -> None:
    path = tier.path(INDEX_ID)
    size = path.stat().st_size
    tier.provider.open(SegmentId(INDEX_ID.path, INDEX, size)).write(0, [b""])
    shutil.copy(path, path.with_suffix(".tmp"))
    path.with_suffix(".tmp").unlink()
    assert tier.damage() == []


@pytest.mark.parametrize(
    ("keys", "is_sound"),
    [("a  b", True), (" a", True), ("  a b ", True), ("a b  ", False), ("a", False)],
)
def test_the_empty_keys_that_java_indexes_are_no_damage(
    tmp_path: Path, keys: str, is_sound: bool
) -> None:
    builder = TierBuilder(tmp_path)
    properties = {"KEYS": keys}
    builder.queue(
        "orders", 0, [message("orders", 0, n, properties=properties, keys=()) for n in range(2)]
    )
    builder.index(with_empty_keys=True)
    report, findings = builder.built.verify()
    assert [found.kind for found in findings] == ([] if is_sound else ["index-item"] * 2)
    assert (report.messages, report.index_items > 0) == (2, True)


def test_a_tier_that_grows_during_the_listing_looks_sound(tier: BuiltTier) -> None:
    """A tier that grows during its listing is reported as undamaged."""
    whole = tier.catalogue(with_state=True)
    queues = []
    for queue in whole.queues:
        log = list(queue.commit_log)
        if len(log) > 1:
            log[-2:] = [replace(log[-2], size_bytes=log[-2].size_bytes - 200)]
        else:
            log[-1] = replace(log[-1], size_bytes=log[-1].size_bytes - 200)
        queues.append(replace(queue, commit_log=tuple(log)))
    torn = [replace(queue, commit_log=_shortened(queue.commit_log)) for queue in whole.queues]
    for seen in (queues, torn):
        findings: list[Finding] = []
        report = verify(tier.provider, replace(whole, queues=tuple(seen)), findings.append)
        assert findings == []
        assert report.messages == 22


def _shortened(log: tuple[SegmentExtent, ...]) -> tuple[SegmentExtent, ...]:
    """Return a commit log's listing in which the first segment was listed earlier, while it was
    written."""
    return (replace(log[0], size_bytes=log[0].size_bytes // 2), *log[1:])
