"""Timer messages are delivered on time, even after restarts. Recalled messages are not
delivered."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kit.local_stores import START_MS
from tests.kit.loops import on_loop
from tests.kit.producing import Producing, producing
from tieredstore.broker.delay.service import BATCH
from tieredstore.broker.delay.timers import ROLL_WINDOW_MS
from tieredstore.broker.refused import Reason, Refused
from tieredstore.broker.send.fitting import RecallHandle, parse_recall_handle
from tieredstore.clock import ManualClock
from tieredstore.contracts.durability import PutMessageStatus
from tieredstore.contracts.message_store import DURABLE, PutMessageResult
from tieredstore.errors import Invalid, Unavailable

TIMER = "rmq_sys_wheel_timer"
HOUR_MS = 3_600_000


async def _deliver(parts: Producing) -> int:
    parts.store.wait_until_dispatched()
    return await parts.timers.deliver_due()


def _bodies(parts: Producing) -> list[bytes]:
    return [bytes(message.body) for message in parts.read()]


async def _send_in(parts: Producing, body: bytes, delay_ms: int) -> str:
    deliver_ms = str(parts.clock.now_ms() + delay_ms)
    sent = await parts.send(body=body, queue_id=0, properties={"TIMER_DELIVER_MS": deliver_ms})
    handle: str = sent.recall_handle
    return handle


@on_loop
async def test_messages_come_in_the_order_of_their_times(tmp_path: Path) -> None:
    with producing(tmp_path) as parts:
        for body, seconds in ((b"late", 20), (b"early", 5), (b"early too", 5)):
            await _send_in(parts, body, seconds * 1000 + 1)
        assert await _deliver(parts) == 0
        parts.clock.advance(5000)
        assert await _deliver(parts) == 2
        parts.clock.advance(15_000)
        assert await _deliver(parts) == 1
        assert _bodies(parts) == [b"early", b"early too", b"late"]


@on_loop
async def test_a_restart_delivers_what_was_not(tmp_path: Path) -> None:
    clock = ManualClock(START_MS)
    with producing(tmp_path, clock) as parts:
        for number in range(5):
            await _send_in(parts, b"%d" % number, 1001 + 10_000 * (number % 2))
        clock.advance(1000)
        assert await _deliver(parts) == 3
        await parts.timers.progress.persist()
    clock.advance(60_000)
    with producing(tmp_path, clock) as parts:
        await parts.timers.progress.load()
        assert await _deliver(parts) == 2
        assert _bodies(parts) == [b"0", b"2", b"4", b"1", b"3"]


@on_loop
async def test_killed_before_the_progress_is_written_they_come_again(tmp_path: Path) -> None:
    clock = ManualClock(START_MS)
    with producing(tmp_path, clock) as parts:
        await _send_in(parts, b"x", 1001)
        clock.advance(1000)
        assert await _deliver(parts) == 1
    with producing(tmp_path, clock) as parts:
        await parts.timers.progress.load()
        await _deliver(parts)
        assert _bodies(parts) == [b"x", b"x"]


@on_loop
async def test_one_that_came_late_for_its_slot_is_not_lost(tmp_path: Path) -> None:
    clock = ManualClock(START_MS)
    with producing(tmp_path, clock) as parts:
        await _send_in(parts, b"a", 1001)
        clock.advance(1000)
        await _deliver(parts)  # everything up to this second is delivered
        await _send_in(parts, b"b", 500)  # due within the same second
        is_busy = PutMessageResult(PutMessageStatus.OS_PAGE_CACHE_BUSY, -1, -1, 0, 0, 0, DURABLE)
        parts.store.add_put_message_hook(lambda message: is_busy)
        with pytest.raises(Unavailable):
            await _deliver(parts)
        await parts.timers.progress.persist()
    with producing(tmp_path, clock) as parts:
        await parts.timers.progress.load()
        await _deliver(parts)
        assert _bodies(parts) == [b"a", b"b"]


@on_loop
async def test_what_the_store_does_not_take_now_comes_later_and_once(tmp_path: Path) -> None:
    with producing(tmp_path) as parts:
        for body in (b"1", b"2", b"3"):
            await _send_in(parts, body, 1001)
        busy = PutMessageResult(PutMessageStatus.OS_PAGE_CACHE_BUSY, -1, -1, 0, 0, 0, DURABLE)
        refused = [b"2", b"2"]
        parts.store.add_put_message_hook(
            lambda message: (
                busy if refused and message.body == refused[0] and refused.pop() else None
            )
        )
        parts.clock.advance(1000)
        for _ in range(2):
            with pytest.raises(Unavailable):
                await _deliver(parts)
        assert await _deliver(parts) == 2
        assert _bodies(parts) == [b"1", b"2", b"3"]


@on_loop
async def test_recalled_messages_do_not_come(tmp_path: Path) -> None:
    with producing(tmp_path) as parts:
        handles = [await _send_in(parts, b"%d" % number, 5000) for number in range(3)]
        assert parse_recall_handle(handles[1])[:3] == ("T", "b", START_MS + 4001)
        await parts.sender.recall("g", "T", handles[1])
        parts.clock.advance(6000)
        assert await _deliver(parts) == 2
        assert _bodies(parts) == [b"0", b"2"]
        with pytest.raises(Refused) as raised:  # delivered already
            await parts.sender.recall("g", "T", handles[0])
    assert raised.value.reason is Reason.MESSAGE_ILLEGAL


@on_loop
async def test_a_recall_counts_after_a_restart(tmp_path: Path) -> None:
    clock = ManualClock(START_MS)
    with producing(tmp_path, clock) as parts:
        handle = await _send_in(parts, b"x", 5000)
        await _deliver(parts)
        await parts.sender.recall("g", "T", handle)
        await _deliver(parts)
        await parts.timers.progress.persist()
    clock.advance(9000)
    with producing(tmp_path, clock) as parts:
        await parts.timers.progress.load()
        assert await _deliver(parts) == 0
        assert _bodies(parts) == []


@on_loop
async def test_handles_of_others_are_refused(tmp_path: Path) -> None:
    with producing(tmp_path) as parts:
        other = RecallHandle("other", "b", START_MS + 5000, "U").encode()
        for handle in ("", "?", "bm90aGluZw==", other):
            with pytest.raises(Refused) as raised:
                await parts.sender.recall("g", "T", handle)
            assert raised.value.reason is Reason.INVALID_PARAMETER
    with pytest.raises(Invalid, match="recall handle"):
        parse_recall_handle("djEgYQ==")


@on_loop
async def test_what_is_far_ahead_is_put_into_the_topic_again(tmp_path: Path) -> None:
    with producing(tmp_path) as parts:
        await _send_in(parts, b"far", ROLL_WINDOW_MS + HOUR_MS)
        await _deliver(parts)
        parts.clock.advance(ROLL_WINDOW_MS)
        assert await _deliver(parts) == 0
        first, second = parts.read(TIMER)
        assert first.properties_bytes == second.properties_bytes
        parts.clock.advance(HOUR_MS)
        assert await _deliver(parts) == 1
        assert _bodies(parts) == [b"far"]


@on_loop
async def test_what_a_java_broker_delivered_does_not_come_again(tmp_path: Path) -> None:
    with producing(tmp_path) as parts:
        for seconds in (2, 8):
            await _send_in(parts, b"%d" % seconds, seconds * 1000 + 1)
        path = parts.timers.progress.path.with_name("timercheck")
        path.parent.mkdir(parents=True, exist_ok=True)
        numbers = (START_MS + 5000, 0, 2)
        path.write_bytes(b"".join(n.to_bytes(8, "big") for n in numbers).ljust(4096, b"\0"))
        await parts.timers.progress.load()
        parts.clock.advance(10_000)
        assert await _deliver(parts) == 1
        assert _bodies(parts) == [b"8"]


@on_loop
async def test_a_stop_while_the_topic_is_read_again_loses_no_message(tmp_path: Path) -> None:
    """No timer message is lost if the broker stops while it rereads the timer topic. It rereads the
    whole topic because the progress that a Java broker wrote has no first offset."""
    clock = ManualClock(START_MS)
    with producing(tmp_path, clock) as parts:
        for _ in range(BATCH):
            await _send_in(parts, b"early", 1001)
        await _send_in(parts, b"late", 60_001)
        parts.store.wait_until_dispatched()
        progress = parts.timers.progress
        progress.next_offset, progress.delivered_until_ms = BATCH + 1, START_MS + 1000
        assert await parts.timers._read_batch(0)
        await progress.persist()
    clock.advance(60_000)
    with producing(tmp_path, clock) as parts:
        await parts.timers.progress.load()
        assert await _deliver(parts) == 1
