"""Checks that a broker keeps its promises after a power cut."""

from __future__ import annotations

import asyncio

from tests.kit.consuming import split_records
from tests.kit.grpc_broker import GrpcClient
from tests.kit.power_cut.load import (
    DELAYED,
    QUEUES,
    TOPIC,
    TRANSACTIONS,
    Promises,
    list_topics,
    receive,
)
from tests.kit.remoting import RemotingClient

LATER_S = 5.0
"""Maximum time in seconds for the delivery of delayed messages and transactions."""
_TRIES = 40


async def find_broken(
    promises: Promises, sent: set[bytes], remoting: str, grpc: str
) -> dict[str, int]:
    """Return the number of broken promises by kind. `sent` has the bodies of all messages that were
    sent."""
    broken: dict[str, int] = {}
    async with await RemotingClient.open(remoting) as client:
        found = {queue: await read_queue(client, TOPIC, queue) for queue in range(QUEUES)}
        broken["lost"] = sum(
            found[queue].get(offset) != body for (queue, offset), body in promises.messages.items()
        )
        broken["invented"] = sum(
            body not in sent for bodies in found.values() for body in bodies.values()
        )
        topics = await list_topics(client)
        broken["lost topics"] = len(promises.topics - topics)
        broken["topics that returned"] = len(promises.deleted_topics & topics)
        await asyncio.sleep(LATER_S)
        ended = await _read_topic(client, TRANSACTIONS)
        broken["lost commits"] = len(promises.committed - ended)
        broken["delivered rollbacks"] = len(promises.rolled_back & ended)
        broken["lost delayed"] = len(promises.delayed - await _read_topic(client, DELAYED))
    broken["delivered again"] = len(promises.acknowledged & await _receive_all(grpc))
    return {kind: count for kind, count in broken.items() if count}


async def read_queue(client: RemotingClient, topic: str, queue: int) -> dict[int, bytes]:
    """Read a queue to its end, and return the bodies by offset."""
    found: dict[int, bytes] = {}
    offset = 0
    while True:
        fields = {
            "consumerGroup": "reader",
            "topic": topic,
            "queueId": queue,
            "queueOffset": offset,
            "maxMsgNums": 32,
            "sysFlag": 4,
            "commitOffset": 0,
            "suspendTimeoutMillis": 0,
            "subscription": "*",
            "subVersion": 0,
            "expressionType": "TAG",
        }
        response = await client.request(11, fields)
        if response.code == 0:
            for message in split_records(response.body_bytes):
                found[message.queue_offset] = bytes(message.body)
        following = int(response.ext_fields.get("nextBeginOffset", offset))
        if response.code and following <= offset:
            return found
        offset = following


async def _read_topic(client: RemotingClient, topic: str) -> set[bytes]:
    queues = [await read_queue(client, topic, queue) for queue in range(QUEUES)]
    return {body for found in queues for body in found.values()}


async def _receive_all(grpc: str) -> set[bytes]:
    bodies: set[bytes] = set()
    async with GrpcClient(int(grpc.rpartition(":")[2]), "checker") as client:
        for _ in range(_TRIES):
            messages = await receive(client, wait_ms=200)
            if not messages:
                break
            bodies |= {bytes(message.body) for message in messages}
    return bodies
