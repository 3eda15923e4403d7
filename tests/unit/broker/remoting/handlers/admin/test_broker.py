"""Java's tools can query the broker's settings and statistics."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path

from tests.kit.broker_services import broker_services, client_of
from tests.kit.local_stores import FOREVER, plain, put_all
from tieredstore.broker.remoting.codes import RequestCode, ResponseCode
from tieredstore.broker.remoting.handlers.admin.broker import BrokerHandlers
from tieredstore.broker.remoting.handlers.admin.runtime import estimate_percentile, format_bytes
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
            client_of(broker, BrokerHandlers.register_all) as client,
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
                b"\\ud800=1\n",
            ):
                answer = await client.request(RequestCode.UPDATE_BROKER_CONFIG, {}, body)
                assert answer.code == ResponseCode.INVALID_PARAMETER, body
            assert not broker.settings.auto_create_topic_enable

    asyncio.run(run())


def test_index_and_light_queues_are_switched_at_run_time(tmp_path: Path) -> None:
    async def run() -> None:
        async with (
            broker_services(tmp_path, store_settings={"enable_lmq": True}) as broker,
            client_of(broker, BrokerHandlers.register_all) as client,
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
            client_of(broker, BrokerHandlers.register_all) as client,
        ):
            answer = await client.request(RequestCode.GET_BROKER_RUNTIME_INFO)
            table = json.loads(answer.body_bytes)["table"]
            assert table.keys() >= CLUSTER_LIST_KEYS
            assert all(isinstance(value, str) for value in table.values())
            assert 0 <= float(table["commitLogDiskRatio"]) <= 1

    asyncio.run(run())


INTEGERS = (
    "bootTimestamp",
    "brokerVersion",
    "commitLogMaxOffset",
    "commitLogMinOffset",
    "dispatchBehindBytes",
    "dispatchMaxBuffer",
    "earliestMessageTimeStamp",
    "getMessageEntireTimeMax",
    "msgGetTotalTodayMorning",
    "msgGetTotalTodayNow",
    "msgGetTotalYesterdayMorning",
    "msgPutTotalTodayMorning",
    "msgPutTotalTodayNow",
    "msgPutTotalYesterdayMorning",
    "pageCacheLockTimeMills",
    "pullThreadPoolQueueCapacity",
    "pullThreadPoolQueueHeadWaitTimeMills",
    "pullThreadPoolQueueSize",
    "putMessageEntireTimeMax",
    "putMessageSizeTotal",
    "putMessageTimesTotal",
    "queryThreadPoolQueueCapacity",
    "queryThreadPoolQueueHeadWaitTimeMills",
    "queryThreadPoolQueueSize",
    "remainTransientStoreBufferNumbs",
    "sendThreadPoolQueueCapacity",
    "sendThreadPoolQueueHeadWaitTimeMills",
    "sendThreadPoolQueueSize",
    "startAcceptSendRequestTimeStamp",
)
DECIMALS = ("commitLogDiskRatio", "consumeQueueDiskRatio", "putLatency99", "putLatency999")
RATES = ("putTps", "getFoundTps", "getMissTps", "getTotalTps", "getTransferredTps")


def test_runtime_figures_are_in_the_forms_that_the_exporter_parses(tmp_path: Path) -> None:
    async def run() -> None:
        async with (
            broker_services(tmp_path) as broker,
            client_of(broker, BrokerHandlers.register_all) as client,
        ):
            assert isinstance(broker.clock, ManualClock)
            broker.topics.update_topic(TopicConfig(topic_name="T"))
            put_all(broker.store, [plain(number=number) for number in range(5)])  # type: ignore[arg-type]
            broker.clock.advance(1000)  # values of the last second are used again
            broker.schedule.offsets.set_offset(2, 7)
            answer = await client.request(RequestCode.GET_BROKER_RUNTIME_INFO)
            table = json.loads(answer.body_bytes)["table"]
            numbers = {name: int(table[name]) for name in INTEGERS}
            assert numbers["msgPutTotalTodayNow"] == numbers["putMessageTimesTotal"] == 5
            assert numbers["commitLogMaxOffset"] >= numbers["putMessageSizeTotal"] > 0
            assert float(table["putMessageAverageSize"]) == numbers["putMessageSizeTotal"] / 5
            assert all(float(table[name]) >= 0 for name in DECIMALS)
            assert all(len([*map(float, table[name].split(" "))]) == 3 for name in RATES)
            assert re.fullmatch(
                r"Total : [0-9.]+ [KMGTP]iB, Free : [0-9.]+ [KMGTP]iB\.",
                table["commitLogDirCapacity"],
            )
            assert re.fullmatch(r"[0-9.]+ (B|[KMGTPE]iB)", table["remainHowManyDataToFlush"])
            times = [part.split(":") for part in table["putMessageDistributeTime"].split(" ")]
            assert len(times) == 13
            assert all(int(count) >= 0 for _, count in times)
            assert table["scheduleMessageOffset_2"] == "7,0"

    asyncio.run(run())


def test_sizes_are_shown_as_java_shows_them() -> None:
    sizes = (0, 1023, 1024, 1536, 1 << 20, 3 << 29)
    assert [format_bytes(size) for size in sizes] == [
        "0 B",
        "1023 B",
        "1.0 KiB",
        "1.5 KiB",
        "1.0 MiB",
        "1.5 GiB",
    ]


def test_percentiles_of_put_times_are_estimated_within_a_bucket() -> None:
    none = [0] * 13
    assert estimate_percentile(none, 0.99) == 0
    assert estimate_percentile([100, *none[1:]], 0.99) == 0.99
    assert estimate_percentile([90, 0, 10, *none[3:]], 0.95) == 30
    assert estimate_percentile([*none[1:], 10], 0.99) == 10_000


def test_rates_are_asked_for_by_name_and_key(tmp_path: Path) -> None:
    async def run() -> None:
        async with (
            broker_services(tmp_path) as broker,
            client_of(broker, BrokerHandlers.register_all) as client,
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
            assert found["statsMinute"] == {"sum": 5, "tps": 0.5, "avgpt": 1.0}
            assert found["statsDay"]["sum"] == 5

    asyncio.run(run())


def test_the_name_server_role_shows_its_settings_and_changes_none(tmp_path: Path) -> None:
    async def run() -> None:
        async with (
            broker_services(tmp_path) as broker,
            client_of(broker, BrokerHandlers.register_all) as client,
        ):
            answer = await client.request(RequestCode.GET_NAMESRV_CONFIG)
            assert "listenPort=10911" in answer.body_bytes.decode().splitlines()
            answer = await client.request(RequestCode.UPDATE_NAMESRV_CONFIG, {}, b"listenPort=1\n")
            assert answer.code == ResponseCode.INVALID_PARAMETER

    asyncio.run(run())
