"""Consumers that pop over remoting until a test stops them, even during failures of the broker.
They acknowledge most messages, leave some, and shorten the invisible time of others."""

from __future__ import annotations

import asyncio
import json
import random
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any

from tests.kit.clients.broker_process import BrokerProcess
from tests.kit.consuming import GROUP, TOPIC, pull_messages, split_records
from tests.kit.popping import (
    PoppedMessage,
    ack,
    ack_batch,
    change_time,
    pop,
    pop_lite,
    read_popped,
    read_popped_lite,
)
from tests.kit.power_cut.load import QUEUES, send
from tests.kit.queue_checker.checker import Delivered, Place, Pop, Sent
from tests.kit.remoting import RemotingClient
from tieredstore.broker.remoting.codes import RequestCode, ResponseCode
from tieredstore.errors import Unavailable

GROUPS = 8
PAUSE_S = 0.05
INVISIBLE_MS = 4_000
SHORT_MS = 1_000
MARGIN_MS = 1_500
"""Minimum time (ms) between the answer to an acknowledgement and the end of the invisible time.
Only such an acknowledgement counts, because the broker may ignore a later one."""
CATCH_UP_S = 60.0


class PopLoad:
    """Producers of message groups, and two consumers that pop from all queues of a topic."""

    topic, group = TOPIC, GROUP
    is_orderly = False
    left = 0.1
    """Share of the messages that a consumer leaves unacknowledged. The consumer shortens the
    invisible time of an equal share."""

    def __init__(self, seed: int) -> None:
        self.pops: list[Pop] = []
        self._consumed: list[Delivered] = []
        self._sent: dict[str, list[Sent]] = {f"g{number}": [] for number in range(GROUPS)}
        self._chance = random.Random(seed)
        self._is_sending = True
        self._is_consuming = True
        self._leaves_some = True
        self._threads: list[threading.Thread] = []

    def start(self, broker: BrokerProcess) -> None:
        """Start the producers and consumers, each in a thread."""
        address = f"127.0.0.1:{broker.ports['listenPort']}"
        for run in (self._send, self._consume):
            thread = threading.Thread(target=asyncio.run, args=(run(address),), daemon=True)
            self._threads.append(thread)
            thread.start()

    def stop_sending(self) -> list[Sent]:
        """Stop the producers and return all sends, in order within each group."""
        self._is_sending = False
        self._threads[0].join()
        return [one for own in self._sent.values() for one in own]

    def consumed(self) -> list[Delivered]:
        """Return all deliveries in order of arrival."""
        return list(self._consumed)

    def stop_consuming(self) -> None:
        """Acknowledge all remaining messages, then stop. Afterwards `pops` is complete."""
        self._leaves_some = False
        deadline = time.monotonic() + CATCH_UP_S
        while self._has_left() and time.monotonic() < deadline:
            time.sleep(0.1)
        self._is_consuming = False
        self._threads[1].join()

    def _has_left(self) -> bool:
        last = {one.body: one.is_done for one in list(self.pops)}
        return False in last.values()

    async def _send(self, address: str) -> None:
        await asyncio.gather(
            *(
                _stay_connected(address, self._send_group(name, number), lambda: self._is_sending)
                for number, name in enumerate(self._sent)
            )
        )

    def _send_group(self, group: str, queue: int) -> Callable[[RemotingClient], Awaitable[None]]:
        own = self._sent[group]

        async def send_one(client: RemotingClient) -> None:
            one = Sent(group, len(own), False)
            own.append(one)
            code, fields = await send(
                client,
                self.topic,
                one.body.encode(),
                self._describe(group),
                queue=queue % QUEUES,
            )
            if code == ResponseCode.SUCCESS:
                place = Place(int(fields["queueId"]), int(fields["queueOffset"]))
                own[-1] = Sent(group, one.number, True, place)
            await asyncio.sleep(PAUSE_S)

        return send_one

    def _describe(self, _: str) -> dict[str, str]:
        """Return the properties of a group's messages."""
        return {}

    async def _consume(self, address: str) -> None:
        await asyncio.gather(
            *(
                _stay_connected(address, self._make_consumer(f"C{number}"), self._goes_on)
                for number in range(2)
            )
        )

    def _goes_on(self) -> bool:
        return self._is_consuming

    def _make_consumer(self, client_id: str) -> Callable[[RemotingClient], Awaitable[None]]:
        async def pop_once(client: RemotingClient) -> None:
            popped = await self._pop(client, client_id)
            if not popped:
                await asyncio.sleep(0.05)
            left = {one: Pop(one.body, one.popped_ms, one.due_ms, False) for one in popped}
            try:
                await self._handle(client, popped, left)
            finally:
                self.pops += left.values()

        return pop_once

    async def _pop(self, client: RemotingClient, _: str) -> list[PoppedMessage]:
        answer = await pop(client, maxMsgNums=8, invisibleTime=INVISIBLE_MS)
        if answer.code != ResponseCode.SUCCESS:
            return []
        places = [Place(one.queue_id, one.queue_offset) for one in split_records(answer.body_bytes)]
        return self._note(read_popped(answer), places)

    def _note(self, popped: list[PoppedMessage], places: list[Place]) -> list[PoppedMessage]:
        # A message of the retry topic has its place there, so it has none in this topic.
        self._consumed += [
            Delivered(one.body, None if one.topic != self.topic else place)
            for one, place in zip(popped, places, strict=True)
        ]
        return popped

    async def _handle(
        self, client: RemotingClient, popped: list[PoppedMessage], left: dict[PoppedMessage, Pop]
    ) -> None:
        """Acknowledge each popped message, shorten its invisible time, or leave it. `left` has the
        deliveries by message, whose outcome this method records."""
        by_queue: dict[int, list[PoppedMessage]] = {}
        for message in popped:
            chosen = self._chance.random() if self._leaves_some else 1.0
            if chosen < self.left:
                continue
            if chosen < 2 * self.left:
                left[message] = left[message]._replace(is_done=None)
                _, changed = await change_time(client, message, SHORT_MS, self.group)
                left[message] = left[message]._replace(due_ms=changed.due_ms, is_done=False)
            elif chosen < 0.6 and not message.lite_topic and message.topic == self.topic:
                by_queue.setdefault(message.queue_id, []).append(message)
            else:
                left[message] = left[message]._replace(is_done=None)
                answer = await ack(client, message, self.group)
                _close(left, [message], answer.code)
        for messages in by_queue.values():
            for message in messages:
                left[message] = left[message]._replace(is_done=None)
            answer = await ack_batch(client, messages)
            _close(left, messages, answer.code)


class LiteLoad(PopLoad):
    """A `PopLoad` with a lite topic for each message group. Both consumers subscribe to all lite
    topics. Few messages are left, because each of them blocks its lite topic."""

    topic, group = "Lites", "lites"
    is_orderly = True
    left = 0.01

    def _describe(self, group: str) -> dict[str, str]:
        return {"__LITE_TOPIC": group}

    async def _pop(self, client: RemotingClient, client_id: str) -> list[PoppedMessage]:
        fields = {"consumerGroup": self.group, "topic": self.topic, "clientId": client_id}
        answer = await pop_lite(client, invisibleTime=INVISIBLE_MS, **fields)
        if answer.code != ResponseCode.SUCCESS:
            await self._subscribe(client, client_id)  # a new broker does not know the client
            return []
        places = [Place(one.queue_id, one.queue_offset) for one in split_records(answer.body_bytes)]
        return self._note(read_popped_lite(answer, self.topic), places)

    async def _subscribe(self, client: RemotingClient, client_id: str) -> None:
        entry: dict[str, Any] = {"action": "COMPLETE_ADD", "clientId": client_id}
        entry |= {"group": self.group, "topic": self.topic, "liteTopicSet": list(self._sent)}
        body = json.dumps({"subscriptionSet": [entry]}).encode()
        await client.request(RequestCode.LITE_SUBSCRIPTION_CTL, body=body)


def _close(left: dict[PoppedMessage, Pop], messages: list[PoppedMessage], code: int) -> None:
    assert code == ResponseCode.SUCCESS
    for message in messages:
        if time.time() * 1_000 < message.due_ms - MARGIN_MS:
            left[message] = left[message]._replace(is_done=True)


async def _stay_connected(
    address: str,
    work: Callable[[RemotingClient], Awaitable[None]],
    goes_on: Callable[[], bool],
) -> None:
    """Call `work` repeatedly with a connected client, reconnecting when the broker is gone."""
    while goes_on():
        try:
            async with await RemotingClient.open(address) as client:
                while goes_on():
                    await work(client)
        except Unavailable:
            await asyncio.sleep(0.1)


def read_topic(address: str, topic: str) -> dict[int, list[Delivered]]:
    """Pull all messages of each queue of a topic."""

    async def read() -> dict[int, list[Delivered]]:
        async with await RemotingClient.open(address) as client:
            return {queue_id: await read_queue(client, queue_id) for queue_id in range(QUEUES)}

    async def read_queue(client: RemotingClient, queue_id: int) -> list[Delivered]:
        found: list[Delivered] = []
        while True:
            answer = await pull_messages(
                client, len(found), queue_id, topic=topic, sysFlag=4, subscription="*"
            )
            if answer.code != ResponseCode.SUCCESS:
                return found
            for one in split_records(answer.body_bytes):
                place = Place(one.queue_id, one.queue_offset)
                found.append(Delivered(bytes(one.body).decode(), place))

    return asyncio.run(read())
