"""Consumer groups can be created, changed, listed and deleted over remoting."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from tests.kit.broker_services import broker_services, client_of
from tests.kit.consuming import GROUP, TOPIC, ServedBroker, join, play
from tests.kit.remoting import RemotingClient
from tieredstore.broker.remoting.codes import RequestCode, ResponseCode
from tieredstore.broker.remoting.handlers.admin.tables import GroupHandlers

UPDATE = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP


def test_a_group_is_made_changed_listed_and_deleted(tmp_path: Path) -> None:
    async def run() -> None:
        async with (
            broker_services(tmp_path) as broker,
            client_of(broker, GroupHandlers.register_all) as client,
        ):
            group = {"groupName": "G", "retryMaxTimes": 3, "retryQueueNums": 2}
            answer = await client.request(UPDATE, {}, json.dumps(group).encode())
            assert answer.code == ResponseCode.SUCCESS, answer.remark
            found = broker.groups.find_group("G")
            assert found is not None
            assert (found.retry_max_times, found.retry_queue_nums) == (3, 2)
            kept = json.loads((tmp_path / "config" / "subscriptionGroup.json").read_bytes())
            assert kept["subscriptionGroupTable"]["G"]["retryMaxTimes"] == 3

            one = await client.request(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, {"group": "G"})
            assert json.loads(one.body_bytes)["groupName"] == "G"
            every = await client.request(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
            assert "G" in json.loads(every.body_bytes)["subscriptionGroupTable"]

            for group_name, clean in (("G", False), ("G", True)):
                broker.offsets.commit_offset("G", "T", 0, 7)
                await client.request(
                    RequestCode.DELETE_SUBSCRIPTIONGROUP,
                    {"groupName": group_name, "cleanOffset": clean},
                )
                offset = broker.offsets.query_offset("G", "T", 0)
                assert offset == (None if clean else 7)
            gone = await client.request(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, {"group": "G"})
            assert gone.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST

    asyncio.run(run())


def test_a_retry_topic_of_more_queues_than_a_topic_may_have_is_refused(tmp_path: Path) -> None:
    async def run() -> None:
        async with (
            broker_services(tmp_path) as broker,
            client_of(broker, GroupHandlers.register_all) as client,
        ):
            for count in (-1, 65_537, 2**62):
                group = {"groupName": "G", "retryQueueNums": count}
                answer = await client.request(UPDATE, {}, json.dumps(group).encode())
                assert answer.code == ResponseCode.INVALID_PARAMETER
            assert "G" not in broker.groups.list_groups()

    asyncio.run(run())


def test_attributes_of_a_group_are_changes(tmp_path: Path) -> None:
    async def run() -> None:
        async with (
            broker_services(tmp_path) as broker,
            client_of(broker, GroupHandlers.register_all) as client,
        ):
            first = {"consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET"}
            for changes, after in (
                ({f"+{key}": value for key, value in first.items()}, first),
                ({}, first),
                ({"-consumeFromWhere": ""}, {}),
            ):
                group = {"groupName": "G", "attributes": changes}
                answer = await client.request(UPDATE, {}, json.dumps(group).encode())
                assert answer.code == ResponseCode.SUCCESS, answer.remark
                assert broker.groups.list_groups()["G"].attributes == after

    asyncio.run(run())


def test_what_no_group_may_be_is_refused(tmp_path: Path) -> None:
    async def run() -> None:
        async with (
            broker_services(tmp_path) as broker,
            client_of(broker, GroupHandlers.register_all) as client,
        ):
            for body in (
                b"{",
                b"{}",
                b'{"groupName":"a b"}',
                b'{"groupName":"%s"}' % (b"g" * 121),
                b'{"groupName":"G","retryMaxTimes":"x"}',
                b'{"groupName":"G","attributes":{"+priority.factor":"101"}}',
                b'{"groupName":"G","attributes":{"+consumeFromWhere":"HERE"}}',
                b'{"groupName":"G","attributes":{"consumeFromWhere":"CONSUME_FROM_FIRST_OFFSET"}}',
            ):
                answer = await client.request(UPDATE, {}, body)
                assert answer.code == ResponseCode.INVALID_PARAMETER, body
            assert "G" not in broker.groups.list_groups()

    asyncio.run(run())


def test_several_groups_are_made_at_once_or_none(tmp_path: Path) -> None:
    code = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST

    async def run() -> None:
        async with (
            broker_services(tmp_path) as broker,
            client_of(broker, GroupHandlers.register_all) as client,
        ):
            for second, is_made in (("b/", False), ("b", True)):
                body = {"groupConfigList": [{"groupName": "a"}, {"groupName": second}]}
                answer = await client.request(code, {}, json.dumps(body).encode())
                assert (answer.code == ResponseCode.SUCCESS) is is_made
                assert ("a" in broker.groups.list_groups()) is is_made
            assert (await client.request(code, {}, b"[]")).code == ResponseCode.INVALID_PARAMETER

    asyncio.run(run())


def test_a_group_may_be_kept_from_a_topic(tmp_path: Path) -> None:
    code = RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN

    async def scenario(broker: ServedBroker) -> None:
        async with await RemotingClient.open(broker.address) as client:
            await join(client, "c")

            async def set_readable(**fields: object) -> bool:
                asked = {"group": GROUP, "topic": TOPIC, **fields}
                answer = await client.request(code, asked)
                return bool(json.loads(answer.body_bytes)["readable"])

            async def pull() -> int:
                fields = {"consumerGroup": GROUP, "topic": TOPIC, "queueId": 0, "queueOffset": 0}
                asked = {**fields, "maxMsgNums": 1, "sysFlag": 0, "commitOffset": 0}
                answer = await client.request(RequestCode.PULL_MESSAGE, asked)
                return answer.code

            assert await set_readable()
            assert not await set_readable(readable=False)
            assert not await set_readable()
            assert await pull() == ResponseCode.NO_PERMISSION
            kept = json.loads(broker.services.groups.encode())["forbiddenTable"]
            assert kept == {GROUP: {TOPIC: 4}}
            assert await set_readable(readable=True)
            assert await pull() == ResponseCode.PULL_NOT_FOUND
            assert json.loads(broker.services.groups.encode())["forbiddenTable"] == {}

    play(tmp_path, scenario)
