"""Clients can pull light queues as from Java's broker. A light queue looks like a topic with one
queue, but is missing from the topic table."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.kit.consuming import pull_messages, split_records
from tests.kit.power_cut.load import send
from tests.kit.remoting import RemotingClient, wait_for
from tieredstore.broker.remoting.codes import RequestCode, ResponseCode
from tieredstore.testing import Broker

GROUP = "%LMQ%c"
NAMES = ("%LMQ%x", "%LMQ%a%b", "%LMQ%$parent$lite")
LITE = {"INNER_MULTI_DISPATCH": ",".join(NAMES)}
SETTINGS = {
    "enableLmq": "true",
    "enableMultiDispatch": "true",
    "autoCreateSubscriptionGroup": "false",
}
PULL = {"consumerGroup": GROUP, "subscription": "*", "expressionType": "TAG"}


@pytest.mark.parametrize("store_type", ["default", "defaultRocksDB"])
def test_light_queues_are_pulled_and_their_offsets_kept(tmp_path: Path, store_type: str) -> None:
    bodies = [b"%d" % number for number in range(12)]

    async def pull_all() -> None:
        async with await RemotingClient.open(broker.remoting) as client:
            for number, body in enumerate(bodies):
                assert (await send(client, "P", body, LITE, queue=number % 4))[0] == 0
            for name in NAMES:
                queue = {"topic": name, "queueId": 0}
                for code in (RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE):
                    fields = {**PULL, **queue, "queueOffset": 0, "maxMsgNums": 32, "sysFlag": 6}
                    fields |= {"subVersion": 0, "commitOffset": 0, "suspendTimeoutMillis": 5000}
                    await wait_for(lambda name=name: find_end(name) == len(bodies))  # type: ignore[misc]
                    pulled = await client.request(code, fields)
                    assert pulled.code == ResponseCode.SUCCESS, pulled.remark
                    # A record has the offset that it has in its topic.
                    found = [bytes(one.body) for one in split_records(pulled.body_bytes)]
                    assert found == bodies
                group = {**queue, "consumerGroup": GROUP}
                kept = await client.request(
                    RequestCode.UPDATE_CONSUMER_OFFSET, {**group, "commitOffset": 7}
                )
                assert kept.code == ResponseCode.SUCCESS, kept.remark
                asked = await client.request(RequestCode.QUERY_CONSUMER_OFFSET, group)
                assert asked.ext_fields["offset"] == "7"

    async def wait_for_next() -> None:
        async with await RemotingClient.open(broker.remoting) as client:
            fields: dict[str, Any] = {
                **PULL,
                "topic": NAMES[0],
                "sysFlag": 6,
                "suspendTimeoutMillis": 15_000,
            }
            waiting = asyncio.create_task(pull_messages(client, len(bodies), **fields))
            await asyncio.sleep(0.3)
            assert not waiting.done()
            async with await RemotingClient.open(broker.remoting) as sender:
                await send(sender, "P", b"next", LITE)
            async with asyncio.timeout(10):
                response = await waiting
            assert [bytes(one.body) for one in split_records(response.body_bytes)] == [b"next"]

    def find_end(name: str) -> int:
        return broker.services.store.get_max_offset_in_queue(name, 0)

    settings = {**SETTINGS, "storeType": store_type}
    with Broker(folder=tmp_path, properties=settings) as broker:
        broker.run(pull_all(), 60)
        broker.run(wait_for_next(), 60)


def test_a_light_queue_is_no_topic_where_they_are_off(tmp_path: Path) -> None:
    async def pull() -> None:
        async with await RemotingClient.open(broker.remoting) as client:
            fields: dict[str, Any] = {**PULL, "topic": NAMES[0], "sysFlag": 4, "consumerGroup": "g"}
            response = await pull_messages(client, **fields)
            assert response.code == ResponseCode.TOPIC_NOT_EXIST

    with Broker(folder=tmp_path) as broker:
        broker.run(pull(), 60)


def test_s38_offsets_are_taken_for_light_queues_that_have_a_message(tmp_path: Path) -> None:
    async def commit() -> None:
        async with await RemotingClient.open(broker.remoting) as client:
            assert (await send(client, "P", b"body", LITE))[0] == 0
            store = broker.services.store
            await wait_for(lambda: store.get_max_offset_in_queue(NAMES[0], 0) == 1)
            for name, is_taken in ((NAMES[0], True), ("%LMQ%absent", False)):
                queue = {"topic": name, "queueId": 0, "consumerGroup": GROUP}
                pull = {**PULL, **queue, "queueOffset": 0, "sysFlag": 5, "commitOffset": 1}
                await client.request(RequestCode.PULL_MESSAGE, pull)
                offsets = broker.services.offsets
                assert (offsets.query_offset(GROUP, name, 0) == 1) is is_taken
                update = {**queue, "commitOffset": 1}
                answer = await client.request(RequestCode.UPDATE_CONSUMER_OFFSET, update)
                assert (answer.code == ResponseCode.SUCCESS) is is_taken
                assert (offsets.query_offset(GROUP, name, 0) == 1) is is_taken

    with Broker(folder=tmp_path, properties=SETTINGS) as broker:
        broker.run(commit(), 60)
