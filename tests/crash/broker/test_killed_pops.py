"""The broker is killed while consumers pop and acknowledge over remoting. No message is lost, and
an acknowledged message is never delivered again."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

from tests.kit.clients.broker_process import BrokerProcess
from tests.kit.consuming import TOPIC
from tests.kit.popping import PoppedMessage, ack, ack_batch, change_time, pop, read_popped
from tests.kit.remoting import RemotingClient, wait_for
from tieredstore.broker.remoting.codes import RequestCode
from tieredstore.errors import Unavailable

MESSAGES = 400
KILLS = 3
INVISIBLE_MS = 4_000
MARGIN_MS = 1_500
"""Safety margin in ms. An acknowledgement counts only if its reply came at least this long before
the end of the invisible time, because the broker may ignore later ones."""


class Consumer:
    """Pops messages, and acknowledges most of them. `done`: messages whose acknowledgement was
    answered in time. `again`: messages of `done` that were delivered again."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self.seen: Counter[str] = Counter()
        self.done: set[str] = set()
        self.again: set[str] = set()

    async def run_once(self, client: RemotingClient) -> None:
        answer = await pop(client, maxMsgNums=8, invisibleTime=INVISIBLE_MS)
        if answer.code != 0:
            await asyncio.sleep(0.05)
            return
        by_queue: dict[str, list[PoppedMessage]] = {}
        for message in read_popped(answer):
            self.seen[message.body] += 1
            if message.body in self.done:
                self.again.add(message.body)
            chosen = self._chance.random()
            if chosen < 0.1:
                continue
            if chosen < 0.2:
                await change_time(client, message, 1_000)
                continue
            if chosen < 0.6:
                by_queue.setdefault(f"{message.queue_id}", []).append(message)
                continue
            sent = await ack(client, message)
            self._note(sent.code, [message])
        for messages in by_queue.values():
            sent = await ack_batch(client, messages)
            self._note(sent.code, messages)

    def _note(self, code: int, messages: list[PoppedMessage]) -> None:
        assert code == 0
        for message in messages:
            _, pop_time, invisible_time = message.extra_info.split(" ")[:3]
            if time.time() * 1_000 < int(pop_time) + int(invisible_time) - MARGIN_MS:
                self.done.add(message.body)


async def fill(address: str) -> None:
    async with await RemotingClient.open(address) as client:
        for number in range(MESSAGES):
            fields = {"a": "P", "b": TOPIC, "c": "TBW102", "d": 4, "e": number % 4, "f": 0, "g": 0}
            body = b"%d" % number
            answer = await client.request(RequestCode.SEND_MESSAGE_V2, {**fields, "i": ""}, body)
            assert answer.code == 0, answer.remark


def test_nothing_is_lost_and_nothing_acknowledged_comes_again(tmp_path: Path) -> None:
    consumer = Consumer(random.Random(29))

    async def consume(address: str) -> None:
        with suppress(Unavailable):
            async with await RemotingClient.open(address) as client:
                while len(consumer.done) < MESSAGES:
                    await consumer.run_once(client)

    async def consume_until_killed(broker: BrokerProcess, address: str, count: int) -> None:
        consuming = [asyncio.create_task(consume(address)) for _ in range(2)]
        await wait_for(lambda: len(consumer.done) >= count)
        await asyncio.to_thread(broker.kill)
        await asyncio.gather(*consuming)

    with BrokerProcess(tmp_path, {"defaultTopicQueueNums": "4"}) as broker:
        address = f"127.0.0.1:{broker.ports['listenPort']}"
        asyncio.run(fill(address))
        for number in range(1, KILLS + 1):
            count = number * MESSAGES // (KILLS + 2)
            asyncio.run(asyncio.wait_for(consume_until_killed(broker, address, count), 120))
            broker.start()
        asyncio.run(asyncio.wait_for(consume(address), 180))
        assert broker.stop() == 0
    assert consumer.done == {str(number) for number in range(MESSAGES)}
    assert consumer.again == set()
    assert max(consumer.seen.values()) > 1
