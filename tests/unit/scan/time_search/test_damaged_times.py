"""A time search reports a damaged message with a wrong store time if its range includes the true
time."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from tests.kit.command_line import tieredstore as command
from tests.kit.growing_tier import START_MS, GrowingTier
from tieredstore.contracts.segment import FileSegmentType

COUNT, STEP_MS = 9, 10


def damage(tier: GrowingTier, number: int, time_ms: int) -> None:
    """Change the body CRC and the store time of message `number`."""
    [log] = tier.segments("orders", 0, FileSegmentType.COMMIT_LOG)
    [units] = tier.segments("orders", 0, FileSegmentType.CONSUME_QUEUE)
    place = int.from_bytes(units.read_bytes()[20 * number :][:8], "big")
    data = bytearray(log.read_bytes())
    data[place + 8] ^= 1
    data[place + 56 : place + 64] = struct.pack(">q", time_ms)
    log.write_bytes(data)


@pytest.mark.parametrize("time_ms", [0, 2**62, START_MS + 45])
@pytest.mark.parametrize("number", [0, 4, COUNT - 1])
def test_j44_a_wrong_time_hides_no_damage(tmp_path: Path, number: int, time_ms: int) -> None:
    tier = GrowingTier(tmp_path)
    times = [START_MS + STEP_MS * offset for offset in range(COUNT)]
    tier.append("orders", 0, COUNT, times_ms=times)
    tier.metadata.flush()
    damage(tier, number, time_ms)
    cat = ("cat", "--tier", tier.url, "--topic", "orders", "--output", "ndjson")
    for begin in range(COUNT):
        for end in range(begin + 1, COUNT + 1):
            bounds = ("--since", times[begin], "--until", START_MS + STEP_MS * end)
            ran = command(*cat, *bounds, "--on-damage", "skip")
            good = [offset for offset in range(begin, end) if offset != number]
            assert [row["queue_offset"] for row in ran.rows] == good
            if begin <= number < end:
                assert ran.code == 1
