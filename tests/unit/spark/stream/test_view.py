"""Tests of `end_within`, the queue offset at which a batch with a byte limit ends."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kit.growing_tier import GrowingTier
from tests.kit.spark.stream_reader import reader_of
from tieredstore.contracts.segment import FileSegmentType


@pytest.fixture
def tier(tmp_path: Path) -> GrowingTier:
    """A queue with messages 0 to 3 and 6 to 9, all of the same size. Messages 4 and 5 are a
    hole."""
    tier = GrowingTier(tmp_path)
    tier.append("orders", 0, 4)
    tier.skip("orders", 0, 2)
    tier.append("orders", 0, 4)
    return tier


def test_as_many_messages_as_fit_are_within(tier: GrowingTier) -> None:
    [view] = reader_of(tier)._look().values()
    size = view.log_bytes(0, 1)
    assert view.log_bytes(0, 10) == 8 * size
    for start, end, fit, expected in (
        (0, 10, 2, 2),
        (0, 10, 4, 6),  # to the end of the hole, which has no bytes
        (0, 4, 4, 4),
        (0, 10, 6, 8),
        (3, 10, 3, 8),
        (5, 10, 3, 9),
        (0, 10, 8, 10),
        (0, 3, 8, 3),
    ):
        assert view.end_within(start, end, fit * size) == expected
        assert view.end_within(start, end, fit * size + size - 1) == expected


@pytest.mark.parametrize(("start", "expected"), [(0, 1), (3, 4), (4, 7), (5, 7), (9, 10)])
@pytest.mark.parametrize("size_bytes", [0, 1, 100])
def test_one_message_is_always_within(
    tier: GrowingTier, start: int, expected: int, size_bytes: int
) -> None:
    """A batch always contains at least one message, even if it is larger than the limit."""
    [view] = reader_of(tier)._look().values()
    assert view.log_bytes(start, expected) > 100
    assert view.end_within(start, 10, size_bytes) == expected


def test_one_message_of_those_whose_units_are_lost_is_always_within(tmp_path: Path) -> None:
    """A batch always includes at least one message with lost units, so that it fails instead of
    stalling the stream."""
    tier = GrowingTier(tmp_path)
    for number in range(3):
        if number:
            tier.roll("orders", 0)
        tier.append("orders", 0, 5)
    tier.segments("orders", 0, FileSegmentType.CONSUME_QUEUE)[1].unlink()
    [view] = reader_of(tier)._look().values()
    assert view.lost == [(5, 10)]
    assert view.end_within(5, 15, 1) == 6
