"""For any values, merged in any order, the summaries of a report keep their stated error bounds."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from tieredstore.jobs.reporting.sketches import Distinct, HeavyHitters, Sizes, text_hashes

LIMIT = 4
VALUES = st.lists(st.sampled_from(["a", "b", "c", "", "ä", "dd", "e" * 40, *"fghijk"]), max_size=40)


def through_json(value: Any) -> Any:
    return msgspec.convert(
        msgspec.json.decode(msgspec.json.encode(value)), type(value), strict=False
    )


def merged(parts: list[Any]) -> Any:
    """Merge summaries as a tree, in the same way as the results of tasks."""
    parts = [through_json(part) for part in parts]
    while len(parts) > 1:
        pairs = [(parts[i], parts[i + 1]) for i in range(0, len(parts) - 1, 2)]
        for low, high in pairs:
            low.merge(high)
        parts = [low for low, _ in pairs] + parts[len(parts) & ~1 :]
    return parts[0]


@given(st.lists(st.lists(VALUES, max_size=3), min_size=1, max_size=5))
def test_heavy_hitters_keep_their_bounds(tasks: list[list[list[str]]]) -> None:
    parts = []
    for batches in tasks:
        part = HeavyHitters(limit=LIMIT)
        for batch in batches:
            part.add(pa.array(batch, pa.string()))
        parts.append(part)
    found: HeavyHitters = merged(parts)
    true = Counter(value for batches in tasks for batch in batches for value in batch)
    assert found.total == true.total()
    assert found.error <= found.total // (LIMIT + 1)
    assert len(found.counts) <= LIMIT
    for value in {*true, *found.counts}:
        counted = found.counts.get(value, 0)
        assert counted <= true[value] <= counted + found.error


def test_heavy_hitters_are_found_among_very_many_values() -> None:
    random = np.random.default_rng(5)
    found = HeavyHitters()
    for _ in range(30):
        rare = [f"rare-{n}" for n in random.integers(0, 1 << 40, 5000)]
        found.add(pa.array(random.permutation(rare + ["hot"] * 500 + ["warm"] * 100)))
    (first, hot), (second, warm) = found.top(2)
    assert (first, second) == ("hot", "warm")
    assert 0 <= 15_000 - hot <= found.error
    assert 0 <= 3_000 - warm <= found.error
    assert found.error <= found.total / 257


@given(st.lists(VALUES, min_size=1, max_size=6))
def test_few_distinct_values_are_counted_exactly(tasks: list[list[str]]) -> None:
    parts = []
    for values in tasks:
        part = Distinct()
        part.add(pa.array(values, pa.string()))
        parts.append(part)
    assert merged(parts).estimate() == len({value for values in tasks for value in values})


def test_many_distinct_values_are_estimated_within_four_standard_errors() -> None:
    parts = []
    for first in (0, 40_000, 70_000):  # they overlap
        part = Distinct()
        part.add(pa.array([f"key-{n}" for n in range(first, first + 50_000)]))
        parts.append(part)
    assert abs(merged(parts).estimate() / 120_000 - 1) < 4 / math.sqrt(2046)


@given(st.lists(st.text(max_size=20), max_size=20), st.integers(0, 5))
def test_a_hash_is_that_of_the_text_wherever_it_lies(texts: list[str], skip: int) -> None:
    array = pa.array(texts, pa.string())
    alone = [int(text_hashes(pa.array([text]))[0]) for text in texts]
    assert text_hashes(array).tolist() == alone
    assert text_hashes(array.slice(skip)).tolist() == alone[skip:]
    assert len(set(alone)) == len(set(texts))


@given(st.lists(st.lists(st.integers(0, 2**31 - 1)), min_size=1, max_size=5))
def test_quantiles_of_sizes_are_near_the_true_ones(tasks: list[list[int]]) -> None:
    parts = []
    for sizes in tasks:
        part = Sizes()
        part.add(np.array(sizes, np.int64))
        parts.append(part)
    found: Sizes = merged(parts)
    everything = sorted(size for sizes in tasks for size in sizes)
    assert (found.count, found.total) == (len(everything), sum(everything))
    if not everything:
        assert (found.mean, found.quantile(0.5)) == (None, None)
        return
    assert (found.least, found.most) == (everything[0], everything[-1])
    for share in (0.0, 0.25, 0.5, 0.9, 0.99, 1.0):
        true = everything[max(math.ceil(share * len(everything)), 1) - 1]
        quantile = found.quantile(share)
        assert quantile is not None
        assert abs(quantile - true) <= true / 64
