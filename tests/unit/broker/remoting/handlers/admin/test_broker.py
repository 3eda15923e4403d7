"""The broker's settings and figures, as Java's tools ask for them."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from tests.kit.broker_services import broker_services, client_of
from tests.kit.local_stores import FOREVER, plain, put_all
from tieredstore.broker.remoting.codes import RequestCode, ResponseCode
from tieredstore.broker.remoting.handlers.admin.broker import register_handlers
from tieredstore.broker.state.topics import TopicConfig
from tieredstore.clock import ManualClock
from tieredstore.local.message_store import DefaultMessageStore

CLUSTER_LIST_KEYS = {
    "brokerActive",
    "putTps",
    "getTransferredTps",
    "sendThreadPoolQueueSize",
    "pullThreadPoolQueueSize",
    "ackThreadPoolQueueSize",
    "sendThreadPoolQueueHeadWaitTimeMills",
    "pullThreadPoolQueueHeadWaitTimeMills",
    "ackThreadPoolQueueHeadWaitTimeMills",
    "pageCacheLockTimeMills",
    "earliestMessageTimeStamp",
    "commitLogDiskRatio",
    "timerReadBehind",
    "timerOffsetBehind",
    "timerCongestNum",
    "timerEnqueueTps",
    "timerDequeueTps",
    "brokerVersionDesc",
    "msgPutTotalYesterdayMorning",
    "msgPutTotalTodayMorning",
    "msgPutTotalTodayNow",
    "msgGetTotalYesterdayMorning",
    "msgGetTotalTodayMorning",
    "msgGetTotalTodayNow",
}


def test_settings_are_shown_and_changed_at_run_time(tmp_path: Path) -> None:
    async def run() -> None:
        async with (
            broker_services(tmp_path) as broker,
            client_of(broker, register_handlers) as client,
        ):

            async def shown() -> tuple[set[str], int]:
                answer = await client.request(RequestCode.GET_BROKER_CONFIG)
                version = json.loads(answer.ext_fields["version"])
                return set(answer.body_bytes.decode().splitlines()), version["counter"]

            lines, counter = await shown()
            assert {
                "brokerName=broker-a",
                "autoCreateTopicEnable=true",
                "mappedFileSizeCommitLog=4096",
            } <= lines
            answer = await client.request(
                RequestCode.UPDATE_BROKER_CONFIG,
                {},
                b"autoCreateTopicEnable=false\nfileReservedTime=7\n",
            )
            assert answer.code == ResponseCode.SUCCESS, answer.remark
            assert broker.topics.create_on_send("new", "TBW102", 4) is None
            lines, after = await shown()
            assert {"autoCreateTopicEnable=false", "fileReservedTime=7"} <= lines
            assert after == counter + 1

            for body in (
                b"listenPort=1\nautoCreateTopicEnable=true\n",  # all or none
                b"nobody=1\n",
                b"autoCreateTopicEnable=maybe\n",
                b"\xff",
            ):
                answer = await client.request(RequestCode.UPDATE_BROKER_CONFIG, {}, body)
                assert answer.code == ResponseCode.INVALID_PARAMETER, body
            assert not broker.settings.auto_create_topic_enable

    asyncio.run(run())


def test_index_and_light_queues_are_switched_at_run_time(tmp_path: Path) -> None:
    async def run() -> None:
        async with (
            broker_services(tmp_path, store_settings={"enable_lmq": True}) as broker,
            client_of(broker, register_handlers) as client,
        ):
            store = broker.store
            assert isinstance(store, DefaultMessageStore)
            for number, text in enumerate(("false", "true")):
                body = f"messageIndexEnable={text}\nenableMultiDispatch={text}\n"
                answer = await client.request(RequestCode.UPDATE_BROKER_CONFIG, {}, body.encode())
                assert answer.code == ResponseCode.SUCCESS, answer.remark
                answer = await client.request(RequestCode.GET_BROKER_CONFIG)
                assert {*body.split()} <= {*answer.body_bytes.decode().splitlines()}
                light = {"INNER_MULTI_DISPATCH": "%LMQ%a"}
                put_all(store, [plain(number=number, properties=light)])
                found = store.query_message("T", f"k{number}", 9, *FOREVER)
                assert len(found) == number
                assert store.get_max_offset_in_queue("%LMQ%a", 0) == number

    asyncio.run(run())


def test_runtime_figures_are_text_and_have_what_cluster_list_reads(tmp_path: Path) -> None:
    async def run() -> None:
        async with (
            broker_services(tmp_path) as broker,
            client_of(broker, register_handlers) as client,
        ):
            answer = await client.request(RequestCode.GET_BROKER_RUNTIME_INFO)
            table = json.loads(answer.body_bytes)["table"]
            assert table.keys() >= CLUSTER_LIST_KEYS
            assert all(isinstance(value, str) for value in table.values())
            assert 0 <= float(table["commitLogDiskRatio"]) <= 1

    asyncio.run(run())


def test_rates_are_asked_for_by_name_and_key(tmp_path: Path) -> None:
    async def run() -> None:
        async with (
            broker_services(tmp_path) as broker,
            client_of(broker, register_handlers) as client,
        ):
            assert isinstance(broker.clock, ManualClock)
            broker.topics.update_topic(TopicConfig(topic_name="T"))
            fields = {"statsName": "TOPIC_PUT_NUMS", "statsKey": "T"}
            answer = await client.request(RequestCode.VIEW_BROKER_STATS_DATA, fields)
            assert answer.code == ResponseCode.SYSTEM_ERROR
            put_all(broker.store, [plain(number=number) for number in range(5)])  # type: ignore[arg-type]
            broker.clock.advance(10_000)
            await broker.statistics.sample()
            answer = await client.request(RequestCode.VIEW_BROKER_STATS_DATA, fields)
            found = json.loads(answer.body_bytes)
            assert found["statsMinute"] == {"sum": 5, "tps": 0.5, "avgpt": 0.0}
            assert found["statsDay"]["sum"] == 5

    asyncio.run(run())


def test_the_name_server_role_shows_its_settings_and_changes_none(tmp_path: Path) -> None:
    async def run() -> None:
        async with (
            broker_services(tmp_path) as broker,
            client_of(broker, register_handlers) as client,
        ):
            answer = await client.request(RequestCode.GET_NAMESRV_CONFIG)
            assert "listenPort=10911" in answer.body_bytes.decode().splitlines()
            answer = await client.request(RequestCode.UPDATE_NAMESRV_CONFIG, {}, b"listenPort=1\n")
            assert answer.code == ResponseCode.INVALID_PARAMETER

    asyncio.run(run())
