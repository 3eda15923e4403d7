"""Tests of remoting requests for group offsets, queue offsets, and messages by key or location."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from tests.kit.consuming import GROUP, TOPIC, ServedBroker, play, split_records
from tests.kit.local_stores import plain
from tests.kit.remoting import RemotingClient
from tieredstore.broker.remoting.codes import RequestCode, ResponseCode
from tieredstore.local.dispatch_source import LocalDispatchSource

MINE = {"consumerGroup": GROUP, "topic": TOPIC, "queueId": 0}


def test_a_new_group_begins_at_the_first_message_while_the_local_log_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in Java's broker, a new group begins at the first message as long as that message is in
    the local log."""

    async def scenario(broker: ServedBroker) -> None:
        async with await RemotingClient.open(broker.address) as client:

            async def query(**more: object) -> tuple[int, str | None]:
                answer = await client.request(RequestCode.QUERY_CONSUMER_OFFSET, MINE | more)
                return answer.code, answer.ext_fields.get("offset")

            absent = (ResponseCode.QUERY_NOT_FOUND, None)
            assert await query() == absent  # the queue is empty
            await broker.put(plain())
            assert await query() == (ResponseCode.SUCCESS, "0")
            assert await query(setZeroIfNotFound=False) == absent
            assert await query(setZeroIfNotFound=True) == (ResponseCode.SUCCESS, "0")
            assert await query(queueId=1) == absent
            with monkeypatch.context() as patch:
                patch.setattr(LocalDispatchSource, "is_in_store", lambda *_: False)
                assert await query() == absent
                assert await query(setZeroIfNotFound=True) == absent
            client.send_one_way(RequestCode.UPDATE_CONSUMER_OFFSET, MINE | {"commitOffset": 5})
            assert await query() == (ResponseCode.SUCCESS, "5")
            for bad, code in (
                ({"commitOffset": -1}, ResponseCode.INVALID_PARAMETER),
                ({"commitOffset": 2**63}, ResponseCode.INVALID_PARAMETER),
                ({"queueId": -1, "commitOffset": 1}, ResponseCode.INVALID_PARAMETER),
                ({}, ResponseCode.INVALID_PARAMETER),
                ({"topic": "absent", "commitOffset": 1}, ResponseCode.TOPIC_NOT_EXIST),
                (
                    {"consumerGroup": "a b", "commitOffset": 1},
                    ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
                ),
            ):
                answer = await client.request(RequestCode.UPDATE_CONSUMER_OFFSET, MINE | bad)
                assert answer.code == code, answer.remark
            assert await query() == (ResponseCode.SUCCESS, "5")

    play(tmp_path, scenario)


def test_s38_offsets_are_taken_for_queues_that_exist_and_for_no_other(tmp_path: Path) -> None:
    async def scenario(broker: ServedBroker) -> None:
        services = broker.services
        config = services.topics.find_topic(TOPIC)
        assert config is not None
        counts = max(config.read_queue_nums, config.write_queue_nums)
        await broker.put(plain(queue_id=counts - 1))
        async with await RemotingClient.open(broker.address) as client:

            async def update(queue_id: int) -> int:
                fields = MINE | {"queueId": queue_id, "commitOffset": 1}
                return (await client.request(RequestCode.UPDATE_CONSUMER_OFFSET, fields)).code

            assert await update(0) == ResponseCode.SUCCESS
            for queue_id in (counts, 65_536, 2**31 - 1, 2**31, 2**40, 2**63 - 1, 2**63):
                assert await update(queue_id) == ResponseCode.INVALID_PARAMETER
            # Less queues than before: what the last one has is still consumed.
            fewer = msgspec.structs.replace(config, read_queue_nums=1, write_queue_nums=1)
            services.topics.update_topic(fewer)
            assert await update(counts - 1) == ResponseCode.SUCCESS
            if counts > 2:
                assert await update(counts - 2) == ResponseCode.INVALID_PARAMETER
            wider = msgspec.structs.replace(config, read_queue_nums=counts + 5)
            services.topics.update_topic(wider)
            assert await update(counts + 4) == ResponseCode.SUCCESS
            known = services.offsets.list_offsets(GROUP, TOPIC)
            assert set(known) == {0, counts - 1, counts + 4}

    play(tmp_path, scenario)


def test_the_ends_of_a_queue_and_its_times(tmp_path: Path) -> None:
    async def scenario(broker: ServedBroker) -> None:
        store = broker.services.store
        await broker.put(plain(number=1), plain(number=2))
        first = store.get_message_store_timestamp(TOPIC, 0, 0)
        last = store.get_message_store_timestamp(TOPIC, 0, 1)
        async with await RemotingClient.open(broker.address) as client:

            async def ask(code: int, **more: object) -> dict[str, str]:
                return (await client.request(code, MINE | more)).ext_fields

            assert await ask(RequestCode.GET_MAX_OFFSET) == {"offset": "2"}
            assert await ask(RequestCode.GET_MIN_OFFSET) == {"offset": "0"}
            assert await ask(RequestCode.GET_EARLIEST_MSG_STORETIME) == {"timestamp": str(first)}
            search = RequestCode.SEARCH_OFFSET_BY_TIMESTAMP
            assert await ask(search, timestamp=first) == {"offset": "0"}
            assert await ask(search, timestamp=last + 1) == {"offset": "2"}
            assert await ask(search, timestamp=last + 1, boundaryType="upper") == {"offset": "1"}

    play(tmp_path, scenario)


def test_messages_are_found_by_key_and_by_place(tmp_path: Path) -> None:
    async def scenario(broker: ServedBroker) -> None:
        await broker.put(*(plain(number=number, queue_id=number % 2) for number in range(6)))
        stored = broker.services.store.get_message("x", TOPIC, 1, 1, 1).messages[0]
        times = {"beginTimestamp": 0, "endTimestamp": 2**62}
        async with await RemotingClient.open(broker.address) as client:
            query = {"topic": TOPIC, "maxNum": 10, **times}
            for key in ("k3", "U00000003"):
                found = await client.request(RequestCode.QUERY_MESSAGE, query | {"key": key})
                assert [m.body for m in split_records(found.body_bytes)] == [b"body-3"]
                assert found.ext_fields["indexLastUpdatePhyoffset"] == str(stored.physical_offset)
            none = await client.request(RequestCode.QUERY_MESSAGE, query | {"key": "none"})
            assert none.code == ResponseCode.QUERY_NOT_FOUND
            view = RequestCode.VIEW_MESSAGE_BY_ID
            found = await client.request(view, {"offset": stored.physical_offset})
            assert found.body_bytes == bytes(stored.raw)
            for place in (1, 2**60):
                lost = await client.request(view, {"offset": place, "topic": TOPIC})
                assert lost.code == ResponseCode.SYSTEM_ERROR

    play(tmp_path, scenario)
