"""Rows beyond the memory limit are written to disk."""

from __future__ import annotations

import os
import random
from pathlib import Path

import numpy as np
import pytest

from tests.kit.local_stores import put_all, running, small_config
from tieredstore.errors import Exhausted
from tieredstore.local.queues.missing import spilled_rows
from tieredstore.local.queues.missing.spilled_rows import Spill, SpilledRows
from tieredstore.local.read_only import open_read_only
from tieredstore.message.encoding import Message

ROW = np.dtype([("number", np.int64), ("half", np.float64)])


def make_rows(first: int, count: int) -> np.ndarray:
    rows = np.empty(count, ROW)
    rows["number"] = np.arange(first, first + count)
    rows["half"] = rows["number"] / 2
    return rows


@pytest.mark.parametrize("memory_bytes", [0, 5_000, 1 << 30])
def test_rows_come_back_from_memory_and_from_the_file(
    memory_bytes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spilled_rows, "CHUNK_BYTES", 1 << 16)
    chance = random.Random(7)
    spill = Spill(tmp_path, memory_bytes)
    tables = [SpilledRows(spill, ROW) for _ in range(3)]
    for _ in range(300):
        table = chance.choice(tables)
        table.extend(make_rows(len(table), chance.randrange(200)))
    for table in tables:
        count = len(table)
        assert [int(table[place]["number"]) for place in range(count)] == [*range(count)]
        assert np.concatenate([*table.blocks()])["number"].tolist() == [*range(count)]
        for _ in range(50):
            first = chance.randrange(count)
            end = chance.randrange(first, count + 1)
            assert table.read(first, end)["number"].tolist() == [*range(first, end)]
    assert [*tmp_path.iterdir()] == []  # the file has no name
    tables[0].clear()
    tables[0].extend(make_rows(5, 1))
    assert (len(tables[0]), int(tables[0][0]["number"])) == (1, 5)


def test_no_room_in_the_folder_is_an_error_and_no_signal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(fd: int, position: int, length: int) -> None:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(spilled_rows, "allocate", refuse)
    with pytest.raises(Exhausted, match="make room for rows"):
        SpilledRows(Spill(tmp_path, 0), ROW).extend(make_rows(0, 1))


def test_j95_queues_of_a_large_log_are_made_outside_of_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The queues of a large log are rebuilt on disk instead of in memory."""
    taken: list[int] = []
    make_room = Spill.make_room

    def count(self: Spill, dtype: np.dtype, rows: int) -> np.ndarray:
        if self._memory_bytes < dtype.itemsize * rows:
            taken.append(rows)
        return make_room(self, dtype, rows)

    monkeypatch.setattr(Spill, "make_room", count)
    monkeypatch.setattr(spilled_rows, "MEMORY_BYTES", 0)
    with running(small_config(tmp_path / "s")) as store:
        put_all(store, [Message("T", b"x", queue_id=number % 3) for number in range(300)])
    for path in (tmp_path / "s" / "consumequeue" / "T").rglob("0*"):
        if path.is_file():
            path.unlink()
    reader = open_read_only(tmp_path / "s", scratch=tmp_path)
    try:
        assert [reader.get_max_offset_in_queue("T", number) for number in range(3)] == [100] * 3
        found = reader.get_message("g", "T", 1, 60, 32)
        assert [message.queue_offset for message in found.messages][:2] == [60, 61]
    finally:
        reader.shutdown()
    assert sum(taken) >= 300
