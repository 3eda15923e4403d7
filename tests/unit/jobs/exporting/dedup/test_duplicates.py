"""The columnar code finds the same duplicates as a loop over a dict."""

from __future__ import annotations

from random import Random

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tieredstore.jobs.exporting.dedup.duplicates import choose_drops
from tieredstore.jobs.exporting.dedup.keys import RECORD, Array

Message = tuple[int, int, int]
"""A message: the two halves of its key's hash, and its store time."""
TIMES = st.integers(0, 30) | st.sampled_from([-(2**63), -(2**62), 2**62, 2**63 - 1])
"""Strategy that draws store times."""
MESSAGES = st.lists(
    st.tuples(st.sampled_from([0, 1, 2**64 - 1]), st.integers(0, 2), TIMES),
    max_size=40,
)


def records(messages: list[Message]) -> Array:
    found = np.zeros(len(messages), RECORD)
    for number, (high, low, time_ms) in enumerate(messages):
        found[number] = (high, low, time_ms, number % 7, number // 7)
    return found


def drops_of(new: list[Message], known: list[Message], window_ms: int) -> list[tuple[int, int]]:
    times: dict[tuple[int, int], list[int]] = {}
    for high, low, time_ms in known:
        times.setdefault((high, low), []).append(time_ms)
    found = []
    for time_ms, number in sorted((message[2], number) for number, message in enumerate(new)):
        seen = times.setdefault(new[number][:2], [])
        if any(abs(time_ms - other) <= window_ms for other in seen):
            found.append((number // 7, number % 7))
        seen.append(time_ms)
    return sorted(found)


@given(MESSAGES, MESSAGES, st.sampled_from([1, 3, 100]), st.randoms())
def test_the_same_as_a_loop(
    new: list[Message], known: list[Message], window_ms: int, random: Random
) -> None:
    rows = records(new)
    order = list(range(len(rows)))
    random.shuffle(order)
    found = choose_drops(rows[order], records(known), window_ms)
    assert found.tolist() == drops_of(new, known, window_ms)
