"""Reads as generators, so that blocking and asynchronous callers share one implementation.

A `Reading` yields the segment reads of one step and receives their bytes in order. Bytes that need
no wait are read without a step (`read_segment`). `Steps` are more general: a step is either such a
list of reads, or a `Wait` for something else.

`run` executes both in the calling thread, and with a pool it runs the reads of a step concurrently.
`run_async` sends the reads of a step to a pool together. The error of a step is thrown into the
generator, which may handle it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Generator, Sequence
from concurrent.futures import Executor, Future
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

from tieredstore.clock import Clock
from tieredstore.contracts.segment import FileSegment
from tieredstore.errors import TieredStoreError

T = TypeVar("T")


class SegmentRead(NamedTuple):
    """Read of exactly `length` bytes from byte `position` of a segment. Fails if there are fewer
    bytes."""

    segment: FileSegment
    position: int
    length: int

    def read_blocking(self) -> memoryview:
        """Read the bytes, blocking."""
        return self.segment.read(self.position, self.length)

    def read_nowait(self) -> memoryview | None:
        """Return the bytes, or None if this needs a blocking call."""
        return self.segment.read_nowait(self.position, self.length)


class Wait(NamedTuple, Generic[T]):
    """Step that waits for something other than segment reads. `now`: function that waits in a
    thread. `later`: coroutine function that waits in an event loop."""

    now: Callable[[], T]
    later: Callable[[], Awaitable[T]]


Reading: TypeAlias = Generator[list[SegmentRead], list[memoryview], T]
Steps: TypeAlias = "Generator[list[SegmentRead] | Wait[Any], Any, T]"


def read_segment(segment: FileSegment, position: int, length: int) -> Reading[memoryview]:
    """Read bytes of a segment, in one step or without any. Raises the errors of the segment."""
    found = segment.read_nowait(position, length)
    if found is None:
        [found] = yield [SegmentRead(segment, position, length)]
    return found


def run(steps: Steps[T], executor: Executor | None = None) -> T:
    """Run the steps of a read, blocking. `executor`: runs the reads of a step concurrently, except
    one. Without it, they run sequentially. Raises the errors of the generator."""
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
        steps.close()  # releases its resources now, even if the caller is interrupted


def time_steps(steps: Steps[T], clock: Clock) -> Steps[tuple[T, int]]:
    """Run the given steps. Returns their result and the total time (ms) spent waiting in steps.
    Raises the errors of the steps."""
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
            # Does not wait for reads that no thread has begun, because all threads may be busy.
            found[index] = step[index].read_blocking() if other.cancel() else other.result()
    finally:
        for _, other in others:
            other.cancel()
    return [
        step[index].read_blocking() if data is None else data for index, data in enumerate(found)
    ]


async def run_async(steps: Steps[T], executor: Executor | None = None) -> T:
    """Run the steps of a read in a coroutine. Blocking calls run in `executor` (None: the loop's
    executor)."""
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
        steps.close()  # immediately when the task is cancelled, because others may wait for it


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


_Live = dict[int, tuple[Reading[T], list[SegmentRead]]]


def join_readings(readings: Sequence[Reading[T]]) -> Reading[list[T | TieredStoreError]]:
    """Join readings into one that returns the outcome of each in order: its value or its error. If
    a common step fails, the reads are repeated one by one, so that each reading gets only its own
    error."""
    if len(readings) == 1:
        try:
            return [(yield from readings[0])]
        except TieredStoreError as error:
            return [error]
    outcomes: dict[int, T | TieredStoreError] = {}
    live: _Live[T] = {}
    for index, reading in enumerate(readings):
        _advance(index, reading, None, live, outcomes)
    while live:
        current, live = live, {}
        step = [read for _, reads in current.values() for read in reads]
        try:
            found = yield step
        except TieredStoreError:
            for index, (reading, reads) in current.items():
                outcomes[index] = yield from _do_alone(reading, reads)
            continue
        at = 0
        for index, (reading, reads) in current.items():
            _advance(index, reading, found[at : at + len(reads)], live, outcomes)
            at += len(reads)
    return [outcomes[index] for index in range(len(readings))]


def _advance(
    index: int,
    reading: Reading[T],
    found: list[memoryview] | None,
    live: _Live[T],
    outcomes: dict[int, T | TieredStoreError],
) -> None:
    try:
        step = next(reading) if found is None else reading.send(found)
        live[index] = reading, step
    except StopIteration as stop:
        outcomes[index] = stop.value
    except TieredStoreError as error:
        outcomes[index] = error


def _do_alone(reading: Reading[T], step: list[SegmentRead]) -> Reading[T | TieredStoreError]:
    try:
        while True:
            try:
                found = yield step
            except TieredStoreError as error:
                step = reading.throw(error)
            else:
                step = reading.send(found)
    except StopIteration as stop:
        value: T = stop.value
        return value
    except TieredStoreError as error:
        return error
