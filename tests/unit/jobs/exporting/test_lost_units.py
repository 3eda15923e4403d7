"""An export fails if segments are missing, and names them. It exports their messages once the
segments are restored."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.kit.growing_tier import GrowingTier
from tests.kit.jobs.export import Export, places_of
from tieredstore.contracts.segment import FileSegmentType
from tieredstore.errors import Corrupt
from tieredstore.jobs.exporting.request import Format
from tieredstore.scan.findings import OnDamage
from tieredstore.scan.location import TierLocation, locate

LOG, UNITS = FileSegmentType.COMMIT_LOG, FileSegmentType.CONSUME_QUEUE


class ExportWithState(Export):
    @property
    def source(self) -> TierLocation:
        return locate(self.tier.url, state=self.tier.root / "state")


@pytest.fixture
def tier(tmp_path: Path) -> GrowingTier:
    """A tier with messages 0 to 19, five per segment."""
    tier = GrowingTier(tmp_path / "source")
    for number in range(4):
        if number:
            tier.roll("orders", 0)
        tier.append("orders", 0, 5)
    tier.metadata.flush()
    return tier


@contextmanager
def without(tier: GrowingTier, type_: FileSegmentType, number: int) -> Iterator[None]:
    path = tier.segments("orders", 0, type_)[number]
    data = path.read_bytes()
    path.unlink()
    yield
    path.write_bytes(data)


@pytest.mark.parametrize("journal", [None, "journal"])
def test_a_missing_segment_fails_the_export_which_takes_it_when_it_is_back(
    exported: Export, journal: str | None
) -> None:
    with without(exported.tier, UNITS, 1), pytest.raises(Corrupt) as raised:
        exported.run(journal=journal)
    assert "broker-a/orders/0/CONSUME_QUEUE@100" in str(raised.value)
    assert "messages 5 to 9" in str(raised.value)
    report = exported.run(journal=journal)
    assert (report["rows"], report["gaps"], report["corrupt_messages"]) == (20, [], 0)
    assert exported.places() == places_of(exported.tier)


def test_a_segment_that_goes_missing_between_two_exports_fails_the_second(
    exported: Export,
) -> None:
    exported.run()
    exported.tier.roll("orders", 0)
    exported.tier.append("orders", 0, 5)
    exported.tier.roll("orders", 0)
    exported.tier.append("orders", 0, 5)
    with without(exported.tier, UNITS, 4), pytest.raises(Corrupt, match="messages 20 to 24"):
        exported.run()
    assert exported.run()["rows"] == 10
    assert exported.places() == places_of(exported.tier)


def test_who_goes_on_has_it_counted(exported: Export) -> None:
    with without(exported.tier, UNITS, 1):
        report = exported.run(on_damage=OnDamage.SKIP)
    assert (report["rows"], report["corrupt_messages"], report["damage"]) == (15, 5, 1)
    assert report["gaps"] == []
    assert "CONSUME_QUEUE@100" in report["findings"][0]
    assert exported.run()["rows"] == 0  # asked to continue, it did


def test_a_hole_that_the_dispatcher_left_is_a_gap_of_the_report(exported: Export) -> None:
    exported.tier.skip("orders", 0, 30)
    exported.tier.append("orders", 0, 5)
    report = exported.run()
    assert report["rows"] == 25
    gap = {"queue": "broker-a/orders/0", "from_offset": 20, "until_offset": 50}
    assert report["gaps"] == [gap]


@pytest.mark.parametrize("type_", [LOG, UNITS])
@pytest.mark.parametrize("number", range(4))
def test_with_a_state_any_missing_segment_fails_the_export(
    tmp_path: Path, tier: GrowingTier, type_: FileSegmentType, number: int
) -> None:
    exported = ExportWithState(tmp_path / "exported", Format.PARQUET, tier)
    with without(tier, type_, number), pytest.raises(Corrupt, match="orders/0"):
        exported.run()
    assert exported.run()["rows"] == 20


def test_with_a_state_a_queue_that_is_gone_fails_the_export(
    tmp_path: Path, tier: GrowingTier
) -> None:
    exported = ExportWithState(tmp_path / "exported", Format.PARQUET, tier)
    for path in tier.segments("orders", 0, UNITS):
        path.unlink()
    with pytest.raises(Corrupt, match="messages 0 to 19"):
        exported.run()
