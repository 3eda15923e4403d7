"""Tests of ReceiveService with failing reads, concurrent offset changes, and malicious clients."""

from __future__ import annotations

import asyncio
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.kit.local_stores import plain, put_all
from tests.kit.receiving import Receiving, bodies, drive
from tieredstore.broker.receive import state
from tieredstore.broker.receive.requests import AckStatus
from tieredstore.contracts.message_store import GetMessageResult, GetMessageStatus, GetRequest
from tieredstore.errors import Busy, Corrupt, Invalid, Unavailable

OK = AckStatus.OK


def fail_reads(
    on: Receiving, patch: pytest.MonkeyPatch, is_broken: Callable[[GetRequest], bool]
) -> None:
    """Make some reads raise an error."""
    get = on.store.get_async

    async def get_or_fail(request: GetRequest) -> GetMessageResult:
        if is_broken(request):
            raise Unavailable("a disk that fails")
        return await get(request)

    patch.setattr(on.store, "get_async", get_or_fail)


async def ack_all(on: Receiving, received: list[Any]) -> None:
    handles = [one.handle for one in received]
    assert set(await on.service.ack_all("G", "T", handles)) == {OK}


def test_a_message_that_cannot_be_read_now_is_not_lost_on_its_way_to_the_dead_letters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(on: Receiving) -> None:
        on.put()
        (one,) = await on.receive()

        async def read_nothing(request: GetRequest) -> GetMessageResult:
            return GetMessageResult(GetMessageStatus.OFFSET_FOUND_NULL, request.offset)

        with monkeypatch.context() as patch:
            patch.setattr(on.store, "get_async", read_nothing)
            with pytest.raises(Unavailable, match="the message at 0 cannot be read now"):
                await on.service.forward_to_dead_letters("G", "T", one.handle)
        assert on.offset() == 0
        assert await on.service.forward_to_dead_letters("G", "T", one.handle) is OK
        assert on.dead.letters == [("G", "0", 1)]
        assert on.offset() == 1

    drive(tmp_path, test)


def test_a_read_that_fails_makes_no_second_dead_letter_of_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(on: Receiving) -> None:
        on.put(6)
        received = await on.receive()
        await on.service.ack("G", "T", received[4].handle)  # the last one is read by itself
        on.clock.advance(30_000)
        fail_reads(on, monkeypatch, lambda request: request.offset == 5)
        for _ in range(3):
            with pytest.raises(Unavailable):
                await on.receive()
        assert on.dead.letters == [("G", str(number), 1) for number in range(4)]

    drive(tmp_path, test, retry_max_times=0)


def test_a_queue_that_cannot_be_read_stops_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(on: Receiving) -> None:
        on.put(3, queue_id=0)
        on.put(3, queue_id=1)
        with monkeypatch.context() as patch:
            fail_reads(on, patch, lambda request: request.queue_id == 1)
            assert bodies(await on.receive()) == [0, 1, 2]
            with pytest.raises(Unavailable):
                await on.receive()
        assert bodies(await on.receive()) == [3, 4, 5]

    drive(tmp_path, test)


def test_an_acknowledgement_does_not_undo_an_offset_that_was_set_back(tmp_path: Path) -> None:
    async def test(on: Receiving) -> None:
        on.put(6)
        received = await on.receive()
        await ack_all(on, received[:3])
        on.offsets.commit_offset("G", "T", 0, 1)  # as mqadmin does
        await ack_all(on, received[3:5])
        assert on.offset() == 1
        assert bodies(await on.receive()) == [1, 2, 3, 4, 5]

    drive(tmp_path, test, queues=1)


def test_an_offset_that_is_set_back_while_nobody_receives_is_kept_over_a_restart(
    tmp_path: Path,
) -> None:
    async def test(on: Receiving) -> None:
        on.put(6)
        await ack_all(on, await on.receive())
        on.offsets.commit_offset("G", "T", 0, 1)
        await on.service._keep_up()
        await on.kill()
        await on.start()
        assert bodies(await on.receive()) == [1, 2, 3, 4, 5]

    drive(tmp_path, test, queues=1)


def test_a_group_that_was_deleted_leaves_nothing(tmp_path: Path) -> None:
    async def test(on: Receiving) -> None:
        on.put(6)
        assert len(await on.receive(3)) == 3
        on.offsets.remove_group("G")
        await on.service._keep_up()
        assert on.state.list_queues() == []
        await on.kill()
        await on.start()
        assert on.state.list_queues() == []
        assert bodies(await on.receive()) == list(range(6))

    drive(tmp_path, test, queues=1)


def test_an_attempt_id_that_is_always_the_same_keeps_nothing_of_what_is_done(
    tmp_path: Path,
) -> None:
    async def test(on: Receiving) -> None:
        for number in range(20):
            on.put()
            received = await on.receive(attempt_id="always")
            assert bodies(received) == [number]
            await ack_all(on, received)
        assert len(on.state.attempts.find("G", "T", "always")) == 1

    drive(tmp_path, test, queues=1)


def test_the_same_attempt_says_until_when_its_messages_are_invisible_now(tmp_path: Path) -> None:
    async def test(on: Receiving) -> None:
        on.put()
        (first,) = await on.receive(attempt_id="a")
        on.clock.advance(20_000)
        (again,) = await on.receive(attempt_id="a")
        assert again.handle == first.handle
        assert again.invisible_until_ms == first.invisible_until_ms + 20_000

    drive(tmp_path, test)


def test_an_event_that_nobody_could_read_again_is_refused(tmp_path: Path) -> None:
    async def test(on: Receiving) -> None:
        on.put(3)
        with pytest.raises(Invalid, match="Given: expected at most 16777216 bytes"):
            await on.receive(attempt_id="a" * (17 << 20))
        received = await on.receive()
        assert bodies(received) == [0, 1, 2]
        await ack_all(on, received)
        await on.kill()
        await on.start()
        assert await on.receive() == []

    drive(tmp_path, test)


def test_message_groups_with_long_names_are_in_order_and_small_in_the_journal(
    tmp_path: Path,
) -> None:
    async def test(on: Receiving) -> None:
        names = ["a" * 500, "a" * 499 + "b"]
        for number in range(100):
            on.put(message_group=names[number % 2])
        received = await on.receive(1, fifo=True)
        assert bodies(await on.receive(fifo=True)) == [*range(1, 64, 2)]
        await ack_all(on, received)
        await on.kill()
        assert sum(path.stat().st_size for path in (tmp_path / "receive").iterdir()) < 20_000
        await on.start()
        assert bodies(await on.receive(fifo=True)) == [*range(2, 66, 2)]

    drive(tmp_path, test, queues=1)


def test_what_waits_in_a_message_group_is_not_held_in_memory(tmp_path: Path) -> None:
    async def test(on: Receiving) -> None:
        size, count = 3_500, 400
        messages = [
            plain("T", 0, number, body=b"x" * size, properties={"__SHARDINGKEY": "g"})
            for number in range(count)
        ]
        put_all(on.store, messages)
        assert len(await on.receive(1, fifo=True)) == 1
        tracemalloc.start()
        try:
            assert await on.receive(fifo=True) == []
            _, peak_bytes = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert peak_bytes < size * count // 2

    drive(tmp_path, test, queues=1)


def test_an_offset_that_is_set_while_the_journal_has_failed_is_followed(tmp_path: Path) -> None:
    async def test(on: Receiving) -> None:
        on.put(3)
        await ack_all(on, await on.receive())
        on.journal._is_failed = True  # it begins a new one
        on.offsets.commit_offset("G", "T", 0, 1)
        await on.service._keep_up()
        assert bodies(await on.receive()) == [1, 2]

    drive(tmp_path, test, queues=1)


def test_a_poll_of_a_group_that_is_deleted_gets_what_comes_then(tmp_path: Path) -> None:
    async def test(on: Receiving) -> None:
        polling = asyncio.ensure_future(on.receive(poll_ms=600_000))
        await asyncio.sleep(0)
        assert on.service._polls.list_parked()  # a read of the local store is done in one go
        on.offsets.remove_group("G")
        await on.service._keep_up()  # forgets it
        await on.service._keep_up()  # the poll starts over
        on.put()
        async with asyncio.timeout(60):
            assert bodies(await polling) == [0]

    drive(tmp_path, test, queues=1, attributes={})


def test_s81_the_queues_that_groups_receive_from_are_limited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def test(on: Receiving) -> None:
        on.put(2)
        assert bodies(await on.receive(max_count=1)) == [0]
        monkeypatch.setattr(state, "MAX_QUEUES", 3)
        for _ in range(2):
            with pytest.raises(Busy, match="3 queues"):
                await on.receive(group="H")
        assert caplog.text.count("no further one is opened") == 1
        assert bodies(await on.receive()) == [1]
        on.offsets.remove_group("H")
        await on.service._keep_up()
        monkeypatch.setattr(state, "MAX_QUEUES", 4)
        assert bodies(await on.receive(group="H")) == [0, 1]

    drive(tmp_path, test)


def test_o09_a_receive_names_a_lost_message_when_nothing_else_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(on: Receiving) -> None:
        on.put(2)
        get = on.store.get_async

        async def lose_first(request: GetRequest) -> GetMessageResult:
            if request.queue_id == 0:
                status = GetMessageStatus.OFFSET_FOUND_NULL
                return GetMessageResult(status, request.offset, 0, 2, fault="offset 0 is lost")
            return await get(request)

        with monkeypatch.context() as patch:
            patch.setattr(on.store, "get_async", lose_first)
            on.put(queue_id=1)
            assert bodies(await on.receive()) == [2]
            with pytest.raises(Corrupt, match="offset 0 is lost"):
                await on.receive()
            waiting = asyncio.create_task(on.receive(poll_ms=20_000))
            await asyncio.sleep(0.05)
            on.put(queue_id=1)
            assert bodies(await waiting) == [3]
        assert on.offset() == 0
        assert bodies(await on.receive()) == [0, 1]

    drive(tmp_path, test)
