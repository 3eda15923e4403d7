"""Accepted messages can always be delivered. The limits for producers may change, and the
properties may leave little room for further ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.kit.client_sessions import NotingSession
from tests.kit.loops import on_loop
from tests.kit.producing import Producing, producing
from tieredstore.broker.refused import Reason, Refused
from tieredstore.broker.send.sender import SendResult
from tieredstore.broker.state.groups import SubscriptionGroupConfig
from tieredstore.broker.transactions.messages import HALF_TOPIC, CommitOrRollback
from tieredstore.message.encoding import Message
from tieredstore.message.record import StoredMessage

BIG = b"B" * 100_000
MOST = 32_767
ADDED = len("CLUSTER\x01C\x02MSG_REGION\x01DefaultRegion\x02TRACE_ON\x01true\x02UNIQ_KEY\x01U\x02")


class Producer(NotingSession):
    """A producer that records the transaction checks it receives."""

    def __init__(self) -> None:
        super().__init__("c")
        self.asked: list[str] = []

    def check_transaction(self, message: StoredMessage, transaction_id: str, group: str) -> None:
        self.asked.append(message.uniq_key or "")


def lower_limit(parts: Producing) -> None:
    """Limit bodies to 1,000 bytes at run time, as `updateBrokerConfig` does."""
    parts.settings.max_message_size_bytes = 1_000
    parts.store._config = msgspec.structs.replace(parts.store._config, max_message_size_bytes=1_000)
    parts.store._look_at_puts()


async def prepare(parts: Producing, **more: Any) -> SendResult:
    properties = {"TRAN_MSG": "true", "PGROUP": "g", **more.pop("properties", {})}
    message = Message.create("T", more.pop("body", b"x"), properties=properties, **more)
    return await parts.prepare(message)


def full(room: int = 0, **more: str) -> dict[str, str]:
    """Return properties that leave only `room` bytes after the broker has added its own."""
    taken = sum(len(name) + len(value) + 2 for name, value in more.items())
    return {"p": "v" * (MOST - ADDED - taken - 3 - room), **more}


async def deliver(parts: Producing, after_ms: int = 7_300_000) -> None:
    parts.store.wait_until_dispatched()
    parts.clock.advance(after_ms)
    await parts.schedule.deliver_due()
    await parts.timers.deliver_due()


@on_loop
async def test_p30_a_lowered_limit_holds_for_producers_and_drops_nothing_that_was_taken(
    tmp_path: Path,
) -> None:
    with producing(tmp_path) as parts:
        await parts.send("delayed", BIG, queue_id=0, properties={"DELAY": "18"})
        await parts.send("timed", BIG, queue_id=0, properties={"TIMER_DELAY_SEC": "172900"})
        await parts.send("failed", BIG, queue_id=0)
        half = await prepare(parts, body=BIG)
        waiting = await prepare(parts, body=BIG)
        (failed,) = parts.read("failed")
        lower_limit(parts)
        with pytest.raises(Refused) as raised:
            await parts.send("T", BIG)
        assert raised.value.reason is Reason.MESSAGE_ILLEGAL
        with pytest.raises(Refused):
            await prepare(parts, body=BIG)
        assert not parts.store.put_message(Message("T", BIG)).ok

        assert not await parts.send_back.send_back("g", failed, 3)
        assert await parts.send_back.send_back("g", failed, -1)
        await parts.transactions.end(
            "g", half.physical_offset, half.queue_offset, CommitOrRollback.COMMIT
        )
        await deliver(parts)
        assert await parts.transactions.check() == 0  # put again, with how often it was asked
        assert len(parts.read(HALF_TOPIC)) == 3
        await deliver(parts, 172_900_000)  # the timer message was put again in the meantime
        await deliver(parts, 10_000)
        topics = ("delayed", "timed", "%RETRY%g", "%DLQ%g", "T")
        assert [[len(m.body) for m in parts.read(topic)] for topic in topics] == [[100_000]] * 5
        assert waiting.queue_offset == 1


@pytest.mark.parametrize("room", [0, 1, 30, 60, 100, 200, 400])
@on_loop
async def test_p31_a_retry_without_room_drops_what_the_broker_added_or_is_a_dead_letter(
    tmp_path: Path, room: int
) -> None:
    with producing(tmp_path) as parts:
        await parts.send(queue_id=0, uniq_key="U", properties=full(room))
        (stored,) = parts.read()
        assert len(stored.properties_bytes) == MOST - room
        is_dead = await parts.send_back.send_back("g", stored, 3)
        await deliver(parts)
        dead, again = parts.read("%DLQ%g"), parts.read("%RETRY%g")
        assert (len(dead), len(again)) == ((1, 0) if is_dead else (0, 1))
        (found,) = dead or again
        assert found.get_property("p") == stored.get_property("p")
        assert found.uniq_key == "U"
        if again:
            assert found.get_property("RETRY_TOPIC") == "T"
            await parts.send_back.send_back("g", found, -1)
            (found,) = parts.read("%DLQ%g")
            assert found.get_property("p") == stored.get_property("p")


@on_loop
async def test_p31_a_dead_letter_always_fits(tmp_path: Path) -> None:
    with producing(tmp_path) as parts:
        parts.groups.update_group(SubscriptionGroupConfig(group_name="g"))
        delayed = {"DELAY": "1"}
        await parts.send(queue_id=0, uniq_key="U", properties=full(0))
        await parts.send("d", queue_id=0, uniq_key="U", properties=full(40, **delayed))
        await deliver(parts)
        for topic in ("T", "d"):
            await parts.send_back.send_to_dead_letters("g", parts.read(topic)[0], 17)
        dead = parts.read("%DLQ%g")
    assert [len(message.get_property("p") or "") > 32_000 for message in dead] == [True, True]


@on_loop
async def test_p31_a_consumer_s_own_retry_without_room_is_a_dead_letter(tmp_path: Path) -> None:
    """A retry message sent by a consumer becomes a dead letter if it has no room for more
    properties."""
    with producing(tmp_path) as parts:
        retry = {"RETRY_TOPIC": "T", "DELAY": "3", "RECONSUME_TIME": "1"}
        properties = full(0, **retry)
        for group in ("g", "g" * 100):  # the delay needs room for the name of the retry topic
            parts.groups.update_group(SubscriptionGroupConfig(group_name=group))
            topic = f"%RETRY%{group}"
            sent = await parts.send(topic, queue_id=0, uniq_key="U", properties=properties)
            assert sent.transaction_id == "U"
            await deliver(parts)
            is_dead = group != "g"
            assert len(parts.read(f"%DLQ%{group}")) == is_dead
            assert len(parts.read(topic)) == (not is_dead)


@pytest.mark.parametrize("room", [0, 5, 20, 60])
@on_loop
async def test_p31_a_producer_is_asked_about_a_half_message_without_room(
    tmp_path: Path, room: int
) -> None:
    with producing(tmp_path, transaction_timeout_ms=1_000) as parts:
        producer = Producer()
        parts.producers.register("g", producer)
        own = len("REAL_TOPIC\x01T\x02REAL_QID\x010\x02__transactionId__\x01U\x02")
        properties = full(room + own, TRAN_MSG="true", PGROUP="g")
        await prepare(parts, uniq_key="U", properties=properties)
        (half,) = parts.read(HALF_TOPIC)
        assert len(half.properties_bytes) == MOST - room
        for number in range(1, 4):
            parts.clock.advance(30_000)
            parts.store.wait_until_dispatched()
            assert await parts.transactions.check() == 1
            assert producer.asked == ["U"] * number
        half = parts.read(HALF_TOPIC)[-1]
        await parts.transactions.end(
            "g", half.physical_offset, half.queue_offset, CommitOrRollback.COMMIT
        )
        assert len(parts.read()[0].get_property("p") or "") == len(properties["p"])


@on_loop
async def test_p31_a_message_with_a_bad_time_becomes_a_dead_letter(tmp_path: Path) -> None:
    """A copy of a timer message with an invalid time becomes a dead letter."""
    with producing(tmp_path) as parts:
        bad = {"TIMER_OUT_MS": "x", "TIMER_DELIVER_MS": "abc"}
        await parts.send(queue_id=0, properties=bad)
        (stored,) = parts.read()
        assert await parts.send_back.send_back("g", stored, -1)
        assert len(parts.read("%DLQ%g")) == 1


@pytest.mark.parametrize("kind", ["DELAY", "TIMER_DELAY_SEC", "TRAN_MSG"])
@on_loop
async def test_p71_a_message_is_delivered_whose_offsets_in_light_queues_do_not_fit(
    tmp_path: Path, kind: str
) -> None:
    """A message is delivered without its light queue offsets if they do not fit into its record."""
    names = ",".join(f"%LMQ%{number:026d}" for number in range(984))
    named = {"INNER_MULTI_DISPATCH": names, "UNIQ_KEY": "U"}
    with producing(tmp_path, store={"enable_lmq": True, "enable_multi_dispatch": True}) as parts:
        if kind == "TRAN_MSG":
            sent = await prepare(parts, properties=named)
            half = sent.physical_offset, sent.queue_offset
            await parts.transactions.end("g", *half, CommitOrRollback.COMMIT)
        else:
            await parts.send("T", b"x", queue_id=0, properties={**named, kind: "1"})
        await deliver(parts)
        (found,) = parts.read("T")
        assert bytes(found.body) == b"x"
        assert found.get_property("INNER_MULTI_DISPATCH") is None
