"""Verbs of Apache's Python client. Producers and consumers are addressed by name."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from typing import Any

from rocketmq import (
    ClientConfiguration,
    ConsumeResult,
    Credentials,
    FilterExpression,
    LitePushConsumer,
    Message,
    MessageListener,
    Producer,
    PushConsumer,
    SimpleConsumer,
    TransactionChecker,
    TransactionResolution,
)
from rocketmq.v5.model.filter_expression import FilterType
from talk import serve  # type: ignore[import-not-found]

CLIENTS: dict[str, Any] = {}
COLLECTED: dict[str, list[dict[str, Any]]] = defaultdict(list)
CHECKED: list[str] = []
HELD: dict[str, Any] = {}
LOCK = threading.Lock()


def configure(request: dict[str, Any]) -> ClientConfiguration:
    return ClientConfiguration(request["grpc"], Credentials(*request.get("credentials", ())))


class Checker(TransactionChecker):  # type: ignore[misc]
    def check(self, message: Any) -> Any:
        CHECKED.append(message.body.decode())
        return TransactionResolution.COMMIT


class Collector(MessageListener):  # type: ignore[misc]
    """Consumer listener that collects messages. It fails the first deliveries of a message, and
    every delivery of one body."""

    def __init__(self, fail_times: int, poison: str) -> None:
        self._fail_times = fail_times
        self._poison = poison

    def consume(self, message: Any) -> Any:
        described = describe(message)
        failed = described["attempt"] <= self._fail_times or described["body"] == self._poison
        return take(message.topic, described, failed)


class LiteCollector(MessageListener):  # type: ignore[misc]
    """Listener that collects messages of lite topics under the consumer's name. It fails the first
    deliveries of the body "bad". The client retries these itself, without counting attempts."""

    def __init__(self, name: str, fail_times: int) -> None:
        self._name = name
        self._fail_times = fail_times

    def consume(self, message: Any) -> Any:
        described = describe(message)
        with LOCK:
            before = sum(one["body"] == "bad" for one in COLLECTED[self._name])
        failed = described["body"] == "bad" and before < self._fail_times
        return take(self._name, described, failed)


def take(key: str, described: dict[str, Any], failed: bool) -> Any:
    with LOCK:
        COLLECTED[key].append(described)
    return ConsumeResult.FAILURE if failed else ConsumeResult.SUCCESS


def describe(message: Any) -> dict[str, Any]:
    return {
        "topic": message.topic,
        "body": message.body.decode("utf-8", "replace"),
        "tag": message.tag,
        "keys": list(message.keys or []),
        "properties": dict(message.properties or {}),
        "message_id": message.message_id,
        "message_group": message.message_group,
        "lite_topic": message.lite_topic,
        "attempt": message.delivery_attempt,
        "queue_id": -1,
        "queue_offset": 0,
        "at_ms": int(time.time() * 1000),
    }


def start_producer(request: dict[str, Any]) -> None:
    checker = Checker() if request.get("transactional") else None
    producer = Producer(configure(request), tuple(request["topics"]), checker)
    producer.startup()
    CLIENTS[request["name"]] = producer


def make_message(request: dict[str, Any]) -> Any:
    message = Message()
    message.topic = request["topic"]
    message.body = request["body"].encode() * request.get("times", 1)
    if request.get("tag"):
        message.tag = request["tag"]
    if request.get("keys"):
        for key in request["keys"]:
            message.keys = key
    for name, value in request.get("properties", {}).items():
        message.add_property(name, value)
    if request.get("message_group"):
        message.message_group = request["message_group"]
    if request.get("lite_topic"):
        message.lite_topic = request["lite_topic"]
    if request.get("delay_ms"):
        message.delivery_timestamp = (int(time.time() * 1000) + request["delay_ms"] + 999) // 1000
    return message


def send(request: dict[str, Any]) -> dict[str, Any]:
    producer = CLIENTS[request["name"]]
    receipt = producer.send(make_message(request))
    return {
        "message_id": receipt.message_id,
        "recall_handle": receipt.recall_handle,
        "at_ms": int(time.time() * 1000),
    }


def recall(request: dict[str, Any]) -> str:
    producer = CLIENTS[request["name"]]
    return str(producer.recall_message(request["topic"], request["recall_handle"]))


def send_in_transaction(request: dict[str, Any]) -> str:
    producer = CLIENTS[request["name"]]
    transaction = producer.begin_transaction()
    receipt = producer.send(make_message(request), transaction)
    if request["end"] == "commit":
        transaction.commit()
    elif request["end"] == "rollback":
        transaction.rollback()
    return str(receipt.message_id)


def subscription(request: dict[str, Any]) -> dict[str, FilterExpression]:
    """Return a subscription by tag, or with `sql` by an SQL92 expression."""
    kind = FilterType.SQL if request.get("sql") else FilterType.TAG
    return {request["topic"]: FilterExpression(request.get("expression", "*"), kind)}


def start_push(request: dict[str, Any]) -> None:
    consumer = PushConsumer(
        configure(request),
        request["group"],
        Collector(request.get("fail_times", 0), request.get("poison", "")),
        subscription(request),
    )
    consumer.startup()
    CLIENTS[request["name"]] = consumer


def start_lite_push(request: dict[str, Any]) -> None:
    name = request["name"]
    listener = LiteCollector(name, request.get("fail_times", 0))
    consumer = LitePushConsumer(configure(request), request["group"], request["topic"], listener)
    consumer.startup()
    CLIENTS[name] = consumer


def subscribe_lite(request: dict[str, Any]) -> None:
    CLIENTS[request["name"]].subscribe_lite(request["lite_topic"])


def unsubscribe_lite(request: dict[str, Any]) -> None:
    CLIENTS[request["name"]].unsubscribe_lite(request["lite_topic"])


def start_simple(request: dict[str, Any]) -> None:
    consumer = SimpleConsumer(
        configure(request),
        request["group"],
        subscription(request),
        request.get("await_s", 5),
    )
    consumer.startup()
    CLIENTS[request["name"]] = consumer


def receive(request: dict[str, Any]) -> list[dict[str, Any]]:
    consumer = CLIENTS[request["name"]]
    found = consumer.receive(request.get("count", 32), request.get("invisible_s", 30))
    for message in found or []:
        HELD[message.message_id] = message
    return [describe(message) for message in found or []]


def ack(request: dict[str, Any]) -> None:
    CLIENTS[request["name"]].ack(HELD[request["message_id"]])


def change_invisible(request: dict[str, Any]) -> None:
    message = HELD[request["message_id"]]
    CLIENTS[request["name"]].change_invisible_duration(message, request["seconds"])


def collected(request: dict[str, Any]) -> list[dict[str, Any]]:
    with LOCK:
        return list(COLLECTED[request["topic"]])


def checked(_: dict[str, Any]) -> list[str]:
    return list(CHECKED)


def stop(request: dict[str, Any]) -> None:
    CLIENTS.pop(request["name"]).shutdown()


if __name__ == "__main__":
    serve(
        {
            verb.__name__: verb
            for verb in (
                start_producer,
                send,
                recall,
                send_in_transaction,
                start_push,
                start_lite_push,
                subscribe_lite,
                unsubscribe_lite,
                start_simple,
                receive,
                ack,
                change_invisible,
                collected,
                checked,
                stop,
            )
        }
    )
