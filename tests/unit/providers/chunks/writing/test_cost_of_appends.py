"""An append needs one PUT and no listing, for any grace period."""

from __future__ import annotations

import pytest

from tests.kit.chunks import Store
from tieredstore.contracts.segment import FileSegmentType, SegmentId, Written

COUNT = 20
TURNS = 5


@pytest.mark.parametrize("grace_ms", [0, 10_000, 120_000])
def test_an_append_of_each_of_many_slow_queues_is_one_put_and_no_listing(
    grace_ms: int,
) -> None:
    store = Store()
    writer = store.process(grace_ms=grace_ms).take_over()
    queues = [
        SegmentId(f"broker-a/Topic{number}/0", FileSegmentType.COMMIT_LOG, 0)
        for number in range(COUNT)
    ]
    segments = [writer.append(b"first", id=queue) for queue in queues]
    writer.operations()
    for turn in range(1, TURNS + 1):
        for segment in segments:
            store.clock.advance(6_000)
            assert segment.write(5 * turn, [b"other"]) == Written(5 * turn + 5)
    operations = writer.operations()
    assert operations.count("PUT") == COUNT * TURNS
    assert operations.count("LIST") == 0
    assert operations.count("HEAD") <= COUNT * TURNS
