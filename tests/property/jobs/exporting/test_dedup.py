"""Exports that remove duplicates run over a growing tier, and are compared with a loop over a
dict."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kit.growing_tier import START_MS, GrowingTier
from tests.kit.jobs.export import Export, Place
from tieredstore.jobs.exporting.dedup import drops
from tieredstore.jobs.exporting.request import Format

Message = tuple[str | None, int]
Piece = tuple[str, int, list[Message]]
MESSAGES = st.lists(
    st.tuples(st.sampled_from([None, "a", "b", "c", "d"]), st.integers(0, 60)),
    min_size=1,
    max_size=8,
)
RUNS = st.lists(
    st.lists(
        st.tuples(st.sampled_from(["orders", "other"]), st.integers(0, 2), MESSAGES),
        min_size=1,
        max_size=4,
    ),
    min_size=1,
    max_size=3,
)


class Oracle:
    """Expected content of the target: for each key, the times of all exported messages."""

    def __init__(self, window: int) -> None:
        self._window = window
        self._offsets: Counter[tuple[str, int]] = Counter()
        self._times: dict[tuple[str, str], list[int]] = {}
        self.places: Counter[Place] = Counter()

    def add(self, pieces: list[Piece]) -> None:
        new: list[tuple[int, int, int, str, str | None]] = []
        for topic, queue_id, messages in pieces:
            for key, second in messages:
                offset = self._offsets[topic, queue_id]
                self._offsets[topic, queue_id] += 1
                new.append((second, queue_id, offset, topic, key))
        for second, queue_id, offset, topic, key in sorted(new, key=lambda item: item[:3]):
            if key is not None:
                seen = self._times.setdefault((topic, key), [])
                is_duplicate = any(abs(second - other) <= self._window for other in seen)
                seen.append(second)
                if is_duplicate:
                    continue
            self.places[topic, queue_id, offset] += 1


@pytest.mark.parametrize("form", list(Format))
@settings(max_examples=10)
@given(RUNS, st.sampled_from([1, 5, 100]), st.sampled_from([2, 1000]))
def test_each_run_adds_what_a_plain_dict_says(
    tmp_path_factory: pytest.TempPathFactory,
    form: Format,
    runs: list[list[Piece]],
    window: int,
    find_records: int,
) -> None:
    root = tmp_path_factory.mktemp("dedup")
    tier, oracle = GrowingTier(root / "source"), Oracle(window)
    exported = Export(root / "out", form, tier)
    rolled: set[tuple[str, int]] = set()
    for pieces in runs:
        for topic, queue_id, messages in pieces:
            if (topic, queue_id) in rolled:
                tier.roll(topic, queue_id)
            rolled.add((topic, queue_id))
            tier.append(
                topic,
                queue_id,
                len(messages),
                uniq_keys=[key for key, _ in messages],
                times_ms=[START_MS + second * 1000 for _, second in messages],
            )
        before = sum(oracle.places.values())
        oracle.add(pieces)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(drops, "FIND_RECORDS", find_records)
            report = exported.run(dedup_window_ms=window * 1000)
        total = sum(len(messages) for _, _, messages in pieces)
        assert exported.places() == oracle.places
        assert report["rows"] == sum(oracle.places.values()) - before
        assert report["duplicates"] == total - report["rows"]
