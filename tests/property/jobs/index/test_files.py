"""Tasks that build index files produce the same bytes as a simple loop. The loop puts one item
after the other, and then compacts the file."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.kit.index_chains import put_item
from tieredstore.config import StoreConfig
from tieredstore.jobs.index.build import BuildTask, Capacity, begin_times, build, shares
from tieredstore.jobs.index.rows import KeyRows, key_rows, stage_rows
from tieredstore.jobs.index.staging import Staging, read_staged
from tieredstore.message.index.tiered import IndexHeader, compact, pack_header, unsealed_size
from tieredstore.scan.location import TierLocation, place_tier

Row = tuple[int, int, int, int]
"""An index item: number of its task, store time, hash and queue id."""
ROWS = st.lists(
    st.tuples(
        st.integers(0, 4),
        st.integers(0, 10_000_000) | st.sampled_from([-5_000, 2**40, 2**62]),
        st.integers(0, 2**31 - 1) | st.integers(0, 3),
        st.integers(0, 3),
    ),
    max_size=150,
    unique_by=lambda row: row[1],
)


def looped(rows: list[Row], slots: int, most: int, taken: set[int]) -> list[bytes]:
    rows = sorted(rows, key=lambda row: row[1])
    files = []
    for first in range(0, len(rows), most):
        part = rows[first : first + most]
        begin_ms = max(part[0][1], 1)
        while begin_ms in taken:
            begin_ms += 1
        taken.add(begin_ms)
        buffer = bytearray(unsealed_size(slots, most + 1))
        buffer[:28] = pack_header(IndexHeader(begin_ms))
        for task, time_ms, key_hash, queue_id in part:
            put_item(buffer, slots, key_hash, task, queue_id, time_ms & 0xFFFFFF, 100, time_ms)
        files.append(b"".join(compact(buffer, slots)))
    return files


def rows_of(part: list[Row]) -> list[KeyRows]:
    return [
        key_rows(
            np.array([key_hash], np.int32),
            task,
            queue_id,
            np.array([time_ms & 0xFFFFFF], np.int64),
            np.array([100], np.int64),
            np.array([time_ms], np.int64),
        )
        for task, time_ms, key_hash, queue_id in part
    ]


@given(
    rows=ROWS,
    slots=st.integers(1, 12),
    most=st.integers(1, 40),
    taken=st.sets(st.integers(1, 60)),
)
def test_files_are_those_of_a_loop(rows: list[Row], slots: int, most: int, taken: set[int]) -> None:
    # Blocks of one row: files then do not overlap.
    with tempfile.TemporaryDirectory() as folder:
        url = Path(folder).as_uri()
        config = place_tier(StoreConfig(posix_fsync_enable=False), url, state=None)
        staging = Staging(TierLocation(url, config), "job")
        provider = staging.location.connect()
        staged = [
            stage_rows(
                staging, provider, f"task-{task}", rows_of([r for r in rows if r[0] == task]), 1
            )
            for task in range(5)
        ]
        dealt = list(shares([one for one in staged if one is not None], Capacity(slots, most + 1)))
        begins = begin_times([share.first_ms for share in dealt], taken)
        built = [
            build(BuildTask(share, begin_ms, slots, staging))
            for share, begin_ms in zip(dealt, begins, strict=True)
        ]
        found = [bytes(read_staged(provider, b.file, 0, b.file.size_bytes)) for b in built]
        provider.close()
    assert found == looped(rows, slots, most, set(taken))


@given(rows=ROWS, most=st.integers(1, 40), block_rows=st.integers(1, 50))
def test_every_row_is_dealt_once_and_files_are_full(
    rows: list[Row], most: int, block_rows: int
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        url = Path(folder).as_uri()
        config = place_tier(StoreConfig(posix_fsync_enable=False), url, state=None)
        staging = Staging(TierLocation(url, config), "job")
        provider = staging.location.connect()
        staged = [
            stage_rows(
                staging,
                provider,
                f"task-{task}",
                rows_of([r for r in rows if r[0] == task]),
                block_rows,
            )
            for task in range(5)
        ]
        provider.close()
    dealt = list(shares([one for one in staged if one is not None], Capacity(4, most + 1)))
    assert [share.items for share in dealt[:-1]] == [most] * (len(dealt) - 1)
    found = [
        (piece.file.path, row)
        for share in dealt
        for piece in share.pieces
        for row in range(piece.first, piece.first + piece.count)
    ]
    assert len(found) == len(set(found)) == len(rows)
