"""Tests of which missing units are added to a queue, after deletions of its topic or with damaged
queue offsets."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tieredstore.contracts.dispatch_source import QueueKey
from tieredstore.local.log.foreign_log import ForeignCommitLog
from tieredstore.local.positional_files import PositionalFiles
from tieredstore.local.queues.missing.choice import FOUND_DTYPE, choose_units
from tieredstore.local.queues.missing.spilled_rows import Spill, SpilledRows

SIZE = 100


def choose(root: Path, offsets: list[int]) -> tuple[list[tuple[int, int, int]], int]:
    """Choose the units for records with these queue offsets. Return the first offset, end offset
    and first log position of each group of consecutive units, and the number of unread messages."""
    rows = SpilledRows(Spill(), FOUND_DTYPE)
    found = np.zeros(len(offsets), FOUND_DTYPE)
    found["offset"] = offsets
    found["unit"]["physical_offset"] = np.arange(len(offsets)) * SIZE
    found["unit"]["size"] = SIZE
    rows.extend(found)
    log = ForeignCommitLog(root, PositionalFiles(writable=False))
    runs, unread, _ = choose_units(QueueKey("t", 0), rows, None, log, -1, None, Spill())
    texts = [one.reason for one in unread]
    named = [int(text.split()[3]) for text in texts if text.startswith("queue offsets of")]
    places = [
        (run.min_offset, run.max_offset, int(run.read_units(run.min_offset, 1)[0][0]))
        for run in runs
    ]
    return places, sum(named) + len(texts) - len(named)


@pytest.mark.parametrize("length", [4, 70_000])
def test_j50_the_last_generation_of_a_topic_is_taken_as_a_whole(
    tmp_path: Path, length: int
) -> None:
    """If a topic was recreated several times, exactly the messages of the last generation are
    chosen. A Java broker does not record the deletions in the log."""
    offsets = [*range(length), *range(length - 1), *range(length + 9)]
    assert choose(tmp_path, offsets) == ([(0, length + 9, SIZE * (2 * length - 1))], 0)
    assert choose(tmp_path, [*range(length), 0]) == ([(0, 1, SIZE * length)], 0)


@pytest.mark.parametrize("row", [1, 2, 65_534, 65_535, 65_536, 65_537, 69_998])
@pytest.mark.parametrize("offset", [1, 80_000])
def test_j50_a_damaged_offset_begins_no_generation(tmp_path: Path, row: int, offset: int) -> None:
    offsets = [*range(70_000)]
    offsets[row] = offset if row > 1 else 80_000
    runs = [(0, row, 0), (row + 1, 70_000, SIZE * (row + 1))]
    assert choose(tmp_path, offsets) == (runs, 1)


def test_j50_a_damaged_first_or_last_offset_is_named(tmp_path: Path) -> None:
    assert choose(tmp_path, [7, *range(1, 20)]) == ([(1, 20, SIZE)], 2)
    assert choose(tmp_path, [*range(20), 7]) == ([(0, 20, 0)], 1)
    assert choose(tmp_path, [3, 4]) == ([(3, 5, 0)], 1)
