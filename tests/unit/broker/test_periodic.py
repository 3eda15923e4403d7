"""Tests of periodic tasks: repetition, back-off after errors, and status."""

from __future__ import annotations

import asyncio
import logging

import pytest

from tieredstore.broker.background import PeriodicTask
from tieredstore.errors import Unavailable
from tieredstore.service_thread import ServiceState

NEVER_MS = 1 << 30


def test_it_runs_at_each_interval_until_it_is_stopped() -> None:
    async def run() -> None:
        rounds = asyncio.Semaphore(0)

        async def work() -> None:
            rounds.release()

        task = PeriodicTask("work", 1, work)
        assert task.health().state is ServiceState.STOPPED
        task.start()
        for _ in range(3):
            await asyncio.wait_for(rounds.acquire(), 30)
        assert task.health().state is ServiceState.RUNNING
        await task.stop()
        await task.stop()
        assert task.health().state is ServiceState.STOPPED

    asyncio.run(run())


def test_an_error_is_told_and_does_not_end_it(caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        failing = True
        rounds = asyncio.Semaphore(0)

        async def work() -> None:
            rounds.release()
            if failing:
                raise Unavailable("no disk")

        task = PeriodicTask("work", lambda: NEVER_MS, work)
        task.start()
        for failures in (1, 2):
            task.wake()
            await asyncio.wait_for(rounds.acquire(), 30)
            await asyncio.sleep(0)
            health = task.health()
            assert (health.state, health.failures) == (ServiceState.FAILED, failures)
            assert str(health.error) == "no disk"
        failing = False
        task.wake()
        await asyncio.wait_for(rounds.acquire(), 30)
        await asyncio.sleep(0)
        assert task.health().state is ServiceState.RUNNING
        await task.stop()

    with caplog.at_level(logging.INFO):
        asyncio.run(run())
    assert "work: failed, is tried again: no disk" in caplog.text
    assert "work: works again, after 2 failures" in caplog.text


def test_a_stop_cancels_a_round() -> None:
    async def run() -> None:
        begun = asyncio.Event()
        ended: list[str] = []

        async def work() -> None:
            begun.set()
            try:
                await asyncio.sleep(NEVER_MS)
            except asyncio.CancelledError:
                ended.append("cancelled")
                raise

        task = PeriodicTask("work", 1, work)
        task.start()
        await asyncio.wait_for(begun.wait(), 30)
        await task.stop()
        assert ended == ["cancelled"]

    asyncio.run(run())


def test_a_stop_right_behind_a_wake_ends_the_task() -> None:
    async def run() -> None:
        async def work() -> None:
            rounds.append(1)

        rounds: list[int] = []
        for turns in range(6):
            task = PeriodicTask("work", NEVER_MS, work)
            task.start()
            await asyncio.sleep(0.001)
            task.wake()
            for _ in range(turns):  # the cancellation meets the wake at each of its steps
                await asyncio.sleep(0)
            await task.stop()
            assert task.health().state is ServiceState.STOPPED

    asyncio.run(asyncio.wait_for(run(), 30))
