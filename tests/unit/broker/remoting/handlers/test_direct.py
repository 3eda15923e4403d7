"""The broker sends requests to connected clients on behalf of other clients, and forwards the
replies."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.kit.consuming import GROUP, TOPIC, ServedBroker, join, play
from tests.kit.local_stores import plain
from tests.kit.remoting import RemotingClient
from tieredstore.broker.remoting.codes import RequestCode, ResponseCode
from tieredstore.broker.remoting.command import RemotingCommand
from tieredstore.message.properties import decode_properties, encode_properties

ASKED = {"consumerGroup": GROUP, "clientId": "c"}


def test_a_live_consumer_is_asked_and_its_answer_passed_on(tmp_path: Path) -> None:
    async def scenario(broker: ServedBroker) -> None:
        await broker.put(plain())
        message = broker.services.store.get_message("x", TOPIC, 0, 0, 1).messages[0]
        async with (
            await RemotingClient.open(broker.address) as consumer,
            await RemotingClient.open(broker.address) as admin,
        ):
            await join(consumer, "c")
            await consumer.next_call()
            consumer.answer(307, lambda asked: RemotingCommand(0, body=b'{"properties":{}}'))
            consumer.answer(309, lambda asked: RemotingCommand(0, body=asked.body))
            info = await admin.request(RequestCode.GET_CONSUMER_RUNNING_INFO, ASKED)
            assert (info.code, info.body_bytes) == (0, b'{"properties":{}}')
            assert (await consumer.next_call()).ext_fields == ASKED
            consumed = await admin.request(
                RequestCode.CONSUME_MESSAGE_DIRECTLY,
                ASKED | {"msgId": message.offset_message_id, "topic": TOPIC},
            )
            assert consumed.body_bytes == bytes(message.raw)
            assert (await consumer.next_call()).ext_fields["brokerName"] == "b"

    play(tmp_path, scenario)


def test_a_consumer_that_is_not_there_or_does_not_answer_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tieredstore.broker.remoting.handlers.direct.CALL_TIMEOUT_MS", 50)

    async def scenario(broker: ServedBroker) -> None:
        async with await RemotingClient.open(broker.address) as client:
            info = RequestCode.GET_CONSUMER_RUNNING_INFO
            absent = await client.request(info, ASKED)
            assert absent.code == ResponseCode.SYSTEM_ERROR
            assert "not online" in str(absent.remark)
            await join(client, "c")
            assert (await client.request(info, ASKED)).code == ResponseCode.CONSUME_MSG_TIMEOUT
            for message_id in ("x", "7F00000100002A9F0000000000001000"):
                lost = await client.request(
                    RequestCode.CONSUME_MESSAGE_DIRECTLY, ASKED | {"msgId": message_id}
                )
                assert lost.code in (ResponseCode.INVALID_PARAMETER, ResponseCode.SYSTEM_ERROR)

    play(tmp_path, scenario)


def test_a_reply_reaches_the_client_that_waits_for_it_and_is_kept(tmp_path: Path) -> None:
    async def scenario(broker: ServedBroker) -> None:
        services = broker.services
        reply = {
            "a": "p",
            "b": "DefaultCluster_REPLY_TOPIC",
            "c": "TBW102",
            "d": 4,
            "e": 0,
            "f": 0,
            "g": 1_700_000_000_000,
            "h": 0,
        }
        properties = {"REPLY_TO_CLIENT": "asker", "CORRELATION_ID": "7"}
        async with (
            await RemotingClient.open(broker.address) as asker,
            await RemotingClient.open(broker.address) as answerer,
        ):
            await join(asker, "asker", producer="p")
            await asker.next_call()
            asker.answer(326, lambda pushed: RemotingCommand(0))

            async def send(**changed: str) -> RemotingCommand:
                text = encode_properties(properties | changed).decode()
                return await answerer.request(
                    RequestCode.SEND_REPLY_MESSAGE_V2, reply | {"i": text}, b"pong"
                )

            assert (await send()).code == ResponseCode.SUCCESS
            pushed = await asker.next_call()
            assert (pushed.code, pushed.body_bytes) == (326, b"pong")
            assert pushed.ext_fields["bornHost"] == answerer_address(answerer)
            told = decode_properties(pushed.ext_fields["properties"].encode())
            assert told["CORRELATION_ID"] == "7"
            assert int(told["PUSH_REPLY_TIME"]) > 0
            refused = await send(REPLY_TO_CLIENT="absent")
            assert refused.code == ResponseCode.SYSTEM_ERROR
            asker.answer(326, lambda pushed: RemotingCommand(1, remark="no"))
            assert (await send()).code == ResponseCode.SYSTEM_ERROR
        topic = "DefaultCluster_REPLY_TOPIC"
        while services.store.get_max_offset_in_queue(topic, 0) < 3:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
        kept = services.store.get_message("x", topic, 0, 0, 9).messages
        assert [message.body for message in kept] == [b"pong"] * 3

    play(tmp_path, scenario)


def answerer_address(client: RemotingClient) -> str:
    transport = client.connection._transport
    assert transport is not None
    host, port = transport.get_extra_info("sockname")
    return f"{host}:{port}"
