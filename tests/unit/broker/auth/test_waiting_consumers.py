"""Consumers lose their permissions while they are waiting for messages."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from pathlib import Path

import pytest

from tests.kit.access import ADMIN, add_user, allow, serving
from tests.kit.grpc_types import find_message
from tests.kit.remoting import RemotingClient
from tests.kit.signed import request_as, sign_call
from tieredstore.broker.auth.policies import Action, want_topic
from tieredstore.broker.auth.users import UserChange
from tieredstore.broker.broker import Broker
from tieredstore.broker.grpc.protocol import Call, Code
from tieredstore.broker.grpc.service import Service
from tieredstore.broker.remoting.codes import RequestCode, ResponseCode
from tieredstore.broker.remoting.command import RemotingCommand

EVE = ("eve", "e-secret")
RIGHTS = [("Topic:orders", "Sub"), ("Group:G", "Sub")]
PULL = {
    "consumerGroup": "G",
    "topic": "orders",
    "queueId": 0,
    "queueOffset": 0,
    "maxMsgNums": 32,
    "sysFlag": 6,
    "commitOffset": 0,
    "suspendTimeoutMillis": 600_000,
    "subscription": "*",
    "subVersion": 0,
}


async def send(client: RemotingClient) -> None:
    fields = {"a": "P", "b": "orders", "c": "TBW102", "d": "1", "e": "0", "f": "0", "g": "0"}
    sent = await request_as(client, *ADMIN, RequestCode.SEND_MESSAGE_V2, fields, b"body")
    assert sent.code == 0, sent.remark


async def make_orders(client: RemotingClient) -> None:
    fields = {
        "topic": "orders",
        "defaultTopic": "TBW102",
        "readQueueNums": 1,
        "writeQueueNums": 1,
        "perm": 6,
        "topicFilterType": "SINGLE_TAG",
    }
    made = await request_as(client, *ADMIN, RequestCode.UPDATE_AND_CREATE_TOPIC, fields)
    assert made.code == 0, made.remark


async def pull(
    broker: Broker, client: RemotingClient, rights: list[tuple[str, str]]
) -> RemotingCommand:
    """Pull from an empty queue as the user eve, and change eve's permissions before a message
    arrives."""
    allow(broker, RIGHTS)
    async with await RemotingClient.open(broker.addresses["remoting"]) as own:
        end = broker.services.store.get_max_offset_in_queue("orders", 0)
        fields = {**PULL, "queueOffset": end}
        pulling = asyncio.create_task(request_as(own, *EVE, RequestCode.PULL_MESSAGE, fields))
        await asyncio.sleep(0.3)
        assert not pulling.done()
        allow(broker, rights)
        await send(client)
        async with asyncio.timeout(20):
            return await pulling


def test_s62_a_pull_that_waits_gets_nothing_once_the_right_is_gone(tmp_path: Path) -> None:
    async def run() -> None:
        async with serving(tmp_path) as (broker, client):
            await add_user(client, *EVE)
            await make_orders(client)
            assert (await pull(broker, client, RIGHTS)).code == ResponseCode.SUCCESS
            for rights in ([("Topic:orders", "Sub")], [("Group:G", "Sub")]):
                answer = await pull(broker, client, rights)
                assert answer.code == ResponseCode.NO_PERMISSION
                assert not answer.body_bytes

    asyncio.run(run())


@pytest.mark.parametrize("changed", ["password", "user"])
def test_s62_a_pull_that_waits_gets_nothing_once_the_password_is_another(
    tmp_path: Path, changed: str
) -> None:
    """A waiting pull gets nothing after the user's password has changed. The same holds after the
    user has been deleted and created again."""

    async def run() -> None:
        async with serving(tmp_path) as (broker, client):
            await add_user(client, *EVE)
            await make_orders(client)
            allow(broker, RIGHTS)
            users = broker.services.access.users
            async with await RemotingClient.open(broker.addresses["remoting"]) as own:
                code = RequestCode.PULL_MESSAGE
                pulling = asyncio.create_task(request_as(own, *EVE, code, PULL))
                await asyncio.sleep(0.3)
                assert not pulling.done()
                if changed == "user":
                    users.delete_user("eve")
                    await add_user(client, "eve", "another")
                else:
                    users.update_user(UserChange(username="eve", password="another"))
                await send(client)
                async with asyncio.timeout(20):
                    answer = await pulling
                assert answer.code == ResponseCode.NO_PERMISSION
                assert not answer.body_bytes
                known = await request_as(own, "eve", "another", code, PULL)
                assert known.code == ResponseCode.SUCCESS

    asyncio.run(run())


def test_s31_no_client_whose_password_is_another_is_asked_or_replied_to(tmp_path: Path) -> None:
    """A client gets no transaction checks and no replies after its password has changed."""

    async def run() -> None:
        async with serving(tmp_path) as (broker, client):
            await add_user(client, *EVE)
            allow(broker, [("Topic:orders", "Pub")])
            services = broker.services
            async with await RemotingClient.open(broker.addresses["remoting"]) as own:
                body = b'{"clientID":"c","producerDataSet":[{"groupName":"p"}]}'
                beat = await request_as(own, *EVE, RequestCode.HEART_BEAT, {}, body)
                assert beat.code == 0, beat.remark
                session = services.producers.find_client("c")
                assert session is not None
                assert session.caller.allows(want_topic("orders", Action.PUB))
                services.access.users.update_user(UserChange(username="eve", password="another"))
                assert not session.caller.allows(want_topic("orders", Action.PUB))
                assert services.producers.find_client("c") is None
                assert "another" not in repr(session.caller)
                assert "e-secret" not in repr(session.caller)

    asyncio.run(run())


def test_s62_a_receive_that_waits_gets_nothing_once_the_right_is_gone(tmp_path: Path) -> None:
    async def run() -> None:
        async with serving(tmp_path) as (broker, client):
            await add_user(client, *EVE)
            await make_orders(client)
            service = Service(broker.services, access=broker.services.access)
            request = find_message("ReceiveMessageRequest")(batch_size=1)
            request.group.name = "G"
            request.message_queue.topic.name = "orders"
            request.invisible_duration.seconds = 60
            request.long_polling_timeout.seconds = 20

            async def receive(user: tuple[str, str]) -> tuple[Code, int]:
                call = Call({"x-mq-client-id": "c", **sign_call(*user)}, "127.0.0.1:5")
                code, count = Code.OK, 0
                async with aclosing(service.stream("ReceiveMessage", request, call)) as answers:
                    async for answer in answers:
                        kind = answer.WhichOneof("content")
                        count += kind == "message"
                        code = Code(answer.status.code) if kind == "status" else code
                return code, count

            allow(broker, RIGHTS)
            receiving = asyncio.create_task(receive(EVE))
            await asyncio.sleep(0.3)
            assert not receiving.done()
            allow(broker, [("Group:G", "Sub")])
            await send(client)
            async with asyncio.timeout(20):
                assert await receiving == (Code.FORBIDDEN, 0)
                assert await receive(ADMIN) == (Code.OK, 1)  # it was given back

    asyncio.run(run())
