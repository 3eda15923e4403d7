"""Operators can query the offsets of groups, and copy them from one group to another."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.kit.consuming import GROUP, TOPIC, ServedBroker, join, play
from tests.kit.local_stores import plain
from tests.kit.remoting import RemotingClient
from tieredstore.broker.remoting.codes import RequestCode, ResponseCode
from tieredstore.broker.remoting.command import RemotingCommand
from tieredstore.broker.remoting.handlers.admin.progress import find_member

QUEUES = b'{{"brokerName":"b","queueId":0,"topic":"T}\\""}:5}'


def test_tables_of_offsets_are_what_their_files_have(tmp_path: Path) -> None:
    async def scenario(broker: ServedBroker) -> None:
        broker.services.offsets.commit_offset(GROUP, TOPIC, 0, 3)
        async with await RemotingClient.open(broker.address) as client:
            every = await client.request(RequestCode.GET_ALL_CONSUMER_OFFSET)
            assert json.loads(every.body_bytes)["offsetTable"] == {f"{TOPIC}@{GROUP}": {"0": 3}}
            broker.services.schedule.offsets.set_offset(2, 7)
            delays = await client.request(RequestCode.GET_ALL_DELAY_OFFSET)
            assert json.loads(delays.body_bytes)["offsetTable"]["2"] == 7

    play(tmp_path, scenario)


def test_members_of_a_group_say_how_far_they_are(tmp_path: Path) -> None:
    code = RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS
    fields = {"group": GROUP, "topic": TOPIC}

    async def scenario(broker: ServedBroker) -> None:
        async with (
            await RemotingClient.open(broker.address) as one,
            await RemotingClient.open(broker.address) as other,
            await RemotingClient.open(broker.address) as admin,
        ):
            nobody = await admin.request(code, fields)
            assert nobody.code == ResponseCode.SYSTEM_ERROR
            assert "online" in (nobody.remark or "")
            await join(one, "one")
            await join(other, "other")
            reply = b'{"consumerTable":{},"messageQueueTable":' + QUEUES + b"}"
            one.answer(221, lambda asked: RemotingCommand(0, body=reply))
            other.answer(221, lambda asked: RemotingCommand(1, remark="no"))
            every = await admin.request(code, fields)
            assert every.body_bytes == (
                b'{"consumerTable":{"one":' + QUEUES + b'},"messageQueueTable":{}}'
            )
            absent = await admin.request(code, {**fields, "clientAddr": "absent"})
            assert absent.body_bytes == b'{"consumerTable":{},"messageQueueTable":{}}'

    play(tmp_path, scenario)


@pytest.mark.parametrize("text", [b"", b'{"x":{"a":{}', b'{"x":3}', b'{"y":{}}'])
def test_a_member_that_is_not_whole_is_none(text: bytes) -> None:
    assert find_member(text, "x") is None


def test_a_member_is_found_whatever_its_texts_hold() -> None:
    assert find_member(b'{"y":{},"x":' + QUEUES + b',"z":{}}', "x") == QUEUES


def test_times_of_queues_say_how_far_behind_a_group_is(tmp_path: Path) -> None:
    async def scenario(broker: ServedBroker) -> None:
        await broker.put(*(plain(number=number) for number in range(3)))
        store = broker.services.store
        times = [store.get_message_store_timestamp(TOPIC, 0, offset) for offset in range(3)]
        async with await RemotingClient.open(broker.address) as client:

            async def ask() -> list[dict[str, object]]:
                fields = {"topic": TOPIC, "group": GROUP}
                answer = await client.request(RequestCode.QUERY_CONSUME_TIME_SPAN, fields)
                found: list[dict[str, object]] = json.loads(answer.body_bytes)["consumeTimeSpanSet"]
                return found

            first, second, *_ = await ask()
            assert first["messageQueue"] == {"brokerName": "b", "queueId": 0, "topic": TOPIC}
            assert first["minTimeStamp"] == first["consumeTimeStamp"] == times[0]
            assert first["maxTimeStamp"] == times[2]
            assert (second["minTimeStamp"], second["maxTimeStamp"]) == (-1, -1)
            broker.services.offsets.commit_offset(GROUP, TOPIC, 0, 3)
            done = (await ask())[0]
            assert (done["consumeTimeStamp"], done["delayTime"]) == (times[2], 0)
            unknown = await client.request(
                RequestCode.QUERY_CONSUME_TIME_SPAN, {"topic": "U", "group": GROUP}
            )
            assert unknown.code == ResponseCode.TOPIC_NOT_EXIST

    play(tmp_path, scenario)


def test_the_smallest_offset_of_all_groups_is_found(tmp_path: Path) -> None:
    async def scenario(broker: ServedBroker) -> None:
        offsets = broker.services.offsets
        for group, offset in (("a", 5), ("b", 3), ("left-out", 1), ("slow", 2)):
            offsets.commit_offset(group, TOPIC, 0, offset)
        offsets.commit_offset("a", TOPIC, 1, 9)
        async with await RemotingClient.open(broker.address) as client:

            async def ask(left_out: str) -> dict[str, int]:
                fields = {"topic": TOPIC, "compareGroup": "slow", "filterGroups": left_out}
                answer = await client.request(RequestCode.QUERY_CORRECTION_OFFSET, fields)
                found: dict[str, int] = json.loads(answer.body_bytes)["correctionOffsets"]
                return found

            assert await ask("left-out") == {"0": 2, "1": 9}
            assert await ask("left-out,slow") == {"0": 2**63 - 1, "1": 9}
            assert offsets.query_offset("left-out", TOPIC, 0) == 1

    play(tmp_path, scenario)


def test_a_group_goes_on_where_another_one_is(tmp_path: Path) -> None:
    async def scenario(broker: ServedBroker) -> None:
        offsets = broker.services.offsets
        for topic in (TOPIC, "TBW102", "gone"):
            offsets.commit_offset(GROUP, topic, 0, 4)
        async with await RemotingClient.open(broker.address) as client:

            async def clone(target: str, **fields: object) -> set[str]:
                asked = {"srcGroup": GROUP, "destGroup": target, **fields}
                answer = await client.request(RequestCode.CLONE_GROUP_OFFSET, asked)
                assert answer.code == ResponseCode.SUCCESS
                return offsets.list_topics(target)

            assert await clone("one", topic=TOPIC) == {TOPIC}
            assert await clone("all") == {TOPIC, "TBW102"}
            assert offsets.query_offset("all", TOPIC, 0) == 4
            await join(client, "c")
            assert await clone("subscribed") == {TOPIC}
            assert await clone("offline", offline=True) == {TOPIC, "TBW102"}

    play(tmp_path, scenario)
