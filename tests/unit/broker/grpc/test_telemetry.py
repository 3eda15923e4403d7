"""Tests of telemetry streams: settings, sessions, and limits."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from tests.kit.grpc_broker import CODES, GrpcBroker, GrpcClient, codes, serving_grpc
from tests.kit.grpc_types import find_message, list_values
from tieredstore.broker.clients.session import TelemetryClient, VerifyResult
from tieredstore.broker.grpc import telemetry
from tieredstore.broker.grpc.message_types import Settings, TelemetryCommand
from tieredstore.broker.hosts import HostShares
from tieredstore.broker.state.groups import SubscriptionGroupConfig
from tieredstore.errors import Busy, Invalid, Unavailable
from tieredstore.message.encoding import Message
from tieredstore.message.record import StoredMessage

LANGUAGES = list_values("Language")


def with_client(
    root: Path, test: Callable[[GrpcBroker, GrpcClient], Awaitable[None]], **properties: str
) -> None:
    async def run() -> None:
        async with serving_grpc(root, properties) as broker, broker.client("c1") as client:
            await test(broker, client)

    asyncio.run(run())


def consumer_settings(group: str = "G", language: str = "JAVA") -> Any:
    settings = Settings()
    settings.user_agent.language = LANGUAGES[language]
    settings.subscription.group.name = group
    entry = settings.subscription.subscriptions.add()
    entry.topic.name = "T"
    entry.expression.expression = "a || b"
    return settings


def producer_settings(topic: str = "T") -> Any:
    settings = Settings()
    settings.publishing.topics.add().name = topic
    return settings


async def exchange(stream: Any, settings: Any) -> Any:
    await stream.write(TelemetryCommand(settings=settings))
    return await stream.read()


async def until(condition: Callable[[], bool]) -> None:
    for _ in range(2000):
        if condition():
            return
        await asyncio.sleep(0.005)
    raise AssertionError("it did not come to that")


def test_a_producer_is_told_its_limits(tmp_path: Path) -> None:
    async def test(broker: GrpcBroker, client: GrpcClient) -> None:
        stream = client.open_telemetry()
        answer = await exchange(stream, producer_settings())
        assert codes([answer.status]) == ["OK"]
        merged = answer.settings
        assert merged.publishing.max_body_size == 4 << 20
        assert [topic.name for topic in merged.publishing.topics] == ["T"]
        assert merged.backoff_policy.max_attempts == 3
        assert merged.backoff_policy.WhichOneof("strategy") == "exponential_backoff"
        session = broker.services.producers.find_session("T")
        assert session is not None
        assert session.client_id == "c1"

    with_client(tmp_path, test)


@pytest.mark.parametrize(
    ("file_bytes", "told"),
    [(4 << 20, (4 << 20) - 8 - 65_536), (1 << 20, (1 << 20) - 8 - 65_536), (32_768, 16_380)],
)
def test_a_producer_is_told_of_no_larger_body_than_a_file_of_the_log_takes(
    tmp_path: Path, file_bytes: int, told: int
) -> None:
    """The body limit sent to producers fits into a commit log file, even with all possible
    properties."""

    async def test(broker: GrpcBroker, client: GrpcClient) -> None:
        answer = await exchange(client.open_telemetry(), producer_settings())
        assert answer.settings.publishing.max_body_size == told
        request = find_message("SendMessageRequest")()
        message = request.messages.add(body=bytes(told))
        message.topic.name = "T"
        message.system_properties.message_id = "01" * 17
        for number in range(100 if told > 65_536 else 10):
            message.user_properties[f"name-{number:03d}"] = "v" * 140
        assert codes([(await client.call("SendMessage", request)).status]) == ["OK"]

    with_client(tmp_path, test, mappedFileSizeCommitLog=str(file_bytes))


@pytest.mark.parametrize(
    ("language", "strategy"),
    [
        ("JAVA", "customized_backoff"),
        ("PYTHON", "customized_backoff"),
        ("GOLANG", "customized_backoff"),
        ("NODE_JS", "exponential_backoff"),
    ],
)
def test_each_language_gets_the_backoff_that_it_reads(
    tmp_path: Path, language: str, strategy: str
) -> None:
    async def test(broker: GrpcBroker, client: GrpcClient) -> None:
        broker.services.groups.update_group(
            SubscriptionGroupConfig(group_name="G", retry_max_times=4, consume_message_orderly=True)
        )
        answer = await exchange(client.open_telemetry(), consumer_settings(language=language))
        policy = answer.settings.backoff_policy
        assert policy.WhichOneof("strategy") == strategy
        assert policy.max_attempts == 5
        first = (
            policy.exponential_backoff.initial
            if strategy == "exponential_backoff"
            else policy.customized_backoff.next[0]
        )
        assert first.seconds == 1
        subscription = answer.settings.subscription
        assert subscription.fifo
        assert subscription.receive_batch_size == 32
        assert subscription.long_polling_timeout.seconds == 20

    with_client(tmp_path, test)


def test_a_consumer_is_a_member_of_its_group_while_its_stream_lives(tmp_path: Path) -> None:
    async def test(broker: GrpcBroker, client: GrpcClient) -> None:
        stream = client.open_telemetry()
        await exchange(stream, consumer_settings())
        consumers = broker.services.consumers
        assert consumers.list_client_ids("G") == ["c1"]
        subscription, group = consumers.find_subscription("G", "T"), consumers.find_group("G")
        assert subscription is not None
        assert subscription.tags == {"a", "b"}
        assert group is not None
        session = group.sessions[0]
        assert (session.language, session.address.rpartition(":")[0]) == ("JAVA", "127.0.0.1")
        stream.cancel()
        await until(lambda: not consumers.list_client_ids("G"))
        await until(lambda: len(broker.service.sessions) == 0)

    with_client(tmp_path, test)


def test_a_client_that_goes_is_forgotten_at_once(tmp_path: Path) -> None:
    async def test(broker: GrpcBroker, client: GrpcClient) -> None:
        await exchange(client.open_telemetry(), consumer_settings())
        response = await client.call(
            "NotifyClientTermination", client.make("NotifyClientTerminationRequest", group="G")
        )
        assert codes([response.status]) == ["OK"]
        assert broker.services.consumers.list_client_ids("G") == []
        request = client.make("HeartbeatRequest", group="G")
        assert codes([(await client.call("Heartbeat", request)).status]) == ["OK"]

    with_client(tmp_path, test)


def test_settings_with_an_illegal_group_are_refused_and_the_stream_goes_on(tmp_path: Path) -> None:
    async def test(broker: GrpcBroker, client: GrpcClient) -> None:
        stream = client.open_telemetry()
        answer = await exchange(stream, consumer_settings(group="../G"))
        assert codes([answer.status]) == ["ILLEGAL_CONSUMER_GROUP"]
        answer = await exchange(stream, consumer_settings())
        assert codes([answer.status]) == ["OK"]

    with_client(tmp_path, test)


def test_a_client_without_an_id_is_refused(tmp_path: Path) -> None:
    async def test(broker: GrpcBroker, client: GrpcClient) -> None:
        async with broker.client("") as nameless:
            answer = await nameless.open_telemetry().read()
            assert codes([answer.status]) == ["CLIENT_ID_REQUIRED"]
            request = nameless.make("HeartbeatRequest", group="G")
            response = await nameless.call("Heartbeat", request)
            assert codes([response.status]) == ["CLIENT_ID_REQUIRED"]

    with_client(tmp_path, test)


def test_a_call_that_is_not_served_is_unimplemented(tmp_path: Path) -> None:
    async def test(broker: GrpcBroker, client: GrpcClient) -> None:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await client.call("QueryOffset", find_message("QueryOffsetRequest")())
        assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED

    with_client(tmp_path, test)


def test_i07_a_half_closed_stream_ends(tmp_path: Path) -> None:
    async def test(broker: GrpcBroker, client: GrpcClient) -> None:
        stream = client.open_telemetry()
        await exchange(stream, consumer_settings())
        await stream.done_writing()
        assert await stream.read() is grpc.aio.EOF
        await until(lambda: len(broker.service.sessions) == 0)
        assert broker.services.consumers.list_client_ids("G") == []

    with_client(tmp_path, test)


def test_i07_a_stream_without_settings_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(telemetry, "FIRST_COMMAND_TIMEOUT_S", 0.05)

    async def test(broker: GrpcBroker, client: GrpcClient) -> None:
        assert await client.open_telemetry().read() is grpc.aio.EOF
        await until(lambda: len(broker.service.sessions) == 0)

    with_client(tmp_path, test)


def test_i07_more_telemetry_streams_than_allowed_are_refused(tmp_path: Path) -> None:
    async def test(broker: GrpcBroker, client: GrpcClient) -> None:
        broker.service.sessions._shares = HostShares(40)
        streams = [client.open_telemetry() for _ in range(30)]
        for stream in streams:
            await exchange(stream, producer_settings())
        answer = await client.open_telemetry().read()
        assert codes([answer.status]) == ["TOO_MANY_REQUESTS"]
        streams[0].cancel()
        await until(lambda: len(broker.service.sessions) == 29)
        answer = await exchange(client.open_telemetry(), producer_settings())
        assert codes([answer.status]) == ["OK"]

    with_client(tmp_path, test)


def test_i07_a_deadline_of_zero_is_over_and_leaves_nothing(tmp_path: Path) -> None:
    async def test(broker: GrpcBroker, client: GrpcClient) -> None:
        for _ in range(20):
            with suppress(grpc.aio.AioRpcError):  # it may be answered all the same
                await client.call("Heartbeat", client.make("HeartbeatRequest"), timeout_s=0)
            stream = client.open_telemetry(timeout_s=0)
            assert await stream.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        await until(lambda: len(broker.service.sessions) == 0)

    with_client(tmp_path, test)


def test_the_server_stops_with_streams_open(tmp_path: Path) -> None:
    async def run() -> None:
        async with serving_grpc(tmp_path) as broker, broker.client() as client:
            stream = client.open_telemetry()
            await exchange(stream, producer_settings())
            await broker.service.stop()
            assert await stream.read() is grpc.aio.EOF

    asyncio.run(run())


def find_member(broker: GrpcBroker) -> TelemetryClient:
    group = broker.services.consumers.find_group("G")
    assert group is not None
    [member] = group.sessions
    assert isinstance(member, TelemetryClient)
    return member


def put(broker: GrpcBroker) -> StoredMessage:
    store = broker.services.store
    result = store.put_message(Message.create("T", b"body", tags="a", keys=["k"]))
    found = store.look_message_by_offset(result.physical_offset)
    assert found is not None
    return found


VERDICTS = {
    "OK": ("CR_SUCCESS", ""),
    "FAILED_TO_CONSUME_MESSAGE": ("CR_LATER", ""),
    "MESSAGE_CORRUPTED": ("CR_RETURN_NULL", ""),
    "NOT_IMPLEMENTED": (None, "NOT_IMPLEMENTED: why"),
}


@pytest.mark.parametrize("code", VERDICTS)
def test_a_consumer_is_told_to_consume_one_message(tmp_path: Path, code: str) -> None:
    async def test(broker: GrpcBroker, client: GrpcClient) -> None:
        stream = client.open_telemetry()
        await exchange(stream, consumer_settings())
        stored = put(broker)
        asked = asyncio.ensure_future(find_member(broker).verify_message(stored, 60_000))
        command = (await stream.read()).verify_message_command
        message = command.message
        assert (message.body, message.topic.name) == (b"body", "T")
        assert message.system_properties.message_id == stored.msg_id
        assert message.system_properties.delivery_attempt == 1
        assert (message.system_properties.tag, message.system_properties.keys) == ("a", ["k"])
        answer = TelemetryCommand()
        answer.status.code, answer.status.message = CODES[code], "why"
        answer.verify_message_result.nonce = "another's"
        await stream.write(answer)
        answer.verify_message_result.nonce = command.nonce
        await stream.write(answer)
        assert await asked == VerifyResult(*VERDICTS[code])
        await stream.write(answer)  # too late, and the stream continues
        assert codes([(await exchange(stream, consumer_settings())).status]) == ["OK"]

    with_client(tmp_path, test)


def test_a_consumer_tells_what_its_threads_do(tmp_path: Path) -> None:
    async def test(broker: GrpcBroker, client: GrpcClient) -> None:
        stream = client.open_telemetry()
        await exchange(stream, consumer_settings())
        for code in ("OK", "NOT_IMPLEMENTED"):
            asked = asyncio.ensure_future(find_member(broker).print_thread_stacks(60_000))
            command = (await stream.read()).print_thread_stack_trace_command
            answer = TelemetryCommand()
            answer.status.code = CODES[code]
            answer.thread_stack_trace.nonce = command.nonce
            answer.thread_stack_trace.thread_stack_trace = "main waits"
            await stream.write(answer)
            if code == "OK":
                assert await asked == "main waits"
            else:
                with pytest.raises(Invalid, match=code):
                    await asked

    with_client(tmp_path, test)


def test_a_consumer_that_says_nothing_is_not_waited_for(tmp_path: Path) -> None:
    async def test(broker: GrpcBroker, client: GrpcClient) -> None:
        stream = client.open_telemetry()
        await exchange(stream, consumer_settings())
        member = find_member(broker)
        with pytest.raises(Unavailable, match="no answer in 1 ms"):
            await member.print_thread_stacks(1)
        asked = [asyncio.ensure_future(member.print_thread_stacks(600_000)) for _ in range(65)]
        with pytest.raises(Busy, match="64 commands wait"):
            await asked[-1]
        stream.cancel()
        for one in asked[:-1]:
            with pytest.raises(Unavailable, match="stream has ended"):
                await one

    with_client(tmp_path, test)


def test_s81_the_settings_of_a_client_are_limited(tmp_path: Path) -> None:
    async def test(broker: GrpcBroker, client: GrpcClient) -> None:
        stream = client.open_telemetry()
        large = producer_settings()
        large.user_agent.hostname = "h" * telemetry.MAX_SETTINGS_BYTES
        assert codes([(await exchange(stream, large)).status]) == ["BAD_REQUEST"]
        assert broker.services.producers.list_groups() == {}
        for number, code in ((0, "OK"), (1, "BAD_REQUEST")):
            many = Settings()
            for count in range(1_000):
                many.publishing.topics.add().name = f"T{number}-{count}"
            for _ in range(9 * (1 - number)):
                assert codes([(await exchange(stream, many)).status]) == ["OK"]
                for topic in many.publishing.topics:
                    topic.name += "+"
            one = producer_settings(f"{number}")
            for count in range(999 + number):
                one.publishing.topics.add().name = f"{number}-{count}"
            assert codes([(await exchange(stream, one)).status]) == [code]
        assert len(broker.services.producers.list_groups()) == 10_000

    with_client(tmp_path, test)


@pytest.mark.parametrize("namespace", ["../x", "a/b", "a\n", "n" * 300])
def test_i81_a_namespace_has_no_effect(tmp_path: Path, namespace: str) -> None:
    """As in Java's proxy, the namespace of a topic is ignored."""

    async def test(broker: GrpcBroker, client: GrpcClient) -> None:
        settings = producer_settings()
        settings.publishing.topics[0].resource_namespace = namespace
        answer = await exchange(client.open_telemetry(), settings)
        assert codes([answer.status]) == ["OK"]
        assert broker.services.producers.list_groups().keys() == {"T"}

    with_client(tmp_path, test)
