"""The broker ignores and counts forged records in its own topics. Older versions of this project
and Java's brokers accepted such records from clients."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kit.client_sessions import NotingSession
from tests.kit.loops import on_loop
from tests.kit.producing import Producing, producing
from tieredstore.broker.delay.schedule import ScheduleMessageService
from tieredstore.broker.delay.timers import TimerMessageService
from tieredstore.broker.refused import Refused
from tieredstore.broker.transactions.messages import HALF_TOPIC, OP_TOPIC, CommitOrRollback
from tieredstore.broker.transactions.service import TransactionService
from tieredstore.message.encoding import Message, OwnMessage
from tieredstore.message.names import TIMER_TOPIC
from tieredstore.skipped_records import SkippedRecords

SENT = {"UNIQ_KEY": "U", "CLUSTER": "C", "MSG_REGION": "DefaultRegion", "TRACE_ON": "true"}
NINES = "9" * 5_000


def put(parts: Producing, topic: str, properties: dict[str, str], body: bytes = b"x") -> None:
    """Put a message as an older broker would have accepted it."""
    message = Message.create(topic, body, properties={**SENT, **properties})
    assert parts.hook.put_now(parts.store, message).ok


def services_again(parts: Producing, skipped: SkippedRecords) -> TransactionService:
    return TransactionService(
        parts.store,
        parts.settings,
        parts.sender,
        parts.offsets,
        parts.producers,
        parts.clock,
        skipped=skipped,
    )


@pytest.mark.parametrize("timed", [False, True])
@on_loop
async def test_i32_forged_op_messages_end_no_transaction_and_stop_no_start(
    tmp_path: Path, timed: bool
) -> None:
    """Forged op messages neither end transactions nor prevent a start. With `timed`, they look as
    if an older broker had delivered them from the timer topic."""
    more = {"TIMER_OUT_MS": "1", "REAL_TOPIC": OP_TOPIC} if timed else {}
    with producing(tmp_path) as parts:
        half = Message.create("T", b"HALF", properties={"TRAN_MSG": "true", "PGROUP": "g"})
        sent = await parts.prepare(half)
        bodies = (NINES.encode(), b"0,", b"0", b"{}", "٣,".encode(), b"-1,")
        for body in bodies:
            put(parts, OP_TOPIC, {"TAGS": "d", **more}, body)
        parts.store.wait_until_dispatched()
        skipped = SkippedRecords()
        again = services_again(parts, skipped)
        await again.load()
        assert skipped.count_by_topic() == {OP_TOPIC: len(bodies)}
        await again.end("g", sent.physical_offset, sent.queue_offset, CommitOrRollback.COMMIT)
        assert [bytes(message.body) for message in parts.read()] == [b"HALF"]


@on_loop
async def test_i32_op_messages_of_java_count_and_bad_ones_do_not(tmp_path: Path) -> None:
    with producing(tmp_path) as parts:
        half = Message.create("T", b"HALF", properties={"TRAN_MSG": "true", "PGROUP": "g"})
        await parts.prepare(half)
        java = {"TAGS": "d", "WAIT": "false", "UNIQ_KEY": "J"}
        for body in (b"0,", NINES.encode()):
            parts.store.put_message(OwnMessage.create(OP_TOPIC, body, properties=java))
        parts.store.wait_until_dispatched()
        skipped = SkippedRecords()
        again = services_again(parts, skipped)
        await again.load()
        assert skipped.count_by_topic() == {OP_TOPIC: 1}
        assert len(again._table) == 0


@pytest.mark.parametrize(
    "properties",
    [
        {"REAL_TOPIC": "T", "REAL_QID": NINES},
        {"REAL_TOPIC": "T", "REAL_QID": "٣"},
        {"REAL_TOPIC": "T"},
        {},
    ],
)
@on_loop
async def test_i32_a_forged_half_message_is_discarded(
    tmp_path: Path, properties: dict[str, str]
) -> None:
    with producing(tmp_path, transaction_timeout_ms=1_000) as parts:
        put(parts, HALF_TOPIC, {"PGROUP": "g", "TRANSACTION_CHECK_TIMES": NINES, **properties})
        parts.producers.register("g", NotingSession("c"))
        parts.store.wait_until_dispatched()
        await parts.transactions.load()
        parts.clock.advance(100_000)
        await parts.transactions.check()
        assert len(parts.transactions._table) == 0
        assert len(parts.read("TRANS_CHECK_MAX_TIME_TOPIC")) == 1


FORGED_TIMES = [
    {"REAL_TOPIC": topic, "REAL_QID": "0"}
    for topic in (
        OP_TOPIC,
        HALF_TOPIC,
        TIMER_TOPIC,
        "SCHEDULE_TOPIC_XXXX",
        "rmq_sys_DELETED_TOPICS",
        "rmq_sys_REVIVE_LOG_C",
        "../../x",
        "t" * 300,
    )
] + [
    {"REAL_TOPIC": "other", "REAL_QID": queue_id}
    for queue_id in (NINES, "99999999999", "4294967296", "65536", "٣", "-1", "")
]


@pytest.mark.parametrize("properties", FORGED_TIMES)
@pytest.mark.parametrize("topic", [TIMER_TOPIC, "SCHEDULE_TOPIC_XXXX"])
@on_loop
async def test_i32_forged_delays_reach_no_topic_of_the_broker_and_keep_none_waiting(
    tmp_path: Path, topic: str, properties: dict[str, str]
) -> None:
    with producing(tmp_path) as parts:
        skipped = SkippedRecords()
        delays_ms = (1_000, 5_000)
        config = tmp_path / "config"
        schedule = ScheduleMessageService(
            parts.store, parts.hook, delays_ms, config, parts.clock, skipped
        )
        timers = TimerMessageService(parts.store, parts.hook, config, parts.clock, skipped)
        due = str((parts.clock.now_ms() // 1_000 + 1) * 1_000)
        put(parts, topic, {"DELAY": "1", "TIMER_OUT_MS": due, **properties})
        delay = "DELAY" if topic.startswith("SCHEDULE") else "TIMER_DELAY_SEC"
        await parts.send("real", queue_id=0, properties={delay: "1"})
        parts.store.wait_until_dispatched()
        own = {name: parts.store.get_max_offset_in_queue(name, 0) for name in OWN_TOPICS}
        parts.clock.advance(10_000)
        await schedule.deliver_due()
        await timers.deliver_due()
        parts.store.wait_until_dispatched()
        assert len(parts.read("real")) == 1
        assert skipped.count_by_topic() == {topic: 1}
        assert own == {name: parts.store.get_max_offset_in_queue(name, 0) for name in OWN_TOPICS}


OWN_TOPICS = (OP_TOPIC, HALF_TOPIC, TIMER_TOPIC, "rmq_sys_DELETED_TOPICS", "rmq_sys_REVIVE_LOG_C")


@on_loop
async def test_i32_what_java_s_broker_times_for_itself_is_delivered(tmp_path: Path) -> None:
    with producing(tmp_path) as parts:
        due = str((parts.clock.now_ms() // 1_000 + 1) * 1_000)
        own = {"TAGS": "ck", "TIMER_OUT_MS": due, "REAL_QID": "3"}
        own["REAL_TOPIC"] = "rmq_sys_REVIVE_LOG_C"
        parts.store.put_message(OwnMessage.create(TIMER_TOPIC, b"{}", properties=own))
        parts.store.wait_until_dispatched()
        parts.clock.advance(10_000)
        await parts.timers.deliver_due()
        assert len(parts.read("rmq_sys_REVIVE_LOG_C", 3)) == 1


SENT_LAST = {"CLUSTER": "C", "MSG_REGION": "DefaultRegion", "TRACE_ON": "true"}


@pytest.mark.parametrize("topic", [TIMER_TOPIC, "SCHEDULE_TOPIC_XXXX"])
@on_loop
async def test_i74_a_forged_delay_in_a_log_of_ours_forges_no_message_and_recalls_none(
    tmp_path: Path, topic: str
) -> None:
    """A record that a client forged as a delayed message is neither delivered nor used to recall a
    message. Its properties are not in the order in which a broker writes them."""
    with producing(tmp_path) as parts:
        due = str((parts.clock.now_ms() // 1_000 + 1) * 1_000)
        forged = {"TIMER_OUT_MS": due, "REAL_TOPIC": "other", "REAL_QID": "0", "DELAY": "1"}
        for more in ({}, {"TIMER_DEL_UNIQKEY": "other+VICTIM"}):
            message = Message.create(
                topic, b"forged", properties={**forged, **more, "UNIQ_KEY": "U", **SENT_LAST}
            )
            assert parts.hook.put_now(parts.store, message).ok
        delay = "DELAY" if topic.startswith("SCHEDULE") else "TIMER_DELIVER_MS"
        when = "1" if delay == "DELAY" else str(int(due) + 1)
        properties = {delay: when, "UNIQ_KEY": "VICTIM"}
        await parts.send("other", b"real", queue_id=0, properties=properties)
        parts.store.wait_until_dispatched()
        parts.clock.advance(10_000)
        await parts.schedule.deliver_due()
        await parts.timers.deliver_due()
        assert [bytes(message.body) for message in parts.read("other")] == [b"real"]


@on_loop
async def test_i74_a_half_message_that_a_client_sent_is_never_committed(tmp_path: Path) -> None:
    with producing(tmp_path, transaction_timeout_ms=1_000) as parts:
        forged = {"REAL_TOPIC": "T", "REAL_QID": "0", "PGROUP": "g", **SENT_LAST}
        message = Message.create(HALF_TOPIC, b"forged", properties=forged)
        put_there = parts.hook.put_now(parts.store, message)
        parts.store.wait_until_dispatched()
        await parts.transactions.load()
        with pytest.raises(Refused):
            await parts.transactions.end("g", put_there.physical_offset, 0, CommitOrRollback.COMMIT)
        parts.clock.advance(100_000)
        await parts.transactions.check()
        assert len(parts.transactions._table) == 0
        assert parts.read("T") == []
