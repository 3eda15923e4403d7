"""A flush future wakes all waiters of an event loop with one call. Its first outcome is final."""

from __future__ import annotations

import asyncio
import logging
import threading
from typing import Any

import pytest

from tieredstore.contracts.durability import FlushFuture, PutMessageStatus
from tieredstore.contracts.message_store import DURABLE, PutMessageResult, wait_until_durable

OK, LATE = PutMessageStatus.PUT_OK, PutMessageStatus.FLUSH_DISK_TIMEOUT


def test_a_round_that_is_over_answers_at_once() -> None:
    assert DURABLE.done()
    assert DURABLE.result() is OK
    assert DURABLE.result(0) is OK
    assert not DURABLE.complete(LATE)
    assert DURABLE.result() is OK


def test_a_round_is_over_when_it_is_completed_and_not_before() -> None:
    future = FlushFuture()
    assert not future.done()
    with pytest.raises(TimeoutError, match=r"not known to be on disk after 0\.01 s"):
        future.result(0.01)
    assert future.complete(LATE)
    assert not future.complete(OK)
    assert future.done()
    assert future.result(0.01) is LATE


def test_all_threads_that_wait_are_woken() -> None:
    future = FlushFuture()
    found: list[PutMessageStatus] = []
    threads = [
        threading.Thread(target=lambda: found.append(future.result(60)), daemon=True)
        for _ in range(20)
    ]
    for thread in threads:
        thread.start()
    future.complete(OK)
    for thread in threads:
        thread.join(60)
    assert found == [OK] * 20


def test_a_wake_up_that_got_lost_is_made_up_for() -> None:
    future = FlushFuture()
    found: list[PutMessageStatus] = []
    thread = threading.Thread(target=lambda: found.append(future.result(60)), daemon=True)
    thread.start()
    future.complete(OK)
    future._gate.acquire(blocking=False)  # as if its owner were interrupted before it passed it on
    thread.join(60)
    assert found == [OK]


class CountingLoop(asyncio.SelectorEventLoop):
    """An event loop that counts calls of `call_soon_threadsafe`."""

    calls = 0

    def call_soon_threadsafe(self, *args: Any, **keys: Any) -> Any:  # type: ignore[override]
        self.calls += 1
        return super().call_soon_threadsafe(*args, **keys)


def test_a_loop_is_called_once_however_many_tasks_wait() -> None:
    future = FlushFuture()
    loop = CountingLoop()

    async def wait() -> PutMessageStatus:
        return await future

    async def wait_all() -> list[PutMessageStatus]:
        tasks = [asyncio.ensure_future(wait()) for _ in range(100)]
        await asyncio.sleep(0)
        thread = threading.Thread(target=future.complete, args=(LATE,))
        thread.start()
        return await asyncio.gather(*tasks)

    try:
        assert loop.run_until_complete(wait_all()) == [LATE] * 100
        assert loop.calls == 1
        assert loop.run_until_complete(wait()) is LATE
        assert loop.calls == 1
    finally:
        loop.close()


def test_a_task_that_is_cancelled_takes_no_other_one_with_it() -> None:
    future = FlushFuture()

    async def wait() -> PutMessageStatus:
        return await future

    async def cancel_one() -> PutMessageStatus:
        first, second = asyncio.ensure_future(wait()), asyncio.ensure_future(wait())
        await asyncio.sleep(0)
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        assert not second.done()
        future.complete(OK)
        return await second

    assert asyncio.run(cancel_one()) is OK


def test_a_closed_loop_keeps_nobody_from_being_woken() -> None:
    future = FlushFuture()

    async def give_up() -> None:
        task = asyncio.ensure_future(_wait(future))
        await asyncio.sleep(0)
        task.cancel()

    asyncio.run(give_up())
    told: list[FlushFuture] = []
    future.add_done_callback(told.append)
    assert future.complete(OK)
    assert told == [future]


async def _wait(future: FlushFuture) -> PutMessageStatus:
    return await future


def test_callbacks_are_called_once_and_their_errors_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    future = FlushFuture()
    told: list[FlushFuture] = []

    def fail(_: FlushFuture) -> None:
        raise ValueError("not my day")

    future.add_done_callback(fail)
    future.add_done_callback(told.append)
    with caplog.at_level(logging.ERROR):
        future.complete(OK)
    assert "a callback of a flush failed" in caplog.text
    future.add_done_callback(told.append)
    assert told == [future, future]


def test_the_result_of_a_put_gets_the_status_of_its_flush() -> None:
    async def put(status: PutMessageStatus) -> PutMessageResult:
        future = FlushFuture()
        result = PutMessageResult(OK, 0, 0, 91, 1, 5, future)
        asyncio.get_running_loop().call_soon(future.complete, status)
        return await wait_until_durable(result)

    assert asyncio.run(put(OK)).status is OK
    late = asyncio.run(put(LATE))
    assert late.status is LATE
    assert late.wrote_bytes == 91
