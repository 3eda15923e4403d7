"""What an append costs in requests, whatever is set about times."""

from __future__ import annotations

import pytest

from tests.kit.chunks import Store
from tieredstore.contracts.segment import FileSegmentType, SegmentId, Written

COUNT = 20
TURNS = 5
CLOCKS = pytest.mark.xfail(
    strict=True, reason="a lease of more than half the grace time makes appends listings"
)


@pytest.mark.parametrize(
    ("lease_ms", "grace_ms"),
    [
        (10_000, 120_000),
        (60_000, 120_000),
        pytest.param(10_000, 10_000, marks=CLOCKS),
        pytest.param(120_000, 120_000, marks=CLOCKS),
        pytest.param(600_000, 120_000, marks=CLOCKS),
    ],
)
def test_an_append_of_each_of_many_slow_queues_is_one_put_and_no_listing(
    lease_ms: int, grace_ms: int
) -> None:
    store = Store()
    writer = store.process(lease_ms=lease_ms, grace_ms=grace_ms).take_over()
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
