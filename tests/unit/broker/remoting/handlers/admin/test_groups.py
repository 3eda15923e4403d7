"""Consumer groups over remoting: made, changed, listed, deleted."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from tests.kit.broker_services import broker_services, client_of
from tieredstore.broker.remoting.codes import RequestCode, ResponseCode
from tieredstore.broker.remoting.handlers.admin.groups import register_handlers

UPDATE = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP


def test_a_group_is_made_changed_listed_and_deleted(tmp_path: Path) -> None:
    async def run() -> None:
        async with (
            broker_services(tmp_path) as broker,
            client_of(broker, register_handlers) as client,
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
            client_of(broker, register_handlers) as client,
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
            client_of(broker, register_handlers) as client,
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
            client_of(broker, register_handlers) as client,
        ):
            for body in (
                b"{",
                b"{}",
                b'{"groupName":"a b"}',
                b'{"groupName":"%s"}' % (b"g" * 121),
                b'{"groupName":"G","retryMaxTimes":"x"}',
                b'{"groupName":"G","attributes":{"+priority.factor":"1"}}',
                b'{"groupName":"G","attributes":{"+consumeFromWhere":"HERE"}}',
                b'{"groupName":"G","attributes":{"consumeFromWhere":"CONSUME_FROM_FIRST_OFFSET"}}',
            ):
                answer = await client.request(UPDATE, {}, body)
                assert answer.code == ResponseCode.INVALID_PARAMETER, body
            assert "G" not in broker.groups.list_groups()

    asyncio.run(run())
