"""Maintenance requests delete old files immediately and list a queue's units."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.kit.consuming import GROUP, TOPIC, ServedBroker, join, play
from tests.kit.local_stores import plain
from tests.kit.remoting import RemotingClient
from tieredstore.broker.remoting.codes import RequestCode, ResponseCode
from tieredstore.contracts.dispatch_source import find_light
from tieredstore.message.hashes import java_string_hash
from tieredstore.message.names import is_system_topic

LOOKS_AFTER = (
    RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE,
    RequestCode.DELETE_EXPIRED_COMMITLOG,
    RequestCode.CLEAN_UNUSED_TOPIC,
)


def test_messages_of_topics_that_are_in_no_table_are_deleted(tmp_path: Path) -> None:
    async def scenario(broker: ServedBroker) -> None:
        await broker.put(plain(), plain(topic="unused"), plain(topic="%LMQ%light"))
        async with await RemotingClient.open(broker.address) as client:
            for code in LOOKS_AFTER:
                assert (await client.request(code)).code == ResponseCode.SUCCESS
        source = broker.services.store.dispatch_source
        left = {key.topic for key in source.queues() if not is_system_topic(key.topic)}
        assert left == {TOPIC}
        assert list(find_light(source).list_light_queues("%LMQ%")) == [("%LMQ%light", 1)]

    play(tmp_path, scenario)


@pytest.mark.parametrize("code", LOOKS_AFTER)
def test_a_store_that_cleans_nothing_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: RequestCode
) -> None:
    monkeypatch.setattr(
        "tieredstore.broker.remoting.handlers.admin.broker.list_layers", lambda store: []
    )

    async def scenario(broker: ServedBroker) -> None:
        async with await RemotingClient.open(broker.address) as client:
            assert (await client.request(code)).code == ResponseCode.NO_PERMISSION

    play(tmp_path, scenario)


def test_units_of_a_queue_are_listed(tmp_path: Path) -> None:
    async def scenario(broker: ServedBroker) -> None:
        await broker.put(*(plain(number=number) for number in range(5)))
        store = broker.services.store
        async with await RemotingClient.open(broker.address) as client:

            async def ask(**fields: object) -> dict[str, Any]:
                asked = {"topic": TOPIC, "queueId": 0, "index": 3, "count": 9, **fields}
                answer = await client.request(RequestCode.QUERY_CONSUME_QUEUE, asked)
                assert answer.code == ResponseCode.SUCCESS, answer.remark
                found: dict[str, Any] = json.loads(answer.body_bytes)
                return found | ({"remark": answer.remark} if answer.remark else {})

            found = await ask()
            assert (found["minQueueIndex"], found["maxQueueIndex"]) == (0, 5)
            messages = store.get_message("x", TOPIC, 0, 3, 2).messages
            assert found["queueData"] == [
                {
                    "physicOffset": message.physical_offset,
                    "physicSize": message.size,
                    "tagsCode": java_string_hash(message.tags or ""),
                    "eval": False,
                }
                for message in messages
            ]
            assert len((await ask(index=0, count=2))["queueData"]) == 2
            assert "not exist" in str((await ask(index=5))["remark"])
            absent = await ask(consumerGroup=GROUP)
            assert "not online" in str(absent["filterData"])
            await join(client, "c")
            here = await ask(consumerGroup=GROUP)
            assert isinstance(here["subscriptionData"], dict)
            unknown = await client.request(
                RequestCode.QUERY_CONSUME_QUEUE,
                {"topic": "U", "queueId": 0, "index": 0, "count": 1},
            )
            assert unknown.code == ResponseCode.SYSTEM_ERROR

    play(tmp_path, scenario)
