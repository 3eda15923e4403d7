"""Every request of both protocols is refused if one of the permissions that it needs is missing.
Requests are also sent with aliases of their fields. A request code or a call without a row in its
table fails the test."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

from tests.kit.access import ADMIN, add_user, allow, list_grants, list_lacks, serving
from tests.kit.client_sessions import NotingSession
from tests.kit.remoting import RemotingClient
from tests.kit.request_rows import ROWS, Row
from tests.kit.signed import request_as
from tests.kit.waiting import wait_for
from tieredstore.broker.auth.access import Caller
from tieredstore.broker.broker import Broker
from tieredstore.broker.clients.consumers import ProducerManager
from tieredstore.broker.remoting import handlers
from tieredstore.broker.remoting.codes import RequestCode, ResponseCode
from tieredstore.broker.remoting.command import RemotingCommand
from tieredstore.broker.remoting.handler_table import decode_request
from tieredstore.broker.remoting.handlers.base import make_handler_table
from tieredstore.broker.transactions.messages import HALF_TOPIC

EVE = ("eve", "e-secret")
DENIED = ResponseCode.NO_PERMISSION
ALIASES = {
    *("topic", "b", "originTopic", "topicList", "group", "consumerGroup", "producerGroup"),
    *("groupName", "srcGroup", "destGroup", "compareGroup", "a", "namespace", "cluster"),
    *("clusterName", "brokerName", "subject", "username", "offset", "msgId"),
}
"""Names of fields that may name a resource. Each request is sent with all of these fields that its
request code does not define."""


async def send(
    client: RemotingClient, topic: str, *, half: bool = False, group: str = "P"
) -> RemotingCommand:
    properties = f"KEYS\x01k\x02UNIQ_KEY\x01{topic}-key\x02"
    if half:
        properties += f"TRAN_MSG\x01true\x02PGROUP\x01{group}\x02"
    fields = {
        "a": group,
        "b": topic,
        "c": "TBW102",
        "d": "1",
        "e": "0",
        "f": "4" if half else "0",
        "g": "0",
        "i": properties,
    }
    answer = await request_as(client, *ADMIN, RequestCode.SEND_MESSAGE_V2, fields, b"body")
    assert answer.code == 0, answer.remark
    return answer


@asynccontextmanager
async def world(root: Path) -> AsyncIterator[tuple[Broker, RemotingClient, dict[str, str]]]:
    """A broker with two topics, two groups, open transactions and a consumer of the user eve."""
    async with serving(root, transactionCheckInterval="3600000") as (broker, client):
        places: dict[str, str] = {}
        for topic, prefix in (("orders", ""), ("secret", "secret_")):
            stored, half = await send(client, topic), await send(client, topic, half=True)
            places[topic + "_id"] = stored.ext_fields["msgId"]
            places[topic] = str(int(stored.ext_fields["msgId"][16:], 16))
            places[prefix + "half"] = str(int(half.ext_fields["msgId"][16:], 16))
            places[prefix + "half_queue_offset"] = half.ext_fields["queueOffset"]
        store = broker.services.store
        await asyncio.to_thread(
            wait_for, lambda: bool(store.query_message("secret", "secret-key", 1, 0, 1 << 60))
        )
        await add_user(client, *EVE)
        for group in "GH":
            code, body = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {"groupName": group}
            await request_as(client, *ADMIN, code, {}, json.dumps(body).encode())
        broker.services.offsets.commit_offset("H", "orders", 0, 1)
        await join(broker, client)
        client.answer(RequestCode.CONSUME_MESSAGE_DIRECTLY, lambda _: RemotingCommand(0))
        client.answer(RequestCode.GET_CONSUMER_RUNNING_INFO, lambda _: RemotingCommand(0))
        client.answer(RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT, lambda _: RemotingCommand(1))
        yield broker, client, places


async def join(broker: Broker, client: RemotingClient) -> None:
    allow(broker, [("Group:G", "Sub")])
    consumer = {
        "groupName": "G",
        "consumeType": "CONSUME_PASSIVELY",
        "messageModel": "CLUSTERING",
        "subscriptionDataSet": [],
    }
    body = json.dumps({"clientID": "c", "consumerDataSet": [consumer]}).encode()
    answer = await request_as(client, *EVE, RequestCode.HEART_BEAT, {}, body)
    assert answer.code == 0, answer.remark


def fill(text: object, places: dict[str, str]) -> str:
    return re.sub(r"#(\w+)#", lambda found: places[found[1]], str(text))


def test_every_code_that_is_served_has_a_row(tmp_path: Path) -> None:
    async def run() -> None:
        async with serving(tmp_path) as (broker, _):
            codes = make_handler_table(broker.services).codes
            assert {int(row.code) for row in ROWS} == codes

    asyncio.run(run())


def test_s30_a_request_is_refused_with_any_right_missing(tmp_path: Path) -> None:
    async def run() -> None:
        async with world(tmp_path) as (broker, client, places):

            async def ask(row: Row, rights: list[tuple[str, str]]) -> RemotingCommand:
                allow(broker, rights)
                fields = {name: fill(value, places) for name, value in row.fields.items()}
                return await request_as(client, *EVE, row.code, fields, row.encode_body())

            for row in ROWS:
                name = f"{row.code.name} {row.way}"
                for rights in list_lacks(row.rights):
                    answer = await ask(row, rights)
                    assert answer.code == DENIED, (name, rights, answer.remark)
                    assert not answer.body_bytes
                for rights in list_grants(row.rights):
                    answer = await ask(row, rights)
                    assert answer.code != DENIED, (name, rights, answer.remark)
                    remark = answer.remark or ""
                    assert "field" not in remark, (name, remark)  # the row is a request
                await join(broker, client)

    asyncio.run(run())


def test_s30_a_field_that_a_code_does_not_have_changes_neither_check_nor_handler(
    tmp_path: Path,
) -> None:
    async def run() -> None:
        async with serving(tmp_path) as (broker, _):
            table = make_handler_table(broker.services)
            for row in ROWS:
                route = table.find_route(row.code)
                fields = {
                    name: re.sub("#.*#", "0", str(value)) for name, value in row.fields.items()
                }
                body = row.encode_body()
                expected = decode_request(RemotingCommand(row.code, fields, body), route.header)
                known = {*route.header.__struct_encode_fields__}
                for alias in ALIASES - known:
                    given = RemotingCommand(row.code, {alias: "secret", **fields}, body)
                    assert decode_request(given, route.header) == expected, (row.code, alias)

    asyncio.run(run())


def test_s30_a_handler_reads_its_header_and_no_field_beside_it() -> None:
    for path in Path(handlers.__path__[0]).rglob("*.py"):
        for line in path.read_text().splitlines():
            if "command.ext_fields" in line:  # passes a request on to a client
                assert path.name == "direct.py"
                assert "{**request.command.ext_fields" in line


def test_s31_nobody_is_asked_about_a_transaction_of_a_topic_that_it_may_not_publish_to(
    tmp_path: Path,
) -> None:
    async def run() -> None:
        async with serving(tmp_path, transactionTimeOut="0") as (broker, client):

            def has_halves(count: int) -> bool:
                return broker.services.store.get_max_offset_in_queue(HALF_TOPIC, 0) == count

            await send(client, "secret", half=True, group="bob-tx")
            await add_user(client, *EVE)
            body = b'{"clientID":"c","producerDataSet":[{"groupName":"bob-tx"}]}'
            for number, (rights, is_asked) in enumerate(
                (
                    ([("Topic:orders", "Pub")], False),
                    ([("Topic:secret", "Sub")], False),
                    ([("Topic:secret", "Pub")], True),
                ),
                1,
            ):
                # Each check puts the half message again.
                await asyncio.to_thread(wait_for, partial(has_halves, number))
                allow(broker, rights)
                answer = await request_as(client, *EVE, RequestCode.HEART_BEAT, {}, body)
                assert answer.code == 0  # as with Java: a producer group is no resource
                assert bool(await broker.services.transactions.check()) is is_asked
            assert (await client.next_call()).code == RequestCode.CHECK_TRANSACTION_STATE

    asyncio.run(run())


def test_s32_a_client_does_not_see_who_signed_what_is_passed_on_to_it(tmp_path: Path) -> None:
    async def run() -> None:
        async with world(tmp_path) as (broker, client, places):
            allow(broker, [("Group:G", "Sub"), ("Topic:orders", "Sub")])
            for code, more in (
                (RequestCode.GET_CONSUMER_RUNNING_INFO, {}),
                (RequestCode.CONSUME_MESSAGE_DIRECTLY, {"msgId": places["orders_id"]}),
            ):
                fields = {"consumerGroup": "G", "clientId": "c", **more}
                answer = await request_as(client, *ADMIN, code, fields)
                assert answer.code == 0, answer.remark
                call = await client.next_call()
                while call.code == RequestCode.NOTIFY_CONSUMER_IDS_CHANGED:
                    call = await client.next_call()
                assert call.code == code
                assert call.ext_fields["clientId"] == "c"
                assert not {"AccessKey", "Signature"} & call.ext_fields.keys()

    asyncio.run(run())


def test_s31_a_client_id_that_two_users_say_is_none_of_theirs() -> None:
    sessions = [NotingSession("c") for _ in range(3)]
    for session, name in zip(sessions, ("bob", "eve", "bob"), strict=True):
        session.caller = Caller(None, name, "127.0.0.1")
    bob, eve, again = sessions
    producers = ProducerManager()
    producers.register("P", bob)
    producers.register("Q", again)
    assert producers.find_client("c") is bob
    producers.register("E", eve)
    assert producers.find_client("c") is None
    producers.remove_session(eve)
    assert producers.find_client("c") is bob
