"""TraceRecorder: what arrives and what is read, until it is written.

Where it is told of something, it only keeps it: for each run of the dispatch some columns, for each
answer of a get a tuple. `take` makes rows of that, in a thread that nobody waits for.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final, TypeAlias, TypeVar

import numpy as np

from tieredstore.contracts.dispatch_source import ArrivedRuns, QueueKey
from tieredstore.contracts.message_store import GetMessageStatus
from tieredstore.tier.trace.blocks import GET_DTYPE, PUT_DTYPE, Rows, TraceBlock

if TYPE_CHECKING:
    from tieredstore.clock import Clock
    from tieredstore.contracts.message_store import GetMessageResult, GetRequest

MAX_RUNS: Final = 1 << 20
"""Runs of messages that wait to be written; what comes beyond is dropped, and counted."""
MAX_GETS: Final = 1 << 18
_LOOKED_AT: Final = (GetMessageStatus.FOUND, GetMessageStatus.NO_MATCHED_MESSAGE)


_Get: TypeAlias = "tuple[GetRequest, int, int, bool, int]"
"""A request; of its answer where to go on, messages, whether the tier gave it, and when, epoch
ms."""
T = TypeVar("T")


class _Numbers(dict[T, int]):
    """Gives each thing that is asked for the next number."""

    def __missing__(self, thing: T) -> int:
        number = self[thing] = len(self)
        return number


class TraceRecorder:
    """Thread-safe, but for `take`, which one thread calls. is_on: whether gets are kept; who tells
    of messages is told by `TraceService` when to."""

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
        """Begin with what happens from now on."""
        self._begin_ms = self._now_ms()
        self.is_on = True

    # What happens

    def put(self, runs: ArrivedRuns) -> None:
        """Keep what arrived. Called by one thread at a time."""
        count = len(runs.queues)
        if self._told_runs - self._taken_runs + count > MAX_RUNS:
            self._dropped.append(count)
            return
        self._told_runs += count
        self._runs.append(runs)

    def get(self, request: GetRequest, result: GetMessageResult, *, from_tier: bool) -> None:
        """Keep the answer of a get that found something, or looked through something."""
        end = result.next_begin_offset
        if end <= request.offset or result.status not in _LOOKED_AT:
            return
        if len(self._gets) >= MAX_GETS:
            self._dropped.append(1)
            return
        self._gets.append((request, end, len(result.messages), from_tier, self._now_ms()))

    # Rows of it

    def take(self) -> TraceBlock:
        """Take what was kept since the last call."""
        begin_ms, self._begin_ms = self._begin_ms, self._now_ms()
        queues, groups = _Numbers[QueueKey](), _Numbers[str]()
        puts = self._take_puts(queues)
        gets = self._take_gets(queues, groups)
        dropped = sum(self._dropped.popleft() for _ in range(len(self._dropped)))
        return TraceBlock(begin_ms, self._begin_ms, dropped, list(queues), list(groups), puts, gets)

    def _take_puts(self, queues: _Numbers[QueueKey]) -> Rows:
        runs = [self._runs.popleft() for _ in range(len(self._runs))]
        self._taken_runs += sum(len(run.queues) for run in runs)
        runs = [run for run in runs if len(run.queues)]
        if not runs:
            return np.empty(0, PUT_DTYPE)
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
        rows = np.zeros(len(starts), PUT_DTYPE)
        if len(starts):
            rows["queue"], rows["offset"] = numbers[starts], offsets[starts]
            rows["messages"] = np.add.reduceat(messages, starts)
            rows["size_bytes"] = np.add.reduceat(sizes, starts)
            rows["begin_ms"] = times[starts]
            rows["end_ms"] = times[np.append(starts[1:], len(order)) - 1]
        return rows

    def _take_gets(self, queues: _Numbers[QueueKey], groups: _Numbers[str]) -> Rows:
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
        rows = np.zeros(len(found), GET_DTYPE)
        if found:
            for name, column in zip(GET_DTYPE.names or (), np.array(found).T, strict=True):
                rows[name] = column
        return rows
