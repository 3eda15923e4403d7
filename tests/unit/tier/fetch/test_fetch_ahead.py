"""On a backend whose reads wait for a network, the next block is fetched before it is asked for."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.kit.tier.fetch import TOPIC, CountingProvider, Tier
from tieredstore.contracts.segment import Capabilities, FileSegmentType
from tieredstore.tier.fetch.fetcher import MessageStoreFetcher


class AtOnce(Executor):
    """Runs what it is given before it returns."""

    def submit(self, work: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        done: Future[Any] = Future()
        done.set_result(work(*args, **kwargs))
        return done


@pytest.fixture
def tier(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tier:
    made = Tier(tmp_path, read_ahead_message_count_threshold=10)
    made.add(100)
    object_store = Capabilities(rewritable=False, conditional=True, durable=True)
    monkeypatch.setattr(CountingProvider, "capabilities", object_store)
    made.fetcher = fetcher(made, AtOnce())
    return made


def fetcher(tier: Tier, executor: Executor | None) -> MessageStoreFetcher:
    return MessageStoreFetcher(
        tier.config,
        tier.flat_files,
        None,
        tier.metadata,
        tier.topic_filter,  # type: ignore[arg-type]
        tier.clock,
        tier.metrics,
        executor,
    )


def reads(tier: Tier, offset: int, count: int) -> int:
    """Reads of the commit log for one get."""
    tier.provider.reads.clear()
    result = tier.fetcher.get_message("G", TOPIC, 0, offset, count)
    assert [message.queue_offset for message in result.messages] == list(
        range(offset, offset + count)
    )
    return tier.provider.reads_of(FileSegmentType.COMMIT_LOG)


def test_a_block_comes_when_its_reader_is_in_the_second_half_of_the_first(tier: Tier) -> None:
    assert reads(tier, 0, 4) == 1
    assert reads(tier, 4, 4) == 1  # 10 to 19, in advance
    assert reads(tier, 8, 2) == 0


def test_who_goes_on_from_block_to_block_is_two_blocks_behind(tier: Tier) -> None:
    reads(tier, 0, 8)
    assert reads(tier, 10, 2) == 2  # 20 to 39
    assert [reads(tier, offset, 2) for offset in range(12, 20, 2)] == [0, 0, 0, 0]
    assert reads(tier, 20, 2) == 1  # 40 to 49


def test_nothing_is_fetched_behind_the_end(tier: Tier) -> None:
    reads(tier, 90, 10)
    tier.provider.reads.clear()
    assert reads(tier, 95, 5) == 0


def test_a_reader_of_single_messages_is_not_run_ahead_of(tier: Tier) -> None:
    for offset in range(9):
        reads(tier, offset, 1)
    assert tier.fetcher.cache.block_count == 1


def test_a_backend_at_hand_is_not_read_ahead(tmp_path: Path) -> None:
    tier = Tier(tmp_path, read_ahead_message_count_threshold=10)
    tier.add(100)
    tier.fetcher = fetcher(tier, AtOnce())
    reads(tier, 0, 9)
    assert tier.fetcher.cache.block_count == 1


def test_without_an_executor_each_block_is_fetched_when_it_is_asked_for(tier: Tier) -> None:
    tier.fetcher = fetcher(tier, None)
    reads(tier, 0, 9)
    assert tier.fetcher.cache.block_count == 1


def test_a_failed_fetch_in_advance_is_nobodys_error(tier: Tier) -> None:
    reads(tier, 0, 2)
    tier.provider.is_down = True
    result = tier.fetcher.get_message("G", TOPIC, 0, 2, 6)
    assert len(result.messages) == 6
    tier.provider.is_down = False
    assert reads(tier, 8, 2) == 1
    assert reads(tier, 10, 2) > 0


def test_a_coroutine_that_fetches_a_block_already_is_not_waited_for_in_the_executor(
    tier: Tier,
) -> None:
    with ThreadPoolExecutor(1) as pool:
        tier.fetcher = fetcher(tier, pool)
        may_go_on = threading.Event()
        pool.submit(may_go_on.wait)

        async def read_on() -> int:
            reads(tier, 0, 9)  # 10 to 19 are to be fetched, behind what holds up the pool
            task = asyncio.ensure_future(tier.fetcher.get_message_async("G", TOPIC, 0, 10, 5))
            await asyncio.sleep(0)  # it leads, and its first read is behind that too
            may_go_on.set()
            return len((await asyncio.wait_for(task, 10)).messages)

        assert asyncio.run(read_on()) == 5
