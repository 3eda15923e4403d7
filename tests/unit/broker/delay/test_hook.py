"""Delayed messages are redirected as in Java's broker."""

from __future__ import annotations

from typing import Any

import pytest

from tests.kit.local_stores import START_MS
from tieredstore.broker.delay.hook import DelayHook
from tieredstore.clock import ManualClock
from tieredstore.contracts.durability import PutMessageStatus
from tieredstore.contracts.message_store import PutMessageResult
from tieredstore.message.encoding import Message
from tieredstore.message.properties import decode_properties
from tieredstore.message.sysflag import TRANSACTION_PREPARED

DAY_MS = 86_400_000


def _hook() -> DelayHook:
    return DelayHook((1000, 5000, 10_000), ManualClock(START_MS))


def _put_aside(topic: str = "T", **properties: Any) -> Message | PutMessageResult | None:
    texts = {name: str(value) for name, value in properties.items()}
    return _hook()(Message.create(topic, b"x", queue_id=3, properties=texts))


def test_a_level_goes_to_its_queue_with_where_it_is_to_go() -> None:
    found = _put_aside(DELAY=2, k="v", TIMER_DELIVER_MS=5)
    assert isinstance(found, Message)
    assert (found.topic, found.queue_id) == ("SCHEDULE_TOPIC_XXXX", 1)
    assert decode_properties(found.properties) == {
        "DELAY": "2",
        "k": "v",
        "REAL_TOPIC": "T",
        "REAL_QID": "3",
    }


def test_a_level_above_the_last_one_is_the_last_one() -> None:
    found = _put_aside(DELAY=99)
    assert isinstance(found, Message)
    assert found.queue_id == 2
    assert decode_properties(found.properties)["DELAY"] == "3"


@pytest.mark.parametrize(
    ("properties", "out_ms"),
    [
        ({"TIMER_DELAY_SEC": 5}, START_MS + 4000),  # a whole step goes to the one before it
        ({"TIMER_DELAY_MS": 5001}, START_MS + 5000),
        ({"TIMER_DELIVER_MS": START_MS + 1500}, START_MS + 1000),
        ({"TIMER_DELIVER_MS": START_MS + 3 * DAY_MS}, START_MS + 3 * DAY_MS - 1000),
        ({"TIMER_DELAY_SEC": 1, "TIMER_DELAY_MS": 9999}, START_MS),
    ],
)
def test_a_time_goes_to_the_timer_topic(properties: dict[str, Any], out_ms: int) -> None:
    found = _put_aside(**properties)
    assert isinstance(found, Message)
    assert (found.topic, found.queue_id) == ("rmq_sys_wheel_timer", 0)
    table = decode_properties(found.properties)
    assert (table["TIMER_OUT_MS"], table["REAL_TOPIC"], table["REAL_QID"]) == (
        str(out_ms),
        "T",
        "3",
    )


@pytest.mark.parametrize(
    "properties",
    [
        {"TIMER_DELIVER_MS": START_MS + 3 * DAY_MS + 1},
        {"TIMER_DELIVER_MS": "soon"},
        {"TIMER_DELIVER_MS": START_MS - 1, "TIMER_DEL_UNIQKEY": "T_U"},
    ],
)
def test_times_that_are_refused(properties: dict[str, Any]) -> None:
    found = _put_aside(**properties)
    assert isinstance(found, PutMessageResult)
    assert found.status is PutMessageStatus.WHEEL_TIMER_MSG_ILLEGAL


@pytest.mark.parametrize(
    "properties",
    [
        {"k": "v"},
        {"DELAY": "0"},
        {"DELAY": "-1"},
        {"DELAY": "x"},
        {"MODEL": "DELAY"},
        {"TIMER_DELIVER_MS": START_MS},
        {"TIMER_DELIVER_MS": START_MS + 9999, "TIMER_OUT_MS": START_MS + 9000},
    ],
)
def test_what_is_left_alone(properties: dict[str, Any]) -> None:
    assert _put_aside(**properties) is None


def test_half_messages_and_prepared_ones_are_left_alone() -> None:
    assert _put_aside("RMQ_SYS_TRANS_HALF_TOPIC", DELAY=2) is None
    prepared = Message.create("T", b"x", properties={"DELAY": "2"}, sys_flag=TRANSACTION_PREPARED)
    assert _hook()(prepared) is None
