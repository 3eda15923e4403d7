"""The published gRPC clients of Java, Python and Node consume lite topics of our broker. The
clients of other languages have no consumer of lite topics."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.kit.clients.collected import bodies
from tests.kit.clients.grpc_lab import POLL, Lab, start_client
from tests.kit.clients.program import ClientFailed
from tests.kit.clients.served import Served, our_broker
from tests.kit.waiting import wait_for
from tieredstore.broker.settings import load_broker_settings
from tieredstore.broker.state.groups import SubscriptionGroupConfig, SubscriptionGroupManager
from tieredstore.broker.state.topics import TopicConfig, TopicConfigManager

LANGUAGES = ("java", "python", "node")
KINDS = {"order": {}, "retry": {}, "two": {}, "sole": {"lite.sub.model": "Exclusive"}}
"""Attributes of the group of each test. A group `KIND_LANGUAGE` is bound to the topic
`KIND_topic_LANGUAGE`."""
ORDERLY = ("order", "retry")
"""Kinds of groups in which a client consumes the messages of a lite topic one after the other. In
other groups, a client consumes all messages of a response at the same time, as it does with Java's
proxy."""
SETTINGS = {**POLL, "enableLmq": "true", "enableMultiDispatch": "true"}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("lite")
    config = folder / "store" / "config"
    config.mkdir(parents=True)
    settings = load_broker_settings({}, "lab")
    topics = TopicConfigManager(config, settings)
    groups = SubscriptionGroupManager(config, settings)
    for language in LANGUAGES:
        for kind, attributes in KINDS.items():
            topic = f"{kind}_topic_{language}"
            is_lite = {"message.type": "LITE"}
            topics.update_topic(TopicConfig(topic_name=topic, attributes=is_lite))
            bound = {"lite.bind.topic": topic, **attributes}
            groups.update_group(
                SubscriptionGroupConfig(
                    group_name=f"{kind}_{language}",
                    consume_message_orderly=kind in ORDERLY,
                    attributes=bound,
                )
            )
    (config / "topics.json").write_bytes(topics.encode())
    (config / "subscriptionGroup.json").write_bytes(groups.encode())
    with our_broker(folder, SETTINGS) as found:
        yield found


SLOW = ("python", "node")
"""Languages whose tests run at night only, because each takes several seconds. The unit tests of
lite topics over gRPC cover what the broker does."""


@pytest.fixture(
    params=[pytest.param(one, marks=pytest.mark.slow) if one in SLOW else one for one in LANGUAGES],
    scope="module",
)
def lab(request: pytest.FixtureRequest, served: Served) -> Iterator[Lab]:
    with start_client(request.param) as client:
        yield Lab(request.param, client, served)


def start(lab: Lab, name: str, kind: str, *lite_topics: str, **more: Any) -> None:
    """Start a consumer, and subscribe it to lite topics."""
    fields = {"group": f"{kind}_{lab.language}", "topic": lab.topic(kind), **more}
    lab.call("start_lite_push", name=name, **fields)
    for lite_topic in lite_topics:
        subscribe(lab, name, lite_topic)


def subscribe(lab: Lab, name: str, lite_topic: str) -> None:
    """Subscribe a consumer, which may still wait for the broker's settings."""
    for _ in range(20):
        try:
            lab.call("subscribe_lite", name=name, lite_topic=lite_topic)
        except ClientFailed:
            time.sleep(0.5)
        else:
            return
    lab.call("subscribe_lite", name=name, lite_topic=lite_topic)


def send(lab: Lab, kind: str, lite_topic: str, *found: str) -> None:
    for body in found:
        lab.send(lab.topic(kind), body, lite_topic=lite_topic)


def received(lab: Lab, name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = lab.call("collected", topic=name)
    return found


def wait_for_bodies(lab: Lab, name: str, expected: set[str]) -> None:
    wait_for(lambda: expected <= set(bodies(received(lab, name))))


def stop(lab: Lab, *names: str) -> None:
    for name in names:
        lab.call("stop", name=name)


def test_lite_topics_come_in_order_while_they_are_subscribed_to(lab: Lab) -> None:
    lab.start_producer(lab.topic("order"))
    sent = {name: [f"{name}{number}" for number in range(10)] for name in "abc"}
    for name in "abc":
        send(lab, "order", name, *sent[name][:5])
    start(lab, "order", "order", "a", "b")
    for name in "abc":
        send(lab, "order", name, *sent[name][5:])
    wait_for_bodies(lab, "order", {*sent["a"], *sent["b"]})
    found = received(lab, "order")
    for name in "ab":
        own = [one["body"] for one in found if one["lite_topic"] == name]
        assert own == sent[name]
    assert {one["topic"] for one in found} == {lab.topic("order")}
    lab.call("unsubscribe_lite", name="order", lite_topic="b")
    subscribe(lab, "order", "c")
    send(lab, "order", "b", "not subscribed")
    send(lab, "order", "c", "last")
    wait_for_bodies(lab, "order", {*sent["c"], "last"})
    assert len(received(lab, "order")) == 31
    stop(lab, "order", "p")


def test_a_message_that_fails_comes_again_before_the_next(lab: Lab) -> None:
    lab.start_producer(lab.topic("retry"))
    send(lab, "retry", "a", "bad", "next")
    start(lab, "retry", "retry", "a", fail_times=1)
    wait_for_bodies(lab, "retry", {"bad", "next"})
    assert bodies(received(lab, "retry")) == ["bad", "bad", "next"]
    stop(lab, "retry", "p")


def test_two_consumers_share_a_lite_topic(lab: Lab) -> None:
    lab.start_producer(lab.topic("two"))
    start(lab, "two1", "two", "a")
    start(lab, "two2", "two", "a")
    sent = [f"m{number}" for number in range(20)]
    send(lab, "two", "a", *sent)

    def all_bodies() -> list[str]:
        return bodies([*received(lab, "two1"), *received(lab, "two2")])

    wait_for(lambda: len(all_bodies()) >= len(sent))
    assert sorted(all_bodies()) == sorted(sent)
    stop(lab, "two1")
    send(lab, "two", "a", "for the other")
    wait_for_bodies(lab, "two2", {"for the other"})
    stop(lab, "two2", "p")


def test_an_exclusive_lite_topic_goes_to_the_last_subscriber(lab: Lab) -> None:
    lab.start_producer(lab.topic("sole"))
    start(lab, "sole1", "sole", "a")
    send(lab, "sole", "a", "first")
    wait_for_bodies(lab, "sole1", {"first"})
    start(lab, "sole2", "sole", "a")
    send(lab, "sole", "a", "second", "third")
    wait_for_bodies(lab, "sole2", {"second", "third"})
    assert bodies(received(lab, "sole1")) == ["first"]
    stop(lab, "sole1", "sole2", "p")
