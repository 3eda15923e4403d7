"""An operator can ask a gRPC consumer to consume a message directly. The operator needs permission
to read the topic."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

from tests.kit.access import ADMIN, add_user, allow, serving
from tests.kit.grpc_types import find_message
from tests.kit.signed import request_as, sign_call
from tieredstore.broker.grpc.protocol import Call
from tieredstore.broker.grpc.service import Service
from tieredstore.broker.remoting.codes import RequestCode, ResponseCode

EVE = ("eve", "e-secret")


def test_s30_a_grpc_consumer_gets_no_message_of_a_topic_that_the_sender_may_not_read(
    tmp_path: Path,
) -> None:
    async def run() -> None:
        async with serving(tmp_path) as (broker, client):
            fields = {
                "a": "P",
                "b": "secret",
                "c": "TBW102",
                "d": "1",
                "e": "0",
                "f": "0",
                "g": "0",
            }
            code = RequestCode.SEND_MESSAGE_V2
            sent = await request_as(client, *ADMIN, code, fields, b"for others")
            assert sent.code == 0, sent.remark
            await add_user(client, *EVE)
            broker.services.groups.find_group("G")
            allow(broker, [("Group:G", "Sub")])
            settings = find_message("Settings")()
            settings.subscription.group.name = "G"
            first = find_message("TelemetryCommand")(settings=settings)
            said = asyncio.Queue[Any]()
            said.put_nowait(first)

            async def commands() -> AsyncIterator[Any]:
                while True:
                    yield await said.get()

            service = Service(broker.services, access=broker.services.access)
            call = Call(metadata={"x-mq-client-id": "c", **sign_call(*EVE)}, peer="127.0.0.1:5")
            told = asyncio.Queue[str]()

            async def consume() -> None:
                async with aclosing(service.stream("Telemetry", commands(), call)) as answers:
                    async for answer in answers:
                        told.put_nowait(answer.WhichOneof("command"))

            consumer = asyncio.create_task(consume())
            assert await told.get() == "settings"
            asked = {"consumerGroup": "G", "clientId": "c", "msgId": sent.ext_fields["msgId"]}
            code = RequestCode.CONSUME_MESSAGE_DIRECTLY
            answer = await request_as(client, *EVE, code, asked)
            assert answer.code == ResponseCode.NO_PERMISSION, answer.remark
            assert told.empty()
            # Nor if the sender may read it, and the consumer may not.
            answer = await request_as(client, *ADMIN, code, asked)
            assert answer.code == ResponseCode.NO_PERMISSION, answer.remark
            assert told.empty()
            consumer.cancel()

    asyncio.run(run())
