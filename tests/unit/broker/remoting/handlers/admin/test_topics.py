"""Topics can be created, changed, listed and deleted over remoting. Operations that the store does
not support are refused."""

from __future__ import annotations

import asyncio
import json
import threading
from pathlib import Path

import pytest

from tests.kit.broker_services import broker_services, client_of
from tests.kit.local_stores import plain, put_all
from tieredstore.broker.remoting.codes import RequestCode, ResponseCode
from tieredstore.broker.remoting.handlers.admin.tables import TopicHandlers
from tieredstore.broker.send.sender import MessageSender, SendRequest
from tieredstore.config import StorageLevel
from tieredstore.errors import Busy
from tieredstore.local.topic_table import read_topics
from tieredstore.message.encoding import Message

UPDATE = RequestCode.UPDATE_AND_CREATE_TOPIC
FIELDS = {
    "topic": "orders",
    "defaultTopic": "TBW102",
    "readQueueNums": 4,
    "writeQueueNums": 3,
    "perm": 6,
    "topicFilterType": "SINGLE_TAG",
    "topicSysFlag": 0,
    "order": False,
}


def test_a_topic_is_made_changed_listed_and_deleted(tmp_path: Path) -> None:
    async def run() -> None:
        async with (
            broker_services(tmp_path) as broker,
            client_of(broker, TopicHandlers.register_all) as client,
        ):
            made = await client.request(UPDATE, FIELDS)
            assert made.code == ResponseCode.SUCCESS, made.remark
            one = await client.request(RequestCode.GET_TOPIC_CONFIG, {"topic": "orders"})
            config = json.loads(one.body_bytes)
            assert (config["readQueueNums"], config["writeQueueNums"]) == (4, 3)
            await client.request(UPDATE, {**FIELDS, "perm": 4})
            every = await client.request(RequestCode.GET_ALL_TOPIC_CONFIG)
            table = json.loads(every.body_bytes)["topicConfigTable"]
            assert table["orders"]["perm"] == 4
            assert "TBW102" in table

            put_all(broker.store, [plain("orders", number=1)])  # type: ignore[arg-type]
            broker.offsets.commit_offset("G", "orders", 0, 1)
            gone = await client.request(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "orders"})
            assert gone.code == ResponseCode.SUCCESS
            assert broker.topics.find_topic("orders") is None
            assert broker.store.get_max_offset_in_queue("orders", 0) == 0
            assert broker.offsets.query_offset("G", "orders", 0) is None
            missing = await client.request(RequestCode.GET_TOPIC_CONFIG, {"topic": "orders"})
            assert missing.code == ResponseCode.TOPIC_NOT_EXIST

    asyncio.run(run())


def test_a_topic_is_not_made_again_while_it_is_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> None:
        async with (
            broker_services(tmp_path) as broker,
            client_of(broker, TopicHandlers.register_all) as client,
        ):
            loop = asyncio.get_running_loop()
            begun, go_on = asyncio.Event(), threading.Event()
            delete = broker.store.delete_topics

            def delete_later(topics: set[str]) -> int:
                loop.call_soon_threadsafe(begun.set)
                assert go_on.wait(60)
                return delete(topics)

            monkeypatch.setattr(broker.store, "delete_topics", delete_later)
            sender = MessageSender(
                broker.store, broker.settings, broker.topics, broker.groups, broker.store_host
            )

            def read(queue_id: int, offset: int) -> bytes:
                (found,) = broker.store.get_message("G", "orders", queue_id, offset, 1).messages
                return bytes(found.body)

            async def send() -> bytes:
                sent = await sender.send(SendRequest("P", Message.create("orders", b"one")))
                stored = await broker.store.look_message_by_offset_async(sent.physical_offset)
                assert stored is not None
                broker.store.dispatch_source.flush()
                return read(stored.queue_id, sent.queue_offset)

            await client.request(UPDATE, FIELDS)
            deleting = asyncio.create_task(
                client.request(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "orders"})
            )
            await begun.wait()
            with pytest.raises(Busy, match="topic orders is being deleted"):
                await send()
            assert (await client.request(UPDATE, FIELDS)).code == ResponseCode.SYSTEM_BUSY
            go_on.set()
            assert (await deleting).code == ResponseCode.SUCCESS
            assert await send() == b"one"

    asyncio.run(run())


def test_the_store_knows_of_a_change_once_it_is_answered(tmp_path: Path) -> None:
    async def run() -> None:
        async with (
            broker_services(tmp_path) as broker,
            client_of(broker, TopicHandlers.register_all) as client,
        ):
            await client.request(UPDATE, {**FIELDS, "attributes": "+reserve.time=5"})
            assert broker.store.dispatch_source.topic_reserve_hours() == {"orders": 5}
            await client.request(UPDATE, {**FIELDS, "attributes": "-reserve.time"})
            assert broker.store.dispatch_source.topic_reserve_hours() == {}
            await client.request(UPDATE, {**FIELDS, "attributes": "+tiered.storage.level=DISABLE"})
            assert broker.store.dispatch_source.topic_storage_levels() == {
                "orders": StorageLevel.DISABLE
            }
            assert "orders" in read_topics(tmp_path).attributes

    asyncio.run(run())


@pytest.mark.parametrize(
    ("changes", "remark"),
    [
        ({"topic": "a b"}, "illegal characters"),
        ({"topic": "a" * 128}, "longer than"),
        ({"topic": " "}, "blank"),
        ({"topic": "TBW102"}, "conflict with system topic"),
        ({"topic": "cluster"}, "conflict with system topic"),
        ({"topic": "rmq_sys_mine"}, "conflict with system topic"),
        ({"perm": 8}, "perm: expected 0 to 7"),
        ({"writeQueueNums": -1}, "writeQueueNums: expected 0"),
        ({"readQueueNums": "x"}, "field readQueueNums: expected a number"),
        ({"attributes": "+queue.type=BatchCQ"}, "queue.type='BatchCQ' is not supported"),
        ({"attributes": "+cleanup.policy=COMPACTION"}, "not supported"),
        ({"attributes": "+nobody=1"}, "unsupported key"),
        ({"attributes": "reserve.time=1"}, "expected \\+key=value or -key"),
        ({"attributes": "-reserve.time"}, "no attribute to remove"),
        ({"attributes": "+reserve.time=soon"}, "not supported"),
        ({"attributes": "+tiered.storage.level=NEVER"}, "not supported"),
    ],
)
def test_what_no_topic_may_be_is_refused(
    tmp_path: Path, changes: dict[str, object], remark: str
) -> None:
    async def run() -> None:
        async with (
            broker_services(tmp_path) as broker,
            client_of(broker, TopicHandlers.register_all) as client,
        ):
            before = dict(broker.topics.list_topics())
            answer = await client.request(UPDATE, {**FIELDS, **changes})
            assert answer.code == ResponseCode.INVALID_PARAMETER
            with pytest.raises(AssertionError, match=remark):
                raise AssertionError(answer.remark)
            assert broker.topics.list_topics() == before

    asyncio.run(run())


def test_several_topics_are_made_all_or_none(tmp_path: Path) -> None:
    async def run() -> None:
        async with (
            broker_services(tmp_path) as broker,
            client_of(broker, TopicHandlers.register_all) as client,
        ):
            topics = [{"topicName": "a", "perm": 6}, {"topicName": "b!", "perm": 6}]
            code = RequestCode.UPDATE_AND_CREATE_TOPIC_LIST
            body = json.dumps({"topicConfigList": topics}).encode()
            assert (await client.request(code, {}, body)).code == ResponseCode.INVALID_PARAMETER
            assert broker.topics.find_topic("a") is None
            topics[1]["topicName"] = "b"
            body = json.dumps({"topicConfigList": topics}).encode()
            assert (await client.request(code, {}, body)).code == ResponseCode.SUCCESS
            assert broker.topics.find_topic("b") is not None
            assert (await client.request(code, {}, b"[")).code == ResponseCode.INVALID_PARAMETER

    asyncio.run(run())


def test_a_history_lets_no_topic_be_made_or_deleted(tmp_path: Path) -> None:
    async def run() -> None:
        async with (
            broker_services(tmp_path, is_read_only=True) as broker,
            client_of(broker, TopicHandlers.register_all) as client,
        ):
            for code in (UPDATE, RequestCode.DELETE_TOPIC_IN_BROKER):
                answer = await client.request(code, FIELDS)
                assert answer.code == ResponseCode.NO_PERMISSION

    asyncio.run(run())


def test_the_broker_s_own_topics_are_listed_and_stay(tmp_path: Path) -> None:
    async def run() -> None:
        async with (
            broker_services(tmp_path) as broker,
            client_of(broker, TopicHandlers.register_all) as client,
        ):
            answer = await client.request(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER)
            assert "TBW102" in json.loads(answer.body_bytes)["topicList"]
            code = RequestCode.DELETE_TOPIC_IN_BROKER
            answer = await client.request(code, {"topic": "SCHEDULE_TOPIC_XXXX"})
            assert answer.code == ResponseCode.INVALID_PARAMETER

    asyncio.run(run())
