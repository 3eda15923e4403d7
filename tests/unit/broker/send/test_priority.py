"""The priority of a message determines its queue, as in Java's broker 5.5.0."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kit.loops import on_loop
from tests.kit.producing import producing
from tieredstore.broker.refused import Reason, Refused
from tieredstore.broker.send.message_type import find_message_type
from tieredstore.broker.state.topics import TopicConfig
from tieredstore.message.properties import PRIORITY


@pytest.mark.parametrize(
    ("priority", "queue_id", "expected"),
    [
        ("0", -1, 0),
        ("1", -1, 1),
        ("2", 0, 2),
        ("5", -1, 2),
        ("2147483647", 1, 2),
        ("1", 0, 1),
        # No priority: the queue of the request.
        ("-1", 1, 1),
        ("x", 1, 1),
        ("2147483648", 1, 1),
        ("1.0", 1, 1),
    ],
)
@on_loop
async def test_a_priority_chooses_the_queue(
    tmp_path: Path, priority: str, queue_id: int, expected: int
) -> None:
    with producing(tmp_path) as parts:
        parts.topics.update_topic(TopicConfig(topic_name="T", write_queue_nums=3))
        sent = await parts.send(queue_id=queue_id, properties={PRIORITY: priority})
        assert sent.queue_id == expected
        [stored] = parts.read("T", expected)
    assert stored.properties[PRIORITY] == priority


@pytest.mark.parametrize(
    "more",
    [{"__SHARDINGKEY": "g"}, {"DELAY": "1"}, {"TIMER_DELAY_MS": "1000"}, {"TRAN_MSG": "True"}],
)
@on_loop
async def test_a_message_of_another_type_loses_its_priority(
    tmp_path: Path, more: dict[str, str]
) -> None:
    with producing(tmp_path) as parts:
        parts.topics.update_topic(TopicConfig(topic_name="T", write_queue_nums=3))
        request = parts.make_request(queue_id=1, properties={**more, PRIORITY: "2"})
        accepted = parts.sender.accept(request)
    assert accepted.queue_id == 1
    assert PRIORITY.encode() not in accepted.properties


@on_loop
async def test_a_topic_without_a_queue_to_write_takes_no_priority(tmp_path: Path) -> None:
    with producing(tmp_path) as parts:
        parts.topics.update_topic(TopicConfig(topic_name="T", write_queue_nums=0))
        with pytest.raises(Refused) as raised:
            await parts.send(properties={PRIORITY: "2"})
    assert raised.value.reason is Reason.NO_PERMISSION


@pytest.mark.parametrize(
    ("properties", "expected"),
    [
        ({}, "NORMAL"),
        ({"__LITE_TOPIC": "l"}, "LITE"),
        ({"__LITE_TOPIC": "l", PRIORITY: "1"}, "PRIORITY"),
        ({PRIORITY: "1", "__SHARDINGKEY": "g"}, "FIFO"),
        ({"__SHARDINGKEY": "g", "TIMER_DELIVER_MS": "1"}, "DELAY"),
        ({"TIMER_DELAY_SEC": "1", "TRAN_MSG": "true"}, "TRANSACTION"),
        ({"TRAN_MSG": "false", PRIORITY: "x"}, "PRIORITY"),
    ],
)
def test_a_message_has_the_first_type_that_fits(properties: dict[str, str], expected: str) -> None:
    assert find_message_type(properties) == expected
