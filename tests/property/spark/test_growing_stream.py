"""A stream reads a growing tier that has holes and new topics, with restarts and limits. It is
compared with a list."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kit.growing_tier import GrowingTier
from tests.kit.spark.stream_reader import Offset, latest, reader_of, rows, through_json
from tieredstore.clock import ManualClock

QUEUES = [("busy", 0), ("busy", 1), ("later", 0), ("quiet", 0), ("quiet", 3)]
LIMITS: list[dict[str, str]] = [
    {},
    {"maxOffsetsPerTrigger": "1"},
    {"maxOffsetsPerTrigger": "3"},
    {"maxOffsetsPerTrigger": "8"},
    {"maxBytesPerTrigger": "600"},
    {"maxBytesPerTrigger": "2000", "maxOffsetsPerTrigger": "4"},
]
STEPS = st.one_of(
    st.tuples(st.just("append"), st.sampled_from(QUEUES), st.integers(1, 9)),
    st.tuples(st.just("skip"), st.sampled_from(QUEUES), st.integers(1, 4)),
    st.tuples(st.just("roll"), st.sampled_from(QUEUES)),
    st.tuples(st.just("batch")),
    st.tuples(st.just("batch")),
    st.tuples(st.just("restart"), st.sampled_from(LIMITS)),
)


class Stream:
    """A query, its sink and its checkpoint."""

    def __init__(self, tier: GrowingTier, options: dict[str, str]) -> None:
        self._tier = tier
        self._clock = ManualClock()
        self.found: list[tuple[str, int, int]] = []
        self.restart(options)
        self.offset = through_json(self.reader.initialOffset())

    def restart(self, options: dict[str, str]) -> None:
        self.most = int(options.get("maxOffsetsPerTrigger", 1 << 30))
        self.reader = reader_of(self._tier, self._clock, listInterval="10s", **options)

    def take_batch(self) -> bool:
        """Process one batch. Return whether data was available."""
        self._clock.advance(4000)
        end: Offset = latest(self.reader, self.offset)
        if end == self.offset:
            return False
        batch = rows(self.reader, self.offset, end)
        assert len(batch) <= self.most
        self.found += batch
        self.offset = end
        return True

    def drain(self) -> None:
        idle = 0
        while idle < 4:  # the interval of listings passes
            idle = 0 if self.take_batch() else idle + 1


@settings(max_examples=60)
@given(st.sampled_from(LIMITS), st.lists(STEPS, max_size=25), st.booleans())
def test_a_stream_gives_each_message_once_and_in_order(
    tmp_path_factory: pytest.TempPathFactory,
    limit: dict[str, str],
    steps: list[Any],
    has_state: bool,
) -> None:
    tier = GrowingTier(tmp_path_factory.mktemp("tier"))
    expected = [("busy", 0, n) for n in tier.append("busy", 0, 2)]
    tier.metadata.flush()
    state = {"state": str(tier.root / "state")} if has_state else {}
    stream = Stream(tier, {**limit, **state})
    for step in steps:
        match step:
            case ("append", (topic, queue_id), count):
                expected += [(topic, queue_id, n) for n in tier.append(topic, queue_id, count)]
                tier.metadata.flush()
            case ("skip", (topic, queue_id), count) if (topic, queue_id) in tier._queues:
                tier.skip(topic, queue_id, count)
            case ("roll", (topic, queue_id)) if (topic, queue_id) in tier._queues:
                tier.roll(topic, queue_id)
            case ("batch",):
                stream.take_batch()
            case ("restart", options):
                stream.restart({**options, **state})
            case _:
                pass
    stream.drain()
    assert sorted(stream.found) == sorted(expected)
    for key in QUEUES:
        of_queue = [row[2] for row in stream.found if row[:2] == key]
        assert of_queue == sorted(of_queue)
