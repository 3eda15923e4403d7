"""Consume queue that is completed with units from the log."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from tieredstore.local.queues.interface import ConsumeQueueReader, Units
from tieredstore.message.consume_queue import UNIT_DTYPE


class _Part(NamedTuple):
    begin: int
    end: int
    reader: ConsumeQueueReader | None


class CompletedQueue:
    """`ConsumeQueueReader` over a queue of the store (None if missing or unreadable) and runs of
    units from the log, which take precedence. If neither has a unit, the message is not in the log
    or cannot be read there. Its unit is then empty (size 0), so that a read of the message reports
    the fault."""

    def __init__(
        self, queue: ConsumeQueueReader | None, runs: list[ConsumeQueueReader], place: str
    ) -> None:
        assert runs
        self.topic, self.queue_id = runs[0].topic, runs[0].queue_id
        self._place = place
        parts = [_Part(run.min_offset, run.max_offset, run) for run in runs]
        if queue is not None and queue.min_offset < queue.max_offset:
            begin = queue.min_offset
            for run in runs:
                if begin < run.min_offset and begin < queue.max_offset:
                    parts.append(_Part(begin, min(run.min_offset, queue.max_offset), queue))
                begin = max(begin, run.max_offset)
            if begin < queue.max_offset:
                parts.append(_Part(begin, queue.max_offset, queue))
        self._parts: list[_Part] = []
        for part in sorted(parts, key=lambda part: part.begin):
            if part.begin < part.end:
                if self._parts and self._parts[-1].end < part.begin:
                    self._parts.append(_Part(self._parts[-1].end, part.begin, None))
                self._parts.append(part)
        self._begins = [part.begin for part in self._parts]

    @property
    def min_offset(self) -> int:
        """First offset whose message is still in the log."""
        for part in self._parts:
            if part.reader is not None:
                first = max(part.begin, min(part.reader.min_offset, part.end))
                if first < part.end:
                    return first
        return self.max_offset

    @property
    def max_offset(self) -> int:
        return self._parts[-1].end if self._parts else 0

    def _find(self, offset: int) -> _Part | None:
        if not self.min_offset <= offset < self.max_offset:
            return None
        return self._parts[bisect_right(self._begins, offset) - 1]

    def read_units(self, offset: int, count: int) -> Units:
        part = self._find(offset)
        if part is None or count <= 0:
            return np.empty(0, dtype=UNIT_DTYPE)
        count = min(count, part.end - offset)
        if part.reader is not None:
            return part.reader.read_units(offset, count)
        units: Units = np.zeros(min(count, 1 << 16), dtype=UNIT_DTYPE)
        following = self._parts[self._parts.index(part) + 1]
        assert following.reader is not None
        unit = following.reader.unit(following.begin)
        units["physical_offset"] = 0 if unit is None else unit[0]
        return units

    def unit(self, offset: int) -> tuple[int, int, int] | None:
        units = self.read_units(offset, 1)
        return None if not len(units) else units[0].item()

    def store_time(self, offset: int, record_time: Callable[[int], int]) -> int:
        """Return the store time (epoch ms) of a message, or of the next existing one if it is
        missing. Returns -1 for an offset outside the queue."""
        part = self._find(offset)
        if part is None:
            return -1
        if part.reader is None:
            return self.store_time(part.end, record_time)
        return part.reader.store_time(offset, record_time)

    def roll_next_file(self, offset: int) -> int:
        part = self._find(offset)
        if part is None or part.reader is None:
            return offset + 1 if part is None else part.end
        return min(part.reader.roll_next_file(offset), part.end)

    def path_of(self, offset: int) -> str:
        part = self._find(offset)
        return self._place if part is None or part.reader is None else part.reader.path_of(offset)
