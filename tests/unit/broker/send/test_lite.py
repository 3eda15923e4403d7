"""As in Java's broker, a message with a lite topic gets a property that names the light queue."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kit.loops import on_loop
from tests.kit.producing import producing
from tieredstore.broker.refused import Reason, Refused
from tieredstore.broker.send.lite import check_lite_member
from tieredstore.broker.state.groups import (
    GROUP_ATTRIBUTES,
    TOPIC_ATTRIBUTES,
    change_attributes,
)
from tieredstore.broker.state.topics import TopicConfig
from tieredstore.errors import Invalid
from tieredstore.message.lite import LiteTopic, find_light_offset, parse_lite_topic
from tieredstore.message.properties import LITE_TOPIC

LIGHT = {"enable_lmq": True, "enable_multi_dispatch": True}
LITE = TopicConfig(topic_name="T", write_queue_nums=3, attributes={"message.type": "LITE"})


@on_loop
async def test_a_lite_message_enters_its_light_queue(tmp_path: Path) -> None:
    with producing(tmp_path, store=LIGHT) as parts:
        parts.topics.update_topic(LITE)
        given = {LITE_TOPIC: "a", "INNER_MULTI_DISPATCH": "%LMQ%other"}
        queues = {(await parts.send(properties=given)).queue_id for _ in range(3)}
        assert len(queues) == 1  # of one lite topic
        stored = parts.read("%LMQ%$T$a")
        assert [message.topic for message in stored] == ["T"] * 3
        assert [find_light_offset("%LMQ%$T$a", message) for message in stored] == [0, 1, 2]
        assert find_light_offset("%LMQ%$T$b", stored[0]) is None
        assert not parts.read("%LMQ%other")
        assert len(parts.read("T", queues.pop())) == 3


@pytest.mark.parametrize(
    "properties",
    [
        *({LITE_TOPIC: name} for name in ("a$b", "$", "a,b", " ", "a/b", "x" * 128)),
        {"INNER_MULTI_DISPATCH": "%LMQ%$x"},
        {"INNER_MULTI_DISPATCH": "%LMQ%y,%LMQ%$T$a$b"},
    ],
)
@pytest.mark.parametrize("more", [LIGHT, {}])
@on_loop
async def test_s40_a_name_that_stops_a_java_broker_is_refused(
    tmp_path: Path, properties: dict[str, str], more: dict[str, bool]
) -> None:
    with producing(tmp_path, store=more) as parts:
        parts.topics.update_topic(TopicConfig(topic_name="T"))
        with pytest.raises(Refused) as raised:
            await parts.send(properties=properties)
    assert raised.value.reason is Reason.MESSAGE_ILLEGAL


@on_loop
async def test_a_message_that_no_consumer_would_get_is_refused(tmp_path: Path) -> None:
    with producing(tmp_path) as parts:
        parts.topics.update_topic(LITE)
        with pytest.raises(Refused, match="enableMultiDispatch"):
            await parts.send(properties={LITE_TOPIC: "a"})
        parts.topics.update_topic(TopicConfig(topic_name="T"))
        await parts.send(properties={LITE_TOPIC: "a"})  # for consumers of the topic
    with pytest.raises(Refused, match="batch"):
        check_lite_member(b"__LITE_TOPIC\x01a\x02", "T")


@on_loop
async def test_a_retry_enters_no_lite_topic(tmp_path: Path) -> None:
    with producing(tmp_path, store=LIGHT) as parts:
        parts.topics.create_on_send_back("%RETRY%g", 1)
        message = parts.make_request("%RETRY%g", properties={LITE_TOPIC: "a"})
        assert b"INNER_MULTI_DISPATCH" not in parts.sender.accept(message).properties


@pytest.mark.parametrize(
    ("queue", "expected"),
    [
        ("%LMQ%$T$a", LiteTopic("T", "a")),
        *((name, None) for name in ("%LMQ%T", "%LMQ%$T", "%LMQ%$T$", "%LMQ%$$a", "%LMQ%$T$a$")),
    ],
)
def test_a_light_queue_is_that_of_a_lite_topic(queue: str, expected: LiteTopic | None) -> None:
    assert parse_lite_topic(queue) == expected
    if expected is not None:
        assert expected.queue == queue


@pytest.mark.parametrize(
    ("key", "good", "bad"),
    [
        ("message.type", "LITE", "LIGHT"),
        ("lite.topic.expiration", "43200", "43201"),
        ("lite.topic.expiration", "-1", "-2"),
        ("lite.bind.topic", "T", ""),
        ("lite.sub.model", "Exclusive", "exclusive"),
        ("lite.sub.reset.offset.exclusive", "True", "yes"),
        ("lite.sub.reset.offset.unsubscribe", "false", ""),
        ("lite.sub.client.quota", "-1", "-2"),
        ("lite.sub.client.max.event.cnt", "10", "9"),
        ("lite.sub.wildcard", "true", ""),
    ],
)
def test_attributes_have_javas_bounds(key: str, good: str, bad: str) -> None:
    possible = TOPIC_ATTRIBUTES if key in TOPIC_ATTRIBUTES else GROUP_ATTRIBUTES
    assert change_attributes({}, {f"+{key}": good}, possible) == {key: good}
    with pytest.raises(Invalid):
        change_attributes({}, {f"+{key}": bad}, possible)
