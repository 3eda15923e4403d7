"""Tests of queue assignments and of each group's request mode (codes 400 to 402)."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from tests.kit.consuming import GROUP, TOPIC, ServedBroker, join, play, served
from tests.kit.remoting import RemotingClient, register_plain, serve
from tieredstore.broker.remoting.codes import RequestCode
from tieredstore.broker.remoting.command import RemotingCommand
from tieredstore.broker.remoting.connection import Connection
from tieredstore.broker.remoting.handler_table import HandlerTable
from tieredstore.broker.state.topics import TopicConfig

Assigned = list[tuple[str, int, str]]
MODE = {"topic": TOPIC, "consumerGroup": GROUP, "mode": "POP", "popShareQueueNum": 0}


async def assign(client: RemotingClient, **more: object) -> Assigned | None:
    """Return the broker, queue and request mode of each queue assigned to the client. Returns None
    if the reply has no list."""
    body = {
        "topic": TOPIC,
        "consumerGroup": GROUP,
        "clientId": "c",
        "messageModel": "CLUSTERING",
        "strategyName": "AVG",
        **more,
    }
    answer = await client.request(RequestCode.QUERY_ASSIGNMENT, body=json.dumps(body).encode())
    assert answer.code == 0, answer.remark
    found = json.loads(answer.body_bytes)
    if not found:
        return None
    assert all(
        one["messageQueue"]["topic"] == body["topic"] for one in found["messageQueueAssignments"]
    )
    return [
        (one["messageQueue"]["brokerName"], one["messageQueue"]["queueId"], one["mode"])
        for one in found["messageQueueAssignments"]
    ]


async def set_mode(client: RemotingClient, **more: object) -> RemotingCommand:
    body = json.dumps({**MODE, **more}).encode()
    return await client.request(RequestCode.SET_MESSAGE_REQUEST_MODE, body=body)


def all_of(mode: str, *ids: int) -> Assigned:
    return [("b", queue_id, mode) for queue_id in ids or range(4)]


def test_members_get_their_share_and_the_mode_of_the_group(tmp_path: Path) -> None:
    async def scenario(broker: ServedBroker) -> None:
        async with (
            await RemotingClient.open(broker.address) as one,
            await RemotingClient.open(broker.address) as two,
        ):
            assert await assign(one) is None  # no member is known
            await join(one, "c")
            assert await assign(one) == all_of("PULL")
            await join(two, "d")
            assert await assign(one) == all_of("PULL", 0, 1)
            assert await assign(one, clientId="d", strategyName="AVG_BY_CIRCLE") == all_of(
                "PULL", 1, 3
            )
            assert await assign(one, clientId="stranger") == []
            assert await assign(one, strategyName="BY_MOON") is None
            assert await assign(one, topic="unknown") is None
            assert (await set_mode(one)).code == 0
            assert await assign(one) == all_of("POP", -1)
            assert await assign(one, messageModel="BROADCASTING") == all_of("POP")
            retries = await assign(one, topic=f"%RETRY%{GROUP}")
            assert retries is not None
            assert [(queue_id, mode) for _, queue_id, mode in retries] == [(0, "PULL")]

    play(tmp_path, scenario)


def test_defaults_are_settings_and_assignment_can_be_switched_off(tmp_path: Path) -> None:
    async def scenario(broker: ServedBroker) -> None:
        settings = broker.services.settings
        async with await RemotingClient.open(broker.address) as client:
            await join(client, "c", topics=[TOPIC])
            assert await assign(client) == all_of("POP", -1)
            assert await assign(client, topic=f"%RETRY%{GROUP}") == [("b", 0, "PULL")]
            settings.default_message_request_mode = "PULL"
            settings.server_load_balancer_enable = False
            assert await assign(client, clientId="other") == all_of("PULL")

    play(tmp_path, scenario, defaultMessageRequestMode="POP")


def test_a_mode_survives_a_restart_and_ends_with_its_topic_or_group(tmp_path: Path) -> None:
    async def run() -> None:
        async with served(tmp_path) as broker, await RemotingClient.open(broker.address) as client:
            assert (await set_mode(client)).code == 0
            assert (await set_mode(client, consumerGroup="h", mode="PULL")).code == 0
            kept = json.loads((tmp_path / "config" / "messageRequestMode.json").read_bytes())
            assert kept == {
                "messageRequestModeMap": {
                    TOPIC: {
                        GROUP: MODE,
                        "h": {**MODE, "consumerGroup": "h", "mode": "PULL"},
                    }
                }
            }
        async with served(tmp_path) as broker, await RemotingClient.open(broker.address) as client:
            code = RequestCode.GET_ALL_MESSAGE_REQUEST_MODE
            assert json.loads((await client.request(code)).body_bytes) == kept
            fields: dict[str, object] = {"groupName": "h"}
            await client.request(RequestCode.DELETE_SUBSCRIPTIONGROUP, fields)
            table = json.loads((await client.request(code)).body_bytes)["messageRequestModeMap"]
            assert table == {TOPIC: {GROUP: MODE}}
            await client.request(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": TOPIC})
            assert json.loads((await client.request(code)).body_bytes) == {
                "messageRequestModeMap": {}
            }

    asyncio.run(asyncio.wait_for(run(), 120))


@pytest.mark.parametrize(
    ("more", "code"),
    [
        ({"topic": f"%RETRY%{GROUP}"}, 16),
        ({"topic": "unknown"}, 17),
        ({"consumerGroup": "not/a group"}, 26),
        ({"mode": "PUSH"}, 29),
        ({"popShareQueueNum": 1 << 40}, 29),
        ({"topic": None}, 29),
    ],
)
def test_modes_are_refused_with_the_codes_of_java(
    tmp_path: Path, more: dict[str, object], code: int
) -> None:
    async def scenario(broker: ServedBroker) -> None:
        async with await RemotingClient.open(broker.address) as client:
            answer = await set_mode(client, **more)
            assert answer.code == code, answer.remark
            assert broker.services.request_modes.list_modes() == {}

    play(tmp_path, scenario)


def test_queues_of_other_brokers_come_from_the_name_servers(tmp_path: Path) -> None:
    asked: list[str] = []
    code = 0

    def answer(_: Connection, request: RemotingCommand) -> RemotingCommand:
        topic = request.ext_fields["topic"]
        asked.append(topic)
        if code or topic == "nowhere":
            return RemotingCommand(code or 17)
        queues = [
            {"brokerName": name, "readQueueNums": 2, "writeQueueNums": 2, "perm": perm}
            for name, perm in (("a", 6), ("b", 6), ("closed", 2))
        ]
        return RemotingCommand(
            0,
            body=b'{"brokerDatas":[{"brokerAddrs":{0:"x"}}],"queueDatas":%b}'
            % json.dumps(queues).encode(),
        )

    async def run() -> None:
        nonlocal code
        table = HandlerTable()
        register_plain(table, RequestCode.GET_ROUTEINFO_BY_TOPIC, answer)
        register_plain(table, RequestCode.REGISTER_BROKER, lambda *_: RemotingCommand(0))
        register_plain(table, RequestCode.UNREGISTER_BROKER, lambda *_: RemotingCommand(0))
        async with (
            serve(table) as (_, address),
            served(tmp_path, {"namesrvAddr": f"127.0.0.1:1;{address}"}) as broker,
            await RemotingClient.open(broker.address) as client,
        ):
            await join(client, "c")
            expected = [("a", 0, "PULL"), ("a", 1, "PULL"), *all_of("PULL")]
            assert await assign(client) == expected
            assert await assign(client) == expected
            assert asked == [TOPIC]  # the answer counts for 30 s
            others = [("a", 0, "PULL"), ("a", 1, "PULL")]
            assert await assign(client, topic="elsewhere") == others
            assert await assign(client, topic="nowhere") is None
            broker.services.settings.load_balance_poll_name_server_interval_ms = 1
            await asyncio.sleep(0.01)
            code = 1
            assert await assign(client) == expected  # the last answer counts
            broker.services.topics.delete_topic(TOPIC)
            assert await assign(client) == others
            servers = vars(broker.services.topic_queues)["_servers"]
            assert address in servers
            broker.services.settings.namesrv_addr = "127.0.0.1:1"
            assert await assign(client) == others
            assert servers.keys() == {"127.0.0.1:1"}  # the other connection is closed

    asyncio.run(asyncio.wait_for(run(), 120))


def test_the_retry_topic_of_a_group_and_a_topic_has_no_route_and_makes_no_group(
    tmp_path: Path,
) -> None:
    async def scenario(broker: ServedBroker) -> None:
        services = broker.services
        services.topics.update_topic(TopicConfig(topic_name="a_b"))
        async with await RemotingClient.open(broker.address) as client:
            await join(client, "c", topics=[TOPIC, f"%RETRY%{GROUP}_{TOPIC}"])
            for name, code in (
                (f"%RETRY%{GROUP}_{TOPIC}", 17),
                (f"%RETRY%{GROUP}_a_b", 17),
                (f"%RETRY%{GROUP}+{TOPIC}", 17),
                (f"%RETRY%{GROUP}_other", 0),
                (f"%RETRY%{GROUP}", 0),
            ):
                fields: dict[str, object] = {"topic": name}
                answer = await client.request(RequestCode.GET_ROUTEINFO_BY_TOPIC, fields)
                assert answer.code == code, name
            assert f"{GROUP}_{TOPIC}" not in services.groups.list_groups()

    play(tmp_path, scenario)
