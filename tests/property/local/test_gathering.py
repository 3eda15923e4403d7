"""Separate ranges of a log are gathered into one buffer."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tieredstore.local.log.gathering import MAX_GAP_BYTES, Run, gather_runs

LOG = bytes(range(251)) * 1000

RUNS = st.lists(
    st.tuples(st.integers(0, len(LOG) - 1), st.integers(1, 3 * MAX_GAP_BYTES)).map(
        lambda found: (found[0], min(found[0] + found[1], len(LOG)))
    ),
    min_size=1,
    max_size=30,
)


@given(RUNS, st.booleans())
def test_gathered_is_each_run_behind_the_one_before(runs: list[Run], is_sorted: bool) -> None:
    if is_sorted:
        runs = sorted(runs)
    reads: list[Run] = []

    def read(offset: int, size: int) -> bytes:
        assert size > 0
        reads.append((offset, offset + size))
        return LOG[offset : offset + size]

    gathered = gather_runs(runs, read)
    assert gathered is not None
    assert bytes(gathered) == b"".join(LOG[start:end] for start, end in runs)
    assert len(reads) <= len(runs)
    needed = sum(end - start for start, end in runs)
    assert sum(end - start for start, end in reads) <= needed + MAX_GAP_BYTES * len(runs)


@given(RUNS, st.data())
def test_a_run_that_is_not_there_leaves_nothing(runs: list[Run], data: st.DataObject) -> None:
    start, end = data.draw(st.sampled_from(runs))

    def read(offset: int, size: int) -> bytes | None:
        return None if offset <= start and end <= offset + size else LOG[offset : offset + size]

    assert gather_runs(runs, read) is None
