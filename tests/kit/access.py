"""A broker with users and policies."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path

from tests.kit.remoting import RemotingClient
from tests.kit.request_rows import Right
from tests.kit.signed import request_as
from tieredstore.broker.auth.policies import Action, Policy, PolicyEntry
from tieredstore.broker.broker import Broker
from tieredstore.broker.remoting.codes import RequestCode, ResponseCode

OK = ResponseCode.SUCCESS
ADMIN = ("admin", "admin-secret")


def make_broker(root: Path, **keys: str) -> Broker:
    properties = {
        "storePathRootDir": str(root),
        "mappedFileSizeCommitLog": "1048576",
        "brokerClusterName": "c1",
        "brokerIP1": "127.0.0.1",
        "bindAddress": "127.0.0.1",
        "listenPort": "0",
        "grpcServerPort": "0",
        "metricsExporterType": "DISABLE",
        "authenticationEnabled": "true",
        "authorizationEnabled": "true",
        "initAuthenticationUser": json.dumps({"username": ADMIN[0], "password": ADMIN[1]}),
        **keys,
    }
    return Broker.from_properties(properties, origin="broker.conf")


@asynccontextmanager
async def serving(root: Path, **keys: str) -> AsyncIterator[tuple[Broker, RemotingClient]]:
    broker = make_broker(root, **keys)
    await broker.start()
    try:
        async with await RemotingClient.open(broker.addresses["remoting"]) as client:
            yield broker, client
    finally:
        await broker.stop()


async def add_user(
    client: RemotingClient, name: str, password: str, *entries: tuple[str, str, str]
) -> None:
    body = json.dumps({"username": name, "password": password, "userType": "Normal"}).encode()
    code = RequestCode.AUTH_CREATE_USER
    answer = await request_as(client, *ADMIN, code, {"username": name}, body)
    assert answer.code == OK, answer.remark
    if entries:
        acl = {
            "subject": f"User:{name}",
            "policies": [
                {
                    "policyType": "Custom",
                    "entries": [
                        {"resource": resource, "actions": actions.split(), "decision": decision}
                        for resource, actions, decision in entries
                    ],
                }
            ],
        }
        answer = await request_as(
            client,
            *ADMIN,
            RequestCode.AUTH_CREATE_ACL,
            {"subject": f"User:{name}"},
            json.dumps(acl).encode(),
        )
        assert answer.code == OK, answer.remark


def allow(broker: Broker, rights: Iterable[tuple[str, str]]) -> None:
    """Give the user eve exactly these permissions."""
    acls = broker.services.access.acls
    acls.delete_acl("User:eve")
    entries = [
        PolicyEntry(resource=resource, actions=[action], decision="Allow")
        for resource, action in rights
    ]
    if entries:
        acls.update_acl("User:eve", [Policy(entries=entries)])


def list_grants(rights: tuple[Right, ...]) -> list[list[tuple[str, str]]]:
    """Return sets of permissions, each sufficient for a call. The first set grants each right by
    its first action. Every other set replaces one of these actions by an alternative."""
    first = [(right.resource, right.actions.split()[0]) for right in rights]
    grants = [first]
    for number, right in enumerate(rights):
        grants += [
            [*first[:number], (right.resource, action), *first[number + 1 :]]
            for action in right.actions.split()[1:]
        ]
    return grants


def list_lacks(rights: tuple[Right, ...]) -> list[list[tuple[str, str]]]:
    """Return sets of permissions, none of them sufficient for a call. In each set one permission is
    missing, or grants another action on the same resource."""
    first = list_grants(rights)[0]
    lacks = []
    for number, right in enumerate(rights):
        others = first[:number] + first[number + 1 :]
        lacks.append(others)
        enough = {*right.actions.split(), Action.ALL.value}
        lacks += [
            [*others, (right.resource, action.value)]
            for action in Action
            if action.value not in enough and (right.resource, action.value) not in others
        ]
    return lacks
