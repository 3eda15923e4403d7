"""Light queues can be popped as from Java's broker. Each looks like a topic with one queue, but is
missing from the topic table."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec

from tests.kit.consuming import GROUP, heartbeat, split_records
from tests.kit.popping import pop
from tests.kit.power_cut.load import send
from tests.kit.remoting import RemotingClient, wait_for
from tieredstore.broker.remoting.codes import RequestCode, ResponseCode
from tieredstore.testing import Broker

QUEUE = "%LMQ%x"
LIGHT = {"INNER_MULTI_DISPATCH": f"%LMQ%y,{QUEUE}"}
SETTINGS = {"enableLmq": "true", "enableMultiDispatch": "true"}


def run(
    root: Path, test: Callable[[Broker, RemotingClient], Awaitable[None]], **settings: str
) -> None:
    async def go() -> None:
        async with await RemotingClient.open(broker.remoting) as client:
            await test(broker, client)

    with Broker(folder=root, properties={**SETTINGS, **settings}) as broker:
        broker.run(go(), 60)


async def fill(broker: Broker, client: RemotingClient) -> None:
    """Put two messages into the light queue. They are stored in queue 3 of the parent topic, after
    a message that is in no light queue."""
    assert (await send(client, "P", b"other", queue=3))[0] == 0
    for body in (b"0", b"1"):
        assert (await send(client, "P", body, LIGHT, queue=3))[0] == 0
    await wait_for(lambda: broker.services.store.get_max_offset_in_queue(QUEUE, 0) == 2)


def name_delivery(answer: Any, offset: int) -> dict[str, Any]:
    fields = answer.ext_fields
    times = f"{fields['popTime']} {fields['invisibleTime']}"
    info = f"0 {times} {fields['reviveQid']} 0 b 0 {offset}"
    place = {"topic": QUEUE, "queueId": 0, "offset": offset}
    return {"consumerGroup": GROUP, "extraInfo": info, **place}


def test_a_light_queue_is_popped_acknowledged_and_redelivered(tmp_path: Path) -> None:
    async def test(broker: Broker, client: RemotingClient) -> None:
        await fill(broker, client)
        answer = await pop(client, topic=QUEUE)
        assert answer.code == ResponseCode.SUCCESS, answer.remark
        assert answer.ext_fields["msgOffsetInfo"] == "0 0 0,1"
        first = split_records(answer.body_bytes)
        assert [bytes(one.body) for one in first] == [b"0", b"1"]
        # A client reads the offset in the light queue from the properties, as from Java's broker.
        assert [(one.queue_id, one.queue_offset) for one in first] == [(3, 1), (3, 2)]
        acked = await client.request(RequestCode.ACK_MESSAGE, name_delivery(answer, 0))
        assert acked.code == ResponseCode.SUCCESS, acked.remark
        change = {**name_delivery(answer, 1), "invisibleTime": 1_000}
        changed = await client.request(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, change)
        assert changed.code == ResponseCode.SUCCESS, changed.remark
        async with asyncio.timeout(20):
            again = await pop(client, topic=QUEUE, pollTime=15_000)
        # For a redelivered message it reads the offset from the record.
        [record] = split_records(again.body_bytes)
        assert again.ext_fields["msgOffsetInfo"] == "0 0 1"
        place = record.queue_id, record.queue_offset, record.reconsume_times
        assert place == (0, 1, 1)
        acked = await client.request(RequestCode.ACK_MESSAGE, name_delivery(again, 1))
        assert acked.code == ResponseCode.SUCCESS, acked.remark
        assert broker.services.offsets.query_offset(GROUP, QUEUE, 0) == 2

    run(tmp_path, test)


def test_a_pop_waits_for_the_first_message_of_a_light_queue(tmp_path: Path) -> None:
    async def test(broker: Broker, client: RemotingClient) -> None:
        waiting = asyncio.create_task(pop(client, topic=QUEUE, pollTime=15_000))
        await asyncio.sleep(0.2)
        assert not waiting.done()
        # No client makes the broker keep progress for names that it makes up.
        assert not broker.services.receive.state.list_queues()
        async with await RemotingClient.open(broker.remoting) as other:
            await fill(broker, other)
        async with asyncio.timeout(10):
            answer = await waiting
        assert bytes(split_records(answer.body_bytes)[0].body) == b"0"

    run(tmp_path, test)


def test_progress_in_a_light_queue_survives_a_restart(tmp_path: Path) -> None:
    async def take(broker: Broker, client: RemotingClient) -> None:
        await fill(broker, client)
        answer = await pop(client, topic=QUEUE)
        acked = await client.request(RequestCode.ACK_MESSAGE, name_delivery(answer, 1))
        assert acked.code == ResponseCode.SUCCESS, acked.remark
        await broker.services.receive.state.rotate()

    async def look(broker: Broker, _: RemotingClient) -> None:
        [progress] = broker.services.receive.state.list_queues()
        assert (progress.topic, list(progress.entries)) == (QUEUE, [0])

    run(tmp_path, take)
    run(tmp_path, look)


def test_light_queues_that_are_no_topics(tmp_path: Path) -> None:
    async def test(_: Broker, client: RemotingClient) -> None:
        # The broker itself makes the light queues of lite topics, and has other pops for them.
        answer = await pop(client, topic="%LMQ%$P$a")
        assert answer.code == ResponseCode.TOPIC_NOT_EXIST

    async def refuse(_: Broker, client: RemotingClient) -> None:
        assert (await pop(client, topic=QUEUE)).code == ResponseCode.TOPIC_NOT_EXIST

    run(tmp_path / "on", test)
    run(tmp_path / "off", refuse, enableLmq="false", enableMultiDispatch="false")


def test_a_light_queue_is_assigned(tmp_path: Path) -> None:
    async def test(_: Broker, client: RemotingClient) -> None:
        await client.request(RequestCode.HEART_BEAT, body=heartbeat("C", topics=(QUEUE,)))
        body = {"topic": QUEUE, "consumerGroup": GROUP, "clientId": "C", "strategyName": "AVG"}
        asked = msgspec.json.encode({**body, "messageModel": "CLUSTERING"})
        answer = await client.request(RequestCode.QUERY_ASSIGNMENT, body=asked)
        [assigned] = msgspec.json.decode(answer.body_bytes)["messageQueueAssignments"]
        assert (assigned["messageQueue"]["topic"], assigned["messageQueue"]["queueId"]) == (
            QUEUE,
            0,
        )

    run(tmp_path, test)
