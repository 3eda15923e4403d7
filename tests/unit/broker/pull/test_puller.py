"""Waiting pulls end when a message arrives, on a timeout, or when the broker stops."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from tests.kit.local_stores import plain, put_all, running, small_config
from tieredstore.broker.clients.session import Subscription
from tieredstore.broker.pull import MessagePuller, PullHold, PullRequest
from tieredstore.contracts.message_store import GetMessageStatus
from tieredstore.errors import Busy
from tieredstore.local.message_store import DefaultMessageStore

Scenario = Callable[[DefaultMessageStore, MessagePuller, PullHold], Awaitable[None]]


def play(root: Path, scenario: Scenario, max_watches: int = 100) -> None:
    async def run() -> None:
        with running(small_config(root)) as store:
            hold = PullHold(max_watches)
            hold.start()
            store.set_message_arriving_listener(hold.notify_arrived)
            try:
                await scenario(store, MessagePuller(store, hold), hold)
            finally:
                hold.stop()

    asyncio.run(asyncio.wait_for(run(), 60))


def request(offset: int = 0, tags: str = "*", wait_ms: int = 30_000, queue: int = 0) -> PullRequest:
    return PullRequest(
        "g", "T", queue, offset, Subscription.parse("T", tags), suspend_timeout_ms=wait_ms
    )


async def park(hold: PullHold, count: int = 1) -> None:
    """Wait until the given number of pulls are waiting."""
    while hold.count < count:  # noqa: ASYNC110 - nobody tells that a pull begins to wait
        await asyncio.sleep(0)
    await asyncio.sleep(0.01)


def test_a_message_wakes_the_pulls_of_its_queue_alone(tmp_path: Path) -> None:
    async def scenario(store: DefaultMessageStore, puller: MessagePuller, hold: PullHold) -> None:
        mine = [asyncio.create_task(puller.pull(request())) for _ in range(2)]
        other = asyncio.create_task(puller.pull(request(queue=1)))
        await park(hold, 3)
        put_all(store, [plain(number=1)])
        for result in await asyncio.gather(*mine):
            assert result.status is GetMessageStatus.FOUND
            assert result.next_begin_offset == 1
        assert not other.done()
        assert hold.count == 1
        other.cancel()
        await asyncio.wait([other])
        assert hold.count == 0
        assert hold._watches == {}

    play(tmp_path, scenario)


def test_pulls_are_counted_by_topic_and_group(tmp_path: Path) -> None:
    async def scenario(store: DefaultMessageStore, puller: MessagePuller, _hold: PullHold) -> None:
        put_all(store, [plain(number=number) for number in range(5)])
        result = await puller.pull(request())
        await puller.pull(request(4))
        await puller.pull(request(5, wait_ms=0))
        found = puller.traffic.deliveries["T", "g"]
        assert (found.messages, found.answers) == (6, 2)
        assert found.size_bytes == result.size_bytes + result.messages[4].size
        assert (puller.traffic.found, puller.traffic.missed) == (2, 1)

    play(tmp_path, scenario)


def test_a_message_that_the_filter_does_not_want_wakes_nobody(tmp_path: Path) -> None:
    async def scenario(store: DefaultMessageStore, puller: MessagePuller, hold: PullHold) -> None:
        pull = asyncio.create_task(puller.pull(request(tags="Tag1")))
        await park(hold)
        put_all(store, [plain(number=0), plain(number=2)])
        await asyncio.sleep(0.05)
        assert not pull.done()
        put_all(store, [plain(number=1)])
        result = await pull
        assert [message.body for message in result.messages] == [b"body-1"]
        assert result.next_begin_offset == 3

    play(tmp_path, scenario)


def test_a_pull_returns_when_its_time_is_over(tmp_path: Path) -> None:
    async def scenario(store: DefaultMessageStore, puller: MessagePuller, hold: PullHold) -> None:
        put_all(store, [plain()])
        result = await puller.pull(request(1, wait_ms=20))
        assert result.status is GetMessageStatus.OFFSET_OVERFLOW_ONE
        assert result.next_begin_offset == 1
        assert hold.count == 0

    play(tmp_path, scenario)


@pytest.mark.parametrize("offset", [7, -1])
def test_an_offset_that_is_wrong_is_answered_at_once(tmp_path: Path, offset: int) -> None:
    async def scenario(store: DefaultMessageStore, puller: MessagePuller, hold: PullHold) -> None:
        put_all(store, [plain()])
        result = await puller.pull(request(offset))
        assert not result.messages
        assert result.next_begin_offset == (1 if offset > 0 else 0)

    play(tmp_path, scenario)


def test_messages_between_the_read_and_the_wait_are_not_missed(tmp_path: Path) -> None:
    async def scenario(store: DefaultMessageStore, puller: MessagePuller, hold: PullHold) -> None:
        with hold.watch_topic("T") as watch:
            put_all(store, [plain()])
            await asyncio.sleep(0.01)  # notified without a waiting pull
            assert await watch.wait(30_000)
            assert not await watch.wait(1)  # once
            put_all(store, [plain(queue_id=3)])
            assert await watch.wait(30_000)

    play(tmp_path, scenario)


def test_several_queues_are_waited_for_at_once(tmp_path: Path) -> None:
    async def scenario(store: DefaultMessageStore, puller: MessagePuller, hold: PullHold) -> None:
        async def wait(queue_ids: list[int] | None, timeout_ms: int) -> bool:
            with hold.watch_topic("T", queue_ids) as watch:
                return await watch.wait(timeout_ms)

        waits = [asyncio.create_task(wait(queues, 30_000)) for queues in ([0, 1], None)]
        elsewhere = asyncio.create_task(wait([5], 100))
        await park(hold, 3)
        put_all(store, [plain(queue_id=1)])
        assert await asyncio.gather(*waits) == [True, True]
        assert not await elsewhere

    play(tmp_path, scenario)


def test_too_many_pulls_are_refused_and_those_that_wait_stay(tmp_path: Path) -> None:
    async def scenario(store: DefaultMessageStore, puller: MessagePuller, hold: PullHold) -> None:
        pulls = [asyncio.create_task(puller.pull(request())) for _ in range(2)]
        await park(hold, 2)
        with pytest.raises(Busy, match="2 reads wait, no further one"):
            await puller.pull(request())
        put_all(store, [plain()])
        assert all(result.messages for result in await asyncio.gather(*pulls))

    play(tmp_path, scenario, max_watches=2)


def test_a_hold_that_stops_lets_everybody_go(tmp_path: Path) -> None:
    async def scenario(store: DefaultMessageStore, puller: MessagePuller, hold: PullHold) -> None:
        pull = asyncio.create_task(puller.pull(request()))
        await park(hold)
        hold.stop()
        assert not (await pull).messages
        assert not (await puller.pull(request())).messages

    play(tmp_path, scenario)
