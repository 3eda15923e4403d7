"""Java's tools can query the progress of topics and groups, and reset offsets."""

from __future__ import annotations

import asyncio
import re
import time
from pathlib import Path
from typing import Any

import msgspec

from tests.kit.broker_services import broker_services, client_of
from tests.kit.local_stores import START_MS, plain, put_all
from tests.kit.remoting import register_plain
from tieredstore.broker.clients.consumers import ConsumerSettings
from tieredstore.broker.clients.session import Subscription
from tieredstore.broker.remoting.codes import RequestCode, ResponseCode
from tieredstore.broker.remoting.command import RemotingCommand
from tieredstore.broker.remoting.connection import Connection
from tieredstore.broker.remoting.handler_table import HandlerTable
from tieredstore.broker.remoting.handlers.admin.progress import ProgressHandlers
from tieredstore.broker.services import BrokerServices
from tieredstore.broker.state.topics import TopicConfig
from tieredstore.clock import ManualClock

OBJECT_KEY = re.compile(rb'\{"brokerName":"broker-a","queueId":(\d+),"topic":"([^"]*)"\}:')


def parsed(body: bytes) -> Any:
    """Return the parsed JSON. Keys of objects have the form `topic/queue`."""
    return msgspec.json.decode(OBJECT_KEY.sub(rb'"\2/\1":', body))


def fill(broker: BrokerServices) -> None:
    """Put ten messages into the first of two queues, one per second. A group has consumed four of
    them."""
    assert isinstance(broker.clock, ManualClock)
    broker.topics.update_topic(TopicConfig(topic_name="T", read_queue_nums=2, write_queue_nums=2))
    for number in range(10):
        put_all(broker.store, [plain(number=number)])  # type: ignore[arg-type]
        broker.clock.advance(1000)
    broker.offsets.commit_offset("G", "T", 0, 4)


def test_topic_stats_have_a_map_with_queues_as_keys(tmp_path: Path) -> None:
    async def run() -> None:
        async with (
            broker_services(tmp_path) as broker,
            client_of(broker, ProgressHandlers.register_all) as client,
        ):
            fill(broker)
            answer = await client.request(RequestCode.GET_TOPIC_STATS_INFO, {"topic": "T"})
            assert parsed(answer.body_bytes) == {
                "offsetTable": {
                    "T/0": {
                        "minOffset": 0,
                        "maxOffset": 10,
                        "lastUpdateTimestamp": START_MS + 9000,
                    },
                    "T/1": {"minOffset": 0, "maxOffset": 0, "lastUpdateTimestamp": 0},
                },
                "topicPutTps": 1.0,
            }
            answer = await client.request(RequestCode.GET_TOPIC_STATS_INFO, {"topic": "U"})
            assert answer.code == ResponseCode.TOPIC_NOT_EXIST

    asyncio.run(run())


def test_s39_the_stats_of_65536_queues_take_less_than_two_seconds(tmp_path: Path) -> None:
    async def run() -> None:
        async with (
            broker_services(tmp_path) as broker,
            client_of(broker, ProgressHandlers.register_all) as client,
        ):
            fill(broker)
            count = 65_536
            wide = TopicConfig(topic_name="W", read_queue_nums=count, write_queue_nums=count)
            broker.topics.update_topic(wide)
            queues = (0, 7, count - 1)
            put_all(broker.store, [plain("W", number) for number in queues])  # type: ignore[arg-type]
            fields = {"topic": "W", "consumerGroup": "G"}
            for code in (RequestCode.GET_TOPIC_STATS_INFO, RequestCode.GET_CONSUME_STATS):
                begun_s = time.process_time()  # others use the machine too
                answer = await client.request(code, fields)
                assert time.process_time() - begun_s < 2
                table = parsed(answer.body_bytes)["offsetTable"]
                assert len(table) == count
                name = "maxOffset" if "maxOffset" in table["W/0"] else "brokerOffset"
                found = {key for key, value in table.items() if value[name]}
                assert found == {f"W/{queue_id}" for queue_id in queues}

    asyncio.run(run())


def test_consume_stats_say_how_far_a_group_is(tmp_path: Path) -> None:
    async def run() -> None:
        async with (
            broker_services(tmp_path) as broker,
            client_of(broker, ProgressHandlers.register_all) as client,
        ):
            fill(broker)
            broker.offsets.commit_offset("G", "gone", 0, 4)
            offsets = {
                "T/0": {
                    "brokerOffset": 10,
                    "consumerOffset": 4,
                    "pullOffset": 4,
                    "lastTimestamp": START_MS + 3000,
                },
                "T/1": {
                    "brokerOffset": 0,
                    "consumerOffset": 0,
                    "pullOffset": 0,
                    "lastTimestamp": 0,
                },
            }
            for fields in ({}, {"topic": "T"}, {"topicList": "T;U"}):
                answer = await client.request(
                    RequestCode.GET_CONSUME_STATS, {"consumerGroup": "G", **fields}
                )
                assert parsed(answer.body_bytes) == {"offsetTable": offsets, "consumeTps": 0.0}
            answer = await client.request(
                RequestCode.GET_CONSUME_STATS, {"consumerGroup": "nobody"}
            )
            assert parsed(answer.body_bytes) == {"offsetTable": {}, "consumeTps": 0}

            broker.groups.find_group("G")
            answer = await client.request(RequestCode.GET_BROKER_CONSUME_STATS, {"isOrder": False})
            found = parsed(answer.body_bytes)
            assert found["totalDiff"] == 6
            [by_group] = found["consumeStatsList"]
            assert {"offsetTable": offsets, "consumeTps": 0.0} in by_group["G"]
            answer = await client.request(RequestCode.GET_BROKER_CONSUME_STATS, {"isOrder": True})
            assert parsed(answer.body_bytes)["consumeStatsList"] == []

    asyncio.run(run())


RESET = RequestCode.INVOKE_BROKER_TO_RESET_OFFSET


def test_offsets_are_set_to_a_time_or_a_place(tmp_path: Path) -> None:
    async def run() -> None:
        async with (
            broker_services(tmp_path) as broker,
            client_of(broker, ProgressHandlers.register_all) as client,
        ):
            fill(broker)

            async def reset(**fields: object) -> int | None:
                broker.offsets.commit_offset("G", "T", 0, 4)
                answer = await client.request(RESET, {"group": "G", "topic": "T", **fields})
                assert answer.code == ResponseCode.SUCCESS, answer.remark
                offset = broker.offsets.query_offset("G", "T", 0)
                assert parsed(answer.body_bytes)["offsetTable"]["T/0"] == offset
                return offset

            assert await reset(timestamp=START_MS + 2000, isForce=True) == 2
            assert await reset(timestamp=START_MS + 8000, isForce=True) == 8
            assert await reset(timestamp=START_MS + 8000, isForce=False) == 4
            assert await reset(timestamp=-1, isForce=True) == 10
            assert await reset(queueId=0, offset=7, timestamp=-1, isForce=True) == 7
            assert await reset(queueId=0, offset=7, timestamp=0, isForce=False) == 7
            assert await reset(queueId=0, offset=70, timestamp=-1, isForce=True) == 10
            answer = await client.request(RESET, {"group": "G", "topic": "U", "timestamp": 0})
            assert answer.code == ResponseCode.TOPIC_NOT_EXIST

    asyncio.run(run())


def test_members_are_told_of_a_reset(tmp_path: Path) -> None:
    async def run() -> None:
        def register(table: HandlerTable, broker: BrokerServices) -> None:
            ProgressHandlers.register_all(table, broker)

            def join(connection: Connection, request: RemotingCommand) -> RemotingCommand:
                connection.language = request.ext_fields["language"]
                broker.consumers.register(
                    "G", connection, ConsumerSettings(), {"T": Subscription.parse("T", "*")}
                )
                return RemotingCommand(ResponseCode.SUCCESS)

            register_plain(table, RequestCode.HEART_BEAT, join)

        async with broker_services(tmp_path) as broker, client_of(broker, register) as client:
            fill(broker)
            seen = []
            for language in ("JAVA", "CPP"):
                await client.request(RequestCode.HEART_BEAT, {"language": language})
                fields = {"group": "G", "topic": "T", "timestamp": START_MS, "isForce": True}
                await client.request(RESET, fields)
                while (call := await client.next_call()).code != 220:
                    assert call.code == RequestCode.NOTIFY_CONSUMER_IDS_CHANGED
                assert call.ext_fields == {
                    "topic": "T",
                    "group": "G",
                    "timestamp": str(START_MS),
                    "isForce": "true",
                }
                assert call.is_one_way
                seen.append(parsed(call.body_bytes)["offsetTable"])
            queue = {"brokerName": "broker-a", "topic": "T", "offset": 0}
            assert seen == [
                {"T/0": 0, "T/1": 0},
                [{**queue, "queueId": 0}, {**queue, "queueId": 1}],
            ]

    asyncio.run(run())
