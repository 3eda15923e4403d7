"""Java's tools can list the connected clients."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

from tests.kit.broker_services import broker_services, client_of
from tests.kit.remoting import register_plain
from tieredstore.broker.clients.consumers import ConsumerSettings
from tieredstore.broker.clients.session import Subscription
from tieredstore.broker.remoting.codes import RequestCode, ResponseCode
from tieredstore.broker.remoting.command import RemotingCommand
from tieredstore.broker.remoting.connection import Connection
from tieredstore.broker.remoting.handler_table import HandlerTable
from tieredstore.broker.remoting.handlers.admin.connections import ConnectionHandlers
from tieredstore.broker.services import BrokerServices


def register(table: HandlerTable, broker: BrokerServices) -> None:
    """Register the handlers under test, and a heartbeat handler. The heartbeat handler registers
    its sender as a producer of group P and a consumer of group G."""
    ConnectionHandlers.register_all(table, broker)

    def join(connection: Connection, _: RemotingCommand) -> RemotingCommand:
        connection.client_id, connection.language, connection.version = "me@1", "KOTLIN", 513
        broker.producers.register("P", connection)
        subscription = Subscription.parse("T", "a || b", version=5)
        broker.consumers.register("G", connection, ConsumerSettings(), {"T": subscription})
        return RemotingCommand(ResponseCode.SUCCESS)

    register_plain(table, RequestCode.HEART_BEAT, join)


def test_members_are_listed_with_what_they_subscribed_to(tmp_path: Path) -> None:
    async def run() -> None:
        async with broker_services(tmp_path) as broker, client_of(broker, register) as client:
            await client.request(RequestCode.HEART_BEAT)
            [session] = broker.producers.list_groups()["P"]
            member = {
                "clientId": "me@1",
                "clientAddr": session.address,
                "language": "OTHER",
                "version": 513,
            }

            async def ask(code: RequestCode, **fields: object) -> Any:
                answer = await client.request(code, fields)
                assert answer.code == ResponseCode.SUCCESS, answer.remark
                return json.loads(answer.body_bytes)

            subscription = {
                "classFilterMode": False,
                "codeSet": [],
                "expressionType": "TAG",
                "subString": "a || b",
                "subVersion": 5,
                "tagsSet": ["a", "b"],
                "topic": "T",
            }
            found = await ask(RequestCode.GET_CONSUMER_CONNECTION_LIST, consumerGroup="G")
            assert found == {
                "connectionSet": [member],
                "subscriptionTable": {"T": subscription},
                "consumeType": "CONSUME_PASSIVELY",
                "messageModel": "CLUSTERING",
                "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
            }
            found = await ask(RequestCode.GET_PRODUCER_CONNECTION_LIST, producerGroup="P")
            assert found == {"connectionSet": [member]}
            found = await ask(RequestCode.GET_ALL_PRODUCER_INFO)
            assert [info["clientId"] for info in found["data"]["P"]] == ["me@1"]
            found = await ask(RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER, group="G", topic="T")
            assert found["subscriptionData"] == subscription
            found = await ask(RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER, group="G", topic="U")
            assert found == {"group": "G", "topic": "U"}

            broker.offsets.commit_offset("H", "T", 0, 1)
            found = await ask(RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, topic="T")
            assert found == {"groupList": ["G", "H"]}
            found = await ask(RequestCode.QUERY_TOPICS_BY_CONSUMER, group="H")
            assert found == {"topicList": ["T"]}

    asyncio.run(run())


def test_who_is_not_there_is_said(tmp_path: Path) -> None:
    async def run() -> None:
        async with broker_services(tmp_path) as broker, client_of(broker, register) as client:
            code = RequestCode.GET_CONSUMER_CONNECTION_LIST
            answer = await client.request(code, {"consumerGroup": "G"})
            assert answer.code == ResponseCode.CONSUMER_NOT_ONLINE
            code = RequestCode.GET_PRODUCER_CONNECTION_LIST
            answer = await client.request(code, {"producerGroup": "P"})
            assert answer.code == ResponseCode.SYSTEM_ERROR
            code = RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER
            answer = await client.request(code, {"group": "G", "topic": "T"})
            assert answer.code == ResponseCode.SYSTEM_ERROR

    asyncio.run(run())
