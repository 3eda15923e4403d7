"""Every entry point refuses fields that clients may not set, and accepts all others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.kit.loops import on_loop
from tests.kit.producing import Producing, producing
from tieredstore.broker.refused import Reason, Refused
from tieredstore.broker.send.door import BROKER_PROPERTIES, Door, PutGuard
from tieredstore.broker.send.sender import SendRequest
from tieredstore.broker.settings import BrokerSettings
from tieredstore.broker.transactions.messages import CommitOrRollback
from tieredstore.contracts.durability import PutMessageStatus
from tieredstore.message.encoding import Message, OwnMessage
from tieredstore.message.names import DELETION_TOPIC, SYSTEM_TOPICS

CLOSED = [
    *sorted(SYSTEM_TOPICS - {"BenchmarkTest", "RMQ_SYS_TRACE_TOPIC"}),
    DELETION_TOPIC,
    "rmq_sys_wheel_timer",
    "rmq_sys_INDEX",
    "rmq_sys_REVIVE_LOG_C",
    "rmq_sys_SYNC_BROKER_MEMBER_b",
    "rmq_sys_anything",
    "C_REPLY_TOPIC",
]
OPEN = ["T", "BenchmarkTest", "RMQ_SYS_TRACE_TOPIC", "rmq_sys_TRACE_DATA_r", "%DLQ%g", "%RETRY%g"]
STAYING = {
    "RECONSUME_TIME": "2",
    "RETRY_TOPIC": "T",
    "DELAY": "0",
    "TIMER_DELAY_SEC": "9",
    "TIMER_DELAY_MS": "9",
    "TIMER_DELIVER_MS": "9",
    "MAX_RECONSUME_TIMES": "3",
    "ORIGIN_MESSAGE_ID": "o",
    "KEYS": "k",
    "MY_REAL_TOPIC": "m",
}


def assert_forbidden(error: Refused, topic: str) -> None:
    assert error.reason is Reason.NO_PERMISSION
    assert str(error) == f"Sending message to topic[{topic}] is forbidden."


@pytest.mark.parametrize("topic", CLOSED)
@on_loop
async def test_i30_no_client_sends_to_a_topic_of_the_broker(tmp_path: Path, topic: str) -> None:
    with producing(tmp_path) as parts:
        parts.topics.create_on_send_back(topic, 1)
        with pytest.raises(Refused) as raised:
            await parts.send(topic)
        assert_forbidden(raised.value, topic)
        with pytest.raises(Refused) as raised:
            await parts.sender.send_batch(
                SendRequest("g", Message(topic, b"x", 0)), [Message("", b"one")]
            )
        assert_forbidden(raised.value, topic)
        with pytest.raises(Refused) as raised:
            await parts.prepare(Message(topic, b"x", 0))
        assert_forbidden(raised.value, topic)
        assert parts.read(topic) == []


@pytest.mark.parametrize("topic", OPEN)
@on_loop
async def test_i30_the_named_system_topics_are_open(tmp_path: Path, topic: str) -> None:
    with producing(tmp_path, msg_trace_topic_name="rmq_sys_own_trace") as parts:
        parts.topics.add_system_topics()
        for name in (topic, "rmq_sys_own_trace"):
            await parts.send(name, queue_id=0)
            assert len(parts.read(name)) == 1


@on_loop
async def test_i30_the_reply_topic_takes_replies_only(tmp_path: Path) -> None:
    with producing(tmp_path) as parts:
        message = Message("C_REPLY_TOPIC", b"x", 0)
        await parts.sender.send(SendRequest("g", message, is_reply=True))
        with pytest.raises(Refused):
            await parts.send("C_REPLY_TOPIC", queue_id=0)
        timer = Message("rmq_sys_wheel_timer", b"x", 0)
        with pytest.raises(Refused):
            await parts.sender.send(SendRequest("g", timer, is_reply=True))
        assert len(parts.read("C_REPLY_TOPIC")) == 1


def test_i30_a_trace_topic_of_that_name_opens_no_topic_of_the_broker() -> None:
    door = Door(BrokerSettings(msg_trace_topic_name="SCHEDULE_TOPIC_XXXX"))
    assert not door.is_open("SCHEDULE_TOPIC_XXXX")


@pytest.mark.parametrize("topic", CLOSED[:-1])
def test_i30_who_puts_in_the_store_itself_meets_the_guard(tmp_path: Path, topic: str) -> None:
    """The guard also checks messages that are put directly into the store, for example by a store
    plugin."""
    with producing(tmp_path) as parts:
        parts.store.add_put_message_hook(PutGuard(Door(parts.settings)))
        result = parts.store.put_message(Message(topic, b"x", 0))
        assert result.status is PutMessageStatus.MESSAGE_ILLEGAL
        assert topic in result.reason
        assert parts.store.put_messages([Message(topic, b"x", 0)]).wrote_bytes == 0
        if topic != DELETION_TOPIC:  # which the store alone fills
            assert parts.store.put_message(OwnMessage(topic, b"x", 0)).ok


@on_loop
async def test_i31_what_only_the_broker_sets_is_removed_from_what_a_client_sends(
    tmp_path: Path,
) -> None:
    forged = {name.decode(): "1" for name in BROKER_PROPERTIES}
    with producing(tmp_path) as parts:
        await parts.send(queue_id=0, properties={**forged, **STAYING})
        batch = SendRequest("g", Message("T", b"x", 0, b"REAL_TOPIC\x01S\x02POP_CK\x01p"))
        inner = Message.create("", b"one", properties={**forged, "KEYS": "k"})
        await parts.sender.send_batch(batch, [inner])
        single, member = parts.read()
    own = {"CLUSTER": "C", "MSG_REGION": "DefaultRegion", "TRACE_ON": "true"}
    assert single.properties == {"UNIQ_KEY": single.uniq_key, **own, **STAYING}
    assert member.properties == {"UNIQ_KEY": member.uniq_key, **own, "KEYS": "k"}


@on_loop
async def test_i31_a_copy_of_a_delivered_timer_message_is_not_delayed_again(tmp_path: Path) -> None:
    with producing(tmp_path) as parts:
        await parts.send(queue_id=0, properties={"TIMER_DELAY_SEC": "5"})
        await deliver(parts)
        (delivered,) = parts.read()
        sent = await parts.send("copies", queue_id=0, properties=delivered.properties)
        (copy,) = parts.read("copies")
        assert sent.recall_handle == ""
        assert copy.get_property("TIMER_DELAY_SEC") == "5"
        assert copy.get_property("TIMER_OUT_MS") is None
        assert copy.get_property("REAL_TOPIC") is None
        half = Message.create("tx", b"x", properties=delivered.properties)
        await parts.prepare(half)
        await end_first(parts)
        assert len(parts.read("tx")) == 1


async def deliver(parts: Producing) -> None:
    """Deliver the timer messages that are due within the next ten seconds."""
    parts.store.wait_until_dispatched()
    parts.clock.advance(10_000)
    await parts.timers.deliver_due()


async def end_first(parts: Producing) -> None:
    (half,) = parts.read("RMQ_SYS_TRANS_HALF_TOPIC")
    await parts.transactions.end_by_id(
        half.get_property("REAL_TOPIC") or "", half.offset_message_id, CommitOrRollback.COMMIT
    )


@on_loop
async def test_i31_a_client_recalls_messages_of_its_own_topic_only(tmp_path: Path) -> None:
    with producing(tmp_path) as parts:
        delay = {"TIMER_DELAY_SEC": "5"}
        # By the property, and by the name of the other topic in the id of a message.
        sent = await parts.send("a_b", uniq_key="U1", queue_id=0, properties=delay)
        await parts.send("c", queue_id=0, properties={**delay, "TIMER_DEL_UNIQKEY": "a_b_U1"})
        twin = await parts.send("a", uniq_key="b_U1", queue_id=0, properties=delay)
        await parts.sender.recall("g", "a", twin.recall_handle)
        await deliver(parts)
        assert [len(parts.read(topic)) for topic in ("a_b", "c", "a")] == [1, 1, 0]
        # The handle that was given still works.
        sent = await parts.send("a_b", uniq_key="U2", queue_id=0, properties=delay)
        await parts.sender.recall("g", "a_b", sent.recall_handle)
        await deliver(parts)
        assert len(parts.read("a_b")) == 1


@on_loop
async def test_i31_copies_of_timer_messages_may_be_a_batch(tmp_path: Path) -> None:
    """A client may send copies of timer messages as a batch. Java's broker does not check the times
    of messages in a batch."""
    copy = {"TIMER_DELAY_SEC": "5", "TIMER_OUT_MS": "1000", "REAL_TOPIC": "S", "REAL_QID": "0"}
    with producing(tmp_path) as parts:
        items = [Message.create("", body, properties=copy) for body in (b"one", b"two")]
        items.append(Message("", b"three"))
        await parts.sender.send_batch(SendRequest("g", Message("T", b"x", 0)), items)
        assert [bytes(message.body) for message in parts.read()] == [b"one", b"two", b"three"]


@pytest.mark.parametrize("flag", [4, 8, 12])
@on_loop
async def test_i31_a_flag_of_transactions_hides_no_plain_message(tmp_path: Path, flag: int) -> None:
    with producing(tmp_path) as parts:
        await parts.send(queue_id=0, sys_flag=flag)
        assert len(parts.read()) == 1


@pytest.mark.parametrize("text", ["4Pinpoint-Flags", "1_0", " 3", "x", "9" * 30, "2147483648", "٣"])
@on_loop
async def test_i33_a_delay_that_is_no_integer_is_refused(tmp_path: Path, text: str) -> None:
    with producing(tmp_path) as parts:
        properties = {"DELAY": text}
        batch = SendRequest("g", Message("T", b"x", 0))
        inner = Message.create("", b"one", properties=properties)
        for sending in (parts.send(properties=properties), parts.sender.send_batch(batch, [inner])):
            with pytest.raises(Refused, match="DELAY: expected an integer") as raised:
                await sending
            assert raised.value.reason is Reason.MESSAGE_ILLEGAL


@pytest.mark.parametrize(("text", "queue_id"), [("99", 17), ("+3", 2), ("-1", None), ("0", None)])
@on_loop
async def test_i33_other_delays_are_java_s(tmp_path: Path, text: str, queue_id: int | None) -> None:
    with producing(tmp_path) as parts:
        await parts.send(queue_id=0, properties={"DELAY": text})
        assert len(parts.read()) == (queue_id is None)
        if queue_id is not None:
            assert len(parts.read("SCHEDULE_TOPIC_XXXX", queue_id)) == 1


@on_loop
async def test_i33_a_batch_with_a_property_without_separator_is_refused(tmp_path: Path) -> None:
    with producing(tmp_path) as parts:
        for shared, inner in (
            (b"garbage", b""),
            (b"", b"garbage"),
            (b"", b"a\x01b\x02garbage\x02"),
        ):
            batch = SendRequest("g", Message("T", b"x", 0, shared))
            with pytest.raises(Refused, match="expected name, byte 1, value") as raised:
                await parts.sender.send_batch(batch, [Message("", b"one", properties=inner)])
            assert raised.value.reason is Reason.MESSAGE_ILLEGAL
        await parts.send(queue_id=0)  # which Java takes: it reads nothing there


@on_loop
async def test_i33_a_name_that_ends_like_the_unique_key_is_none(tmp_path: Path) -> None:
    with producing(tmp_path) as parts:
        sent = await parts.send(queue_id=0, properties={"MY_UNIQ_KEY": "abc"})
        batch = SendRequest("g", Message("T", b"x", 0))
        inner = Message.create("", b"one", properties={"MY_UNIQ_KEY": "abc"})
        await parts.sender.send_batch(batch, [inner])
        assert len(sent.transaction_id) == 32
        assert all(len(message.uniq_key or "") == 32 for message in parts.read())


@on_loop
async def test_i05_a_batch_takes_the_properties_that_java_takes(tmp_path: Path) -> None:
    """As in Java, the broker adds none of its own properties to messages of a batch."""
    with producing(tmp_path) as parts:
        inner = Message.create("", b"one", properties={"k": "v" * (32_767 - 3)})
        await parts.sender.send_batch(SendRequest("g", Message("T", b"x", 0)), [inner])
        assert len(parts.read()[0].properties_bytes) == 32_767


@pytest.mark.parametrize(
    "properties",
    [
        {"TIMER_DELIVER_MS": "abc"},
        {"TIMER_DELAY_SEC": "1_0"},
        {"TIMER_DELAY_SEC": "99999999999"},
        {"TIMER_DELAY_MS": "9" * 5_000},
    ],
)
@on_loop
async def test_i33_a_time_that_a_commit_could_not_keep_is_refused_with_the_half_message(
    tmp_path: Path, properties: dict[str, Any]
) -> None:
    with producing(tmp_path) as parts:
        half = Message.create("T", b"x", queue_id=0, properties=properties)
        with pytest.raises(Refused, match="timer message illegal"):
            await parts.prepare(half)


def test_s81_the_door_keeps_no_name_that_no_topic_can_have() -> None:
    door = Door(BrokerSettings())
    assert door.is_open("T" * 255)
    assert door.is_open("T" * 256)
    assert not door.is_open("rmq_sys_" + "T" * 256)
    assert door._open == {"T" * 255}
