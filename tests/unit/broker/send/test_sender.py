"""A producer's message is stored as in Java's broker, or refused with the same code."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kit.loops import on_loop
from tests.kit.producing import STORE_HOST, producing
from tieredstore.broker.refused import Reason, Refused
from tieredstore.broker.send.sender import SendRequest, consistent_hash
from tieredstore.broker.state.topics import TopicConfig
from tieredstore.contracts.dispatch_source import QueueKey
from tieredstore.contracts.durability import PutMessageStatus
from tieredstore.contracts.message_store import DURABLE, PutMessageResult
from tieredstore.message.encoding import Message
from tieredstore.message.hosts import parse_offset_message_id


@on_loop
async def test_a_message_is_stored_with_what_a_broker_adds(tmp_path: Path) -> None:
    with producing(tmp_path) as parts:
        sent = await parts.send(
            body=b"x", queue_id=1, tags="a", uniq_key="0A" * 16, born_timestamp_ms=5, flag=7
        )
        found = parts.read("T", 1)[0]
    assert found.properties == {
        "UNIQ_KEY": "0A" * 16,
        "TAGS": "a",
        "CLUSTER": "C",
        "MSG_REGION": "DefaultRegion",
        "TRACE_ON": "true",
    }
    assert (found.flag, found.born_timestamp_ms, bytes(found.body)) == (7, 5, b"x")
    assert found.store_host_bytes == STORE_HOST
    assert sent.status is PutMessageStatus.PUT_OK
    assert (sent.queue_id, sent.queue_offset, sent.transaction_id) == (1, 0, "0A" * 16)
    assert parse_offset_message_id(sent.message_id) == ("127.0.0.1", 10911, found.physical_offset)


@on_loop
async def test_properties_are_completed_and_the_broker_s_own_replaced(tmp_path: Path) -> None:
    with producing(tmp_path) as parts:
        for properties in (b"k\x01v", b"CLUSTER\x01other\x02k\x01v\x02e\x01\x02POP_CK\x01p\x02"):
            message = Message("T", b"x", 0, properties)
            await parts.sender.send(SendRequest("g", message))
        first, second = parts.read()
    assert first.properties_bytes.startswith(b"k\x01v\x02UNIQ_KEY\x01")
    unique = first.properties["UNIQ_KEY"]
    assert len(unique) == 32
    assert int(unique, 16)
    assert second.properties_bytes.count(b"CLUSTER\x01") == 1
    assert second.properties.keys() == {"k", "UNIQ_KEY", "CLUSTER", "MSG_REGION", "TRACE_ON"}
    assert second.properties["CLUSTER"] == "C"
    assert second.properties["UNIQ_KEY"] != unique


@on_loop
async def test_an_unknown_topic_is_made_with_the_queues_that_are_asked_for(tmp_path: Path) -> None:
    with producing(tmp_path) as parts:
        for topic, nums in (("few", 2), ("many", 99)):
            message = Message.create(topic, b"x", queue_id=0)
            await parts.sender.send(SendRequest("g", message, default_queue_nums=nums))
        made = [parts.topics.find_topic(topic) for topic in ("few", "many")]
    assert [(config.write_queue_nums, config.perm) for config in made if config] == [(2, 6), (8, 6)]


@on_loop
async def test_without_automatic_topics_an_unknown_one_is_refused(tmp_path: Path) -> None:
    with producing(tmp_path, auto_create_topic_enable=False) as parts:
        with pytest.raises(Refused) as raised:
            await parts.send("unknown")
        assert raised.value.reason is Reason.TOPIC_NOT_EXIST
        await parts.send("%RETRY%g", queue_id=0)  # a client's own retry makes it in any case
        assert parts.topics.find_topic("%RETRY%g")


@pytest.mark.parametrize(
    ("topic", "queue_id", "body", "reason"),
    [
        ("T", 99, b"x", Reason.INVALID_PARAMETER),
        ("a/b", 0, b"x", Reason.INVALID_PARAMETER),
        ("t" * 128, 0, b"x", Reason.INVALID_PARAMETER),
        ("", 0, b"x", Reason.INVALID_PARAMETER),
        ("SCHEDULE_TOPIC_XXXX", 0, b"x", Reason.NO_PERMISSION),
        ("RMQ_SYS_TRANS_HALF_TOPIC", 0, b"x", Reason.NO_PERMISSION),
        ("T", 0, b"", Reason.MESSAGE_ILLEGAL),
        ("T", 0, bytes(4 * 1024 * 1024 + 1), Reason.MESSAGE_ILLEGAL),
    ],
)
@on_loop
async def test_i05_a_send_is_refused_with_java_s_code(
    tmp_path: Path, topic: str, queue_id: int, body: bytes, reason: Reason
) -> None:
    with producing(tmp_path) as parts:
        parts.topics.update_topic(TopicConfig(topic_name="T"))
        with pytest.raises(Refused) as raised:
            await parts.send(topic, body, queue_id=queue_id)
    assert raised.value.reason is reason


@on_loop
async def test_i05_the_largest_body_and_properties_are_stored(tmp_path: Path) -> None:
    with producing(tmp_path) as parts:
        await parts.send(body=bytes(4 * 1024 * 1024), queue_id=0)
        room = 32_767 - len(parts.read()[0].properties_bytes)
        await parts.send(queue_id=0, properties={"k": "v" * (room - 3)})
        assert len(parts.read()[1].properties_bytes) == 32_767
        with pytest.raises(Refused) as raised:
            await parts.send(queue_id=0, properties={"k": "v" * (room - 2)})
    assert raised.value.reason is Reason.MESSAGE_ILLEGAL


@on_loop
async def test_the_broker_chooses_queues_in_turn_and_by_message_group(tmp_path: Path) -> None:
    with producing(tmp_path) as parts:
        parts.topics.update_topic(TopicConfig(topic_name="T", write_queue_nums=4))
        turns = [(await parts.send()).queue_id for _ in range(8)]
        group = {"__SHARDINGKEY": "order-1"}
        grouped = [(await parts.send(properties=group)).queue_id for _ in range(5)]
    assert sorted(turns) == [0, 0, 1, 1, 2, 2, 3, 3]
    assert len(set(grouped)) == 1


def test_few_message_groups_move_when_queues_are_added() -> None:
    keys = [key * 2_654_435_761 for key in range(-500, 500)]
    before = [consistent_hash(key, 8) for key in keys]
    after = [consistent_hash(key, 9) for key in keys]
    assert set(before) == set(range(8))
    moved = [new for old, new in zip(before, after, strict=True) if old != new]
    assert set(moved) == {8}  # only to the new queue
    assert 0 < len(moved) < 250


@on_loop
async def test_a_batch_keeps_what_is_each_message_s_own(tmp_path: Path) -> None:
    with producing(tmp_path) as parts:
        shared = Message("T", b"batch", 1, b"UNIQ_KEY\x01BATCH\x02WAIT\x01true\x02", 0, 0, 5)
        items = [
            Message("", b"one", properties=b"UNIQ_KEY\x01U1\x02WAIT\x01true\x02", flag=3),
            Message("", b"three", properties=b"TAGS\x01a"),
        ]
        sent = await parts.sender.send_batch(SendRequest("g", shared), items)
        found = parts.read("T", 1)
    ids = sent.message_id.split(",")
    assert [parse_offset_message_id(text)[2] for text in ids] == [m.physical_offset for m in found]
    assert (sent.queue_id, sent.queue_offset) == (1, 0)
    first, second = found
    assert (bytes(first.body), first.flag, first.uniq_key) == (b"one", 3, "U1")
    assert first.properties_bytes.count(b"WAIT\x01") == 1
    assert second.tags == "a"
    assert second.uniq_key not in (None, "BATCH")
    assert [m.get_property("CLUSTER") for m in found] == ["C", "C"]
    assert [m.born_timestamp_ms for m in found] == [5, 5]
    assert parts.traffic.batched == {"T": 1}


@on_loop
async def test_a_batch_for_a_retry_topic_is_refused(tmp_path: Path) -> None:
    with producing(tmp_path) as parts:
        shared = Message("%RETRY%g", b"batch")
        with pytest.raises(Refused) as raised:
            await parts.sender.send_batch(SendRequest("g", shared), [Message("", b"x")])
    assert raised.value.reason is Reason.MESSAGE_ILLEGAL


@pytest.mark.parametrize(
    ("status", "reason"),
    [
        (PutMessageStatus.OS_PAGE_CACHE_BUSY, Reason.SYSTEM_BUSY),
        (PutMessageStatus.SERVICE_NOT_AVAILABLE, Reason.SERVICE_NOT_AVAILABLE),
        (PutMessageStatus.CREATE_MAPPED_FILE_FAILED, Reason.SYSTEM_ERROR),
        (PutMessageStatus.MESSAGE_ILLEGAL, Reason.MESSAGE_ILLEGAL),
        (PutMessageStatus.PROPERTIES_SIZE_EXCEEDED, Reason.MESSAGE_ILLEGAL),
        (PutMessageStatus.WHEEL_TIMER_FLOW_CONTROL, Reason.SYSTEM_ERROR),
        (PutMessageStatus.WHEEL_TIMER_MSG_ILLEGAL, Reason.MESSAGE_ILLEGAL),
        (PutMessageStatus.UNKNOWN_ERROR, Reason.SYSTEM_ERROR),
    ],
)
@on_loop
async def test_each_status_of_the_store_has_its_code(
    tmp_path: Path, status: PutMessageStatus, reason: Reason
) -> None:
    with producing(tmp_path) as parts:
        refused = PutMessageResult(status, -1, -1, 0, 0, 0, DURABLE, "why")
        parts.store.add_put_message_hook(lambda message: refused)
        with pytest.raises(Refused, match="why") as raised:
            await parts.send()
    assert raised.value.reason is reason


@on_loop
async def test_a_stored_message_that_no_flush_confirmed_is_sent(tmp_path: Path) -> None:
    with producing(tmp_path) as parts:
        late = PutMessageResult(PutMessageStatus.FLUSH_DISK_TIMEOUT, 64, 3, 10, 1, 0, DURABLE)
        parts.store.add_put_message_hook(lambda message: late)
        sent = await parts.send()
    assert (sent.status, sent.queue_offset) == (PutMessageStatus.FLUSH_DISK_TIMEOUT, 3)


@on_loop
async def test_a_client_s_own_retry_ends_with_the_dead_letters(tmp_path: Path) -> None:
    with producing(tmp_path) as parts:
        for times in (16, 17):
            await parts.send("%RETRY%g", queue_id=0, reconsume_times=times)
        message = Message.create("%RETRY%g", b"x", queue_id=0, reconsume_times=3)
        await parts.sender.send(SendRequest("g", message, max_reconsume_times=2))
        assert [m.reconsume_times for m in parts.read("%RETRY%g")] == [16]
        assert [m.reconsume_times for m in parts.read("%DLQ%g")] == [17, 3]


@on_loop
async def test_a_message_that_an_orderly_consumer_gives_up_is_a_dead_letter(tmp_path: Path) -> None:
    with producing(tmp_path) as parts:
        parts.locks.lock("g", [QueueKey("T", 0)], "client")
        properties = {"DELAY": "3", "RETRY_TOPIC": "T", "UNIQ_KEY": "U"}
        await parts.send("%RETRY%g", queue_id=0, properties=properties)
        found = parts.read("%DLQ%g")[0].properties
        assert found["DELAY"] == "-1"
        assert (found["DLQ_ORIGIN_TOPIC"], found["DLQ_ORIGIN_MESSAGE_ID"]) == ("T", "U")
        parts.clock.advance(60_000)  # the lock ends
        await parts.send("%RETRY%g", queue_id=0)
        assert len(parts.read("%RETRY%g")) == 1


@on_loop
async def test_a_compressed_body_stays_as_it_is(tmp_path: Path) -> None:
    with producing(tmp_path) as parts:
        await parts.send(body=b"not really zlib", queue_id=0, sys_flag=0x1 | 0x300)
        found = parts.read()[0]
    assert (found.sys_flag & 0x701, bytes(found.body)) == (0x301, b"not really zlib")
