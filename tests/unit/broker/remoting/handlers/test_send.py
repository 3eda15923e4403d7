"""Producers send messages over remoting (310, 10, 320, 370), and consumers send them back (36)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.kit.loops import on_loop
from tests.kit.record_forms import encode_batch
from tests.kit.remoting import RemotingClient, wait_for
from tests.kit.running_broker import running_broker
from tieredstore.broker.broker import Broker
from tieredstore.broker.remoting.codes import HeaderType
from tieredstore.clock import SYSTEM_CLOCK
from tieredstore.message.batch import BatchItem
from tieredstore.message.hosts import parse_offset_message_id
from tieredstore.message.properties import encode_properties
from tieredstore.message.record import StoredMessage, decode_record

PROPERTIES = {"UNIQ_KEY": "U1", "TAGS": "a", "KEYS": "k1 k2", "ünï": "çødé"}


def _fields(**more: Any) -> dict[str, Any]:
    properties = more.pop("properties", PROPERTIES)
    text = encode_properties(properties).decode()
    return {
        "a": "g",
        "b": "T",
        "c": "TBW102",
        "d": 4,
        "e": 1,
        "f": 0,
        "g": 5,
        "h": 7,
        "i": text,
        "j": 0,
        "k": False,
        "m": False,
        "n": "b",
        **more,
    }


def _read(broker: Broker, topic: str = "T", queue_id: int = 1) -> list[StoredMessage]:
    store: Any = broker.services.store
    store.wait_until_dispatched()
    found: list[StoredMessage] = store.get_message("g", topic, queue_id, 0, 32).messages
    return found


@pytest.mark.parametrize("header_type", list(HeaderType))
@on_loop
async def test_a_message_is_sent(tmp_path: Path, header_type: HeaderType) -> None:
    async with (
        running_broker(tmp_path) as broker,
        await RemotingClient.open(broker.services.address, header_type) as client,
    ):
        response = await client.request(310, _fields(), b"body")
        found = _read(broker)[0]
        peer = client.connection._transport.get_extra_info("sockname")  # type: ignore[union-attr]
    assert response.code == 0
    fields = response.ext_fields
    assert (fields["queueId"], fields["queueOffset"], fields["transactionId"]) == ("1", "0", "U1")
    assert parse_offset_message_id(fields["msgId"])[2] == found.physical_offset
    assert (bytes(found.body), found.flag, found.born_timestamp_ms) == (b"body", 7, 5)
    assert found.born_host == f"127.0.0.1:{peer[1]}"
    assert found.properties.items() >= PROPERTIES.items()


@on_loop
async def test_a_message_with_long_field_names(tmp_path: Path) -> None:
    fields = {
        "producerGroup": "g",
        "topic": "T",
        "defaultTopic": "TBW102",
        "defaultTopicQueueNums": 4,
        "queueId": 1,
        "sysFlag": 1,
        "bornTimestamp": 5,
        "flag": 7,
        "properties": "k\x01v",  # clients leave the last separator out
        "reconsumeTimes": 0,
        "unitMode": False,
    }
    async with (
        running_broker(tmp_path) as broker,
        await RemotingClient.open(broker.services.address) as client,
    ):
        assert (await client.request(10, fields, b"body")).code == 0
        found = _read(broker)[0]
    assert (found.sys_flag, found.properties["k"], found.properties["CLUSTER"]) == (
        1,
        "v",
        "DefaultCluster",
    )


@on_loop
async def test_one_way_messages_are_stored_and_not_answered(tmp_path: Path) -> None:
    async with (
        running_broker(tmp_path) as broker,
        await RemotingClient.open(broker.services.address) as client,
    ):
        client.send_one_way(310, _fields(), b"one way")
        client.send_one_way(310, _fields(b="a/b"), b"bad")
        assert (await client.request(310, _fields(), b"body")).code == 0
        assert [bytes(message.body) for message in _read(broker)] == [b"one way", b"body"]


@on_loop
async def test_a_batch(tmp_path: Path) -> None:
    items = [
        BatchItem(number, b"body-%d" % number, b"UNIQ_KEY\x01U%d\x02" % number)
        for number in range(3)
    ]
    async with (
        running_broker(tmp_path) as broker,
        await RemotingClient.open(broker.services.address) as client,
    ):
        response = await client.request(320, _fields(m=True), encode_batch(items))
        found = _read(broker)
        damaged = await client.request(320, _fields(m=True), encode_batch(items)[:-1])
        huge = await client.request(320, _fields(m=True), bytes(4 * 1024 * 1024 + 1))
    ids = response.ext_fields["msgId"].split(",")
    assert [parse_offset_message_id(text)[2] for text in ids] == [m.physical_offset for m in found]
    assert [(bytes(m.body), m.flag, m.uniq_key) for m in found] == [
        (b"body-0", 0, "U0"),
        (b"body-1", 1, "U1"),
        (b"body-2", 2, "U2"),
    ]
    assert (damaged.code, huge.code) == (13, 1)


@pytest.mark.parametrize(
    ("fields", "body", "code"),
    [
        ({"e": 99}, b"x", 29),
        ({"e": "one"}, b"x", 29),
        ({"b": "unknown", "c": "none"}, b"x", 17),
        ({"b": "a/b"}, b"x", 29),
        ({"b": "SCHEDULE_TOPIC_XXXX"}, b"x", 16),
        ({}, b"", 13),
        ({"properties": {"k": "v" * 32_700}}, b"x", 13),
        ({"properties": {"TIMER_DELIVER_MS": "soon"}}, b"x", 13),
    ],
)
@on_loop
async def test_what_is_refused(
    tmp_path: Path, fields: dict[str, Any], body: bytes, code: int
) -> None:
    async with (
        running_broker(tmp_path) as broker,
        await RemotingClient.open(broker.services.address) as client,
    ):
        await client.request(310, _fields(), b"first")
        response = await client.request(310, _fields(**fields), body)
        assert (response.code, len(_read(broker))) == (code, 1)
    assert response.remark


@on_loop
async def test_a_delayed_message_is_delivered(tmp_path: Path) -> None:
    async with (
        running_broker(tmp_path, messageDelayLevel="1s 2s") as broker,
        await RemotingClient.open(broker.services.address) as client,
    ):
        await client.request(310, _fields(b="T", properties={"DELAY": "1"}), b"by level")
        assert _read(broker) == []
        await wait_for(lambda: len(_read(broker)) == 1)
        timed = await client.request(
            310, _fields(properties={"TIMER_DELAY_MS": "2000"}), b"by time"
        )
        assert timed.ext_fields["recallHandle"]
        await wait_for(lambda: len(_read(broker)) == 2)
        timed = await client.request(
            310, _fields(properties={"TIMER_DELAY_MS": "60000"}), b"recalled"
        )
        fields = {
            "producerGroup": "g",
            "topic": "T",
            "recallHandle": timed.ext_fields["recallHandle"],
        }
        recalled = await client.request(370, fields)
        assert recalled.ext_fields["msgId"] == timed.ext_fields["transactionId"]
        assert (await client.request(370, {"topic": "T"})).code == 29


@on_loop
async def test_a_message_that_is_sent_back_comes_again_and_ends_with_the_dead_letters(
    tmp_path: Path,
) -> None:
    levels = "1s 1s 1s 1s 1s 1s"
    async with (
        running_broker(tmp_path, messageDelayLevel=levels) as broker,
        await RemotingClient.open(broker.services.address) as client,
    ):
        await client.request(310, _fields(), b"body")
        message = _read(broker)[0]
        back = {"group": "c", "originTopic": "T", "delayLevel": 0, "maxReconsumeTimes": 1}
        response = await client.request(36, {**back, "offset": message.physical_offset})
        assert response.code == 0
        await wait_for(lambda: bool(_read(broker, "%RETRY%c", 0)))
        again = _read(broker, "%RETRY%c", 0)[0]
        assert (again.reconsume_times, again.get_property("RETRY_TOPIC")) == (1, "T")
        await client.request(36, {**back, "offset": again.physical_offset})
        dead = _read(broker, "%DLQ%c", 0)[0]
        assert dead.get_property("DLQ_ORIGIN_TOPIC") == "T"
        nowhere = await client.request(36, {**back, "offset": 10**9})
        assert (nowhere.code, (await client.request(36, back)).code) == (1, 29)


@on_loop
async def test_under_sync_flush_each_kind_is_answered_and_delivered(tmp_path: Path) -> None:
    keys = {"flushDiskType": "SYNC_FLUSH", "messageDelayLevel": "1s"}
    async with (
        running_broker(tmp_path, SYSTEM_CLOCK, **keys) as broker,
        await RemotingClient.open(broker.services.address) as client,
    ):
        items = [BatchItem(0, b"batched", b"UNIQ_KEY\x01B\x02")]
        half = {"TRAN_MSG": "true", "PGROUP": "g", "UNIQ_KEY": "H"}
        prepared = await client.request(310, _fields(properties=half), b"committed")
        for code, properties, body in (
            (310, {}, b"plain"),
            (310, {"DELAY": "1"}, b"by level"),
            (310, {"TIMER_DELAY_SEC": "2"}, b"by time"),
        ):
            assert (await client.request(code, _fields(properties=properties), body)).code == 0
        assert (await client.request(320, _fields(m=True), encode_batch(items))).code == 0
        end = {
            "producerGroup": "g",
            "commitLogOffset": int(prepared.ext_fields["msgId"][16:], 16),
            "tranStateTableOffset": prepared.ext_fields["queueOffset"],
            "commitOrRollback": 8,
        }
        assert (await client.request(37, end)).code == 0
        wanted = {b"plain", b"by level", b"by time", b"batched", b"committed"}
        await wait_for(lambda: {bytes(message.body) for message in _read(broker)} == wanted)
        assert (await client.request(37, {**end, "producerGroup": "other"})).code == 1
        assert (await client.request(37, {**end, "commitOrRollback": 5})).code == 29


@on_loop
async def test_a_producer_is_asked_what_became_of_its_transaction(tmp_path: Path) -> None:
    keys = {"transactionTimeOut": "1", "transactionCheckInterval": "100"}
    async with (
        running_broker(tmp_path, SYSTEM_CLOCK, **keys) as broker,
        await RemotingClient.open(broker.services.address) as client,
    ):
        beat = b'{"clientID":"p","producerDataSet":[{"groupName":"g"}],"consumerDataSet":[]}'
        assert (await client.request(34, {}, beat)).code == 0
        half = {"TRAN_MSG": "true", "PGROUP": "g", "UNIQ_KEY": "H"}
        await client.request(310, _fields(properties=half), b"asked")
        asked = await client.next_call()
        message = decode_record(asked.body_bytes)
        assert (asked.code, message.topic, message.queue_id) == (39, "T", 1)
        fields = asked.ext_fields
        assert (fields["transactionId"], fields["msgId"]) == ("H", "H")
        end = {
            "producerGroup": "g",
            "commitLogOffset": fields["commitLogOffset"],
            "tranStateTableOffset": fields["tranStateTableOffset"],
            "commitOrRollback": 8,
            "fromTransactionCheck": True,
        }
        client.send_one_way(37, end)
        await wait_for(lambda: [bytes(found.body) for found in _read(broker)] == [b"asked"])
