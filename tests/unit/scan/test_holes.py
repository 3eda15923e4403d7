"""Every reader reports lost units as damage, but not holes that the dispatcher left."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import tieredstore
from tests.kit.command_line import tieredstore as run
from tests.kit.growing_tier import START_MS, GrowingTier
from tests.kit.tier_builder import BROKER, BuiltTier, TierBuilder, message
from tieredstore.contracts.metadata_store import STATUS_DELETED
from tieredstore.contracts.segment import FileSegmentType, SegmentId
from tieredstore.errors import Corrupt
from tieredstore.message.consume_queue import UNIT_SIZE
from tieredstore.scan.extents import QueueReader
from tieredstore.scan.findings import Finding, Severity
from tieredstore.scan.holes import find_lost_units
from tieredstore.scan.listing import catalogue_of, gather
from tieredstore.scan.read.tail import find_committed_end

PATH = f"{BROKER}/orders/0"
COLUMNS = [["queue_offset"], ["queue_offset", "body"]]
"""Columns that need only the consume queue, and columns that also need the commit log."""


def units(first: int) -> SegmentId:
    return SegmentId(PATH, FileSegmentType.CONSUME_QUEUE, first * UNIT_SIZE)


def log(tier: BuiltTier, number: int) -> SegmentId:
    offset = tier.stored["orders", 0][number].offset
    return SegmentId(PATH, FileSegmentType.COMMIT_LOG, offset)


@pytest.fixture
def tier(tmp_path: Path) -> BuiltTier:
    """A tier with messages 0 to 19, five per segment."""
    builder = TierBuilder(tmp_path)
    builder.queue("orders", 0, [message("orders", 0, n) for n in range(20)])
    builder.built.metadata.flush()
    return builder.built


def read(tier: BuiltTier, *, with_state: bool = False, **given: Any) -> list[int]:
    opened = tieredstore.open(tier.url, state=tier.state if with_state else None)
    return sorted(opened.scan("orders", **given).to_arrow()["queue_offset"].to_pylist())


@pytest.mark.parametrize("columns", COLUMNS)
@pytest.mark.parametrize("with_state", [False, True])
def test_a_missing_consume_queue_segment_is_an_error_with_its_name(
    tier: BuiltTier, columns: list[str], with_state: bool
) -> None:
    tier.path(units(5)).unlink()
    with pytest.raises(Corrupt) as raised:
        read(tier, with_state=with_state, columns=columns)
    assert str(units(5)) in str(raised.value)
    assert "messages 5 to 9" in str(raised.value)


@pytest.mark.parametrize("columns", COLUMNS)
def test_who_goes_on_is_told_once_and_gets_the_rest(tier: BuiltTier, columns: list[str]) -> None:
    tier.path(units(5)).unlink()
    found: list[Finding] = []
    rows = read(tier, columns=columns, on_finding=found.append)
    assert rows == [*range(5), *range(10, 20)]
    assert [(f.kind, f.segment, f.queue_offset, f.messages) for f in found] == [
        ("units-missing", units(5), 5, 5)
    ]


def test_a_part_of_the_offsets_that_are_lost_is_an_error(tier: BuiltTier) -> None:
    tier.path(units(5)).unlink()
    with pytest.raises(Corrupt, match="messages 7 to 8"):
        read(tier, columns=["queue_offset"], from_offset=7, until_offset=9)
    assert read(tier, columns=["queue_offset"], from_offset=10) == [*range(10, 20)]


def test_cat_stops_at_a_missing_segment(tier: BuiltTier) -> None:
    tier.path(units(5)).unlink()
    outcome = run("cat", "--tier", tier.url, "--topic", "orders", "--output", "ndjson")
    assert outcome.code == 1
    assert str(units(5)) in outcome.err
    assert [row["queue_offset"] for row in outcome.rows] == [*range(5)]


@pytest.mark.parametrize("with_coda", [False, True])
def test_a_hole_that_the_dispatcher_left_is_passed_by_all(tmp_path: Path, with_coda: bool) -> None:
    builder = TierBuilder(tmp_path)
    messages = [message("orders", 0, n) for n in range(10)]
    builder.queue("orders", 0, messages, hole=(5, 100), with_coda=with_coda)
    builder.built.metadata.flush()
    tier = builder.built
    for with_state in (False, True):
        rows = read(tier, with_state=with_state, columns=["queue_offset", "body"])
        assert rows == [*range(5), *range(105, 110)]
        assert tier.damage(with_state=with_state) == []
        kinds = [finding.kind for finding in tier.verify(with_state=with_state)[1]]
        assert kinds == ["queue-hole"]


def test_a_hole_in_front_of_which_all_has_expired_is_passed(tmp_path: Path) -> None:
    builder = TierBuilder(tmp_path)
    builder.queue("orders", 0, [message("orders", 0, n) for n in range(15)])
    tier = builder.built
    # The log of the first two segments has expired, and of the queue one in the middle.
    for number in (0, 5):
        tier.path(log(tier, number)).unlink()
    tier.path(units(5)).unlink()
    assert read(tier, columns=["queue_offset", "body"]) == [*range(10, 15)]


@pytest.mark.parametrize("damaged", [5, 6, 11, 12, 13, 17])
def test_a_damaged_unit_does_not_pass_for_one_that_expired(tmp_path: Path, damaged: int) -> None:
    """A damaged unit is not treated as one of an expired message. Otherwise all messages before it
    would be hidden."""
    builder = TierBuilder(tmp_path, messages_per_segment=25)
    builder.queue("orders", 0, [message("orders", 0, n) for n in range(25)])
    tier = builder.built
    whole = tier.path(log(tier, 0))
    start = tier.stored["orders", 0][5].offset
    segment = tier.provider.open(SegmentId(PATH, FileSegmentType.COMMIT_LOG, start))
    segment.write(0, [whole.read_bytes()[start:]])
    whole.unlink()
    path = tier.path(units(0))
    data = bytearray(path.read_bytes())
    data[damaged * UNIT_SIZE : (damaged + 1) * UNIT_SIZE] = bytes(UNIT_SIZE)
    path.write_bytes(data)
    with pytest.raises(Corrupt, match=f"queue offset {damaged}"):
        read(tier, columns=["queue_offset"])
    found: list[Finding] = []
    rows = read(tier, columns=["queue_offset"], on_finding=found.append)
    assert rows == [n for n in range(5, 25) if n != damaged]


def test_a_lost_segment_and_a_hole_behind_it_are_told_apart_by_the_metadata(tmp_path: Path) -> None:
    builder = TierBuilder(tmp_path)
    messages = [message("orders", 0, n) for n in range(15)]
    builder.queue("orders", 0, messages, hole=(10, 90))
    builder.built.metadata.flush()
    tier = builder.built
    tier.path(units(5)).unlink()
    [queue] = tier.catalogue(with_state=True).queues
    with QueueReader(tier.provider, queue) as reader:
        assert find_lost_units(reader) == [(5, 10)]
    [queue] = tier.catalogue().queues
    with QueueReader(tier.provider, queue) as reader:
        assert find_lost_units(reader) == [(5, 100)]


@pytest.mark.parametrize("columns", COLUMNS)
@pytest.mark.parametrize("first", [0, 5, 10, 15])
def test_with_a_state_any_missing_segment_is_an_error(
    tier: BuiltTier, columns: list[str], first: int
) -> None:
    for segment in (units(first), log(tier, first)):
        path = tier.path(segment)
        data = path.read_bytes()
        path.unlink()
        with pytest.raises(Corrupt, match=f"{first}"):
            read(tier, with_state=True, columns=columns)
        path.write_bytes(data)
    assert read(tier, with_state=True, columns=columns) == [*range(20)]


@pytest.mark.parametrize("columns", COLUMNS)
def test_with_a_state_a_segment_cut_off_is_an_error(tier: BuiltTier, columns: list[str]) -> None:
    for segment, lost in ((units(15), 2 * UNIT_SIZE), (units(15), 7), (units(5), UNIT_SIZE)):
        path = tier.path(segment)
        data = path.read_bytes()
        path.write_bytes(data[:-lost])
        with pytest.raises(Corrupt) as raised:
            read(tier, with_state=True, columns=columns)
        assert str(segment) in str(raised.value)
        path.write_bytes(data)


def test_with_a_state_a_queue_that_is_gone_is_an_error(tier: BuiltTier) -> None:
    for first in (0, 5, 10, 15):
        tier.path(units(first)).unlink()
    with pytest.raises(Corrupt, match="messages 0 to 19"):
        read(tier, with_state=True, columns=["queue_offset"])
    found: list[Finding] = []
    assert read(tier, with_state=True, columns=["queue_offset"], on_finding=found.append) == []
    assert sum(finding.messages for finding in found) == 20


def test_the_committed_end_is_that_of_the_metadata(tier: BuiltTier) -> None:
    tier.path(log(tier, 15)).unlink()
    ends = []
    for with_state in (False, True):
        [queue] = tier.catalogue(with_state=with_state).queues
        with QueueReader(tier.provider, queue) as reader:
            ends.append(find_committed_end(reader))
    assert ends == [15, 20]


def test_a_segment_that_grows_between_listing_and_metadata_is_whole(tier: BuiltTier) -> None:
    """A segment that grows between the listing and the reading of the metadata is treated as
    complete."""
    path = tier.path(units(15))
    data = path.read_bytes()
    path.write_bytes(data[: 2 * UNIT_SIZE])
    listed = {listing.id: listing for listing in tier.provider.list("")}
    path.write_bytes(data)
    catalogue = catalogue_of(tier.url, gather(tier.provider, listed, tier.metadata), listed)
    assert catalogue.findings == ()
    assert catalogue.queues[0].consume_queue_max_offset == 20


@pytest.mark.parametrize("is_there", [True, False])
def test_segments_that_are_announced_as_deleted_are_nobody_s(
    tier: BuiltTier, is_there: bool
) -> None:
    """Segments that the metadata marks as deleted are ignored. A writer that stops during an expiry
    leaves such entries."""
    gone = [units(0), units(5), log(tier, 0)]
    for number, segment in enumerate(gone):
        entry = tier.metadata.segment(segment)
        assert entry is not None
        entry.status = STATUS_DELETED
        entry.size = 0 if number else entry.size
        tier.metadata.put_segment(entry)
        if not is_there:
            tier.path(segment).unlink()
    tier.metadata.flush()
    report, findings = tier.verify(with_state=True)
    assert report.messages == 10
    assert [found for found in findings if found.severity is Severity.DAMAGE] == []
    told = {found.segment for found in findings if found.kind == "segment-deleted"}
    assert told == (set(gone) if is_there else set())
    assert read(tier, with_state=True) == list(range(10, 20))


@pytest.mark.parametrize("first", [0, 5, 15])
def test_verify_tells_what_the_metadata_has_and_the_tier_lacks_once(
    tier: BuiltTier, first: int
) -> None:
    path = tier.path(units(first))
    data = path.read_bytes()
    path.write_bytes(data[:-UNIT_SIZE])
    cut = [f.kind for f in tier.damage(with_state=True)]
    assert cut.count("segment-truncated") == 1
    path.unlink()
    gone = [(f.kind, f.segment) for f in tier.damage(with_state=True)]
    assert ("segment-missing", units(first)) in gone


@pytest.mark.parametrize("units_gone", [0, 1, 2, 3])
def test_j70_units_of_expired_messages_behind_holes_are_no_damage(
    tmp_path: Path, units_gone: int
) -> None:
    """Units of expired messages after holes are not reported as damage."""
    tier = GrowingTier(tmp_path)
    for _ in range(5):
        tier.append("orders", 0, 4)
        tier.roll("orders", 0)
        tier.skip("orders", 0, 3)
    gone = tier.segments("orders", 0, FileSegmentType.COMMIT_LOG)[:3]
    gone += tier.segments("orders", 0, FileSegmentType.CONSUME_QUEUE)[:units_gone]
    for path in gone:
        path.unlink()
    expected = [*range(21, 25), *range(28, 32)]
    opened = tieredstore.open(tier.url)
    for since in (None, START_MS):
        found = opened.scan("orders", columns=["queue_offset", "body"], since=since).to_arrow()
        assert found["queue_offset"].to_pylist() == expected
    assert opened.scan("orders", columns=["queue_offset"]).count_rows() == 8
    checked = opened.verify()
    assert (checked["messages"], checked["damage"]) == (8, 0)
