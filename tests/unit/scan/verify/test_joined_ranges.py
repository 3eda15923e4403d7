"""Small queues that are verified together have the same findings as queues verified separately."""

from __future__ import annotations

import zlib
from pathlib import Path
from unittest import mock

import pytest

from tests.kit.tier_builder import BuiltTier, TierBuilder, flip, message
from tieredstore.contracts.segment import FileSegmentType
from tieredstore.message.encoding import Message
from tieredstore.message.sysflag import COMPRESSED
from tieredstore.scan.verify import joined_ranges
from tieredstore.scan.verify.joined_ranges import check_joined
from tieredstore.scan.verify.outcome import RangeOutcome
from tieredstore.scan.verify.queue import plan_queue
from tieredstore.scan.verify.range import RangeVerifier, VerifyRange

TOLD: list[tuple[str, int]] = []


@pytest.fixture(params=[False, True], ids=["plain", "checksums"])
def tier(request: pytest.FixtureRequest, tmp_path: Path) -> BuiltTier:
    """A tier of single-segment queues, one queue with several segments, and one with a compressed
    body."""
    builder = TierBuilder(tmp_path, messages_per_segment=10, checksums=request.param)
    builder.queue("a", 0, [message("a", 0, n) for n in range(3)])
    builder.queue("longer", 0, [message("longer", 0, n) for n in range(2)], first_offset=7)
    builder.queue("longer", 3, [message("longer", 3, n) for n in range(4)])
    builder.queue("many", 0, [message("many", 0, n) for n in range(25)])
    v6 = [message("over6", 0, n, born_host=("fe80::1", 9)) for n in range(2)]
    builder.queue("over6", 0, v6)
    packed = Message.create("packed", zlib.compress(b"body " * 99), sys_flag=COMPRESSED)
    builder.queue("packed", 0, [message("packed", 0, 0), packed])
    builder.built.metadata.flush()
    return builder.built


def ranges_of(tier: BuiltTier, *, with_probes: bool = True) -> list[VerifyRange]:
    return [
        one
        for queue in tier.catalogue().queues
        for one in plan_queue(tier.provider, queue)
        .plan(queue)
        .ranges(1 << 20, with_probes=with_probes)
    ]


def tell(path: str, count_bytes: int) -> None:
    TOLD.append((path, count_bytes))


def check_alone(tier: BuiltTier, one: VerifyRange) -> RangeOutcome:
    return RangeVerifier(tier.provider, one, tell).run()


@pytest.mark.parametrize("with_probes", [False, True])
def test_sound_queues_come_to_what_each_comes_to_alone(tier: BuiltTier, with_probes: bool) -> None:
    ranges = ranges_of(tier, with_probes=with_probes)
    TOLD.clear()
    joined = check_joined(tier.provider, ranges, tell)
    told = list(TOLD)
    found = {one.queue.path: outcome for one, outcome in zip(ranges, joined, strict=True)}
    left = {path.split("/")[1] for path, outcome in found.items() if outcome is None}
    assert left == {"many", "packed"}
    TOLD.clear()
    for one, outcome in zip(ranges, joined, strict=True):
        if outcome is not None:
            assert outcome == check_alone(tier, one)
            assert bool(outcome.probes) == with_probes
    assert told == TOLD


@pytest.mark.parametrize("kind", [FileSegmentType.COMMIT_LOG, FileSegmentType.CONSUME_QUEUE])
@pytest.mark.parametrize("topic", ["longer", "over6"])
def test_a_queue_with_a_wrong_byte_is_left_or_comes_to_the_same(
    tier: BuiltTier, topic: str, kind: FileSegmentType
) -> None:
    ranges = ranges_of(tier)
    [*_, damaged] = [one for one in ranges if one.queue.topic == topic]
    files = damaged.queue
    log = kind is FileSegmentType.COMMIT_LOG
    [extent] = files.commit_log if log else files.consume_queue
    path = tier.path(extent.id)
    for at in range(0, extent.size_bytes, 3 if log else 1):
        flip(path, at, 0x10)
        joined = check_joined(tier.provider, ranges, tell)
        for one, outcome in zip(ranges, joined, strict=True):
            if outcome is None:
                assert one is damaged or one.queue.topic in {"many", "packed"}
            elif one is damaged:
                assert outcome == check_alone(tier, one), at
        flip(path, at, 0x10)


def test_a_clock_that_was_set_back_is_left_to_the_check_of_its_queue(tmp_path: Path) -> None:
    builder = TierBuilder(tmp_path, times=(2_000, 1_000, 3_000, 500, 500))
    builder.queue("back", 0, [message("back", 0, n) for n in range(3)])
    builder.queue("next", 0, [message("next", 0, n) for n in range(2)])
    ranges = ranges_of(builder.built)
    assert [one is None for one in check_joined(builder.built.provider, ranges, tell)] == [
        True,
        False,
    ]


def test_bytes_that_no_unit_names_are_left_to_the_check_of_their_queue(tier: BuiltTier) -> None:
    [first, *_] = ranges_of(tier)
    [extent] = first.queue.commit_log
    with tier.path(extent.id).open("ab") as file:
        file.write(b"left behind")
    [grown, *_] = ranges_of(tier)
    assert check_joined(tier.provider, [grown], tell) == [None]


def test_over_a_network_each_is_checked_alone(tier: BuiltTier) -> None:
    ranges = ranges_of(tier)
    with mock.patch.object(joined_ranges, "waits_for_network", return_value=True):
        assert check_joined(tier.provider, ranges, tell) == [None] * len(ranges)
