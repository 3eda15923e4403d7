"""Messages that expire during a scan or its planning are not reported as damage, and hide no other
messages."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import tieredstore
from tests.kit.command_line import tieredstore as command
from tests.kit.growing_tier import START_MS, GrowingTier
from tieredstore.contracts.segment import FileSegment, SegmentProvider
from tieredstore.contracts.wrapping import WrapperProvider, WrapperSegment
from tieredstore.errors import Expired, Invalid
from tieredstore.scan.location import TierLocation
from tieredstore.scan.time_search import search as time_search
from tieredstore.spark.batch import TieredBatchReader
from tieredstore.spark.options import parse_options
from tieredstore.spark.schema import Shape, spark_schema

COLUMNS = ("queue_id", "queue_offset", "body")
SEGMENT = 5
"""Number of messages per segment. The queue has five segments: the first has expired, and two more
expire during the test."""
Place = tuple[int, int]


class Reads(WrapperProvider):
    """Calls `do` before the read or listing number `at`."""

    def __init__(
        self, provider: SegmentProvider, at: int, do: Callable[[], None], count: list[int]
    ) -> None:
        super().__init__(provider)
        self._at, self._do, self.count = at, do, count

    def note(self) -> None:
        self.count[0] += 1
        if self.count[0] == self._at:
            self._do()

    def wrap_segment(self, segment: FileSegment) -> FileSegment:
        return _Segment(segment, self)

    def list(self, *arguments: Any, **named: Any) -> Any:
        self.note()
        return super().list(*arguments, **named)


class _Segment(WrapperSegment):
    def __init__(self, segment: FileSegment, reads: Reads) -> None:
        super().__init__(segment)
        self._reads = reads

    def read(self, position: int, length: int) -> memoryview:
        self._reads.note()
        return super().read(position, length)


def scan(tier: GrowingTier, **arguments: Any) -> list[Place]:
    found = tieredstore.open(tier.url).scan("orders", columns=COLUMNS, **arguments).to_arrow()
    return [(row["queue_id"], row["queue_offset"]) for row in found.to_pylist()]


def cat(tier: GrowingTier, *arguments: str) -> list[Place]:
    ran = command("cat", "--tier", tier.url, "--topic", "orders", *arguments, "--output", "ndjson")
    if ran.code == 4 and " expired " in ran.err:
        raise Expired(ran.err)
    assert ran.code == 0, ran.err
    return [(row["queue_id"], row["queue_offset"]) for row in ran.rows]


def spark(tier: GrowingTier, **options: str) -> list[Place]:
    given = parse_options({"path": tier.url, "subscribe": "orders", **options})
    reader = TieredBatchReader(given, Shape.of(spark_schema(COLUMNS), COLUMNS))
    batches = (batch for one in reader.partitions() for batch in reader.read(one))
    try:
        rows = [row for batch in batches for row in batch.to_pylist()]
    except Invalid as error:
        if " expired " not in str(error):
            raise
        raise Expired(str(error)) from error  # Spark reports how to continue without them
    return [(row["queue_id"], row["queue_offset"]) for row in rows]


def export(tier: GrowingTier, **arguments: Any) -> list[Place]:
    target = tier.root / "out"
    tieredstore.open(tier.url).export(target, work=tier.root / "work", **arguments)
    tables = [pq.read_table(path) for path in target.glob("topic=*/day=*/*.parquet")]
    return [(row["queue_id"], row["queue_offset"]) for one in tables for row in one.to_pylist()]


FACES: dict[str, Callable[[GrowingTier], list[Place]]] = {
    "scan": scan,
    "scan by offsets": lambda tier: scan(tier, from_offset=0, until_offset=99),
    "scan by times": lambda tier: scan(tier, since=START_MS),
    "scan by keys": lambda tier: scan(tier, keys=[f"KEY-{number}" for number in range(25)]),
    "cat": cat,
    "cat --reverse": lambda tier: cat(tier, "--reverse"),
    "cat --tail": lambda tier: cat(tier, "--tail", "99"),
    "spark": spark,
    "spark by times": lambda tier: spark(tier, startingTimestamp=str(START_MS)),
    "export": export,
    "export --since": lambda tier: export(tier, since=START_MS),
}


@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize("read_whole_bytes", [8 << 20, 1])
@pytest.mark.parametrize("step", [4, pytest.param(1, marks=pytest.mark.slow)])
def test_j72_expiry_at_any_read_is_told_and_hides_nothing(
    tmp_path: Path, face: str, read_whole_bytes: int, step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Expiry at any read of a scan is reported and hides no other messages."""
    monkeypatch.setattr(time_search, "READ_WHOLE_BYTES", read_whole_bytes)
    connect = TierLocation.connect
    told = 0
    for at in range(step, 60, step):
        tier, count = GrowingTier(tmp_path / str(at)), [0]
        for _ in range(5):
            tier.append("orders", 0, SEGMENT)
            tier.roll("orders", 0)
        tier.append("orders", 1, 4)
        tier.expire("orders", 0)

        def expire(tier: GrowingTier = tier) -> None:
            tier.expire("orders", 0)
            tier.expire("orders", 0)

        def connected(
            self: TierLocation, at: int = at, do: Any = expire, count: list[int] = count
        ) -> SegmentProvider:
            return Reads(connect(self), at, do, count)

        monkeypatch.setattr(TierLocation, "connect", connected)
        try:
            found = FACES[face](tier)
        except Expired:
            told += 1
            continue
        places = [(1, number) for number in range(4)]
        left = {(0, number) for number in range(3 * SEGMENT, 5 * SEGMENT)}.union(places)
        whole = {(0, number) for number in range(SEGMENT, 5 * SEGMENT)}.union(places)
        assert len(found) == len(set(found)), at
        assert left <= set(found) <= whole, at
        if count[0] < at:
            break
    else:
        pytest.fail("it never came to its end")
    assert told
