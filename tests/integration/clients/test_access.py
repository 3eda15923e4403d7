"""Users and policies by mqadmin 5.5.0, and what clients of both protocols may do then."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import Any

import pytest

from tests.kit.clients.building import python_program
from tests.kit.clients.fixtures import program_or_skip
from tests.kit.clients.program import ClientFailed, Program
from tests.kit.clients.served import our_broker

SETTINGS = {
    "authenticationEnabled": "true",
    "authorizationEnabled": "true",
    "initAuthenticationUser": json.dumps({"username": "admin", "password": "admin-secret"}),
}


def make_home(folder: Path, user: str, password: str) -> str:
    """A ROCKETMQ_HOME with what mqadmin signs with; returns the option of a JVM."""
    (folder / user / "conf").mkdir(parents=True)
    tools = folder / user / "conf" / "tools.yml"
    tools.write_text(f"accessKey: {user}\nsecretKey: {password}\n")
    return f"-Drocketmq.home.dir={folder / user}"


def test_users_and_policies_of_mqadmin_hold_for_both_protocols(
    tmp_path: Path, java_remoting: Program
) -> None:
    with ExitStack() as stack:
        served = stack.enter_context(our_broker(tmp_path / "store", SETTINGS))

        def start_mqadmin(user: str, password: str) -> Callable[..., str]:
            option = make_home(tmp_path, user, password)
            client = stack.enter_context(java_remoting.start("Admin", options=(option,)))

            def run(*arguments: str) -> str:
                printed: str = client.call("mqadmin", args=list(arguments))
                return printed

            return run

        admin = start_mqadmin("admin", "admin-secret")
        at = ("-b", served.namesrv)
        assert "success" in admin("createUser", *at, "-u", "alice", "-p", "a-secret")
        listed = admin("listUser", *at)
        assert "alice" in listed
        assert "secret" not in listed
        assert "success" in admin("updateTopic", *at, "-t", "orders")
        assert "success" in admin("updateTopic", *at, "-t", "others")
        alice = start_mqadmin("alice", "a-secret")
        send = ("sendMessage", "-n", served.namesrv, "-p", "body", "-t")
        assert "SEND_OK" not in alice(*send, "orders")
        rule = ("-s", "User:alice", "-r", "Topic:orders", "-a", "Pub", "-d", "Allow")
        assert "success" in admin("createAcl", *at, *rule)
        assert "Topic:orders" in admin("getAcl", *at, "-s", "User:alice")
        assert "SEND_OK" in alice(*send, "orders")
        assert "SEND_OK" not in alice(*send, "others")
        assert "alice" not in alice("listUser", *at).replace("User:alice has no permission", "")

        python = stack.enter_context(program_or_skip(python_program("messaging.py")).start())
        for number, (password, topic, may) in enumerate(
            (
                ("a-secret", "orders", True),
                ("wrong", "orders", False),
                ("a-secret", "others", False),
            )
        ):
            fields: dict[str, Any] = {"name": f"p{number}", "grpc": served.grpc, "topics": [topic]}
            credentials = ["alice", password]
            with nullcontext() if may else pytest.raises(ClientFailed):
                python.call("start_producer", credentials=credentials, **fields)
                python.call("send", name=f"p{number}", topic=topic, body="body")
        assert "success" in admin("deleteUser", *at, "-u", "alice")
        assert "SEND_OK" not in alice(*send, "orders")
