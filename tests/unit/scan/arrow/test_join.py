"""Small batches are joined into one without losing or reordering rows."""

from __future__ import annotations

import pyarrow as pa
import pytest

from tieredstore.scan.arrow.join import join_small_batches


def batches_of(*rows: int) -> list[pa.RecordBatch]:
    found, first = [], 0
    for count in rows:
        numbers = range(first, first + count)
        keys = pa.array([[f"k{n}"] for n in numbers], pa.list_(pa.string()))
        found.append(pa.record_batch({"n": pa.array(numbers, pa.int64()), "keys": keys}))
        first += count
    return found


@pytest.mark.parametrize(
    ("rows", "joined"),
    [
        ([], []),
        ([3], [3]),
        ([1] * 100, [100]),
        ([5, 600, 5, 5], [5, 600, 10]),
        ([511] * 40, [17 * 511, 17 * 511, 6 * 511]),
    ],
)
def test_neighbours_are_joined(rows: list[int], joined: list[int]) -> None:
    given = batches_of(*rows)
    found = list(join_small_batches(iter(given)))
    assert [batch.num_rows for batch in found] == joined
    if given:
        assert pa.Table.from_batches(found).equals(pa.Table.from_batches(given))


def test_batches_are_no_larger_than_was_asked_for() -> None:
    given = batches_of(*[10] * 50)
    size = max(batch.nbytes for batch in given)
    found = list(join_small_batches(given, 20 * size))
    assert sum(batch.num_rows for batch in found) == 500
    assert 3 <= len(found) <= 4
    assert max(batch.nbytes for batch in found) < 22 * size
    assert list(join_small_batches(given, 10 * size)) == given
