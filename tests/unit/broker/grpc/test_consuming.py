"""Tests of ReceiveMessage, AckMessage, ChangeInvisibleDuration and dead letters."""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from pathlib import Path
from typing import Any

import grpc.aio
import pytest

from tests.kit.grpc_broker import GrpcBroker, GrpcClient, codes, serving_grpc
from tests.kit.grpc_types import find_message, list_values
from tests.kit.record_forms import compress
from tieredstore.broker.grpc import consuming
from tieredstore.broker.grpc.protocol import Call, read_duration_ms, write_duration_ms
from tieredstore.broker.receive.requests import Received, ReceiveRequest
from tieredstore.broker.send.sender import SendRequest
from tieredstore.broker.state.groups import SubscriptionGroupConfig
from tieredstore.broker.state.topics import TopicConfig
from tieredstore.contracts.durability import PutMessageStatus
from tieredstore.local.message_store import DefaultMessageStore
from tieredstore.message import sysflag
from tieredstore.message.encoding import Message

FILTERS = list_values("FilterType")
DIGESTS = list_values("DigestType")
ENCODINGS = list_values("Encoding")
TYPES = list_values("MessageType")


def with_client(
    root: Path, test: Callable[[GrpcBroker, GrpcClient], Awaitable[None]], **group: Any
) -> None:
    async def run() -> None:
        async with serving_grpc(root) as broker, broker.client() as client:
            broker.services.topics.update_topic(
                TopicConfig(topic_name="T", read_queue_nums=2, write_queue_nums=2)
            )
            broker.services.groups.update_group(
                SubscriptionGroupConfig(
                    group_name="G",
                    attributes={"consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET"},
                    **group,
                )
            )
            await test(broker, client)

    asyncio.run(run())


async def send(broker: GrpcBroker, number: int, **values: Any) -> None:
    message = Message.create(
        "T", f"body {number}".encode(), queue_id=-1, uniq_key=f"{number:034x}", **values
    )
    await broker.services.sender.send(SendRequest(group="P", message=message))


def ask(
    wait_ms: int | None = 5_000,
    expression: str = "*",
    invisible_ms: int | None = 10_000,
    **fields: Any,
) -> Any:
    request = find_message("ReceiveMessageRequest")(batch_size=32, **fields)
    request.group.name = "G"
    request.message_queue.topic.name = "T"
    request.message_queue.id = -1
    request.filter_expression.type = FILTERS["TAG"]
    request.filter_expression.expression = expression
    if invisible_ms is not None:
        write_duration_ms(request.invisible_duration, invisible_ms)
    if wait_ms is not None:
        write_duration_ms(request.long_polling_timeout, wait_ms)
    return request


async def receive(client: GrpcClient, request: Any) -> list[Any]:
    responses = await client.receive(request)
    assert responses[0].WhichOneof("content") == "status"
    if codes([responses[0].status]) == ["MESSAGE_NOT_FOUND"]:
        assert len(responses) == 1
        return []
    assert codes([responses[0].status]) == ["OK"]
    assert responses[-1].WhichOneof("content") == "delivery_timestamp"
    return [response.message for response in responses[1:-1]]


async def receive_count(client: GrpcClient, count: int) -> list[Any]:
    found: list[Any] = []
    for _ in range(10):
        found += await receive(client, ask())
        if len(found) >= count:
            return found
    raise AssertionError(f"expected {count} messages, found {len(found)}")


async def ack(client: GrpcClient, *handles: str) -> Any:
    request = client.make("AckMessageRequest", group="G", topic="T")
    for handle in handles:
        request.entries.add(message_id="m", receipt_handle=handle)
    return await client.call("AckMessage", request)


def test_a_message_of_the_other_protocol_comes_as_it_was_sent(tmp_path: Path) -> None:
    async def test(broker: GrpcBroker, client: GrpcClient) -> None:
        properties = {"colour": "blue", "__SHARDINGKEY": "g", "MAX_RECONSUME_TIMES": "3"}
        await send(broker, 1, tags="a", keys=["k1", "k2"], properties=properties)
        (message,) = await receive_count(client, 1)
        system = message.system_properties
        assert message.topic.name == "T"
        assert message.body == b"body 1"
        assert dict(message.user_properties) == {"colour": "blue"}
        assert system.message_id == f"{1:034x}"
        assert (system.tag, list(system.keys)) == ("a", ["k1", "k2"])
        assert system.message_group == "g"
        assert system.delivery_attempt == 1
        assert system.body_digest.type == DIGESTS["MD5"]
        assert system.body_digest.checksum == hashlib.md5(b"body 1").hexdigest().upper()
        assert re.fullmatch("[0-9A-F]{32}", system.body_digest.checksum)
        assert 0 < read_duration_ms(system.invisible_duration) <= 10_000
        response = await ack(client, system.receipt_handle)
        assert codes([response.status, response.entries[0].status]) == ["OK", "OK"]

    with_client(tmp_path, test)


def test_priorities_are_sent_and_received(tmp_path: Path) -> None:
    async def test(broker: GrpcBroker, client: GrpcClient) -> None:
        broker.services.topics.update_topic(
            TopicConfig(
                topic_name="T",
                read_queue_nums=3,
                write_queue_nums=3,
                attributes={"message.type": "PRIORITY"},
            )
        )
        for number, priority in enumerate((0, 2, 7, 1)):
            request = find_message("SendMessageRequest")()
            message = request.messages.add(body=b"body")
            message.topic.name = "T"
            message.system_properties.message_id = f"{number:034x}"
            message.system_properties.priority = priority
            response = await client.call("SendMessage", request)
            assert codes([response.status]) == ["OK"]
        store = broker.services.store
        assert isinstance(store, DefaultMessageStore)
        store.wait_until_dispatched()
        received = await receive(client, ask())
        assert [message.system_properties.priority for message in received] == [2, 7, 1, 0]
        assert {message.system_properties.message_type for message in received} == {
            TYPES["PRIORITY"]
        }
        assert not any(message.user_properties for message in received)

    with_client(tmp_path, test)


def test_a_compressed_body_comes_inflated(tmp_path: Path) -> None:
    async def test(broker: GrpcBroker, client: GrpcClient) -> None:
        for kind in sysflag.CompressionType:
            body = compress(b"body " * 999, kind)
            flag = sysflag.set_compression(0, kind)
            message = Message.create("T", body, queue_id=-1, sys_flag=flag)
            await broker.services.sender.send(SendRequest(group="P", message=message))
        for message in await receive_count(client, 3):
            assert message.body == b"body " * 999
            assert message.system_properties.body_encoding == ENCODINGS["IDENTITY"]

    with_client(tmp_path, test)


def test_a_body_that_does_not_inflate_comes_as_it_is(tmp_path: Path) -> None:
    async def test(broker: GrpcBroker, client: GrpcClient) -> None:
        message = Message.create("T", b"not zlib", queue_id=-1, sys_flag=sysflag.COMPRESSED)
        await broker.services.sender.send(SendRequest(group="P", message=message))
        (message,) = await receive_count(client, 1)
        assert message.body == b"not zlib"

    with_client(tmp_path, test)


@pytest.mark.parametrize("name", ["TIMER_DELIVER_MS", "TIMER_OUT_MS", "DLQ_ORIGIN_TOPIC"])
@pytest.mark.parametrize("value", ["9" * 30, "9" * 15, "x", "-1", "\u0663", "\ufffd"])
def test_no_property_keeps_a_message_from_its_consumer(
    tmp_path: Path, name: str, value: str
) -> None:
    async def test(broker: GrpcBroker, client: GrpcClient) -> None:
        message = Message.create("T", b"odd", queue_id=0, properties={name: value})
        result = broker.services.store.put_message(message)
        assert result.status is PutMessageStatus.PUT_OK
        (received,) = await receive_count(client, 1)
        assert received.body == b"odd"

    with_client(tmp_path, test)


def test_without_messages_the_answer_comes_before_the_deadline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consuming, "DEADLINE_MARGIN_MS", 14_900)

    async def test(broker: GrpcBroker, client: GrpcClient) -> None:
        assert await receive(client, ask(wait_ms=50)) == []
        responses = await client.receive(ask(wait_ms=20_000), timeout_s=15)
        assert codes([responses[0].status]) == ["MESSAGE_NOT_FOUND"]
        responses = await client.receive(ask(wait_ms=None), timeout_s=15)
        assert codes([responses[0].status]) == ["MESSAGE_NOT_FOUND"]

    with_client(tmp_path, test)


def test_i07_a_receive_without_time_does_not_wait(tmp_path: Path) -> None:
    async def test(broker: GrpcBroker, client: GrpcClient) -> None:
        call = Call({"x-mq-client-id": "c"}, deadline_s=asyncio.get_running_loop().time())
        for request in (ask(wait_ms=20_000), ask(wait_ms=None)):
            async with (
                asyncio.timeout(12),  # well below the time of the poll
                aclosing(broker.service.stream("ReceiveMessage", request, call)) as responses,
            ):
                statuses = [response.status async for response in responses]
            assert codes(statuses) == ["MESSAGE_NOT_FOUND"]

    with_client(tmp_path, test)


@pytest.mark.parametrize(
    ("version", "code"),
    [
        ("", "BAD_REQUEST"),
        ("5.0.2", "BAD_REQUEST"),
        ("5.0.3", "ILLEGAL_POLLING_TIME"),
        ("5.0.8", "ILLEGAL_POLLING_TIME"),
    ],
)
def test_a_call_with_less_time_than_the_shortest_wait_is_refused(
    tmp_path: Path, version: str, code: str
) -> None:
    """As in Java's proxy, a ReceiveMessage call is refused if its deadline is earlier than the
    shortest wait."""

    async def test(broker: GrpcBroker, client: GrpcClient) -> None:
        broker.services.settings.grpc_min_long_polling_ms = 5_000
        metadata = {"x-mq-client-id": "c", "x-mq-client-version": version}
        for wait_ms in (0, 1_000, 20_000, None):
            deadline_s = asyncio.get_running_loop().time() + 4.9
            call = Call(metadata, deadline_s=deadline_s)
            async with aclosing(
                broker.service.stream("ReceiveMessage", ask(wait_ms=wait_ms), call)
            ) as responses:
                statuses = [response.status async for response in responses]
            assert codes(statuses) == [code]
            assert statuses[0].message.startswith("The deadline time remaining is not enough")

    with_client(tmp_path, test)


def test_a_consumer_that_waits_gets_the_message_that_comes(tmp_path: Path) -> None:
    async def test(broker: GrpcBroker, client: GrpcClient) -> None:
        waiting = asyncio.create_task(receive(client, ask(wait_ms=15_000)))
        await asyncio.sleep(0.1)
        await send(broker, 1)
        assert [message.body for message in await waiting] == [b"body 1"]

    with_client(tmp_path, test)


def test_a_consumer_that_waits_is_answered_when_the_service_stops(tmp_path: Path) -> None:
    async def test(broker: GrpcBroker, client: GrpcClient) -> None:
        waiting = asyncio.create_task(receive(client, ask(wait_ms=18_000)))
        for _ in range(1000):
            if broker.services.hold.count:
                break
            await asyncio.sleep(0.01)
        async with asyncio.timeout(10):
            await broker.service.stop()
            assert await waiting == []

    with_client(tmp_path, test)


def test_tags_and_sql_choose_messages(tmp_path: Path) -> None:
    async def test(broker: GrpcBroker, client: GrpcClient) -> None:
        for number, tag in enumerate("abc"):
            await send(broker, number, tags=tag)
        (message,) = await receive(client, ask(expression="b || d"))
        assert message.system_properties.tag == "b"
        request = ask(expression="this is no (expression")
        request.filter_expression.type = FILTERS["SQL"]
        (response,) = await client.receive(request)
        assert codes([response.status]) == ["ILLEGAL_FILTER_EXPRESSION"]

    with_client(tmp_path, test)


def test_a_handle_is_good_once(tmp_path: Path) -> None:
    async def test(broker: GrpcBroker, client: GrpcClient) -> None:
        await send(broker, 1)
        (message,) = await receive_count(client, 1)
        handle = message.system_properties.receipt_handle
        response = await ack(client, handle, "nonsense")
        assert codes([response.status]) == ["MULTIPLE_RESULTS"]
        assert codes([entry.status for entry in response.entries]) == [
            "OK",
            "INVALID_RECEIPT_HANDLE",
        ]
        status = (await ack(client, handle)).status
        assert codes([status]) == ["INVALID_RECEIPT_HANDLE"]
        assert status.message == "INVALID_RECEIPT_HANDLE"  # as Java: clients show the text

    with_client(tmp_path, test)


def test_a_new_invisible_time_has_a_new_handle_and_is_a_second_at_least(tmp_path: Path) -> None:
    async def test(broker: GrpcBroker, client: GrpcClient) -> None:
        await send(broker, 1)
        (message,) = await receive_count(client, 1)
        old = message.system_properties.receipt_handle
        request = client.make(
            "ChangeInvisibleDurationRequest", group="G", topic="T", receipt_handle=old
        )
        began_ms = broker.services.clock.monotonic_ms()
        response = await client.call("ChangeInvisibleDuration", request)
        assert codes([response.status]) == ["OK"]
        assert response.receipt_handle not in {"", old}
        again = await client.call("ChangeInvisibleDuration", request)
        assert codes([again.status]) == ["INVALID_RECEIPT_HANDLE"]
        (message,) = await receive_count(client, 1)
        assert broker.services.clock.monotonic_ms() - began_ms >= 990
        assert message.system_properties.delivery_attempt == 2

    with_client(tmp_path, test)


def test_a_suspended_message_comes_again_with_the_same_attempt(tmp_path: Path) -> None:
    async def test(broker: GrpcBroker, client: GrpcClient) -> None:
        await send(broker, 1)
        for attempt, is_suspended in ((1, True), (1, False), (2, False)):
            (message,) = await receive_count(client, 1)
            assert message.system_properties.delivery_attempt == attempt
            request = client.make(
                "ChangeInvisibleDurationRequest",
                group="G",
                topic="T",
                receipt_handle=message.system_properties.receipt_handle,
                suspend=is_suspended,
            )
            response = await client.call("ChangeInvisibleDuration", request)
            assert codes([response.status]) == ["OK"]

    with_client(tmp_path, test)


def test_a_consumer_makes_a_message_a_dead_letter(tmp_path: Path) -> None:
    async def test(broker: GrpcBroker, client: GrpcClient) -> None:
        await send(broker, 1, tags="a")
        (message,) = await receive_count(client, 1)
        request = client.make(
            "ForwardMessageToDeadLetterQueueRequest",
            group="G",
            topic="T",
            receipt_handle=message.system_properties.receipt_handle,
        )
        response = await client.call("ForwardMessageToDeadLetterQueue", request)
        assert codes([response.status]) == ["OK"]
        request = ask()
        request.message_queue.topic.name = "%DLQ%G"
        (dead,) = await receive(client, request)
        assert dead.body == b"body 1"
        assert dead.system_properties.dead_letter_queue.topic == "T"

    with_client(tmp_path, test)


@pytest.mark.parametrize(
    ("invisible_ms", "text"),
    [
        (None, "the invisibleTime is too small. min is 10000"),
        (0, "the invisibleTime is too small. min is 10000"),
        (9_999, "the invisibleTime is too small. min is 10000"),
        (12 * 3_600_000 + 1, "the invisibleTime is too large. max is 43200000"),
    ],
)
def test_an_illegal_invisible_time_is_refused_with_javas_text(
    tmp_path: Path, invisible_ms: int | None, text: str
) -> None:
    async def test(broker: GrpcBroker, client: GrpcClient) -> None:
        (response,) = await client.receive(ask(invisible_ms=invisible_ms))
        assert codes([response.status]) == ["ILLEGAL_INVISIBLE_TIME"]
        assert response.status.message == text

    with_client(tmp_path, test)


@pytest.mark.parametrize(
    ("invisible_ms", "text"),
    [
        (-1, "the invisibleTime is too small. min is 0"),
        (12 * 3_600_000 + 1, "the invisibleTime is too large. max is 43200000"),
    ],
)
def test_an_illegal_new_invisible_time_is_refused_with_javas_text(
    tmp_path: Path, invisible_ms: int, text: str
) -> None:
    async def test(broker: GrpcBroker, client: GrpcClient) -> None:
        await send(broker, 1)
        (message,) = await receive_count(client, 1)
        request = client.make(
            "ChangeInvisibleDurationRequest",
            group="G",
            topic="T",
            receipt_handle=message.system_properties.receipt_handle,
        )
        write_duration_ms(request.invisible_duration, invisible_ms)
        status = (await client.call("ChangeInvisibleDuration", request)).status
        assert (codes([status]), status.message) == (["ILLEGAL_INVISIBLE_TIME"], text)

    with_client(tmp_path, test)


def test_an_attempt_id_that_is_too_long_is_refused(tmp_path: Path) -> None:
    async def test(broker: GrpcBroker, client: GrpcClient) -> None:
        (response,) = await client.receive(ask(attempt_id="a" * 257))
        assert codes([response.status]) == ["BAD_REQUEST"]
        await send(broker, 1)
        assert len(await receive(client, ask(attempt_id="a" * 256))) == 1

    with_client(tmp_path, test)


def test_a_topic_that_may_not_be_read_is_refused(tmp_path: Path) -> None:
    async def test(broker: GrpcBroker, client: GrpcClient) -> None:
        await send(broker, 1)
        broker.services.topics.update_topic(
            TopicConfig(topic_name="T", read_queue_nums=2, write_queue_nums=2, perm=2)
        )
        (response,) = await client.receive(ask(wait_ms=0))
        assert codes([response.status]) == ["FORBIDDEN"]

    with_client(tmp_path, test)


def test_an_unknown_topic_and_a_group_that_may_not_consume(tmp_path: Path) -> None:
    async def test(broker: GrpcBroker, client: GrpcClient) -> None:
        request = ask()
        request.message_queue.topic.name = "unknown"
        (response,) = await client.receive(request)
        assert codes([response.status]) == ["TOPIC_NOT_FOUND"]
        broker.services.groups.update_group(
            SubscriptionGroupConfig(group_name="G", consume_enable=False)
        )
        (response,) = await client.receive(ask())
        assert codes([response.status]) == ["FORBIDDEN"]

    with_client(tmp_path, test)


def test_one_message_group_comes_one_message_after_the_other(tmp_path: Path) -> None:
    async def test(broker: GrpcBroker, client: GrpcClient) -> None:
        for number in range(3):
            await send(broker, number, properties={"__SHARDINGKEY": "g"})
        store = broker.services.store
        assert isinstance(store, DefaultMessageStore)
        await asyncio.to_thread(store.wait_until_dispatched)
        first = await receive(client, ask(invisible_ms=None, auto_renew=True))
        assert [message.body for message in first] == [b"body 0", b"body 1", b"body 2"]
        assert await receive(client, ask(wait_ms=100)) == []

    with_client(tmp_path, test, consume_message_orderly=True)


def test_i07_many_polls_that_wait_end_with_their_connections(tmp_path: Path) -> None:
    async def test(broker: GrpcBroker, client: GrpcClient) -> None:
        async def poll(one: GrpcClient) -> None:
            with pytest.raises((grpc.aio.AioRpcError, asyncio.CancelledError)):
                await one.receive(ask(wait_ms=20_000))

        async with broker.client("other") as other:
            polls = [asyncio.create_task(poll(other)) for _ in range(100)]
            await asyncio.sleep(0.3)
        await asyncio.gather(*polls)
        for _ in range(1000):
            if broker.services.hold.count == 0:
                break
            await asyncio.sleep(0.01)
        await send(broker, 1)
        (message,) = await receive_count(client, 1)
        assert message.system_properties.delivery_attempt == 1

    with_client(tmp_path, test)


def ask_as(client_id: str, broker: GrpcBroker, request: Any) -> AsyncGenerator[Any, None]:
    return broker.service.stream("ReceiveMessage", request, Call({"x-mq-client-id": client_id}))


def test_a_client_that_goes_before_the_first_response_leaves_its_messages(tmp_path: Path) -> None:
    async def test(broker: GrpcBroker, client: GrpcClient) -> None:
        await send(broker, 1)
        responses = ask_as("gone", broker, ask())
        assert codes([(await anext(responses)).status]) == ["OK"]
        await responses.aclose()
        (message,) = await receive(client, ask(wait_ms=0))
        assert message.system_properties.delivery_attempt == 1

    with_client(tmp_path, test)


def test_a_call_that_is_cancelled_when_it_has_its_messages_gives_them_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(broker: GrpcBroker, client: GrpcClient) -> None:
        await send(broker, 1)
        taken = broker.services.receive.receive

        async def take_and_end(request: ReceiveRequest) -> list[Received]:
            received = await taken(request)
            # The call ends when these are there, and before it looks at them.
            asyncio.get_running_loop().call_soon(call.cancel)
            return received

        async def run() -> None:
            async with aclosing(ask_as("gone", broker, ask())) as responses:
                async for _ in responses:
                    pass

        with monkeypatch.context() as patch:
            patch.setattr(broker.services.receive, "receive", take_and_end)
            call = asyncio.ensure_future(run())
            with pytest.raises(asyncio.CancelledError):
                await call
        (message,) = await receive(client, ask(wait_ms=0))
        assert message.system_properties.delivery_attempt == 1

    with_client(tmp_path, test)
