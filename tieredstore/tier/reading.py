"""Reads as generators: the logic exists once, callers choose how to wait.

A `Reading` yields the segment reads of one step and is sent their bytes, in order. `Steps` yield
such a step or a `Wait` for something that is no segment; a reading is the simple case. `run` drives
both in the calling thread; `run_async` takes what is at hand without blocking and sends the rest of
a step to a pool, all at once. An error of a step is thrown into the generator, which may handle it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Any, Generic, TypeAlias, TypeVar

from tieredstore.contracts.segment import FileSegment
from tieredstore.errors import TieredStoreError

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class SegmentRead:
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


@dataclass(frozen=True, slots=True)
class Wait(Generic[T]):
    """A step that waits for something else than segments: how a thread does it (`now`), and how a
    coroutine does (`later`)."""

    now: Callable[[], T]
    later: Callable[[], Awaitable[T]]


Reading: TypeAlias = Generator[list[SegmentRead], list[memoryview], T]
Steps: TypeAlias = "Generator[list[SegmentRead] | Wait[Any], Any, T]"


def run(steps: Steps[T]) -> T:
    """Drive the steps of a read, blocking. Raises what the generator raises."""
    try:
        step = next(steps)
        while True:
            try:
                found = (
                    step.now()
                    if isinstance(step, Wait)
                    else [read.read_blocking() for read in step]
                )
            except TieredStoreError as error:
                step = steps.throw(error)
            else:
                step = steps.send(found)
    except StopIteration as stop:
        result: T = stop.value
        return result
    finally:
        steps.close()  # what it holds is given up now, also when the caller is interrupted


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
