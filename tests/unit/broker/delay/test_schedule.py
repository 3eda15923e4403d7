"""Messages with a delay level are delivered when they are due, even after faults."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.kit.local_stores import START_MS
from tests.kit.loops import on_loop
from tests.kit.producing import Producing, producing
from tieredstore.broker.delay.service import PUT_OFF_STEPS
from tieredstore.broker.state.topics import TopicConfig
from tieredstore.clock import ManualClock
from tieredstore.contracts.durability import PutMessageStatus
from tieredstore.contracts.message_store import DURABLE, PutMessageResult
from tieredstore.errors import Unavailable


async def _deliver_all(parts: Producing) -> None:
    await _deliver(parts)
    await parts.timers.deliver_due()


async def _deliver(parts: Producing) -> int:
    parts.store.wait_until_dispatched()
    return await parts.schedule.deliver_due()


@on_loop
async def test_a_message_comes_when_its_level_is_over(tmp_path: Path) -> None:
    with producing(tmp_path) as parts:
        await parts.send(queue_id=2, properties={"DELAY": "3"}, tags="a", born_timestamp_ms=7)
        aside = parts.read("SCHEDULE_TOPIC_XXXX", 2)[0]
        assert aside.tags_code == START_MS + 10_000
        parts.clock.advance(9999)
        assert await _deliver(parts) == 0
        parts.clock.advance(1)
        assert await _deliver(parts) == 1
        found = parts.read("T", 2)[0]
        assert await _deliver(parts) == 0
    # As Java's broker delivers it: only the topic and its length differ.
    assert found.properties_bytes == aside.properties_bytes
    assert aside.size - found.size == len("SCHEDULE_TOPIC_XXXX") - len("T")
    assert (found.tags, found.born_timestamp_ms, bytes(found.body)) == ("a", 7, b"body")
    assert found.store_timestamp_ms == START_MS + 10_000


@on_loop
async def test_each_level_has_its_time_and_its_order(tmp_path: Path) -> None:
    with producing(tmp_path) as parts:
        for level in (2, 1):
            for number in range(40):
                body = b"%d-%d" % (level, number)
                await parts.send(body=body, queue_id=0, properties={"DELAY": str(level)})
        parts.clock.advance(1000)
        assert await _deliver(parts) == 40
        parts.clock.advance(4000)
        assert await _deliver(parts) == 40
        bodies = [bytes(message.body) for message in parts.read()]
    assert bodies == [b"%d-%d" % (level, number) for level in (1, 2) for number in range(40)]


@on_loop
async def test_a_restart_goes_on_where_it_was(tmp_path: Path) -> None:
    clock = ManualClock(START_MS)
    with producing(tmp_path, clock) as parts:
        for level in ("1", "1", "4"):
            await parts.send(queue_id=0, properties={"DELAY": level})
        clock.advance(1000)
        assert await _deliver(parts) == 2
        await parts.schedule.offsets.persist()
    clock.advance(60_000)
    with producing(tmp_path, clock) as parts:
        await parts.schedule.offsets.load()
        assert await _deliver(parts) == 1
        assert len(parts.read()) == 3


@on_loop
async def test_killed_before_the_offset_is_written_it_comes_again(tmp_path: Path) -> None:
    clock = ManualClock(START_MS)
    with producing(tmp_path, clock) as parts:
        for body in (b"1", b"2"):
            await parts.send(body=body, queue_id=0, properties={"DELAY": "1"})
        clock.advance(1000)
        assert await _deliver(parts) == 2
    with producing(tmp_path, clock) as parts:  # its delayOffset.json was never written
        await parts.schedule.offsets.load()
        await _deliver(parts)
        assert [bytes(message.body) for message in parts.read()] == [b"1", b"2", b"1", b"2"]


@on_loop
async def test_what_the_store_does_not_take_now_is_delivered_later(tmp_path: Path) -> None:
    with producing(tmp_path) as parts:
        for body in (b"1", b"2"):
            await parts.send(body=body, queue_id=0, properties={"DELAY": "1"})
        is_busy = True
        busy = PutMessageResult(PutMessageStatus.OS_PAGE_CACHE_BUSY, -1, -1, 0, 0, 0, DURABLE)
        parts.store.add_put_message_hook(
            lambda message: busy if is_busy and bytes(message.body) == b"2" else None
        )
        parts.clock.advance(1000)
        with pytest.raises(Unavailable, match="OS_PAGE_CACHE_BUSY"):
            await _deliver(parts)
        is_busy = False
        await _deliver(parts)
        assert [bytes(message.body) for message in parts.read()] == [b"1", b"2"]


@pytest.mark.parametrize(
    "status",
    [PutMessageStatus.SERVICE_NOT_AVAILABLE, PutMessageStatus.CREATE_MAPPED_FILE_FAILED],
)
@pytest.mark.parametrize("delay", [{"DELAY": "1"}, {"TIMER_DELAY_MS": "1000"}])
@on_loop
async def test_p80_a_queue_that_takes_no_message_holds_up_no_other(
    tmp_path: Path,
    delay: dict[str, str],
    status: PutMessageStatus,
    caplog: pytest.LogCaptureFixture,
) -> None:
    is_damaged = True
    refused = PutMessageResult(status, -1, -1, 0, 0, 0, DURABLE, "the queue is damaged")
    with producing(tmp_path) as parts:
        parts.store.add_put_message_hook(
            lambda message: refused if is_damaged and message.topic == "bad" else None
        )
        for body, topic in ((b"1", "bad"), (b"2", "bad"), (b"3", "T")):
            await parts.send(topic, body, queue_id=0, properties=delay)
        parts.clock.advance(2000)
        await _deliver_all(parts)
        assert [bytes(message.body) for message in parts.read()] == [b"3"]
        assert len([record for record in caplog.records if "bad/0" in record.message]) == 1
        parts.clock.advance(PUT_OFF_STEPS * 1000)
        await _deliver_all(parts)
        assert not parts.read("bad")
        is_damaged = False
        parts.clock.advance(PUT_OFF_STEPS * 1000)
        await _deliver_all(parts)
        assert [bytes(message.body) for message in parts.read("bad")] == [b"1", b"2"]
        assert len(parts.read()) == 1


@on_loop
async def test_p80_a_store_that_takes_nothing_keeps_what_is_due(tmp_path: Path) -> None:
    closed = PutMessageResult(PutMessageStatus.SERVICE_NOT_AVAILABLE, -1, -1, 0, 0, 0, DURABLE)
    is_closed = False
    with producing(tmp_path) as parts:
        parts.store.add_put_message_hook(lambda _: closed if is_closed else None)
        await parts.send(body=b"1", queue_id=0, properties={"DELAY": "1"})
        parts.clock.advance(1000)
        is_closed = True
        with pytest.raises(Unavailable, match="SERVICE_NOT_AVAILABLE"):
            await _deliver(parts)
        is_closed = False
        await _deliver(parts)
        assert [bytes(message.body) for message in parts.read()] == [b"1"]


@on_loop
async def test_an_offset_outside_the_queue_is_moved_into_it(tmp_path: Path) -> None:
    with producing(tmp_path) as parts:
        parts.schedule.offsets.set_offset(1, 99)
        await parts.send(body=b"1", queue_id=0, properties={"DELAY": "1"})
        await _deliver(parts)  # the offset was past the end, so it continues at the end
        await parts.send(body=b"2", queue_id=0, properties={"DELAY": "1"})
        parts.clock.advance(1000)
        assert await _deliver(parts) == 1
        assert [bytes(message.body) for message in parts.read()] == [b"2"]


@on_loop
async def test_a_clock_that_is_set_back_delays_by_the_level_at_most(tmp_path: Path) -> None:
    with producing(tmp_path) as parts:
        await parts.send(queue_id=0, properties={"DELAY": "1"})
        parts.clock.set(START_MS - 3_600_000)
        assert await _deliver(parts) == 1


@on_loop
async def test_p30_levels_that_the_broker_has_no_more_are_delivered_at_their_time(
    tmp_path: Path,
) -> None:
    clock = ManualClock(START_MS)
    with producing(tmp_path, clock) as parts:
        await parts.send(queue_id=0, properties={"DELAY": "6"})
        parts.store.wait_until_dispatched()
    with producing(tmp_path, clock, message_delay_level="1s 5s") as parts:
        parts.schedule.forget_lost()
        clock.advance(119_999)
        assert await _deliver(parts) == 0
        clock.advance(1)
        assert await _deliver(parts) == 1


@pytest.mark.parametrize("delay", [{"DELAY": "1"}, {"TIMER_DELAY_MS": "1000"}])
@on_loop
async def test_p30_a_queue_that_the_topic_has_no_more_is_replaced(
    tmp_path: Path, delay: dict[str, str]
) -> None:
    with producing(tmp_path) as parts:
        parts.topics.update_topic(TopicConfig(topic_name="T"))
        await parts.send(queue_id=7, properties=delay)
        parts.topics.update_topic(
            TopicConfig(topic_name="T", read_queue_nums=2, write_queue_nums=2)
        )
        parts.clock.advance(1000)
        await _deliver_all(parts)
        assert len(parts.read("T", 1)) == 1


@on_loop
async def test_the_file_is_java_s(tmp_path: Path) -> None:
    with producing(tmp_path) as parts:
        offsets = parts.schedule.offsets
        offsets.path.parent.mkdir(parents=True, exist_ok=True)
        offsets.path.write_bytes(b'{"dataVersion":{"counter":4},"offsetTable":{1:5,\n2:7}}')
        await offsets.load()
        assert (offsets.find_offset(1), offsets.find_offset(2), offsets.find_offset(3)) == (
            5,
            7,
            None,
        )


@on_loop
async def test_it_delivers_by_itself(tmp_path: Path) -> None:
    with producing(tmp_path) as parts:
        parts.schedule.start()
        await parts.send(queue_id=0, properties={"DELAY": "1"})
        parts.clock.advance(1000)
        for _ in range(3000):
            if parts.read():
                break
            await asyncio.sleep(0.01)
        assert len(parts.read()) == 1
        await parts.schedule.stop()


@pytest.mark.parametrize("topic", ["RMQ_SYS_TRANS_HALF_TOPIC", None])
@on_loop
async def test_what_has_no_real_topic_is_dropped(tmp_path: Path, topic: str | None) -> None:
    with producing(tmp_path) as parts:
        properties = {"DELAY": "1", **({"REAL_TOPIC": topic, "REAL_QID": "0"} if topic else {})}
        parts.put_as_is("SCHEDULE_TOPIC_XXXX", properties)
        await parts.send(queue_id=0, properties={"DELAY": "1"})
        parts.clock.advance(1000)
        await _deliver(parts)
        assert len(parts.read()) == 1
