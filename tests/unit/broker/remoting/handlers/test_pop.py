"""Tests of pops over remoting: replies, handles, redeliveries, order, waiting and refusals."""

from __future__ import annotations

import asyncio
import base64
import re
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec
import pytest

from tests.kit.consuming import GROUP, TOPIC, ServedBroker, join, served, split_records
from tests.kit.local_stores import START_MS, plain
from tests.kit.popping import ack, ack_batch, change_time, pop, read_popped
from tests.kit.remoting import RemotingClient, wait_for
from tieredstore.broker.clients.session import Subscription
from tieredstore.broker.receive.polls import ParkedPolls
from tieredstore.broker.receive.requests import AckStatus, ReceiveRequest
from tieredstore.broker.remoting.codes import RequestCode, ResponseCode
from tieredstore.broker.remoting.popped import MAX_SPREAD, encode_popped, parse_extra_info
from tieredstore.broker.state.groups import SubscriptionGroupConfig
from tieredstore.broker.state.topics import TopicConfig
from tieredstore.clock import ManualClock
from tieredstore.message.encoding import Message

Scenario = Callable[[ServedBroker, RemotingClient], Awaitable[None]]
EMPTY = ResponseCode.POLLING_TIMEOUT


def run(root: Path, scenario: Scenario, clock: ManualClock | None = None, **settings: str) -> None:
    """Run a scenario with a client. With a manual clock, time passes only when the scenario
    advances it."""

    async def main() -> None:
        given = {} if clock is None else {"clock": clock}
        async with (
            served(root, settings, **given) as broker,
            await RemotingClient.open(broker.address) as client,
        ):
            await scenario(broker, client)

    asyncio.run(asyncio.wait_for(main(), 120))


def message(body: str, queue_id: int = 0, tag: str = "", topic: str = TOPIC) -> Message:
    return plain(topic, queue_id, 0, body=body.encode(), tags=tag or None)


def test_a_pop_gets_records_as_stored_with_the_fields_of_their_handles(tmp_path: Path) -> None:
    async def scenario(broker: ServedBroker, client: RemotingClient) -> None:
        await broker.put(*(message(f"{n}", n % 2) for n in range(5)))
        answer = await pop(client)
        assert answer.code == ResponseCode.SUCCESS
        assert answer.remark == "FOUND"
        fields = answer.ext_fields
        assert (fields["invisibleTime"], fields["reviveQid"]) == ("60000", "0")
        assert fields["startOffsetInfo"] == "0 0 0;0 1 0"
        assert fields["msgOffsetInfo"] == "0 0 0,1,2;0 1 0,1"
        assert fields["restNum"] == "0"
        assert "orderCountInfo" not in fields
        get = broker.services.store.get_message
        stored = [m for q in (0, 1) for m in get("x", TOPIC, q, 0, 32).messages]
        assert answer.body_bytes == b"".join(m.raw for m in stored)
        nothing = await pop(client)
        assert (nothing.code, nothing.remark) == (EMPTY, "NO_MESSAGE_IN_QUEUE")
        assert {"popTime", "invisibleTime", "reviveQid", "restNum"} <= nothing.ext_fields.keys()

    run(tmp_path, scenario)


def test_an_acknowledgement_moves_the_offset_over_the_done_prefix(tmp_path: Path) -> None:
    async def scenario(broker: ServedBroker, client: RemotingClient) -> None:
        await broker.put(*(message(f"{n}") for n in range(3)))
        popped = read_popped(await pop(client))
        offsets = broker.services.offsets
        assert offsets.query_offset(GROUP, TOPIC, 0) == 0
        for number, expected in ((1, 0), (0, 2), (0, 2), (2, 3)):
            assert (await ack(client, popped[number])).code == 0
            assert offsets.query_offset(GROUP, TOPIC, 0) == expected

    run(tmp_path, scenario)


def test_consume_stats_show_what_was_delivered_and_not_acknowledged(tmp_path: Path) -> None:
    async def scenario(broker: ServedBroker, client: RemotingClient) -> None:
        await broker.put(*(message(f"{n}") for n in range(5)))
        popped = read_popped(await pop(client, maxMsgNums=3))
        await ack(client, popped[0])
        fields: dict[str, object] = {"consumerGroup": GROUP, "topic": TOPIC}
        body = (await client.request(RequestCode.GET_CONSUME_STATS, fields)).body_bytes
        shown = re.search(rb'"queueId":0[^}]*}:({[^}]*})', body)
        assert shown is not None
        offsets = msgspec.json.decode(shown[1])
        assert (offsets["brokerOffset"], offsets["consumerOffset"], offsets["pullOffset"]) == (
            5,
            1,
            3,
        )
        code = RequestCode.GET_BROKER_CONSUME_STATS
        all_stats = (await client.request(code, {"isOrder": "false"})).body_bytes
        assert b'"totalDiff":4,"totalInflightDiff":2' in all_stats

    run(tmp_path, scenario)


def test_a_batch_acknowledges_the_messages_of_its_bits(tmp_path: Path) -> None:
    clock = ManualClock(START_MS)

    async def scenario(broker: ServedBroker, client: RemotingClient) -> None:
        await broker.put(*(message(f"{n}") for n in range(20)))
        popped = read_popped(await pop(client))
        done = [one for one in popped if one.offset in (0, 1, 7, 8, 19)]
        assert (await ack_batch(client, done)).code == 0
        clock.advance(60_000)
        again = read_popped(await pop(client))
        assert [one.offset for one in again] == [n for n in range(20) if n not in (0, 1, 7, 8, 19)]

    run(tmp_path, scenario, clock)


def test_a_message_that_is_not_acknowledged_comes_again_from_its_place_and_its_old_handle_is_dead(
    tmp_path: Path,
) -> None:
    clock = ManualClock(START_MS)

    async def scenario(broker: ServedBroker, client: RemotingClient) -> None:
        await broker.put(message("0"), message("1"))
        first = read_popped(await pop(client))
        clock.advance(60_000)
        assert (await ack(client, first[0])).code == 0  # as Java: ignored
        answer = await pop(client, maxMsgNums=1)
        assert answer.ext_fields["msgOffsetInfo"] == "0 0 0"
        (again,) = read_popped(answer)
        assert (again.body, again.reconsume_times) == ("0", 1)
        assert (await ack(client, first[0])).code == 0
        assert broker.services.offsets.query_offset(GROUP, TOPIC, 0) == 0
        assert (await ack(client, again)).code == 0
        assert broker.services.offsets.query_offset(GROUP, TOPIC, 0) == 1
        clock.advance(60_000)
        (last,) = read_popped(await pop(client))
        assert (last.body, last.reconsume_times) == ("1", 1)

    run(tmp_path, scenario, clock)


def test_a_changed_time_answers_a_new_handle_and_the_old_one_is_dead(tmp_path: Path) -> None:
    clock = ManualClock(START_MS)

    async def scenario(broker: ServedBroker, client: RemotingClient) -> None:
        await broker.put(message("0"))
        (first,) = read_popped(await pop(client))
        answer, changed = await change_time(client, first, 10_000)  # in the same ms
        ends = int(answer.ext_fields["popTime"]) + int(answer.ext_fields["invisibleTime"])
        assert ends == clock.now_ms() + 10_000
        assert changed.extra_info.split(" ")[1] != first.extra_info.split(" ")[1]
        await ack(client, first)
        assert broker.services.offsets.query_offset(GROUP, TOPIC, 0) == 0
        clock.advance(9_999)
        assert (await pop(client)).code == EMPTY
        clock.advance(1)
        (again,) = read_popped(await pop(client))
        assert again.reconsume_times == 1
        _, late = await change_time(client, changed, 10_000)  # not current: ignored
        await ack(client, late)
        assert broker.services.offsets.query_offset(GROUP, TOPIC, 0) == 0
        await ack(client, again)
        assert broker.services.offsets.query_offset(GROUP, TOPIC, 0) == 1

    run(tmp_path, scenario, clock)


def test_a_suspended_message_comes_again_without_a_count(tmp_path: Path) -> None:
    clock = ManualClock(START_MS)

    async def scenario(broker: ServedBroker, client: RemotingClient) -> None:
        await broker.put(message("0"))
        for times, is_suspended in ((0, True), (0, False), (1, True), (1, False)):
            (one,) = read_popped(await pop(client))
            assert one.reconsume_times == times
            _, changed = await change_time(client, one, 5_000, suspend=is_suspended)
            clock.advance(4_999)
            assert (await pop(client)).code == EMPTY
            clock.advance(1)
        (last,) = read_popped(await pop(client))
        assert last.reconsume_times == 2
        _, changed = await change_time(client, last, 5_000, suspend=True)
        await ack(client, changed)
        assert broker.services.offsets.query_offset(GROUP, TOPIC, 0) == 1

    run(tmp_path, scenario, clock)


@pytest.mark.parametrize(("asked_ms", "given_ms"), [(0, 1_000), (-5, 1_000), (1 << 40, 43_200_000)])
def test_times_out_of_bounds_are_limited(tmp_path: Path, asked_ms: int, given_ms: int) -> None:
    clock = ManualClock(START_MS)

    async def scenario(broker: ServedBroker, client: RemotingClient) -> None:
        await broker.put(message("0"))
        answer = await pop(client, invisibleTime=asked_ms)
        assert answer.ext_fields["invisibleTime"] == str(given_ms)
        changed, _ = await change_time(client, read_popped(answer)[0], asked_ms)
        ends = int(changed.ext_fields["popTime"]) + int(changed.ext_fields["invisibleTime"])
        assert ends == clock.now_ms() + given_ms

    run(tmp_path, scenario, clock)


def test_after_the_last_delivery_a_message_is_a_dead_letter(tmp_path: Path) -> None:
    clock = ManualClock(START_MS)

    async def scenario(broker: ServedBroker, client: RemotingClient) -> None:
        config = SubscriptionGroupConfig(group_name=GROUP, retry_max_times=1)
        broker.services.groups.update_group(config)
        await broker.put(message("0"))
        for times in (0, 1):
            (one,) = read_popped(await pop(client))
            assert one.reconsume_times == times
            clock.advance(60_000)
        assert (await pop(client)).code == EMPTY
        store = broker.services.store
        await wait_for(lambda: store.get_max_offset_in_queue(f"%DLQ%{GROUP}", 0) == 1)
        assert broker.services.offsets.query_offset(GROUP, TOPIC, 0) == 1

    run(tmp_path, scenario, clock)


def test_an_ordered_pop_holds_up_the_message_group_and_counts_deliveries(tmp_path: Path) -> None:
    clock = ManualClock(START_MS)

    async def scenario(broker: ServedBroker, client: RemotingClient) -> None:
        await broker.put(*(message(f"{n}") for n in range(3)))
        answer = await pop(client, order=True, maxMsgNums=2)
        first = read_popped(answer)
        assert answer.ext_fields["reviveQid"] == "999"
        assert answer.ext_fields["orderCountInfo"] == "0 0 0"
        assert [one.body for one in first] == ["0", "1"]
        blocked = await pop(client, order=True)
        assert (blocked.code, blocked.ext_fields["reviveQid"]) == (EMPTY, "999")
        await ack(client, first[0])
        assert (await pop(client, order=True)).code == EMPTY
        clock.advance(60_000)
        answer = await pop(client, order=True)
        again = read_popped(answer)
        assert [(one.body, one.reconsume_times) for one in again] == [("1", 1), ("2", 0)]
        assert answer.ext_fields["orderCountInfo"] == "0 qo0%1 1;0 0 0"

    run(tmp_path, scenario, clock)


def test_the_same_attempt_gets_its_messages_again(tmp_path: Path) -> None:
    clock = ManualClock(START_MS)

    async def scenario(broker: ServedBroker, client: RemotingClient) -> None:
        await broker.put(*(message(f"{n}", n % 2) for n in range(4)))
        first = read_popped(await pop(client, order=True, attemptId="a"))
        await ack(client, first[0])
        clock.advance(30_000)
        answer = await pop(client, order=True, attemptId="a")
        again = read_popped(answer)
        assert [one.body for one in again] == [one.body for one in first[1:]]
        ends = int(answer.ext_fields["popTime"]) + int(answer.ext_fields["invisibleTime"])
        assert ends == clock.now_ms() + 60_000
        for one in again:
            await ack(client, one)
        assert broker.services.offsets.query_offset(GROUP, TOPIC, 0) == 2
        assert broker.services.offsets.query_offset(GROUP, TOPIC, 1) == 2

    run(tmp_path, scenario, clock)


def test_a_pop_of_one_queue_leaves_the_others_alone(tmp_path: Path) -> None:
    async def scenario(broker: ServedBroker, client: RemotingClient) -> None:
        await broker.put(*(message(f"{n}", n) for n in range(4)))
        (one,) = read_popped(await pop(client, queueId=2))
        assert one.body == "2"
        assert (await pop(client, queueId=2)).code == EMPTY
        assert sorted(one.body for one in read_popped(await pop(client))) == ["0", "1", "3"]

    run(tmp_path, scenario)


def test_a_group_begins_in_all_queues_at_once_also_by_a_pop_of_one(tmp_path: Path) -> None:
    async def scenario(broker: ServedBroker, client: RemotingClient) -> None:
        settings = broker.services.settings
        settings.init_pop_offset_by_check_msg_in_mem = False
        await broker.put(*(message(f"{n}", n % 2) for n in range(8)))
        await pop(client, queueId=0, initMode=1)
        assert [broker.services.offsets.query_offset(GROUP, TOPIC, q) for q in (0, 1)] == [3, 3]

    run(tmp_path, scenario)


@pytest.mark.parametrize(("mode", "first"), [(0, "0"), (1, "2")])
def test_a_new_group_begins_where_the_pop_says(tmp_path: Path, mode: int, first: str) -> None:
    async def scenario(broker: ServedBroker, client: RemotingClient) -> None:
        broker.services.settings.init_pop_offset_by_check_msg_in_mem = False
        await broker.put(*(message(f"{n}") for n in range(3)))
        assert read_popped(await pop(client, initMode=mode))[0].body == first

    run(tmp_path, scenario)


def test_messages_of_other_tags_are_done(tmp_path: Path) -> None:
    async def scenario(broker: ServedBroker, client: RemotingClient) -> None:
        await broker.put(*(message(f"{n}", tag="AB"[n % 2]) for n in range(4)))
        assert [one.body for one in read_popped(await pop(client, exp="B"))] == ["1", "3"]
        other = await pop(client, consumerGroup="h", expType="SQL92", exp="TAGS = 'A'")
        assert [one.body for one in read_popped(other)] == ["0", "2"]
        bad = await pop(client, expType="SQL92", exp="a ==== 1")
        assert bad.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED

    run(tmp_path, scenario)


def test_a_waiting_pop_is_woken_by_its_queue_only(tmp_path: Path) -> None:
    async def scenario(broker: ServedBroker, client: RemotingClient) -> None:
        receive = broker.services.receive
        tasks = {
            queue_id: asyncio.create_task(pop(client, queueId=queue_id, pollTime=60_000))
            for queue_id in (-1, 1, 2)
        }
        await wait_for(lambda: receive.all_waiting == 3)
        count = await client.request(
            RequestCode.POLLING_INFO, {"consumerGroup": GROUP, "topic": TOPIC, "queueId": 1}
        )
        assert count.ext_fields == {"pollingNum": "1"}
        await broker.put(message("0", 2), message("1", 2))
        await asyncio.wait(tasks.values(), return_when="FIRST_COMPLETED")
        await broker.put(message("2", 0))
        await wait_for(lambda: receive.all_waiting == 1)
        assert not tasks[1].done()
        bodies = [one.body for q in (-1, 2) for one in read_popped(await tasks[q])]
        assert {"0", "1"} <= {*bodies} <= {"0", "1", "2"}
        await broker.put(message("3", 1))
        assert [one.body for one in read_popped(await tasks[1])] == ["3"]

    run(tmp_path, scenario)


def test_a_pop_without_an_answer_takes_nothing(tmp_path: Path) -> None:
    async def scenario(broker: ServedBroker, client: RemotingClient) -> None:
        await broker.put(message("0"))
        fields = {"consumerGroup": GROUP, "topic": TOPIC, "maxMsgNums": 1, "queueId": -1}
        client.send_one_way(RequestCode.POP_MESSAGE, fields)
        assert [one.body for one in read_popped(await pop(client))] == ["0"]

    run(tmp_path, scenario)


def test_a_redelivery_wakes_a_waiting_pop(tmp_path: Path) -> None:
    async def scenario(broker: ServedBroker, client: RemotingClient) -> None:
        await broker.put(message("0", 3))
        (one,) = read_popped(await pop(client))
        waits = asyncio.create_task(pop(client, queueId=3, pollTime=60_000))
        await wait_for(lambda: broker.services.receive.all_waiting == 1)
        await change_time(client, one, 1_000)
        (again,) = read_popped(await waits)
        assert again.reconsume_times == 1

    run(tmp_path, scenario)


def test_a_pop_that_waits_ends_with_its_connection_and_takes_nothing(tmp_path: Path) -> None:
    async def scenario(broker: ServedBroker, client: RemotingClient) -> None:
        receive = broker.services.receive
        async with await RemotingClient.open(broker.address) as leaves:
            task = asyncio.create_task(pop(leaves, pollTime=60_000))
            await wait_for(lambda: receive.all_waiting == 1)
        await wait_for(lambda: receive.all_waiting == 0)
        await asyncio.gather(task, return_exceptions=True)
        await broker.put(message("0"))
        assert [one.body for one in read_popped(await pop(client))] == ["0"]

    run(tmp_path, scenario)


def test_too_many_waiting_pops_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(broker: ServedBroker, client: RemotingClient) -> None:
        monkeypatch.setattr(ParkedPolls, "has_room", lambda *_: False)
        answer = await pop(client, pollTime=60_000)
        assert answer.code == ResponseCode.POLLING_FULL
        await broker.put(message("0"))
        assert (await pop(client, pollTime=60_000)).code == ResponseCode.SUCCESS

    run(tmp_path, scenario)


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
def test_deliveries_and_acknowledgements_survive_a_restart(tmp_path: Path, flush: str) -> None:
    clock = ManualClock(START_MS)

    async def main() -> None:
        settings = {"flushDiskType": flush}
        async with (
            served(tmp_path, settings, clock) as broker,
            await RemotingClient.open(broker.address) as client,
        ):
            await broker.put(*(message(f"{n}") for n in range(5)))
            popped = read_popped(await pop(client, maxMsgNums=4))
            await ack(client, popped[0])
            await ack_batch(client, [popped[2]])
            _, changed = await change_time(client, popped[3], 5_000)
        async with (
            served(tmp_path, settings, clock) as broker,
            await RemotingClient.open(broker.address) as client,
        ):
            assert [one.body for one in read_popped(await pop(client))] == ["4"]
            await ack(client, popped[3])  # replaced
            clock.advance(5_000)
            again = read_popped(await pop(client))
            assert [(one.body, one.reconsume_times) for one in again] == [("3", 1)]
            await ack(client, popped[1])
            assert broker.services.offsets.query_offset(GROUP, TOPIC, 0) == 3
            await ack(client, changed)  # its time is over
            assert broker.services.offsets.query_offset(GROUP, TOPIC, 0) == 3
            await ack(client, again[0])
            assert broker.services.offsets.query_offset(GROUP, TOPIC, 0) == 4

    asyncio.run(asyncio.wait_for(main(), 120))


def test_one_group_is_served_by_both_protocols(tmp_path: Path) -> None:
    clock = ManualClock(START_MS)

    async def scenario(broker: ServedBroker, client: RemotingClient) -> None:
        await broker.put(*(message(f"{n}") for n in range(4)))
        first = read_popped(await pop(client, maxMsgNums=2))
        request = ReceiveRequest(
            group=GROUP, topic=TOPIC, subscription=Subscription.parse(TOPIC, "*")
        )
        receive = broker.services.receive
        received = await receive.receive(request)
        assert [bytes(one.message.body) for one in received] == [b"2", b"3"]
        await ack(client, first[0])
        assert await receive.ack(GROUP, TOPIC, received[0].handle) is AckStatus.OK
        clock.advance(60_000)
        again = read_popped(await pop(client))
        assert [(one.body, one.reconsume_times) for one in again] == [("1", 1), ("3", 1)]

    run(tmp_path, scenario, clock)


@pytest.mark.parametrize("separator", "_+")
def test_retries_that_a_java_broker_left_are_popped_with_their_flag(
    tmp_path: Path, separator: str
) -> None:
    name = f"%RETRY%{GROUP}{separator}{TOPIC}"
    clock = ManualClock(START_MS)

    async def scenario(broker: ServedBroker, client: RemotingClient) -> None:
        broker.services.topics.update_topic(TopicConfig(topic_name=name, read_queue_nums=1))
        left = message("left", topic=name)
        left.reconsume_times = 3
        await broker.put(left, message("new"))
        answer = await pop(client)
        flag = {"_": 1, "+": 2}[separator]
        assert answer.ext_fields["startOffsetInfo"] == f"{flag} 0 0;0 0 0"
        popped = read_popped(answer)
        assert [(one.body, one.topic, one.reconsume_times) for one in popped] == [
            ("left", name, 3),
            ("new", TOPIC, 0),
        ]
        clock.advance(60_000)
        again = read_popped(await pop(client))
        assert [one.reconsume_times for one in again] == [4, 1]
        for one in again:
            assert (await ack(client, one)).code == 0
        assert broker.services.offsets.query_offset(GROUP, name, 0) == 1
        assert broker.services.offsets.query_offset(GROUP, TOPIC, 0) == 1
        await broker.put(message("later", topic=name))
        (later,) = read_popped(await pop(client))
        assert (await ack_batch(client, [later])).code == 0
        assert broker.services.offsets.query_offset(GROUP, name, 0) == 2

    run(tmp_path, scenario, clock)


def test_the_retry_topic_of_another_group_is_not_popped(tmp_path: Path) -> None:
    async def scenario(broker: ServedBroker, client: RemotingClient) -> None:
        services = broker.services
        services.groups.update_group(SubscriptionGroupConfig(group_name=f"{GROUP}_{TOPIC}"))
        name = f"%RETRY%{GROUP}_{TOPIC}"
        services.topics.update_topic(TopicConfig(topic_name=name, read_queue_nums=1))
        await broker.put(message("foreign", topic=name))
        assert (await pop(client)).code == EMPTY

    run(tmp_path, scenario)


def test_pops_are_refused_with_the_codes_of_java(tmp_path: Path) -> None:
    async def scenario(broker: ServedBroker, client: RemotingClient) -> None:
        services = broker.services
        services.groups.update_group(
            SubscriptionGroupConfig(group_name="off", consume_enable=False)
        )
        services.topics.update_topic(TopicConfig(topic_name="closed", perm=2))
        now_ms = services.clock.now_ms()
        for fields, code in (
            ({"bornTime": now_ms - 10_000, "pollTime": 1_000}, 210),
            ({"maxMsgNums": 33}, 29),
            ({"topic": "unknown"}, 17),
            ({"topic": "closed"}, 16),
            ({"queueId": 4}, 29),
            ({"consumerGroup": "off"}, 16),
            ({"consumerGroup": "CID_RMQ_SYS_TRANS"}, 16),
            ({"consumerGroup": "not/a group"}, 26),
            ({"attemptId": "a" * 257}, 29),
            ({"maxMsgNums": 0}, 210),
        ):
            answer = await pop(client, **fields)
            assert answer.code == code, (fields, answer.remark)
            assert answer.ext_fields["restNum"] == "0"
        services.settings.broker_permission = 2
        assert (await pop(client)).code == 16

    run(tmp_path, scenario)


def test_deliveries_are_refused_with_the_codes_of_java(tmp_path: Path) -> None:
    async def scenario(broker: ServedBroker, client: RemotingClient) -> None:
        await broker.put(message("0"))
        (one,) = read_popped(await pop(client))
        for fields, code in (
            ({"topic": "unknown"}, 17),
            ({"queueId": 4}, 13),
            ({"queueId": -1}, 13),
            ({"offset": 2}, 208),
            ({"offset": -1}, 208),
            ({"extraInfo": "0 1 2 3 0"}, 1),
            ({"extraInfo": "0 x 2 3 0 b"}, 1),
            ({"extraInfo": "9" * 30 + " 1 2 3 0 b"}, 1),
            ({"extraInfo": "0 1 2 3 0 b" + " 0" * 1_000}, 1),
            ({"liteTopic": "lite"}, 29),
            ({"offset": 1}, 0),
            ({"extraInfo": f"{one.extra_info} 4711"}, 0),
        ):
            answer = await ack(client, one, **fields)
            assert answer.code == code, (fields, answer.remark)
        gone = await client.request(
            RequestCode.CHANGE_MESSAGE_INVISIBLETIME,
            {
                "consumerGroup": GROUP,
                "topic": TOPIC,
                "queueId": 0,
                "offset": 1,
                "extraInfo": one.extra_info,
                "invisibleTime": 1,
            },
        )
        assert gone.code == ResponseCode.NO_MESSAGE
        assert gone.ext_fields == {"popTime": "0", "invisibleTime": "0", "reviveQid": "0"}
        assert broker.services.offsets.query_offset(GROUP, TOPIC, 0) == 1

    run(tmp_path, scenario)


@pytest.mark.parametrize(
    ("entry", "code"),
    [
        (None, 208),
        ({"c": GROUP, "t": TOPIC, "r": "3", "b": "AQ=="}, 29),
        ({"c": GROUP, "t": TOPIC, "r": "0", "b": "x"}, 29),
        ({"c": GROUP, "t": TOPIC, "r": "0", "so": 1 << 70, "b": "AQ=="}, 29),
        ({"c": GROUP, "t": TOPIC, "r": "0", "b": base64.b64encode(b"\xff" * 9_000).decode()}, 29),
        ({"c": GROUP, "t": TOPIC, "r": "0", "b": base64.b64encode(bytes(2 << 20)).decode()}, 29),
        ({"c": GROUP, "t": "unknown", "r": "0", "b": "AQ=="}, 0),
        ({"c": GROUP, "t": TOPIC, "q": -7, "pt": -1, "so": -9, "b": "AQ=="}, 0),
        ({}, 0),
    ],
)
def test_batches_that_no_client_sends_do_no_harm(
    tmp_path: Path, entry: dict[str, object] | None, code: int
) -> None:
    async def scenario(broker: ServedBroker, client: RemotingClient) -> None:
        await broker.put(message("0"))
        await pop(client)
        body = msgspec.json.encode({"acks": [] if entry is None else [entry]})
        answer = await client.request(RequestCode.BATCH_ACK_MESSAGE, body=body)
        assert answer.code == code, answer.remark
        assert broker.services.offsets.query_offset(GROUP, TOPIC, 0) == 0
        if len(body) > 1_000:
            return
        assert (await client.request(RequestCode.BATCH_ACK_MESSAGE)).code == 208
        many = msgspec.json.encode({"acks": [entry or {}] * 1_025})
        assert (await client.request(RequestCode.BATCH_ACK_MESSAGE, body=many)).code == 29

    run(tmp_path, scenario)


def test_a_peek_and_a_notification_take_nothing(tmp_path: Path) -> None:
    async def scenario(broker: ServedBroker, client: RemotingClient) -> None:
        asked = {"consumerGroup": GROUP, "topic": TOPIC, "queueId": -1}

        async def notify(**more: object) -> dict[str, str]:
            fields = {**asked, "pollTime": 0, "bornTime": 0, **more}
            return (await client.request(RequestCode.NOTIFICATION, fields)).ext_fields

        none = await client.request(RequestCode.PEEK_MESSAGE, {**asked, "maxMsgNums": 8})
        assert none.code == ResponseCode.PULL_NOT_FOUND
        assert await notify() == {"hasMsg": "false", "pollingFull": "false"}
        waits = asyncio.create_task(notify(pollTime=60_000))
        await wait_for(lambda: broker.services.hold.count == 1)
        await broker.put(*(message(f"{n}", n % 2, tag="A") for n in range(4)))
        assert (await waits)["hasMsg"] == "true"
        assert (await notify(expType="TAG", exp="B"))["hasMsg"] == "false"
        assert (await notify(queueId=3))["hasMsg"] == "false"
        peeked = await client.request(RequestCode.PEEK_MESSAGE, {**asked, "maxMsgNums": 3})
        assert [bytes(m.body) for m in split_records(peeked.body_bytes)] == [b"0", b"2", b"1"]
        assert peeked.ext_fields["restNum"] == "4"
        assert broker.services.offsets.query_offset(GROUP, TOPIC, 0) is None
        assert len(read_popped(await pop(client))) == 4
        assert (await notify())["hasMsg"] == "false"
        assert (await client.request(RequestCode.POP_ROLLBACK)).code == 0

    run(tmp_path, scenario)


def test_an_answer_has_no_offsets_too_far_apart_for_a_set_of_bits(tmp_path: Path) -> None:
    clock = ManualClock(START_MS)

    async def scenario(broker: ServedBroker, client: RemotingClient) -> None:
        await broker.put(message("0"))
        await pop(client)
        clock.advance(60_000)
        received = await broker.services.receive.receive(
            ReceiveRequest(group=GROUP, topic=TOPIC, subscription=Subscription.parse(TOPIC, "*"))
        )
        (one,) = received
        receipt = one.receipt
        far = msgspec.structs.replace(one, receipt=receipt._replace(offset=MAX_SPREAD))
        near = msgspec.structs.replace(one, receipt=receipt._replace(offset=MAX_SPREAD - 1))
        answer = encode_popped([far, one, near], is_ordered=False)
        assert answer.left_out == [far]
        assert answer.fields["msgOffsetInfo"] == f"0 0 0,{MAX_SPREAD - 1}"

    run(tmp_path, scenario, clock)


def test_answers_fit_in_a_frame_also_with_redeliveries(tmp_path: Path) -> None:
    clock = ManualClock(START_MS)

    async def scenario(broker: ServedBroker, client: RemotingClient) -> None:
        big = b"x" * (3 << 20)
        await broker.put(*(plain(TOPIC, 0, 0, body=big) for _ in range(8)))
        for times in (0, 1):
            sizes = []
            while (answer := await pop(client)).code == 0:
                sizes.append(len(answer.body_bytes))
                assert {one.reconsume_times for one in read_popped(answer)} == {times}
            assert sum(sizes) > 8 * len(big)
            assert max(sizes) < 12 << 20
            clock.advance(60_000)

    run(tmp_path, scenario, clock, mappedFileSizeCommitLog=str(64 << 20))


@pytest.mark.parametrize(
    "text", ["", "a b c d e f", "0 1 2 3", "0 1 2 ١ 0 b", "0 1 2 -- 0 b", " ".join("0" * 5)]
)
def test_texts_that_are_no_handles(text: str) -> None:
    assert parse_extra_info(text) is None


def test_a_member_that_pops_needs_no_heartbeat_and_a_heartbeat_changes_nothing(
    tmp_path: Path,
) -> None:
    async def scenario(broker: ServedBroker, client: RemotingClient) -> None:
        await join(client, "c", topics=[TOPIC, f"%RETRY%{GROUP}"])
        await broker.put(message("0", tag="A"))
        assert (await pop(client, exp="B")).code == EMPTY
        await broker.put(message("1", tag="B"))
        assert [one.body for one in read_popped(await pop(client, exp="B"))] == ["1"]

    run(tmp_path, scenario)
