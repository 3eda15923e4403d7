"""The second remoting port, `listenPort` - 2, gives the same replies as Java's."""

from __future__ import annotations

import asyncio
import logging
import socket
from pathlib import Path

import pytest

from tests.kit.remoting import RemotingClient
from tieredstore.broker.remoting.codes import RequestCode, ResponseCode
from tieredstore.cli.remote import BrokerClient
from tieredstore.errors import Unavailable
from tieredstore.testing.broker import Broker

PULL = {
    "consumerGroup": "G",
    "topic": "T",
    "queueId": 0,
    "queueOffset": 0,
    "maxMsgNums": 1,
    "sysFlag": 0,
    "commitOffset": 0,
    "suspendTimeoutMillis": 0,
    "subVersion": 0,
}


def find_fast(address: str) -> str:
    host, _, port = address.rpartition(":")
    return f"{host}:{int(port) - 2}"


def ask(address: str, code: RequestCode, fields: dict[str, object]) -> int:
    async def run() -> int:
        async with await RemotingClient.open(address) as client:
            return (await client.request(code, fields)).code

    return asyncio.run(run())


POP = {"consumerGroup": "G", "topic": "T", "queueId": 0, "maxMsgNums": 1}
DELIVERY = {**POP, "offset": 0, "extraInfo": "0 1 1 0 0 b", "invisibleTime": 1}


def test_all_requests_but_pulls_are_answered() -> None:
    with Broker() as broker:
        fast = find_fast(broker.remoting)
        with BrokerClient(fast) as client:
            client.send("T", b"by the second port", {})
        refused = ResponseCode.REQUEST_CODE_NOT_SUPPORTED
        assert ask(broker.remoting, RequestCode.PULL_MESSAGE, PULL) != refused
        assert ask(fast, RequestCode.PULL_MESSAGE, PULL) == refused
        assert ask(fast, RequestCode.LITE_PULL_MESSAGE, PULL) == refused
        for code in (
            RequestCode.POP_MESSAGE,
            RequestCode.PEEK_MESSAGE,
            RequestCode.NOTIFICATION,
            RequestCode.POLLING_INFO,
        ):
            assert ask(broker.remoting, code, POP) != refused
            assert ask(fast, code, POP) == refused
        for code in (
            RequestCode.ACK_MESSAGE,
            RequestCode.BATCH_ACK_MESSAGE,
            RequestCode.CHANGE_MESSAGE_INVISIBLETIME,
            RequestCode.QUERY_ASSIGNMENT,
            RequestCode.SET_MESSAGE_REQUEST_MODE,
            RequestCode.GET_ALL_MESSAGE_REQUEST_MODE,
            RequestCode.POP_ROLLBACK,
        ):
            assert ask(fast, code, DELIVERY) != refused
        queue = {"topic": "T", "queueId": 0}
        assert ask(fast, RequestCode.GET_MAX_OFFSET, queue) == ResponseCode.SUCCESS


def test_access_is_checked(tmp_path: Path) -> None:
    properties = {
        "authenticationEnabled": "true",
        "authorizationEnabled": "true",
        "initAuthenticationUser": '{"username":"root","password":"of a test"}',
    }
    with Broker(tmp_path, properties=properties) as broker:
        queue = {"topic": "T", "queueId": 0}
        code = ask(find_fast(broker.remoting), RequestCode.GET_MAX_OFFSET, queue)
        assert code == ResponseCode.NO_PERMISSION


def test_a_port_in_use_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    with Broker() as first:
        port = int(first.remoting.rpartition(":")[2])
    with socket.socket() as taken, caplog.at_level(logging.WARNING):
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(("127.0.0.1", port - 2))
        taken.listen()
        with Broker(properties={"listenPort": str(port)}) as broker:
            assert ask(broker.remoting, RequestCode.GET_BROKER_CLUSTER_INFO, {}) == 0
    [warning] = [text for text in caplog.messages if "fastRemotingEnable" in text]
    assert f"127.0.0.1:{port - 2}: cannot listen" in warning


def test_a_key_switches_it_off() -> None:
    with (
        Broker(properties={"fastRemotingEnable": "false"}) as broker,
        pytest.raises(Unavailable),
    ):
        ask(find_fast(broker.remoting), RequestCode.GET_BROKER_CLUSTER_INFO, {})
