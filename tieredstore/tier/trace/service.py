"""Writes the recorded trace at intervals while tracing is enabled. No other service waits for it. A
block that cannot be written, for example because the disk is full, is dropped and counted."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Final, TypeAlias, TypeVar

import numpy as np

from tieredstore.clock import SYSTEM_CLOCK, Clock
from tieredstore.config import StoreConfig
from tieredstore.contracts.dispatch_source import (
    ArrivedRuns,
    DispatchSource,
    ObservedSource,
    QueueKey,
)
from tieredstore.contracts.message_store import GetMessageResult, GetMessageStatus, GetRequest
from tieredstore.disk.errors import wrap_os_errors
from tieredstore.disk.file_operations import FILES, AppendFile, FileOperations
from tieredstore.errors import Invalid
from tieredstore.metrics import Metrics
from tieredstore.service_thread import ServiceHealth, ServiceThread
from tieredstore.tier.trace import blocks

MAX_RUNS: Final = 1 << 20
"""Maximum number of rows about arrived messages that wait to be written. Further rows are dropped
and counted."""
MAX_GETS: Final = 1 << 18
_LOOKED_AT: Final = (GetMessageStatus.FOUND, GetMessageStatus.NO_MATCHED_MESSAGE)


_Get: TypeAlias = "tuple[GetRequest, int, int, bool, int]"
"""Recorded get: the request, the next offset in its answer, the number of messages in its answer,
whether the tier answered, and the time (epoch ms)."""
T = TypeVar("T")


class _Numbers(dict[T, int]):
    """Assigns numbers to keys in the order of their first use."""

    def __missing__(self, thing: T) -> int:
        number = self[thing] = len(self)
        return number


class TraceRecorder:
    """Recorder of puts and gets. Thread-safe, except that only one thread may call `take`. `is_on`:
    whether gets are recorded. `TraceService` decides whether messages are recorded."""

    def __init__(self, clock: Clock) -> None:
        self.is_on = False
        self._now_ms = clock.now_ms
        self._begin_ms = self._now_ms()
        self._runs: deque[ArrivedRuns] = deque()
        # Each is changed by one thread alone
        self._told_runs = self._taken_runs = 0
        self._gets: deque[_Get] = deque()
        self._dropped: deque[int] = deque()

    def begin(self) -> None:
        """Begin recording. Earlier events are discarded."""
        self._begin_ms = self._now_ms()
        self.is_on = True

    # What happens

    def put(self, runs: ArrivedRuns) -> None:
        """Record arrived messages. Called by one thread at a time."""
        count = len(runs.queues)
        if self._told_runs - self._taken_runs + count > MAX_RUNS:
            self._dropped.append(count)
            return
        self._told_runs += count
        self._runs.append(runs)

    def get(self, request: GetRequest, result: GetMessageResult, *, from_tier: bool) -> None:
        """Record a get that returned or filtered messages."""
        end = result.next_begin_offset
        if end <= request.offset or result.status not in _LOOKED_AT:
            return
        if len(self._gets) >= MAX_GETS:
            self._dropped.append(1)
            return
        self._gets.append((request, end, len(result.messages), from_tier, self._now_ms()))

    # Rows of it

    def take(self) -> blocks.TraceBlock:
        """Return the arrivals and reads since the last call."""
        begin_ms, self._begin_ms = self._begin_ms, self._now_ms()
        queues, groups = _Numbers[QueueKey](), _Numbers[str]()
        puts = self._take_puts(queues)
        gets = self._take_gets(queues, groups)
        dropped = sum(self._dropped.popleft() for _ in range(len(self._dropped)))
        return blocks.TraceBlock(
            begin_ms, self._begin_ms, dropped, list(queues), list(groups), puts, gets
        )

    def _take_puts(self, queues: _Numbers[QueueKey]) -> blocks.Rows:
        runs = [self._runs.popleft() for _ in range(len(self._runs))]
        self._taken_runs += sum(len(run.queues) for run in runs)
        runs = [run for run in runs if len(run.queues)]
        if not runs:
            return np.empty(0, blocks.PUT_DTYPE)
        numbers = np.array([queues[key] for run in runs for key in run.queues], np.int64)
        offsets, messages, sizes, times = (
            np.concatenate(columns)
            for columns in zip(
                *((run.offsets, run.messages, run.sizes, run.timestamps_ms) for run in runs),
                strict=True,
            )
        )
        order = np.flatnonzero(messages)
        order = order[np.argsort(numbers[order], kind="stable")]
        numbers, offsets, messages, sizes, times = (
            column[order] for column in (numbers, offsets, messages, sizes, times)
        )
        is_next = (numbers[1:] == numbers[:-1]) & (offsets[1:] == offsets[:-1] + messages[:-1])
        starts = np.flatnonzero(np.append(len(order) > 0, ~is_next))
        rows = np.zeros(len(starts), blocks.PUT_DTYPE)
        if len(starts):
            rows["queue"], rows["offset"] = numbers[starts], offsets[starts]
            rows["messages"] = np.add.reduceat(messages, starts)
            rows["size_bytes"] = np.add.reduceat(sizes, starts)
            rows["begin_ms"] = times[starts]
            rows["end_ms"] = times[np.append(starts[1:], len(order)) - 1]
        return rows

    def _take_gets(self, queues: _Numbers[QueueKey], groups: _Numbers[str]) -> blocks.Rows:
        found: list[list[int]] = []
        last: dict[tuple[str, str, int, bool], list[int]] = {}
        for _ in range(len(self._gets)):
            request, end, messages, from_tier, time_ms = self._gets.popleft()
            reader = request.group, request.topic, request.queue_id, from_tier
            row = last.get(reader)
            if row is not None and row[4] == request.offset:
                row[4] = end
                row[5] += 1
                row[6] += messages
                row[8] = time_ms
                continue
            group, queue = groups[request.group], queues[request.key]
            row = [group, queue, from_tier, request.offset, end, 1, messages, time_ms, time_ms]
            last[reader] = row
            found.append(row)
        rows = np.zeros(len(found), blocks.GET_DTYPE)
        if found:
            for name, column in zip(blocks.GET_DTYPE.names or (), np.array(found).T, strict=True):
                rows[name] = column
        return rows


TRACE_FOLDER: Final = "tieredstore.trace"
"""Name of the folder of trace files in the store. Java ignores the folder."""
SUFFIX: Final = ".trace"
_FILES: Final = 8
"""Approximate number of trace files when MAX_TRACE_BYTES is reached."""


class TraceFiles:
    """Appends blocks to files in a folder. Not thread-safe. Each process begins a new file.
    `limit_bytes`: maximum total size of the files."""

    def __init__(self, folder: Path, limit_bytes: int, files: FileOperations = FILES) -> None:
        self._folder = folder
        self._limit_bytes = limit_bytes
        self._files = files
        self._file: AppendFile | None = None
        self._path = folder
        self._size = 0

    def append(self, block: bytes, now_ms: int) -> bool:
        """Append a block. Returns False if the block is larger than half of the limit. After an
        OSError, the open file is unchanged."""
        limit = self._limit_bytes
        if len(block) > limit // 2:
            return False
        if self._size + len(block) > max(limit // _FILES, len(block)):
            self.close()
        try:
            self._make_room(limit - len(block))
            if self._file is None:
                self._open(now_ms)
            assert self._file is not None
            self._file.write(block)
        except BaseException:
            self.close()
            raise
        self._size += len(block)
        return True

    def close(self) -> None:
        """Close the open file. Idempotent."""
        file, self._file, self._size = self._file, None, 0
        if file is not None:
            file.close()

    def _open(self, now_ms: int) -> None:
        self._files.make_directory(self._folder)
        while (path := self._folder / f"{now_ms:020d}{SUFFIX}").exists():
            now_ms += 1
        self._path, self._file = path, self._files.open_append(path, empty=False)

    def _make_room(self, limit: int) -> None:
        paths = list(list_trace_files(self._folder))
        sizes = [self._files.size(path) or 0 for path in paths]
        total = sum(sizes)
        for path, size in zip(paths, sizes, strict=True):
            if total <= limit:
                break
            if self._file is None or path != self._path:
                self._files.unlink(path)
                total -= size


def list_trace_files(folder: Path) -> Iterator[Path]:
    """Yield the files of a folder, oldest first, or nothing if the folder does not exist."""
    with suppress(FileNotFoundError):
        yield from sorted(
            path
            for path in folder.iterdir()
            if path.suffix == SUFFIX and path.stem.isdecimal() and len(path.stem) == 20
        )


def read_trace_files(path: Path) -> Iterator[tuple[Path, list[blocks.TraceBlock], int]]:
    """Read a trace file, or all trace files of a folder or store. Yields each file with its blocks
    and its number of unreadable parts. Raises Unavailable, or Invalid if there is no file."""
    folders = path, path / TRACE_FOLDER
    paths = [path] if path.is_file() else [p for f in folders for p in list_trace_files(f)]
    if not paths:
        raise Invalid(
            f"{path}: no trace: expected a file that tieredStoreTraceEnable=true made, or a folder "
            "with such files",
            path=str(path),
        )
    for found in paths:
        with wrap_os_errors("read", found):
            data = FILES.read(found)
        yield found, *blocks.find_blocks(data)


INTERVAL_MS: Final = 10_000
"""Period (ms) whose events of a queue are combined into one row of the trace."""
MAX_TRACE_BYTES: Final = 256 << 20
"""Maximum size of all trace files together, bytes. Above it, the oldest files are deleted."""
DROPPED_METRIC: Final = "rocketmq_tiered_store_x_trace_dropped_rows_total"
_log = logging.getLogger(__name__)


class TraceService:
    """Records a trace while `tieredStoreTraceEnable` is set. The setting is checked every 10 s.

    `state`: the broker's `storePathRootDir`.
    `recorder`: receives gets while its `is_on` is set.
    `clock`: clock of the recorded times.
    """

    def __init__(
        self,
        config: StoreConfig,
        state: Path,
        clock: Clock,
        metrics: Metrics,
        files: FileOperations = FILES,
        *,
        loop_clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.recorder = TraceRecorder(clock)
        self._config = config
        self._folder = state / TRACE_FOLDER
        self._clock = clock
        self._metrics = metrics
        self._files = TraceFiles(self._folder, MAX_TRACE_BYTES, files)
        self._source: ObservedSource | None = None
        self._lost = 0  # not written, and not yet reported in a block
        self._has_failed = False
        self._lock = threading.Lock()  # one round at a time
        self._loop = ServiceThread("tiered-trace", self.run_round, INTERVAL_MS, clock=loop_clock)

    def start(self, source: DispatchSource) -> None:
        """Start checking the configuration, and recording gets and the changes of a source."""
        self._source = source if isinstance(source, ObservedSource) else None
        self._loop.start()

    def stop(self) -> None:
        """Write the remaining events, and stop recording. Idempotent."""
        self._loop.stop()
        with self._lock:
            self._switch(is_on=False)
            self._files.close()

    def health(self) -> list[ServiceHealth]:
        """Return the health of the background loop."""
        return [self._loop.health()]

    def run_round(self) -> None:
        """Write the events since the last round, if recording is on. Disk errors are not raised."""
        with self._lock:
            if self.recorder.is_on:
                self._write(self.recorder.take())
            self._switch(is_on=self._config.trace_enable)

    def _switch(self, *, is_on: bool) -> None:
        if is_on == self.recorder.is_on:
            return
        if is_on:
            self.recorder.begin()
        else:
            self.recorder.is_on = False
        if self._source is not None:
            self._source.set_observer(self.recorder.put if is_on else None)
        if not is_on:
            self._write(self.recorder.take())

    def _write(self, block: blocks.TraceBlock) -> None:
        self._lose(block.dropped)
        block = replace(block, dropped=self._lost)
        try:
            is_written = self._files.append(blocks.encode_block(block), self._clock.now_ms())
        except (OSError, MemoryError) as error:
            if not self._has_failed:
                _log.warning("%s: a part of the trace is lost: %s", self._folder, error)
            self._has_failed = True
            is_written = False
        else:
            self._has_failed = False
        if is_written:
            self._lost = 0
        else:
            self._lose(len(block.puts) + len(block.gets))

    def _lose(self, count: int) -> None:
        if count:
            self._lost += count
            self._metrics.count(DROPPED_METRIC, count)
