"""Messages move from the local store to the tier while clients pull from offset 0. Each message is
read once, in order."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.kit.consuming import (
    GROUP,
    TOPIC,
    ServedBroker,
    join,
    pull_messages,
    served,
    split_records,
)
from tests.kit.remoting import RemotingClient
from tieredstore.broker.remoting.codes import RequestCode, ResponseCode
from tieredstore.local.cleaning.service import DiskWatch
from tieredstore.local.message_store import DefaultMessageStore
from tieredstore.message.encoding import Message
from tieredstore.tier.store import TieredMessageStore

QUEUES = 2
ROUNDS = 12
EACH = 20
TOTAL = ROUNDS * EACH
SUSPENDS = 2
FULL = {"beginTimestamp": 0, "endTimestamp": 2**62}


@asynccontextmanager
async def tiered(root: Path, level: str) -> AsyncIterator[ServedBroker]:
    """A broker with a Posix tier and files of a few messages. Its disk seems nearly full, so it
    deletes uploaded files early."""
    settings = {
        "messageStorePlugIn": "org.apache.rocketmq.tieredstore.TieredMessageStore",
        "tieredBackendServiceProvider": "posix",
        "tieredStoreFilePath": str(root / "tier"),
        "tieredStorageLevel": level,
        "tieredStoreGroupCommitTimeout": "0",
        "mappedFileSizeCommitLog": str(1 << 14),
        "mappedFileSizeConsumeQueue": "400",
        "deleteCommitLogFilesInterval": "0",
    }
    (root / "tier").mkdir()
    async with served(root / "store", settings) as broker:
        watch = local_store(broker).cleaning._disk
        assert isinstance(watch, DiskWatch)
        watch._measure = lambda _: 0.86
        yield broker


def tiered_store(broker: ServedBroker) -> TieredMessageStore:
    store: object = broker.services.store
    assert isinstance(store, TieredMessageStore)
    return store


def local_store(broker: ServedBroker) -> DefaultMessageStore:
    store = tiered_store(broker).next_store
    assert isinstance(store, DefaultMessageStore)
    return store


def body_of(queue_id: int, number: int) -> bytes:
    return b"%d-%05d " % (queue_id, number) + b"x" * 200


def move(broker: ServedBroker) -> None:
    """Upload everything, and delete the uploaded messages from the disk."""
    local = local_store(broker)
    local.flush()
    tiered_store(broker).dispatcher.scan(force=True)
    while local.cleaning.run_once().log_files:
        pass


async def produce(broker: ServedBroker) -> None:
    for number in range(TOTAL):
        await broker.put(
            *(
                Message.create(
                    TOPIC,
                    body_of(queue_id, number),
                    queue_id=queue_id,
                    keys=[f"k{queue_id}-{number}"],
                    uniq_key=f"U{queue_id}-{number}",
                )
                for queue_id in range(QUEUES)
            )
        )
        if number % EACH == EACH - 1:
            await asyncio.to_thread(move, broker)


async def replay(client: RemotingClient, queue_id: int) -> None:
    """Pull a queue from its beginning, and check that no message is missing or duplicated."""
    offset = 0
    async with asyncio.timeout(100):
        while offset < TOTAL:
            response = await pull_messages(
                client, offset, queue_id, sysFlag=SUSPENDS, suspendTimeoutMillis=200
            )
            messages = split_records(response.body_bytes)
            if response.code == ResponseCode.SUCCESS:
                expected = list(range(offset, offset + len(messages)))
                assert messages
                assert [message.queue_offset for message in messages] == expected
                assert [message.body for message in messages] == [
                    body_of(queue_id, number) for number in expected
                ]
                offset += len(messages)
            else:
                assert response.code == ResponseCode.PULL_NOT_FOUND, (offset, response)
            assert int(response.ext_fields["nextBeginOffset"]) == offset


@pytest.mark.parametrize("level", ["NOT_IN_DISK", "NOT_IN_MEM", "FORCE"])
def test_a_replay_gets_each_message_once_while_the_border_moves(tmp_path: Path, level: str) -> None:
    async def run() -> None:
        async with (
            tiered(tmp_path, level) as broker,
            await RemotingClient.open(broker.address) as client,
        ):
            await join(client, "c")
            produced = asyncio.create_task(produce(broker))
            while not produced.done():
                # One after the other: each begins where the border is by then.
                await asyncio.gather(
                    *(replay(client, queue_id) for queue_id in range(QUEUES)),
                    *([produced] if produced.done() else []),
                )
            await produced
            assert local_store(broker).get_min_offset_in_queue(TOPIC, 0) > TOTAL // 2
            await asyncio.gather(*(replay(client, queue_id) for queue_id in range(QUEUES)))
            await look_at_cold_ends(client, broker)

    asyncio.run(run())


async def look_at_cold_ends(client: RemotingClient, broker: ServedBroker) -> None:
    """Check that a broker finds the bounds of a queue, and the time and keys of its first message,
    although only the tier has this message."""
    store = tiered_store(broker)
    first = store.get_message("x", TOPIC, 1, 0, 1).messages[0]
    assert local_store(broker).look_message_by_offset(first.physical_offset) is None
    queue = {"topic": TOPIC, "queueId": 1}

    async def ask(code: int, **more: object) -> dict[str, str]:
        response = await client.request(code, queue | more)
        assert response.code == ResponseCode.SUCCESS, response
        return response.ext_fields

    assert await ask(RequestCode.GET_MIN_OFFSET) == {"offset": "0"}
    assert await ask(RequestCode.GET_MAX_OFFSET) == {"offset": str(TOTAL)}
    earliest = {"timestamp": str(first.store_timestamp_ms)}
    assert await ask(RequestCode.GET_EARLIEST_MSG_STORETIME) == earliest
    time_ms = first.store_timestamp_ms
    assert await ask(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, timestamp=time_ms) == {"offset": "0"}
    for key in ("k1-0", "U1-0"):
        found = await client.request(
            RequestCode.QUERY_MESSAGE, {"topic": TOPIC, "key": key, "maxNum": 8, **FULL}
        )
        assert [m.body for m in split_records(found.body_bytes)] == [body_of(1, 0)], found


def test_a_cold_message_that_is_sent_back_is_that_one_and_no_other(tmp_path: Path) -> None:
    async def run() -> None:
        async with (
            tiered(tmp_path, "FORCE") as broker,
            await RemotingClient.open(broker.address) as client,
        ):
            await join(client, "c")
            messages = [
                Message.create(TOPIC, b"%d" % n, queue_id=n % 2, uniq_key=f"U{n}") for n in range(4)
            ]
            await broker.put(*messages)
            local_store(broker).flush()
            await asyncio.to_thread(tiered_store(broker).dispatcher.scan, force=True)
            cold = split_records((await pull_messages(client, 0, 1)).body_bytes)[0]
            assert (bytes(cold.body), cold.physical_offset) == (b"1", 0)
            beside = local_store(broker).look_message_by_offset(0)
            assert beside is not None
            assert bytes(beside.body) == b"0"  # what the byte that it names holds here
            sent = {
                "group": GROUP,
                "offset": cold.physical_offset,
                "delayLevel": -1,
                "originMsgId": cold.msg_id,
                "originTopic": TOPIC,
            }
            for message_id, code in (("U1", 0), ("U9", ResponseCode.SYSTEM_ERROR)):
                response = await client.request(
                    RequestCode.CONSUMER_SEND_MSG_BACK, sent | {"originMsgId": message_id}
                )
                assert response.code == code
            # Other clients than Java's name the place: of a message that is here, or of none.
            for place, code in ((beside, 0), (cold, ResponseCode.SYSTEM_ERROR)):
                topic = TOPIC if place is beside else "another"
                response = await client.request(
                    RequestCode.CONSUMER_SEND_MSG_BACK,
                    sent | {"originMsgId": place.offset_message_id, "originTopic": topic},
                )
                assert response.code == code
            local = local_store(broker)
            await asyncio.to_thread(local.wait_until_dispatched)
            letters = local.get_message("x", f"%DLQ%{GROUP}", 0, 0, 9).messages
            assert [bytes(message.body) for message in letters] == [b"1", b"0"]

    asyncio.run(run())
