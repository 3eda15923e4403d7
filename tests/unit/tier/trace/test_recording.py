"""Tests of recording puts and reads as a trace: rows, blocks, files, and a recording store."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.kit.faulty_files import FaultyFiles
from tests.kit.tiered_local import TieredLocal
from tieredstore.clock import ManualClock
from tieredstore.config import StoreConfig, change_config
from tieredstore.contracts.dispatch_source import ArrivedRuns, QueueKey
from tieredstore.contracts.message_store import GetMessageResult, GetMessageStatus, GetRequest
from tieredstore.disk.file_operations import FILES, FileOperations
from tieredstore.errors import Invalid
from tieredstore.metrics import Metrics
from tieredstore.tier.trace import service
from tieredstore.tier.trace.blocks import TraceBlock, encode_block, find_blocks
from tieredstore.tier.trace.service import (
    DROPPED_METRIC,
    TRACE_FOLDER,
    TraceRecorder,
    TraceService,
    list_trace_files,
    read_trace_files,
)

A, B = QueueKey("orders", 0), QueueKey("orders", 1)


def runs(*rows: tuple[QueueKey, int, int, int, int]) -> ArrivedRuns:
    queues, *columns = zip(*rows, strict=True)
    return ArrivedRuns(list(queues), *(np.array(column, np.int64) for column in columns))


def found(status: GetMessageStatus, following: int, count: int = 0) -> GetMessageResult:
    messages: list[Any] = [None] * count
    return GetMessageResult(status, following, messages=messages)


def read(recorder: TraceRecorder, offset: int, count: int, **more: Any) -> None:
    request = GetRequest("orders", 0, offset, group=more.pop("group", "g"))
    result = found(GetMessageStatus.FOUND, offset + count, count)
    recorder.get(request, result, from_tier=more.pop("from_tier", False))


def rows_of(block: TraceBlock, name: str) -> list[tuple[int, ...]]:
    rows: list[tuple[int, ...]] = getattr(block, name).tolist()
    return rows


# Rows


def test_runs_that_follow_one_another_are_one_row() -> None:
    recorder = TraceRecorder(ManualClock(1_000))
    recorder.put(runs((A, 0, 3, 300, 10), (B, 7, 1, 50, 11)))
    recorder.put(runs((A, 3, 2, 200, 20), (B, 9, 1, 60, 21)))  # B has a hole
    recorder.put(runs((A, 5, 0, 0, 30)))  # that was reported before
    block = recorder.take()
    assert block.queues == [A, B]
    assert rows_of(block, "puts") == [(0, 0, 5, 500, 10, 20), (1, 7, 1, 50, 11, 11),
                                      (1, 9, 1, 60, 21, 21)]  # fmt: skip
    assert len(recorder.take().puts) == 0


def test_gets_that_follow_one_another_are_one_row() -> None:
    clock = ManualClock(1_000)
    recorder = TraceRecorder(clock)
    read(recorder, 0, 32)
    clock.advance(5)
    read(recorder, 0, 10, group="other")
    read(recorder, 32, 32)
    read(recorder, 64, 1, from_tier=True)
    read(recorder, 0, 4)  # it went back
    block = recorder.take()
    assert block.groups == ["g", "other"]
    assert rows_of(block, "gets") == [
        (0, 0, 0, 0, 64, 2, 64, 1_000, 1_005),
        (1, 0, 0, 0, 10, 1, 10, 1_005, 1_005),
        (0, 0, 1, 64, 65, 1, 1, 1_005, 1_005),
        (0, 0, 0, 0, 4, 1, 4, 1_005, 1_005),
    ]
    assert (block.begin_ms, block.end_ms) == (1_000, 1_005)


@pytest.mark.parametrize(
    ("status", "following"),
    [
        (GetMessageStatus.OFFSET_OVERFLOW_ONE, 5),
        (GetMessageStatus.OFFSET_TOO_SMALL, 9),
        (GetMessageStatus.NO_MATCHED_LOGIC_QUEUE, 5),
    ],
)
def test_a_get_that_looked_at_nothing_is_no_read(status: GetMessageStatus, following: int) -> None:
    recorder = TraceRecorder(ManualClock())
    request = GetRequest("orders", 0, 5)
    recorder.get(request, found(status, following), from_tier=False)
    assert len(recorder.take().gets) == 0
    recorder.get(request, found(GetMessageStatus.NO_MATCHED_MESSAGE, 9), from_tier=False)
    assert len(recorder.take().gets) == 1


def test_what_has_no_room_is_dropped_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "MAX_RUNS", 3)
    monkeypatch.setattr(service, "MAX_GETS", 2)
    recorder = TraceRecorder(ManualClock())
    recorder.put(runs((A, 0, 1, 1, 1), (B, 0, 1, 1, 1)))
    recorder.put(runs((A, 1, 1, 1, 1), (B, 1, 1, 1, 1)))
    for offset in range(3):
        read(recorder, offset, 1)
    block = recorder.take()
    assert (len(block.puts), block.gets["gets"].tolist(), block.dropped) == (2, [2], 3)
    recorder.put(runs((A, 1, 1, 1, 1), (B, 1, 1, 1, 1)))
    block = recorder.take()
    assert (len(block.puts), block.dropped) == (2, 0)


# Blocks


def make_block(number: int = 0) -> TraceBlock:
    recorder = TraceRecorder(ManualClock(1_000 + number))
    recorder.put(runs((A, number, 3, 300, 10)))
    read(recorder, number, 2)
    return recorder.take()


def same(found: TraceBlock, wanted: TraceBlock) -> bool:
    return (
        (found.begin_ms, found.end_ms, found.dropped, found.queues, found.groups)
        == (wanted.begin_ms, wanted.end_ms, wanted.dropped, wanted.queues, wanted.groups)
        and found.puts.tobytes() == wanted.puts.tobytes()
        and found.gets.tobytes() == wanted.gets.tobytes()
    )


def test_a_block_is_read_as_it_was_written() -> None:
    [block], damaged = find_blocks(encode_block(make_block()))
    assert same(block, make_block())
    assert damaged == 0


def test_a_block_that_names_no_queue_is_damaged() -> None:
    block = make_block()
    block.puts["queue"] = 1
    assert find_blocks(encode_block(block)) == ([], 1)


# Files


class Recorded:
    """A trace service in a folder. Each call of `round` records the events since the last call."""

    def __init__(self, folder: Path, files: FileOperations = FILES) -> None:
        self.config = StoreConfig(trace_enable=True)
        self.clock = ManualClock()
        self.metrics = Metrics()
        self.folder = folder
        self.service = TraceService(self.config, folder, self.clock, self.metrics, files)
        self.service.run_round()
        self.number = 0

    def round(self, count: int = 1) -> None:
        for _ in range(count):
            self.clock.advance(10_000)
            self.service.recorder.put(runs((A, self.number, 1, 100, self.clock.now_ms())))
            self.service.run_round()
            self.number += 1

    @property
    def dropped(self) -> float:
        return self.metrics.value(DROPPED_METRIC)

    def offsets(self) -> list[int]:
        blocks = [block for _, blocks, _ in read_trace_files(self.folder) for block in blocks]
        return [offset for block in blocks for offset in block.puts["offset"].tolist()]


def test_the_oldest_files_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "MAX_TRACE_BYTES", 2_000)
    recorded = Recorded(tmp_path)
    recorded.round(100)
    sizes = [path.stat().st_size for path in list_trace_files(tmp_path / TRACE_FOLDER)]
    assert sum(sizes) <= 2_000
    assert len(sizes) > 3
    kept = recorded.offsets()
    assert kept == list(range(kept[0], 100))
    assert len(kept) >= 5


def test_a_process_never_goes_on_in_the_file_of_another_one(tmp_path: Path) -> None:
    for _ in range(2):
        recorded = Recorded(tmp_path)
        recorded.round()
        recorded.service.stop()
        [*_, path] = list_trace_files(tmp_path / TRACE_FOLDER)
        path.write_bytes(path.read_bytes()[:-3])  # the power went
        recorded.service.stop()
    recorded = Recorded(tmp_path)
    recorded.round(2)
    assert recorded.offsets() == [0, 0, 0, 1]
    assert sum(damaged for _, _, damaged in read_trace_files(tmp_path)) == 2


@pytest.mark.parametrize("call", ["make_directory", "open_append", "append"])
def test_a_full_disk_loses_rows_and_nothing_else(tmp_path: Path, call: str) -> None:
    files = FaultyFiles()
    recorded = Recorded(tmp_path, files)
    if call == "append":
        recorded.round()
    files.plan[call] = [errno.ENOSPC, errno.ENOSPC]
    recorded.round(3)
    assert recorded.dropped == 2
    assert recorded.offsets() == ([0, 3] if call == "append" else [2])
    *_, (_, blocks, _) = read_trace_files(tmp_path)
    assert blocks[-1].dropped == 2


def test_a_block_larger_than_the_files_may_be_is_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "MAX_TRACE_BYTES", 100)
    recorded = Recorded(tmp_path)
    recorded.round()
    assert recorded.dropped == 1
    assert list(list_trace_files(tmp_path / TRACE_FOLDER)) == []


def test_a_folder_without_a_trace_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.trace").write_bytes(b"")
    with pytest.raises(Invalid, match="tieredStoreTraceEnable"):
        list(read_trace_files(tmp_path))


# A store that records


def test_a_store_records_what_is_put_and_read(tmp_path: Path) -> None:
    tiered = TieredLocal(tmp_path, tieredStoreTraceEnable="true", tieredStorageLevel="FORCE")
    store = tiered.store
    store.trace.run_round()  # it records from now on
    tiered.put("orders", *[b"x" * 100] * 5)
    tiered.put("orders", b"y", queue_id=2)
    store.get_message("g", "orders", 0, 0, 32)
    tiered.upload()
    store.get_message("g", "orders", 0, 2, 32)
    store.get_message("g", "orders", 0, 5, 32)
    tiered.close()
    root = tmp_path / "store"
    blocks = [block for _, blocks, damaged in read_trace_files(root) for block in blocks]
    puts = [(block.queues[row[0]], *row[1:3]) for block in blocks for row in block.puts.tolist()]
    assert sum(count for key, _, count in puts if key == ("orders", 0)) == 5
    assert sum(count for key, _, count in puts if key == ("orders", 2)) == 1
    sizes = sum(int(block.puts["size_bytes"].sum()) for block in blocks)
    assert 6 * 91 < sizes < 6 * 400
    gets = [
        (block.groups[row[0]], block.queues[row[1]], row[2:5])
        for block in blocks
        for row in block.gets.tolist()
    ]
    assert gets == [("g", ("orders", 0), (0, 0, 5)), ("g", ("orders", 0), (1, 2, 5))]


def test_recording_is_switched_while_a_store_runs(tmp_path: Path) -> None:
    tiered = TieredLocal(tmp_path)
    store = tiered.store
    tiered.put("orders", b"1")
    for is_on, body in ((True, b"2"), (False, b"3"), (True, b"4")):
        change_config(store._config, {"tieredStoreTraceEnable": is_on})
        store.trace.run_round()
        tiered.put("orders", body)
    tiered.close()
    blocks = [block for _, blocks, _ in read_trace_files(tmp_path / "store") for block in blocks]
    offsets = [offset for block in blocks for offset in block.puts["offset"].tolist()]
    assert offsets == [1, 3]
