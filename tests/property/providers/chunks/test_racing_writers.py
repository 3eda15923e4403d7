"""Writers race for one segment. Their acknowledged writes together cover the segment exactly."""

from __future__ import annotations

import random
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.kit.memory_chunks import chunk_provider
from tieredstore.contracts.objects import ClientLimits
from tieredstore.contracts.segment import FencedWrite, FileSegmentType, SegmentId, Written
from tieredstore.errors import Busy, Fenced
from tieredstore.providers.chunks.provider import ChunkProvider
from tieredstore.providers.chunks.upkeep.policy import MergePolicy
from tieredstore.providers.memory.objects import MemoryObjectClient
from tieredstore.testing.provider.samples import content

LOG = SegmentId("broker-a/TopicA/0", FileSegmentType.COMMIT_LOG, 0)
WRITERS = 4
Acknowledged = list[tuple[int, bytes]]


class JitteryClient(MemoryObjectClient):
    """A client whose requests take random times, so that threads interleave in many ways."""

    def request(self, operation: str, key: str) -> None:
        time.sleep(random.random() / 2_000)


def tier_on(store: MemoryObjectClient, **settings: Any) -> ChunkProvider:
    client = JitteryClient(beside=store, limits=ClientLimits(min_part_bytes=100))
    policy = MergePolicy(fan_in=4, target_bytes=150, part_bytes=100, free_bytes=30, settle_ms=0)
    return chunk_provider(client, policy=policy, **settings)


def assert_tiles(
    store: MemoryObjectClient, acknowledged: Acknowledged, untold: Acknowledged | None = None
) -> None:
    """Check that the writes cover the segment exactly. `untold` has the writes without a reply.
    Bytes that are not from an acknowledged write must be from a write without a reply."""
    segment = tier_on(store).open(LOG)
    whole = bytes(segment.read(0, segment.size()))
    told = dict(acknowledged)
    assert len(told) == len(acknowledged), "two writes of one position were acknowledged"
    position = used = 0
    while position < len(whole):
        pieces = [told[position]] if position in told else _at(untold or [], position)
        used += position in told
        piece = next((found for found in pieces if whole.startswith(found, position)), None)
        assert piece is not None, f"no writer wrote the bytes at {position}"
        position += len(piece)
    assert position == len(whole)
    assert used == len(acknowledged), "an acknowledged write is not in the log"


def _at(writes: Acknowledged, position: int) -> list[bytes]:
    return [data for start, data in writes if start == position]


@pytest.mark.parametrize("seals", [False, True])
def test_four_racing_writers_and_a_seal(seals: bool) -> None:
    store = MemoryObjectClient()
    acknowledged: Acknowledged = []

    def race(number: int) -> str:
        segment = tier_on(store).open(LOG)
        for turn in range(40):
            if seals and number == 0 and turn == 25:
                segment.seal()
                return "sealed"
            position = segment.size()
            data = content(1 + (number + turn) % 7, number * 31 + turn)
            result = segment.write(position, [data])
            if isinstance(result, Written):
                acknowledged.append((position, data))
            elif isinstance(result, FencedWrite) and result.writer == "the seal":
                return "met the seal"
        return "done"

    with ThreadPoolExecutor(WRITERS) as pool:
        ends = list(pool.map(race, range(WRITERS)))
    assert_tiles(store, acknowledged)
    if seals:
        assert ends[0] == "sealed"
        last = tier_on(store).open(LOG)
        assert isinstance(last.write(last.size(), [b"x"]), FencedWrite)


@pytest.mark.parametrize("grace_ms", [0, 50])
def test_w01_writers_that_take_over_from_one_another(grace_ms: int) -> None:
    """Several writers take over from each other, merge, and collect garbage with little or no
    delay. No acknowledged write is lost."""
    store = MemoryObjectClient()
    acknowledged: Acknowledged = []
    untold: Acknowledged = []

    def race(number: int) -> int:
        fenced_count = 0
        for _ in range(6):
            tier = tier_on(store, grace_ms=grace_ms)
            try:
                epoch = tier.acquire_writer("broker-a", take_over=True)
                segment = tier.open(LOG)
                position = segment.size()
                for turn in range(12):
                    data = content(1 + (number + turn) % 60, number * 31 + turn)
                    untold.append((position, data))
                    result = segment.write(position, [data])
                    if isinstance(result, Written):
                        epoch.confirm()
                        acknowledged.append((position, data))
                        position += len(data)
                    elif isinstance(result, FencedWrite) and not result.stale:
                        break
                    else:
                        position = segment.size()
                    if turn % 4 == 3:
                        tier.run_maintenance()
            except (Fenced, Busy):
                fenced_count += 1
        return fenced_count

    with ThreadPoolExecutor(WRITERS) as pool:
        fenced = sum(pool.map(race, range(WRITERS)))
    assert fenced > 0
    assert_tiles(store, acknowledged, untold)
    last = tier_on(store)
    last.acquire_writer("broker-a", take_over=True)
    last.open(LOG).seal()
    last.run_maintenance()
    assert_tiles(store, acknowledged, untold)
