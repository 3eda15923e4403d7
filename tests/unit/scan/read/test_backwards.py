"""Tests of reading a range backwards from its end."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.kit.growing_tier import START_MS, GrowingTier
from tieredstore.errors import Corrupt
from tieredstore.message.hashes import tags_code
from tieredstore.scan.findings import Finding
from tieredstore.scan.listing import load_catalogue
from tieredstore.scan.plan import ALL, ScanBounds, ScanRange, plan
from tieredstore.scan.read import batches
from tieredstore.scan.read.batch import UnitRun
from tieredstore.scan.read.batches import read_batches, read_batches_backwards


@pytest.fixture
def tier(tmp_path: Path) -> GrowingTier:
    """A tier with one queue of 300 messages in three segments."""
    tier = GrowingTier(tmp_path)
    for _ in range(3):
        tier.append("orders", 0, 100)
        tier.roll("orders", 0)
    return tier


def whole(tier: GrowingTier, bounds: ScanBounds = ALL) -> ScanRange:
    [found] = plan(tier.provider, load_catalogue(tier.provider).queues, bounds)
    return found


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("tags_codes", [None, frozenset({tags_code("T1")})])
@pytest.mark.parametrize("bounds", [ALL, ScanBounds(from_offset=20, since_ms=START_MS + 70_000)])
def test_it_is_the_forward_read_from_the_other_side(
    tier: GrowingTier, ahead: bool, tags_codes: frozenset[int] | None, bounds: ScanBounds
) -> None:
    one = whole(tier, bounds)
    backwards = [
        batch.queue_offsets.tolist()
        for batch in read_batches_backwards(
            tier.provider, one, tags_codes=tags_codes, batch_bytes=2000, first_units=7, ahead=ahead
        )
    ]
    forwards = [
        offset
        for batch in read_batches(tier.provider, one, tags_codes=tags_codes)
        for offset in batch.queue_offsets.tolist()
    ]
    assert len(forwards) > 70
    assert len(backwards) > 10
    assert [offset for batch in reversed(backwards) for offset in batch] == forwards


def test_the_end_alone_is_read(tier: GrowingTier, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []

    def count(reader: object, run: UnitRun, *rest: object, **more: object) -> object:
        read.append(len(run.queue_offsets))
        return checked(reader, run, *rest, **more)  # type: ignore[arg-type]

    checked = batches.read_checked_run
    monkeypatch.setattr(batches, "read_checked_run", count)
    found = read_batches_backwards(tier.provider, whole(tier), first_units=5, ahead=False)
    assert next(found).queue_offsets.tolist() == [295, 296, 297, 298, 299]
    assert read == [5]
    found.close()


def test_damage_is_told_and_left_out(tier: GrowingTier) -> None:
    from tieredstore.contracts.segment import FileSegmentType

    path = tier.segments("orders", 0, FileSegmentType.COMMIT_LOG)[1]
    data = bytearray(path.read_bytes())
    data[4] ^= 1  # the magic of message 100
    path.write_bytes(data)
    findings: list[Finding] = []
    found = read_batches_backwards(tier.provider, whole(tier), on_finding=findings.append)
    offsets = {offset for batch in found for offset in batch.queue_offsets.tolist()}
    assert offsets == set(range(300)) - {100}
    assert [finding.queue_offset for finding in findings] == [100]
    with pytest.raises(Corrupt):
        list(read_batches_backwards(tier.provider, whole(tier)))


def test_lost_units_are_told(tier: GrowingTier) -> None:
    one = whole(tier)
    lost = replace(one, from_offset=0, until_offset=301)
    findings: list[Finding] = []
    list(read_batches_backwards(tier.provider, lost, on_finding=findings.append))
    assert [(finding.queue_offset, finding.messages) for finding in findings] == [(300, 1)]
