"""A broker that is killed repeatedly delivers every delayed, timed and committed message."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import Any

from tests.kit.clients.broker_process import BrokerProcess
from tests.kit.loops import on_loop
from tests.kit.remoting import RemotingClient
from tieredstore.broker.remoting.command import RemotingCommand
from tieredstore.message.properties import encode_properties
from tieredstore.message.record import decode_record

SETTINGS = {
    "messageDelayLevel": "1s 2s",
    "transactionTimeOut": "300",
    "transactionCheckInterval": "700",
    "flushConsumerOffsetInterval": "200",
    "defaultTopicQueueNums": "1",
}
ROUNDS = 4
KINDS: list[dict[str, str]] = [
    {"DELAY": "1"},
    {"DELAY": "2"},
    {"TIMER_DELAY_MS": "1500"},
    {"TRAN_MSG": "true", "PGROUP": "g"},
]
WAIT_S = 60.0


async def _send(client: RemotingClient, body: str, properties: dict[str, str]) -> dict[str, str]:
    text = encode_properties({"UNIQ_KEY": body, **properties}).decode()
    fields: dict[str, Any] = {"a": "g", "b": "T", "c": "TBW102", "d": 1, "e": 0, "i": text}
    response = await client.request(310, fields, body.encode())
    assert response.code == 0, response
    return response.ext_fields


def _end(client: RemotingClient, physical_offset: str, queue_offset: str) -> None:
    fields = {
        "producerGroup": "g",
        "commitLogOffset": physical_offset,
        "tranStateTableOffset": queue_offset,
        "commitOrRollback": 8,
    }
    client.send_one_way(37, fields)


async def _commit_when_asked(client: RemotingClient) -> None:
    while True:
        asked: RemotingCommand = await client.next_call()
        if asked.code == 39:
            assert decode_record(asked.body_bytes).topic == "T"
            fields = asked.ext_fields
            _end(client, fields["commitLogOffset"], fields["tranStateTableOffset"])


async def _read_all(client: RemotingClient) -> list[str]:
    bodies: list[str] = []
    offset = 0
    while True:
        fields = {
            "consumerGroup": "c",
            "topic": "T",
            "queueId": 0,
            "queueOffset": offset,
            "maxMsgNums": 32,
            "sysFlag": 4,
            "commitOffset": 0,
            "suspendTimeoutMillis": 0,
            "subscription": "*",
            "subVersion": 0,
        }
        response = await client.request(11, fields)
        if response.code != 0:
            return bodies
        data, position = response.body_bytes, 0
        while position < len(data):
            message = decode_record(data, position)
            bodies.append(bytes(message.body).decode())
            position += message.size
        offset = int(response.ext_fields["nextBeginOffset"])


async def _be_a_producer(client: RemotingClient) -> None:
    beat = {"clientID": "p", "producerDataSet": [{"groupName": "g"}], "consumerDataSet": []}
    assert (await client.request(34, {}, json.dumps(beat).encode())).code == 0


@on_loop
async def test_what_was_acknowledged_comes_though_the_broker_is_killed(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, SETTINGS) as broker:
        acknowledged: set[str] = set()
        for round_number in range(ROUNDS):
            async with await RemotingClient.open(broker.addresses["remoting"]) as client:
                for number in range(40):
                    body = f"{round_number}-{number}"
                    properties = KINDS[number % len(KINDS)]
                    sent = await _send(client, body, properties)
                    acknowledged.add(body)
                    if "TRAN_MSG" in properties and number % 8 == 3:  # others are asked about
                        _end(client, str(int(sent["msgId"][16:], 16)), sent["queueOffset"])
                # The kill meets deliveries, op messages and files at other moments each time.
                await asyncio.sleep(0.1 + 0.65 * round_number)
            await asyncio.to_thread(broker.kill)
            await asyncio.to_thread(broker.start)
        async with await RemotingClient.open(broker.addresses["remoting"]) as client:
            await _be_a_producer(client)
            answering = asyncio.create_task(_commit_when_asked(client))
            until = time.monotonic() + WAIT_S
            found: list[str] = []
            while acknowledged - set(found) and time.monotonic() < until:
                await asyncio.sleep(0.3)
                found = await _read_all(client)
            answering.cancel()
        assert acknowledged - set(found) == set()
        assert set(found) <= acknowledged
