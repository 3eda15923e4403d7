"""A broker on free ports, and requests of consumers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec

from tests.kit.remoting import RemotingClient
from tieredstore.broker.broker import Broker
from tieredstore.broker.remoting.codes import RequestCode, ResponseCode
from tieredstore.broker.remoting.command import RemotingCommand
from tieredstore.broker.services import BrokerServices
from tieredstore.broker.state.topics import TopicConfig
from tieredstore.clock import SYSTEM_CLOCK, Clock
from tieredstore.message.encoding import Message
from tieredstore.message.record import StoredMessage, decode_record

TOPIC = "T"
GROUP = "g"


@dataclass
class ServedBroker:
    """A running broker and its address for consumers."""

    services: BrokerServices
    address: str

    async def put(self, *messages: Message) -> None:
        """Put messages and wait until they can be read."""
        for message in messages:
            result = self.services.store.put_message(message)
            assert result.ok, result.reason
        await asyncio.to_thread(self.services.store.wait_until_visible, result)


@asynccontextmanager
async def served(
    root: Path, settings: Mapping[str, str] | None = None, clock: Clock = SYSTEM_CLOCK
) -> AsyncIterator[ServedBroker]:
    """Run a broker over a store in `root`, with the topic T of four queues."""
    properties = {
        "storePathRootDir": str(root),
        "brokerName": "b",
        "brokerIP1": "127.0.0.1",
        "listenPort": "0",
        "grpcServerPort": "0",
        "metricsExporterType": "DISABLE",
        "mappedFileSizeCommitLog": str(1 << 20),
        **(settings or {}),
    }
    broker = Broker.from_properties(properties, origin="a test", clock=clock)
    await broker.start()
    services = broker.services
    services.topics.update_topic(TopicConfig(topic_name=TOPIC, read_queue_nums=4))
    try:
        yield ServedBroker(services, broker.addresses["remoting"])
    finally:
        await broker.stop()


def play(root: Path, scenario: Callable[[ServedBroker], Awaitable[None]], **settings: str) -> None:
    """Run an asynchronous test function with a broker."""

    async def run() -> None:
        async with served(root, settings) as broker:
            await scenario(broker)

    asyncio.run(asyncio.wait_for(run(), 120))


def heartbeat(
    client_id: str,
    group: str = GROUP,
    topics: Sequence[str] = (TOPIC,),
    *,
    expression: str = "*",
    expression_type: str = "TAG",
    version: int = 1,
    model: str = "CLUSTERING",
    producer: str | None = None,
) -> bytes:
    """Return the body of a consumer's heartbeat, in Java's form."""
    tags = [tag.strip() for tag in expression.split("||") if tag.strip() != "*"]
    return msgspec.json.encode(
        {
            "clientID": client_id,
            "consumerDataSet": [
                {
                    "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET",
                    "consumeType": "CONSUME_PASSIVELY",
                    "groupName": group,
                    "messageModel": model,
                    "subscriptionDataSet": [
                        {
                            "classFilterMode": False,
                            "codeSet": [],
                            "expressionType": expression_type,
                            "subString": expression,
                            "subVersion": version,
                            "tagsSet": tags if expression_type == "TAG" else [],
                            "topic": topic,
                        }
                        for topic in topics
                    ],
                    "unitMode": False,
                }
            ],
            "heartbeatFingerprint": 0,
            "producerDataSet": [{"groupName": producer}] if producer else [],
            "withoutSub": False,
        }
    )


async def join(client: RemotingClient, client_id: str, **more: object) -> None:
    """Send the heartbeat with which a consumer joins its group."""
    body = heartbeat(client_id, **more)  # type: ignore[arg-type]
    response = await client.request(RequestCode.HEART_BEAT, body=body)
    assert response.code == ResponseCode.SUCCESS, response.remark


async def pull_messages(
    client: RemotingClient, offset: int = 0, queue_id: int = 0, **fields: object
) -> RemotingCommand:
    """Send a pull request, as a push consumer does. The broker holds the request only if `sysFlag`
    allows it."""
    return await client.request(
        RequestCode.PULL_MESSAGE,
        {
            "consumerGroup": GROUP,
            "topic": TOPIC,
            "queueId": queue_id,
            "queueOffset": offset,
            "maxMsgNums": 32,
            "sysFlag": 0,
            "commitOffset": 0,
            "suspendTimeoutMillis": 15_000,
            "subVersion": 0,
            **fields,
        },
    )


def split_records(body: bytes) -> list[StoredMessage]:
    """Return the messages of a response."""
    messages, position = [], 0
    while position < len(body):
        messages.append(decode_record(body, position))
        position += messages[-1].size
    return messages
