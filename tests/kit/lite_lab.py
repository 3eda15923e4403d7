"""A broker with a parent topic and a group for tests of lite topics, and a remoting client."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.kit.consuming import split_records
from tests.kit.power_cut.load import send
from tests.kit.remoting import RemotingClient, wait_for
from tieredstore.broker.remoting.codes import RequestCode, ResponseCode
from tieredstore.broker.state.groups import SubscriptionGroupConfig
from tieredstore.broker.state.topics import TopicConfig
from tieredstore.testing import Broker

SETTINGS = {"enableLmq": "true", "enableMultiDispatch": "true"}
OK = ResponseCode.SUCCESS
NONE = ResponseCode.POLLING_TIMEOUT


class Lab:
    """Broker with the parent topic P and the group G, and a connected remoting client."""

    def __init__(self, broker: Broker, client: RemotingClient) -> None:
        self.broker = broker
        self.client = client
        self.services = broker.services

    def set_group(self, name: str = "G", **attributes: str) -> None:
        found = {"lite.bind.topic": "P"} | {
            f"lite.sub.{key}".replace("_", "."): value for key, value in attributes.items()
        }
        self.services.groups.update_group(
            SubscriptionGroupConfig(group_name=name, attributes=found)
        )

    async def send(self, lite_topic: str, *bodies: bytes) -> None:
        store, queue = self.services.store, f"%LMQ%$P${lite_topic}"
        end = store.get_max_offset_in_queue(queue, 0) + len(bodies)
        for body in bodies:
            assert (await send(self.client, "P", body, {"__LITE_TOPIC": lite_topic}))[0] == 0
        await wait_for(lambda: store.get_max_offset_in_queue(queue, 0) >= end)

    async def subscribe(
        self,
        action: str,
        *names: str,
        client_id: str = "C",
        group: str = "G",
        via: RemotingClient | None = None,
        **more: Any,
    ) -> Any:
        entry = {"action": action, "clientId": client_id, "group": group, "topic": "P", **more}
        body = json.dumps({"subscriptionSet": [{**entry, "liteTopicSet": names}]}).encode()
        via = via or self.client
        return await via.request(RequestCode.LITE_SUBSCRIPTION_CTL, body=body)

    async def pop(self, code: int = OK, *, client_id: str = "C", **more: Any) -> Any:
        fields = {"consumerGroup": "G", "topic": "P", "clientId": client_id, "maxMsgNum": 32}
        fields |= {"invisibleTime": 60_000, "pollTime": 0, "bornTime": 0, "attemptId": "", **more}
        answer = await self.client.request(RequestCode.POP_LITE_MESSAGE, fields)
        assert answer.code == code, (answer.code, answer.remark)
        return answer

    async def take(self, count: int, **more: Any) -> Any:
        """Pop once, waiting until messages arrive. Return the answer and at most `count` bodies."""
        async with asyncio.timeout(20):
            answer = await self.pop(**{"pollTime": 10_000, **more})
        return answer, [bytes(one.body) for one in split_records(answer.body_bytes)][:count]

    async def ack(self, answer: Any, lite_topic: str, offset: int, **more: Any) -> int:
        fields = self.delivery(answer, lite_topic, offset) | more
        return (await self.client.request(RequestCode.ACK_MESSAGE, fields)).code

    async def change(self, answer: Any, lite_topic: str, offset: int, **more: Any) -> Any:
        fields = self.delivery(answer, lite_topic, offset) | {"invisibleTime": 1000, **more}
        return await self.client.request(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, fields)

    def delivery(self, answer: Any, lite_topic: str, offset: int) -> dict[str, Any]:
        found = answer.ext_fields
        info = f"0 {found['popTime']} {found['invisibleTime']} 999 0 b 0 {offset}"
        place = {"topic": "P", "queueId": 0, "offset": offset, "liteTopic": lite_topic}
        return {"consumerGroup": "G", "extraInfo": info, **place}


@asynccontextmanager
async def open_lab(broker: Broker) -> AsyncIterator[Lab]:
    async with await RemotingClient.open(broker.remoting) as client:
        lab = Lab(broker, client)
        kind = {"message.type": "LITE"}
        lab.services.topics.update_topic(TopicConfig(topic_name="P", attributes=kind))
        lab.set_group()
        yield lab


def run(root: Path, test: Callable[[Lab], Awaitable[None]], **settings: str) -> None:
    async def go() -> None:
        async with open_lab(broker) as lab:
            await test(lab)

    with Broker(folder=root, properties={**SETTINGS, **settings}) as broker:
        broker.run(go(), 100)
