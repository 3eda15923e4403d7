"""Tests of TLS in both protocols: accepted clients and trusted certificates."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import grpc.aio
import pytest

from tests.kit.certificates import self_signed
from tests.kit.grpc_types import find_message
from tests.kit.remoting import RemotingClient
from tieredstore.broker.grpc.message_types import SERVICE_NAME
from tieredstore.broker.remoting.codes import RequestCode
from tieredstore.broker.settings import load_broker_settings
from tieredstore.broker.tls import ClientAuth, load_tls
from tieredstore.errors import Invalid, Unavailable
from tieredstore.testing.broker import Broker

PLAIN = "no TLS"


class Pair(NamedTuple):
    """PEM files of a self-signed certificate."""

    certificate: Path
    key: Path


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Pair]:
    """Return certificates of the broker, a trusted client and an untrusted client."""
    found = {}
    for name in ("broker", "friend", "stranger"):
        found[name] = Pair(*self_signed(tmp_path_factory.mktemp(name)))
    return found


def make_properties(pairs: Mapping[str, Pair], **others: str) -> dict[str, str]:
    return {
        "tlsKeyPath": str(pairs["broker"].key),
        "tlsCertPath": str(pairs["broker"].certificate),
        "tls.server.authClient": "true",
        "tls.server.trustCertPath": str(pairs["friend"].certificate),
        **others,
    }


async def ask_remoting(address: str, pairs: Mapping[str, Pair], who: str) -> bool:
    context = None
    if who != PLAIN:
        context = ssl.create_default_context(cafile=str(pairs["broker"].certificate))
        if who in pairs:
            context.load_cert_chain(*pairs[who])
    try:
        async with await RemotingClient.open(address, tls=context) as client:
            return (await client.request(RequestCode.GET_BROKER_CLUSTER_INFO)).code == 0
    except Unavailable:
        return False


async def ask_grpc(address: str, pairs: Mapping[str, Pair], who: str) -> bool:
    channel = grpc.aio.insecure_channel(address)
    if who != PLAIN:
        own = pairs.get(who)
        credentials = grpc.ssl_channel_credentials(
            pairs["broker"].certificate.read_bytes(),
            None if own is None else own.key.read_bytes(),
            None if own is None else own.certificate.read_bytes(),
        )
        channel = grpc.aio.secure_channel(address, credentials)
    async with channel:
        call: Any = channel.unary_unary(
            f"/{SERVICE_NAME}/QueryRoute",
            request_serializer=lambda request: request.SerializeToString(),
            response_deserializer=find_message("QueryRouteResponse").FromString,
        )
        request = find_message("QueryRouteRequest")()
        request.topic.name = "T"
        try:
            await call(request, timeout=20)
        except grpc.aio.AioRpcError as error:
            if error.code() is not grpc.StatusCode.UNAVAILABLE:
                raise
            return False
        return True


ALL = {PLAIN, "none", "friend", "stranger"}


def served(broker: Broker, pairs: Mapping[str, Pair]) -> tuple[set[str], set[str]]:
    """Return the clients served over remoting, and those served over gRPC."""

    async def ask() -> tuple[set[str], set[str]]:
        by_remoting = {who for who in ALL if await ask_remoting(broker.remoting, pairs, who)}
        return by_remoting, {who for who in ALL if await ask_grpc(broker.grpc, pairs, who)}

    return asyncio.run(ask())


CASES: tuple[tuple[str, str, set[str], set[str]], ...] = (
    ("none", "permissive", ALL, ALL),
    ("none", "enforcing", ALL - {PLAIN}, ALL - {PLAIN}),
    ("none", "disabled", {PLAIN}, {PLAIN}),
    ("optional", "enforcing", {"none", "friend"}, ALL - {PLAIN}),
    ("REQUIRE", "enforcing", {"friend"}, {"friend"}),
    ("require", "permissive", {"friend", PLAIN}, {"friend", PLAIN}),
)


@pytest.mark.parametrize(("client_auth", "mode", "by_remoting", "by_grpc"), CASES)
def test_e106_who_is_served_is_what_mode_and_certificate_say_on_both_protocols(
    pairs: Mapping[str, Pair], client_auth: str, mode: str, by_remoting: set[str], by_grpc: set[str]
) -> None:
    properties = make_properties(
        pairs, **{"tls.server.need.client.auth": client_auth, "tls.server.mode": mode}
    )
    with Broker(properties=properties) as broker:
        assert served(broker, pairs) == (by_remoting, by_grpc)


def load(**properties: str) -> ClientAuth:
    return load_tls(load_broker_settings(properties, "test")).client_auth


@pytest.mark.parametrize(
    "left_out", ["tls.server.authClient", "tls.server.trustCertPath"], ids=["auth", "trust"]
)
def test_e105_a_certificate_is_not_required_where_any_would_do(
    pairs: Mapping[str, Pair], left_out: str
) -> None:
    properties = make_properties(pairs, **{"tls.server.need.client.auth": "require"})
    assert load(**properties) is ClientAuth.REQUIRE
    del properties[left_out]
    with pytest.raises(Invalid, match="any certificate would do"):
        load(**properties)
    assert load(**properties | {"tls.server.need.client.auth": "optional"}) is ClientAuth.NONE


def test_what_is_no_certificate_is_refused_at_the_start(
    pairs: Mapping[str, Pair], tmp_path: Path
) -> None:
    required = {"tls.server.need.client.auth": "require"}
    for text, reason in ((None, "No such file"), ("", "PEM"), ("no certificate", "PEM")):
        path = tmp_path / "trusted.pem"
        if text is not None:
            path.write_text(text)
        with pytest.raises(Invalid, match=reason):
            load(**make_properties(pairs, **required, **{"tls.server.trustCertPath": str(path)}))
    wrong_key = {"tlsKeyPath": str(pairs["friend"].key)}
    with pytest.raises(Invalid, match="TLS"):
        load(**make_properties(pairs, **required, **wrong_key))
    with pytest.raises(Invalid, match=r"tls\.server\.need\.client\.auth"):
        load(**make_properties(pairs, **{"tls.server.need.client.auth": "always"}))


def test_settings_that_protect_less_than_they_seem_to_are_told_of(
    pairs: Mapping[str, Pair], caplog: pytest.LogCaptureFixture
) -> None:
    strict = {"tls.server.need.client.auth": "require", "tls.server.mode": "enforcing"}
    load(**make_properties(pairs, **strict))
    assert caplog.messages == []
    load(**make_properties(pairs))
    assert "authClient has no effect" in caplog.messages[0]
    load(**make_properties(pairs, **strict | {"tls.server.mode": "permissive"}))
    assert "clients without TLS show no certificate" in caplog.messages[1]
