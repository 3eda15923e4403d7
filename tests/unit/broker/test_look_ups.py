"""Lookups in a slow tier block neither the event loop nor the writing of files."""

from __future__ import annotations

import asyncio
import os
import threading
from pathlib import Path

import pytest

from tests.kit.broker_services import broker_services, client_of
from tests.kit.loops import on_loop
from tests.kit.remoting import wait_for
from tieredstore.broker.background import LookUps
from tieredstore.broker.remoting.codes import RequestCode
from tieredstore.broker.remoting.handlers.admin.progress import ProgressHandlers
from tieredstore.broker.remoting.handlers.pull import OffsetHandlers
from tieredstore.broker.state.topics import TopicConfig
from tieredstore.errors import Busy

DEFAULT_THREADS = min(32, (os.cpu_count() or 1) + 4)
"""Number of threads in an event loop's default pool."""


class WaitingTier:
    """Tier whose time lookups block until the test releases them."""

    def __init__(self) -> None:
        self.may_go_on = threading.Event()
        self.threads: list[threading.Thread] = []

    def find(self, topic: str, queue_id: int, timestamp_ms: int, *_: object) -> int:
        self.threads.append(threading.current_thread())
        assert self.may_go_on.wait(60)
        return 7


@pytest.fixture
def tier(monkeypatch: pytest.MonkeyPatch) -> WaitingTier:
    found = WaitingTier()
    store = "tieredstore.local.message_store.DefaultMessageStore.get_offset_in_queue_by_time"
    monkeypatch.setattr(store, lambda _, *arguments: found.find(*arguments))
    return found


def test_tables_are_written_while_the_tier_does_not_answer(
    tmp_path: Path, tier: WaitingTier
) -> None:
    async def run() -> None:
        async with (
            broker_services(tmp_path) as broker,
            client_of(broker, OffsetHandlers.register_all, ProgressHandlers.register_all) as client,
        ):
            place = {"topic": "T", "queueId": 0, "timestamp": 1}
            asked = [
                asyncio.ensure_future(
                    client.request(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, place, timeout_ms=90_000)
                )
                for _ in range(DEFAULT_THREADS + 20)
            ]
            await wait_for(lambda: bool(tier.threads))
            broker.topics.update_topic(TopicConfig(topic_name="T", write_queue_nums=2))
            async with asyncio.timeout(60):
                await broker.topics.persist()
            reset = asyncio.ensure_future(
                client.request(
                    RequestCode.INVOKE_BROKER_TO_RESET_OFFSET,
                    {"group": "g", "topic": "T", "timestamp": 1, "isForce": True},
                    timeout_ms=90_000,
                )
            )
            tier.may_go_on.set()
            answers = await asyncio.gather(*asked)
            assert {answer.ext_fields["offset"] for answer in answers} == {"7"}
            assert (await reset).code == 0
            assert broker.offsets.list_offsets("g", "T") == {0: 7, 1: 7}
            assert threading.current_thread() not in tier.threads

    asyncio.run(run())


@on_loop
async def test_too_many_are_refused_and_those_that_hang_do_not_hold_a_stop_up() -> None:
    may_go_on = threading.Event()
    look_ups = LookUps(threads=2, max_calls=3)
    waiting = [asyncio.ensure_future(look_ups.run(may_go_on.wait, 60)) for _ in range(3)]
    await asyncio.sleep(0)
    with pytest.raises(Busy):
        await look_ups.run(may_go_on.wait)
    assert not await asyncio.to_thread(look_ups.stop)
    may_go_on.set()
    ended = await asyncio.gather(*waiting, return_exceptions=True)
    assert ended[:2] == [True, True]
    assert isinstance(ended[2], asyncio.CancelledError)  # it had not begun
    assert await asyncio.to_thread(look_ups.stop)
