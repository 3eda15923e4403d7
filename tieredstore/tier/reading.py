"""Reads as generators: the logic exists once, callers choose how to wait.

A `Reading` yields the segment reads of one step and is sent their bytes, in order; what is at hand
without blocking it takes by itself (`read_segment`). `Steps` yield such a step or a `Wait` for
something that is no segment; a reading is the simple case. `run` drives both in the calling thread,
and with a pool the reads of a step side by side; `run_async` sends what is still not at hand to a
pool, all at once. An error of a step is thrown into the generator, which may handle it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Generator
from concurrent.futures import Executor, Future
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

from tieredstore.clock import Clock
from tieredstore.contracts.segment import FileSegment
from tieredstore.errors import TieredStoreError

T = TypeVar("T")


class SegmentRead(NamedTuple):
    """`length` bytes from byte `position` of a segment on; exactly that many, or an error."""

    segment: FileSegment
    position: int
    length: int

    def read_blocking(self) -> memoryview:
        """Read the bytes, blocking."""
        return self.segment.read(self.position, self.length)

    def read_nowait(self) -> memoryview | None:
        """Return the bytes when they are at hand, else None."""
        return self.segment.read_nowait(self.position, self.length)


class Wait(NamedTuple, Generic[T]):
    """A step that waits for something else than segments: how a thread does it (`now`), and how a
    coroutine does (`later`)."""

    now: Callable[[], T]
    later: Callable[[], Awaitable[T]]


Reading: TypeAlias = Generator[list[SegmentRead], list[memoryview], T]
Steps: TypeAlias = "Generator[list[SegmentRead] | Wait[Any], Any, T]"


def read_segment(segment: FileSegment, position: int, length: int) -> Reading[memoryview]:
    """Read bytes of a segment: in a step, unless they are at hand. Raises what the segment
    raises."""
    found = segment.read_nowait(position, length)
    if found is None:
        [found] = yield [SegmentRead(segment, position, length)]
    return found


def run(steps: Steps[T], executor: Executor | None = None) -> T:
    """Drive the steps of a read, blocking. executor: where the reads of a step but one are done, so
    that together they wait once (None: one after the other). Raises what the generator raises."""
    try:
        step = next(steps)
        while True:
            try:
                if isinstance(step, Wait):
                    found = step.now()
                elif executor is None or len(step) < 2:
                    found = [read.read_blocking() for read in step]
                else:
                    found = _read_side_by_side(step, executor)
            except TieredStoreError as error:
                step = steps.throw(error)
            else:
                step = steps.send(found)
    except StopIteration as stop:
        result: T = stop.value
        return result
    finally:
        steps.close()  # what it holds is given up now, also when the caller is interrupted


def time_steps(steps: Steps[T], clock: Clock) -> Steps[tuple[T, int]]:
    """Do the same steps; returns also for how many milliseconds they were waited for, without what
    was done in between. Raises what they raise."""
    waited_ms = 0
    try:
        step = next(steps)
        while True:
            begun_ms = clock.monotonic_ms()
            try:
                found = yield step
            except TieredStoreError as error:
                step = steps.throw(error)
            else:
                waited_ms += clock.monotonic_ms() - begun_ms
                step = steps.send(found)
    except StopIteration as stop:
        return stop.value, waited_ms
    finally:
        steps.close()


def _read_side_by_side(step: list[SegmentRead], executor: Executor) -> list[memoryview]:
    found = [read.read_nowait() for read in step]
    missing = [index for index, data in enumerate(found) if data is None]
    others: list[tuple[int, Future[memoryview]]] = []
    try:
        for index in missing[1:]:
            with contextlib.suppress(RuntimeError):  # it was shut down: this thread reads
                others.append((index, executor.submit(step[index].read_blocking)))
        for index in missing[:1]:
            found[index] = step[index].read_blocking()
        for index, other in others:
            # What no thread of the pool has begun is not waited for: they may all be busy.
            found[index] = step[index].read_blocking() if other.cancel() else other.result()
    finally:
        for _, other in others:
            other.cancel()
    return [
        step[index].read_blocking() if data is None else data for index, data in enumerate(found)
    ]


async def run_async(steps: Steps[T], executor: Executor | None = None) -> T:
    """Drive the steps of a read from a coroutine; what would block runs in `executor` (None: the
    loop's)."""
    try:
        step = next(steps)
        while True:
            try:
                found = await (
                    step.later() if isinstance(step, Wait) else _read_step(step, executor)
                )
            except TieredStoreError as error:
                step = steps.throw(error)
            else:
                step = steps.send(found)
    except StopIteration as stop:
        result: T = stop.value
        return result
    finally:
        steps.close()  # at once when the task is cancelled: others may wait for it


async def _read_step(step: list[SegmentRead], executor: Executor | None) -> list[memoryview]:
    found = [read.read_nowait() for read in step]
    missing = [index for index, data in enumerate(found) if data is None]
    if missing:
        loop = asyncio.get_running_loop()
        waited = await asyncio.gather(
            *(loop.run_in_executor(executor, step[index].read_blocking) for index in missing),
            return_exceptions=True,
        )
        for index, outcome in zip(missing, waited, strict=True):
            if isinstance(outcome, BaseException):
                raise outcome
            found[index] = outcome
    return [data for data in found if data is not None]
