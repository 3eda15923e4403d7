"""Clients of a broker whose power is cut, and the broker's promises to them."""

from __future__ import annotations

import asyncio
import json
import os
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Self

import msgspec

from tests.kit.grpc_broker import CODES, GrpcClient
from tests.kit.remoting import RemotingClient
from tieredstore.message.properties import encode_properties

TOPIC, TRANSACTIONS, DELAYED, GROUP = "t", "txt", "delayed", "g"
QUEUES = 4
PREPARED = 4
COMMIT, ROLLBACK = 8, 12
TIMEOUT_MS = 60_000
"""Time limit of requests, ms. It is long, because the broker is paused while its disk is copied. It
also shares the machine with the broker that starts from the copy."""


@dataclass
class Promises:
    """Promises of the broker. `sent` has all bodies that may exist, `messages` the bodies by queue
    and offset, and `acknowledged` the bodies that the group has acknowledged."""

    sent: set[bytes] = field(default_factory=set)
    messages: dict[tuple[int, int], bytes] = field(default_factory=dict)
    acknowledged: set[bytes] = field(default_factory=set)
    committed: set[bytes] = field(default_factory=set)
    rolled_back: set[bytes] = field(default_factory=set)
    delayed: set[bytes] = field(default_factory=set)
    topics: set[str] = field(default_factory=set)
    deleted_topics: set[str] = field(default_factory=set)

    def copy(self) -> Self:
        """Return a copy of the promises so far."""
        fields = {name: type(value)(value) for name, value in vars(self).items()}
        return type(self)(**fields)


def make_body(kind: str) -> bytes:
    """Return a unique body."""
    return f"{kind}-{time.time_ns()}".encode()


class Load:
    """Sends, receives and deletes until it is cancelled, and records the broker's promises."""

    def __init__(self, remoting: str, grpc: str, seed: int) -> None:
        self.promises = Promises()
        self._address = remoting
        self._port = int(grpc.rpartition(":")[2])
        self._random = random.Random(seed)

    async def run(self) -> None:
        """Send, receive and delete in an endless loop."""
        async with asyncio.TaskGroup() as tasks:
            for work in (self._send_plain, self._send_plain, self._do_others):
                tasks.create_task(self._with_client(work))
            tasks.create_task(self._receive())

    async def _with_client(self, work: Callable[[RemotingClient], Awaitable[None]]) -> None:
        async with await RemotingClient.open(self._address) as client:
            while True:
                await work(client)

    async def _send_plain(self, client: RemotingClient) -> None:
        queue = self._random.randrange(QUEUES)
        body = make_body("p") + os.urandom(self._random.choice((8, 300, 2000))).hex().encode()
        self.promises.sent.add(body)
        code, fields = await send(client, TOPIC, body, {"KEYS": "a"}, queue=queue)
        if code == 0:
            self.promises.messages[queue, int(fields["queueOffset"])] = body

    async def _do_others(self, client: RemotingClient) -> None:
        await self._end_transaction(client)
        delay = self._random.choice(({"DELAY": "1"}, {"TIMER_DELAY_MS": "1500"}))
        body = make_body("d")
        if (await send(client, DELAYED, body, delay))[0] == 0:
            self.promises.delayed.add(body)
        if self._random.random() < 0.3:
            await self._make_topic(client)

    async def _end_transaction(self, client: RemotingClient) -> None:
        body = make_body("x")
        properties = {"TRAN_MSG": "true", "PGROUP": "p", "UNIQ_KEY": body.decode()}
        code, fields = await send(client, TRANSACTIONS, body, properties, flags=PREPARED)
        if code:
            return
        end = self._random.choice((COMMIT, ROLLBACK))
        request = {
            "producerGroup": "p",
            "tranStateTableOffset": fields["queueOffset"],
            "commitLogOffset": int(fields["msgId"][16:], 16),
            "msgId": body.decode(),
            "transactionId": body.decode(),
            "commitOrRollback": end,
        }
        if (await client.request(37, request, timeout_ms=TIMEOUT_MS)).code == 0:
            ended = self.promises.committed if end == COMMIT else self.promises.rolled_back
            ended.add(body)

    async def _make_topic(self, client: RemotingClient) -> None:
        topic = make_body("c").decode()
        fields = {
            "topic": topic,
            "defaultTopic": "TBW102",
            "readQueueNums": 1,
            "writeQueueNums": 1,
            "perm": 6,
            "topicFilterType": "SINGLE_TAG",
            "topicSysFlag": 0,
            "order": False,
        }
        if (await client.request(17, fields, timeout_ms=TIMEOUT_MS)).code:
            return
        if self._random.random() < 0.5:
            self.promises.topics.add(topic)
            return
        await send(client, topic, b"old")
        deleted = await client.request(215, {"topic": topic}, timeout_ms=TIMEOUT_MS)
        if deleted.code == 0:
            self.promises.deleted_topics.add(topic)

    async def _receive(self) -> None:
        async with GrpcClient(self._port, "receiver") as client:
            while True:
                messages = await receive(client)
                if not messages:
                    continue
                request = client.make("AckMessageRequest", topic=TOPIC, group=GROUP)
                for message in messages:
                    properties = message.system_properties
                    request.entries.add(
                        message_id=properties.message_id, receipt_handle=properties.receipt_handle
                    )
                entries = (await client.call("AckMessage", request)).entries
                for message, entry in zip(messages, entries, strict=True):
                    if entry.status.code == CODES["OK"]:
                        self.promises.acknowledged.add(bytes(message.body))


async def prepare(remoting: str) -> None:
    """Create the group, which starts at the first message."""
    async with await RemotingClient.open(remoting) as client:
        group = {
            "groupName": GROUP,
            "attributes": {"+consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET"},
            "retryMaxTimes": 1000,
        }
        assert (await client.request(200, {}, msgspec.json.encode(group))).code == 0


async def send(
    client: RemotingClient,
    topic: str,
    body: bytes,
    properties: dict[str, str] | None = None,
    *,
    queue: int = 0,
    flags: int = 0,
) -> tuple[int, dict[str, str]]:
    """Send a message, and return the response's code and fields."""
    text = encode_properties(properties or {}).decode()
    fields = {"a": "p", "b": topic, "c": "TBW102", "d": QUEUES, "e": queue, "f": flags, "i": text}
    response = await client.request(310, fields, body, TIMEOUT_MS)
    return response.code, dict(response.ext_fields)


async def receive(client: GrpcClient, wait_ms: int = 500) -> list[Any]:
    """Receive a few messages, with a long invisible time."""
    request = client.make("ReceiveMessageRequest", group=GROUP, batch_size=32)
    request.message_queue.topic.name = TOPIC
    request.filter_expression.expression = "*"
    request.invisible_duration.seconds = 600
    request.long_polling_timeout.nanos = wait_ms * 1_000_000
    found = await client.receive(request, TIMEOUT_MS / 1000)
    return [one.message for one in found if one.HasField("message")]


async def list_topics(client: RemotingClient) -> set[str]:
    """Return the broker's topics."""
    body = (await client.request(206)).body_bytes
    return set(json.loads(body)["topicList"])
