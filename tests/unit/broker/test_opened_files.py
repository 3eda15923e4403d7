"""The broker never opens a file on its event loop. All files are opened in threads, even those that
were closed just before a read."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any, cast

import pytest

from tests.kit.consuming import heartbeat
from tests.kit.opened_files import watch_opens
from tests.kit.remoting import RemotingClient
from tieredstore.broker.remoting.codes import RequestCode, ResponseCode
from tieredstore.broker.send.sender import SendRequest, SendResult
from tieredstore.broker.transactions.messages import CommitOrRollback
from tieredstore.message.encoding import Message
from tieredstore.testing.broker import Broker

SMALL = {
    "mappedFileSizeCommitLog": str(1 << 16),
    "mappedFileSizeConsumeQueue": "2000",
    "maxHashSlotNum": "100",
    "maxIndexNum": "200",
    "flushConsumerOffsetInterval": "10",
    "enablePropertyFilter": "true",
}
"""Configuration with files of a few messages, so that they roll often."""
TOPICS = ("orders", "events")


def find_local(broker: Broker) -> Any:
    return cast(Any, broker.services.store).next_store


async def live(broker: Broker, round_: int) -> None:
    """Send requests as clients and operators do. The broker runs on another thread and event
    loop."""
    files = find_local(broker)._files.open_files
    async with await RemotingClient.open(broker.remoting) as client:

        async def ask(code: int, body: bytes = b"", **fields: object) -> None:
            files.forget_all()  # as if more files were in use than stay open
            response = await client.request(code, fields, body)
            assert response.code == ResponseCode.SUCCESS, (code, response)

        await ask(RequestCode.HEART_BEAT, heartbeat("c", "g", TOPICS, producer="p"))
        for topic in TOPICS:
            queue: dict[str, Any] = {"topic": topic, "queueId": 0}
            group: dict[str, Any] = {"consumerGroup": "g", **queue}
            await ask(
                RequestCode.UPDATE_AND_CREATE_TOPIC,
                topic=f"{topic}{round_}",
                defaultTopic="TBW102",
                readQueueNums=1,
                writeQueueNums=1,
                perm=6,
                topicFilterType="SINGLE_TAG",
                topicSysFlag=0,
                order="false",
            )
            pull: dict[str, Any] = {
                "queueOffset": 0,
                "maxMsgNums": 32,
                "sysFlag": 0,
                "commitOffset": 0,
            }
            pull |= {"suspendTimeoutMillis": 0, "subVersion": 0}
            await ask(RequestCode.PULL_MESSAGE, **group, **pull)
            await ask(RequestCode.UPDATE_CONSUMER_OFFSET, **group, commitOffset=round_)
            await ask(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, **queue, timestamp=1)
            await ask(RequestCode.GET_EARLIEST_MSG_STORETIME, **queue)
            find: dict[str, Any] = {
                "key": "k0",
                "maxNum": 8,
                "beginTimestamp": 0,
                "endTimestamp": 2**62,
            }
            await ask(RequestCode.QUERY_MESSAGE, topic=topic, **find)
            await ask(RequestCode.DELETE_TOPIC_IN_BROKER, topic=f"{topic}{round_}")
        await ask(RequestCode.GET_BROKER_RUNTIME_INFO)
        await ask(RequestCode.GET_BROKER_CONFIG)
        await ask(RequestCode.UPDATE_BROKER_CONFIG, b"transactionCheckMax=%d\n" % (10 + round_))


async def send(broker: Broker) -> None:
    """Send messages of all kinds, including half messages."""
    sender, transactions = broker.services.sender, broker.services.transactions
    files = find_local(broker)._files.open_files
    for number in range(40):
        for topic in TOPICS:
            properties = {"DELAY": "1"} if number % 10 == 1 else {}
            if number % 10 == 2:
                properties = {"TIMER_DELAY_MS": "1000"}
            message = Message.create(
                topic, b"x" * 500, queue_id=0, keys=[f"k{number}"], properties=properties
            )
            sent = await sender.send(SendRequest("p", message))
            files.forget_all()
            if number % 10 == 4:
                await broker.services.send_back.send_back("g", sent.physical_offset)
            if number % 10 == 3:
                half = Message.create(topic, b"half", queue_id=0, properties={"TRAN_MSG": "true"})
                answer = transactions.submit(SendRequest("p", half))
                sent = answer if isinstance(answer, SendResult) else await answer
                files.forget_all()
                await transactions.end_by_id(topic, sent.message_id, CommitOrRollback.COMMIT)


@pytest.mark.parametrize("level", ["NOT_IN_DISK", "NOT_IN_MEM", "FORCE"])
def test_a_busy_life_opens_nothing_on_the_loop(level: str) -> None:
    with Broker(properties=SMALL | {"tieredStorageLevel": level}) as broker:
        broker.run(send(broker))
        broker.flush_tier()
        asyncio.run(live(broker, 0))  # parts made once, at the first use
        with watch_opens(broker.call(threading.get_ident)) as opened:
            for round_ in range(1, 4):
                broker.run(send(broker))
                broker.advance(seconds=30)
                broker.flush_tier()
                asyncio.run(live(broker, round_))
            assert find_local(broker).commit_log.max_offset > 3 << 16  # its files rolled
            assert opened == []
            broker.call(Path(__file__).read_bytes)
            assert __file__ in [path for path, _ in opened]  # the watch sees opened files
