"""Every gRPC call is refused if one of the permissions that it needs is missing. A call without a
row in this module's table fails the test."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import Any, NamedTuple

from tests.kit.access import ADMIN, add_user, allow, list_grants, list_lacks, serving
from tests.kit.grpc_types import find_message
from tests.kit.request_rows import Right
from tests.kit.signed import sign_call
from tieredstore.broker.grpc.message_types import list_methods
from tieredstore.broker.grpc.protocol import Call, Code
from tieredstore.broker.grpc.service import Service

EVE = ("eve", "e-secret")
GROUP = "Group:G Sub"
ORDERS_SUB, ORDERS_PUB = "Topic:orders Sub", "Topic:orders Pub"


class Row(NamedTuple):
    """A gRPC call and the permissions that its sender needs."""

    method: str
    request: Any
    rights: tuple[Right, ...]


def resource(name: str) -> Any:
    return find_message("Resource")(name=name)


def row(method: str, *rights: str, kind: str = "", **fields: Any) -> Row:
    """Return a row. An example of `rights` is `Topic:orders Sub Get`."""
    request = find_message(kind or f"{method}Request")(**fields)
    return Row(method, request, tuple(Right(*text.split(" ", 1)) for text in rights))


def send(*topics: str, **properties: str) -> dict[str, Any]:
    system = find_message("SystemProperties")(message_id="0" * 34)
    kind = find_message("Message")
    return {
        "messages": [
            kind(
                topic=resource(topic),
                body=b"x",
                system_properties=system,
                user_properties=properties,
            )
            for topic in topics
        ]
    }


def list_rows() -> list[Row]:
    both = {"group": resource("G"), "topic": resource("orders")}
    queue = find_message("MessageQueue")
    settings = find_message("Settings")
    consumer = settings()
    consumer.subscription.group.name = "G"
    consumer.subscription.subscriptions.add().topic.name = "orders"
    producer = settings()
    producer.publishing.topics.add(name="orders")
    return [
        row("QueryRoute", "Topic:orders Pub Sub", topic=resource("orders")),
        row("QueryRoute", "Group:G Sub Pub", topic=resource("%DLQ%G")),
        row("QueryAssignment", GROUP, ORDERS_SUB, **both),
        row("Heartbeat", "Group:G Pub Sub", group=resource("G")),
        row("NotifyClientTermination", "Group:G Pub Sub", group=resource("G")),
        row("SendMessage", ORDERS_PUB, **send("orders")),
        row("SendMessage", ORDERS_PUB, "Topic:secret Pub", **send("orders", "secret")),
        row("SendMessage", "Group:G Pub Sub", **send("%RETRY%G")),
        row(
            "EndTransaction",
            ORDERS_PUB,
            topic=resource("orders"),
            transaction_id="0" * 32,
            resolution=1,
        ),
        row("RecallMessage", ORDERS_PUB, topic=resource("orders"), recall_handle="x"),
        row(
            "ReceiveMessage",
            GROUP,
            ORDERS_SUB,
            group=resource("G"),
            message_queue=queue(topic=resource("orders")),
        ),
        row(
            "ReceiveMessage",
            GROUP,
            "Group:H Sub",
            group=resource("G"),
            message_queue=queue(topic=resource("%DLQ%H")),
        ),
        row("AckMessage", GROUP, ORDERS_SUB, **both),
        row("ChangeInvisibleDuration", GROUP, ORDERS_SUB, receipt_handle="1:0:0:1", **both),
        row("ForwardMessageToDeadLetterQueue", GROUP, ORDERS_SUB, receipt_handle="1:0:0:1", **both),
        row("SyncLiteSubscription", GROUP, ORDERS_SUB, **both),
        row("Telemetry", GROUP, ORDERS_SUB, kind="TelemetryCommand", settings=consumer),
        row("Telemetry", ORDERS_PUB, kind="TelemetryCommand", settings=producer),
    ]


async def status_of(service: Service, method: str, request: Any, call: Call) -> Code:
    if method in {"ReceiveMessage", "Telemetry"}:

        async def commands() -> AsyncIterator[Any]:
            yield request
            await asyncio.sleep(30)

        given = commands() if method == "Telemetry" else request
        async with asyncio.timeout(10), aclosing(service.stream(method, given, call)) as answers:
            async for response in answers:
                return Code(response.status.code)
        raise AssertionError("no response")
    async with asyncio.timeout(10):
        return Code((await service.answer(method, request, call)).status.code)


def make_call(user: tuple[str, str]) -> Call:
    return Call(metadata={"x-mq-client-id": "c", **sign_call(*user)}, peer="127.0.0.1:5")


def test_every_call_that_is_served_has_a_row(tmp_path: Path) -> None:
    async def run() -> None:
        async with serving(tmp_path) as (broker, _):
            service = Service(broker.services, access=broker.services.access)
            served = {method.name for method in list_methods() if service.serves(method.name)}
            assert {row.method for row in list_rows()} == served

    asyncio.run(run())


def test_s30_a_call_is_refused_with_any_right_missing(tmp_path: Path) -> None:
    async def run() -> None:
        async with serving(tmp_path) as (broker, client):
            await add_user(client, *EVE)
            service = Service(broker.services, access=broker.services.access)
            for method, request, rights in list_rows():
                for lack in list_lacks(rights):
                    allow(broker, lack)
                    status = await status_of(service, method, request, make_call(EVE))
                    assert status is Code.FORBIDDEN, (method, lack)
                for grant in list_grants(rights):
                    allow(broker, grant)
                    status = await status_of(service, method, request, make_call(EVE))
                    assert status not in {Code.FORBIDDEN, Code.UNAUTHORIZED}, (method, grant)

    asyncio.run(run())


def test_s30_a_handle_or_an_id_of_another_topic_reaches_nothing(tmp_path: Path) -> None:
    async def run() -> None:
        async with serving(tmp_path) as (broker, client):
            await add_user(client, *EVE)
            broker.settings.enable_topic_message_type_check = False
            service = Service(broker.services, access=broker.services.access)
            admin, eve = make_call(ADMIN), make_call(EVE)
            broker.services.groups.find_group("G")
            for queue_id in range(8):
                broker.services.offsets.commit_offset("G", "secret", queue_id, 0)
            half = send("secret")
            half["messages"][0].system_properties.message_type = 4  # TRANSACTION
            kind = find_message("SendMessageRequest")
            await service.answer("SendMessage", kind(**send("orders")), admin)
            await service.answer("SendMessage", kind(**send("secret")), admin)
            sent = await service.answer("SendMessage", kind(**half), admin)
            transaction_id = sent.entries[0].transaction_id
            assert transaction_id
            receive = find_message("ReceiveMessageRequest")(group=resource("G"), batch_size=1)
            receive.message_queue.topic.name = "secret"
            receive.invisible_duration.seconds = 60
            handle = ""
            async with aclosing(service.stream("ReceiveMessage", receive, admin)) as answers:
                async for answer in answers:
                    if answer.WhichOneof("content") == "message":
                        handle = answer.message.system_properties.receipt_handle
            assert handle
            allow(broker, [("Topic:orders", "All"), ("Group:G", "Sub")])
            both = {"group": resource("G"), "topic": resource("orders")}
            for row_ in (
                row("ChangeInvisibleDuration", receipt_handle=handle, **both),
                row("ForwardMessageToDeadLetterQueue", receipt_handle=handle, **both),
            ):
                assert (
                    await status_of(service, row_.method, row_.request, eve)
                    is Code.INVALID_RECEIPT_HANDLE
                )
            ack = find_message("AckMessageRequest")(**both)
            ack.entries.add(message_id="x", receipt_handle=handle)
            assert await status_of(service, "AckMessage", ack, eve) is Code.INVALID_RECEIPT_HANDLE
            end = row(
                "EndTransaction",
                topic=resource("orders"),
                transaction_id=transaction_id,
                resolution=1,
            )
            before = broker.services.store.get_max_offset_in_queue("secret", 0)
            assert await status_of(service, "EndTransaction", end.request, eve) is not Code.OK
            assert broker.services.store.get_max_offset_in_queue("secret", 0) == before
            # The handle is still good for whom it was given to.
            both["topic"] = resource("secret")
            change = row("ChangeInvisibleDuration", receipt_handle=handle, **both)
            change.request.invisible_duration.seconds = 60
            assert (
                await status_of(service, "ChangeInvisibleDuration", change.request, admin)
                is Code.OK
            )

    asyncio.run(run())


def test_s30_who_may_only_read_makes_no_topic(tmp_path: Path) -> None:
    async def run() -> None:
        async with serving(tmp_path) as (broker, client):
            await add_user(client, *EVE)
            broker.settings.auto_create_mixed_topics = True
            service = Service(broker.services, access=broker.services.access)
            request = find_message("QueryRouteRequest")(topic=resource("news"))
            request.endpoints.scheme = 1
            request.endpoints.addresses.add(host="127.0.0.1", port=1)
            assign = find_message("QueryAssignmentRequest")(
                topic=resource("news"), group=resource("G"), endpoints=request.endpoints
            )
            eve = make_call(EVE)
            allow(broker, [("Topic:news", "Sub"), ("Group:G", "Sub")])
            for method, asked in (("QueryRoute", request), ("QueryAssignment", assign)):
                assert await status_of(service, method, asked, eve) is Code.TOPIC_NOT_FOUND
            assert broker.services.topics.find_topic("news") is None
            allow(broker, [("Topic:news", "Pub")])
            assert await status_of(service, "QueryRoute", request, eve) is Code.OK
            assert broker.services.topics.find_topic("news") is not None

    asyncio.run(run())
