"""A rebuild of the metadata reports lost units instead of a hole if a consume queue segment is
missing."""

from __future__ import annotations

from pathlib import Path

from tests.kit.tier_builder import BROKER, TierBuilder, message
from tieredstore.contracts.segment import FileSegmentType, SegmentId
from tieredstore.jobs.metadata.queues import find_queue
from tieredstore.message.consume_queue import UNIT_SIZE


def test_a_missing_segment_is_damage_and_a_hole_is_a_note(tmp_path: Path) -> None:
    builder = TierBuilder(tmp_path)
    messages = [message("orders", 0, n) for n in range(20)]
    builder.queue("orders", 0, messages, hole=(15, 30))
    tier = builder.built
    lost = SegmentId(f"{BROKER}/orders/0", FileSegmentType.CONSUME_QUEUE, 5 * UNIT_SIZE)
    tier.path(lost).unlink()
    found = find_queue(tier.provider, tier.catalogue().queues[0])
    assert [(f.kind, f.severity.value, f.segment) for f in found.findings] == [
        ("units-missing", "damage", lost),
        ("queue-hole", "note", None),
    ]
