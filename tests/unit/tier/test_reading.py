"""A `Reading` gives the same result in a blocking call and on an event loop."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar, cast

import pytest

from tieredstore.clock import ManualClock
from tieredstore.contracts.segment import FileSegment
from tieredstore.errors import Unavailable
from tieredstore.tier.reading import (
    Reading,
    SegmentRead,
    Steps,
    Wait,
    read_segment,
    run,
    run_async,
    time_steps,
)

T = TypeVar("T")


class Segment:
    def __init__(
        self, data: bytes, *, at_hand: bool = False, error: Exception | None = None
    ) -> None:
        self.data = data
        self.at_hand = at_hand
        self.error = error
        self.blocking = 0

    def read(self, position: int, length: int) -> memoryview:
        self.blocking += 1
        if self.error is not None:
            raise self.error
        return memoryview(self.data)[position : position + length]

    def read_nowait(self, position: int, length: int) -> memoryview | None:
        return self.read(position, length) if self.at_hand else None


def read(segment: Segment, position: int, length: int) -> SegmentRead:
    """Return the description of a read that a `Reading` yields. The segment is a fake with only the
    required methods."""
    return SegmentRead(cast("FileSegment", segment), position, length)


def reading(*segments: Segment) -> Reading[bytes]:
    first = yield [read(segment, 0, 2) for segment in segments]
    second = yield [read(segments[0], 2, 2)]
    return b"".join([*first, *second])


def drive(generator: Steps[T], how: str) -> T:
    if how == "blocking":
        return run(generator)
    with ThreadPoolExecutor(2) as pool:
        return asyncio.run(run_async(generator, pool))


@pytest.mark.parametrize("how", ["blocking", "async"])
@pytest.mark.parametrize("at_hand", [(False, False), (True, False), (True, True)])
def test_steps_get_their_bytes_in_order(how: str, at_hand: tuple[bool, bool]) -> None:
    one, two = Segment(b"abcd", at_hand=at_hand[0]), Segment(b"xy", at_hand=at_hand[1])
    assert drive(reading(one, two), how) == b"abxycd"


def test_what_is_at_hand_does_not_go_to_the_pool() -> None:
    segment = Segment(b"abcd", at_hand=True)
    assert asyncio.run(run_async(reading(segment))) == b"abcd"


@pytest.mark.parametrize("is_at_hand", [False, True])
def test_a_read_is_a_step_unless_it_is_at_hand(is_at_hand: bool) -> None:
    segment = cast("FileSegment", Segment(b"abcd", at_hand=is_at_hand))
    step = next(read_segment(segment, 1, 2), None)
    assert (step is None) == is_at_hand
    assert bytes(drive(read_segment(segment, 1, 2), "blocking")) == b"bc"


@pytest.mark.parametrize("how", ["blocking", "async"])
def test_the_time_of_steps_is_that_of_their_waits(how: str) -> None:
    clock = ManualClock()

    async def later() -> None:
        clock.advance(7)

    def steps() -> Steps[str]:
        clock.advance(100)
        yield Wait(lambda: clock.advance(7), later)
        clock.advance(100)
        yield Wait(lambda: clock.advance(7), later)
        return "done"

    assert drive(time_steps(steps(), clock), how) == ("done", 14)


@pytest.mark.parametrize("how", ["blocking", "async"])
def test_an_error_meets_steps_that_are_timed(how: str) -> None:
    bad, good = Segment(b"", error=Unavailable("down")), Segment(b"abcd")

    def careful() -> Reading[bytes]:
        try:
            yield [read(bad, 0, 1)]
        except Unavailable:
            [found] = yield [read(good, 0, 1)]
            return bytes(found)
        return b""

    assert drive(time_steps(careful(), ManualClock()), how) == (b"a", 0)


@pytest.mark.parametrize("how", ["blocking", "async"])
def test_errors_come_out_and_can_be_handled_inside(how: str) -> None:
    bad, good = Segment(b"", error=Unavailable("down")), Segment(b"abcd")
    with pytest.raises(Unavailable):
        drive(reading(bad), how)

    def careful() -> Reading[bytes]:
        try:
            yield [read(bad, 0, 1)]
        except Unavailable:
            found = yield [read(good, 0, 4)]
            return bytes(found[0])
        return b"no error"

    assert drive(careful(), how) == b"abcd"


@pytest.mark.parametrize("how", ["blocking", "async"])
def test_a_reading_may_need_no_read_at_all(how: str) -> None:
    def nothing() -> Reading[int]:
        yield from ()
        return 7

    assert drive(nothing(), how) == 7


def wait(value: int, error: Exception | None = None) -> Wait[tuple[str, int]]:
    def now() -> tuple[str, int]:
        if error is not None:
            raise error
        return "blocking", value

    async def later() -> tuple[str, int]:
        await asyncio.sleep(0)
        return "async", now()[1]

    return Wait(now, later)


@pytest.mark.parametrize("how", ["blocking", "async"])
def test_steps_wait_for_others_the_way_they_are_driven(how: str) -> None:
    def steps() -> Steps[object]:
        data = yield from reading(Segment(b"abcd"), Segment(b"xy"))
        first = yield wait(1)
        with pytest.raises(Unavailable, match="not there"):
            yield wait(2, Unavailable("not there"))
        return data, first

    def failing() -> Steps[None]:
        yield wait(3, Unavailable("away"))

    assert drive(steps(), how) == (b"abxycd", (how, 1))
    with pytest.raises(Unavailable, match="away"):
        drive(failing(), how)


def test_cancelled_steps_give_up_what_they_hold_at_once() -> None:
    given_up: list[bool] = []

    def steps() -> Steps[None]:
        try:
            yield Wait(lambda: None, asyncio.Event().wait)
        finally:
            given_up.append(True)

    async def cancel() -> None:
        task = asyncio.create_task(run_async(steps()))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError) as kept:  # its traceback keeps the frames alive
            await task
        assert given_up == [True], kept

    asyncio.run(cancel())


def test_interrupted_steps_give_up_what_they_hold_at_once() -> None:
    given_up: list[bool] = []

    def interrupt() -> None:
        raise KeyboardInterrupt

    def steps() -> Steps[None]:
        try:
            yield Wait(interrupt, asyncio.Event().wait)
        finally:
            given_up.append(True)

    with pytest.raises(KeyboardInterrupt) as kept:
        run(steps())
    assert given_up == [True], kept
