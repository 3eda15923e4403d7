"""mqadmin 5.5.0 sets users and policies. Clients of both protocols get exactly the permitted
access."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import Any

import pytest

from tests.kit.clients.grpc_lab import LANGUAGES, start_client
from tests.kit.clients.program import ClientFailed, Program
from tests.kit.clients.served import Served, our_broker
from tieredstore.broker.auth.policies import Policy, PolicyEntry
from tieredstore.broker.auth.users import AclManager, UserChange, UserManager
from tieredstore.broker.settings import load_broker_settings
from tieredstore.broker.state.topics import TopicConfig, TopicConfigManager

SETTINGS = {
    "authenticationEnabled": "true",
    "authorizationEnabled": "true",
    "initAuthenticationUser": json.dumps({"username": "admin", "password": "admin-secret"}),
}


def make_home(folder: Path, user: str, password: str) -> str:
    """Create a ROCKETMQ_HOME with mqadmin's credentials. Return the JVM option that selects it."""
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

        assert "success" in admin("deleteUser", *at, "-u", "alice")
        assert "SEND_OK" not in alice(*send, "orders")


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A broker with two topics and a user who may send to one of them."""
    folder = tmp_path_factory.mktemp("guarded")
    config = folder / "store" / "config"
    config.mkdir(parents=True)
    users, acls = UserManager(config), AclManager(config)
    users.create_user(UserChange(username="alice", password="a-secret"))
    entry = PolicyEntry(resource="Topic:orders", actions=["Pub"], decision="Allow")
    acls.update_acl("User:alice", [Policy(entries=[entry])])
    topics = TopicConfigManager(config, load_broker_settings({}, "lab"))
    for topic in ("orders", "others"):
        topics.update_topic(TopicConfig(topic_name=topic))
    for manager in (users, acls, topics):
        manager.path.write_bytes(manager.encode())
    with our_broker(folder, SETTINGS) as served:
        yield served


@pytest.mark.parametrize("language", LANGUAGES)
def test_clients_of_grpc_send_what_their_user_may(guarded: Served, language: str) -> None:
    with start_client(language) as client:
        for number, (password, topic, may) in enumerate(
            (
                ("a-secret", "orders", True),
                ("wrong", "orders", False),
                ("a-secret", "others", False),
            )
        ):
            fields: dict[str, Any] = {"name": f"p{number}", "topics": [topic]}
            with nullcontext() if may else pytest.raises(ClientFailed):
                client.call(
                    "start_producer",
                    grpc=guarded.grpc,
                    credentials=["alice", password],
                    transactional=False,
                    **fields,
                )
                client.call("send", name=f"p{number}", topic=topic, body="body")
