"""Fault S01: no secret appears in a repr, an error, a traceback, a log, a metric or a URL."""

from __future__ import annotations

import logging
import pickle
import traceback
from contextlib import closing

import pytest

from tests.kit.s3.scripted_server import (
    SECRET_KEY,
    Reply,
    ScriptedServer,
    listing,
    refusal,
    s3_client,
    s3_settings,
)
from tieredstore import registry
from tieredstore.config import StoreConfig, config_from_properties
from tieredstore.errors import Invalid, TieredStoreError
from tieredstore.metrics import Metrics
from tieredstore.providers.s3.client import S3Client
from tieredstore.providers.s3.provider import S3Provider

TOKEN = "session-token-hush"
SECRETS = (SECRET_KEY, TOKEN, "proxy-hush")
PROPERTIES = {
    "objectStoreBucket": "tier",
    "objectStoreAccessKey": "AKID",
    "objectStoreSecretKey": SECRET_KEY,
    "tieredStoreS3SessionToken": TOKEN,
    "tieredStoreS3Region": "eu-central-1",
    "tieredStoreS3MaxAttempts": "1",
    "tieredStoreS3FastReads": "false",
}


def assert_no_secret(text: str) -> None:
    for secret in SECRETS:
        assert secret not in text


def test_s01_reprs_have_no_secret() -> None:
    loaded = config_from_properties(PROPERTIES, origin="broker.conf")
    with closing(S3Provider.from_config(loaded.config)) as provider:
        for found in (loaded, loaded.config, provider, provider.client, provider.client.url):
            assert_no_secret(repr(found))
    assert_no_secret(repr(s3_settings("http://x", tieredStoreS3SessionToken=TOKEN)))
    assert_no_secret(repr(loaded.config.plugin_properties))


def test_a_configuration_goes_to_another_process_whole() -> None:
    config = config_from_properties(PROPERTIES, origin="broker.conf").config
    assert pickle.loads(pickle.dumps(config)) == config


@pytest.mark.parametrize(
    "answer",
    [
        refusal(403, "SignatureDoesNotMatch"),
        refusal(403, "AccessDenied"),
        refusal(400, "ExpiredToken"),
        refusal(400, "Strange"),
        Reply(500),
        Reply(drop=True),
    ],
)
def test_s01_errors_tracebacks_logs_and_metrics_have_no_secret(
    server: ScriptedServer, caplog: pytest.LogCaptureFixture, answer: Reply
) -> None:
    metrics = Metrics()
    with (
        caplog.at_level(logging.DEBUG),
        s3_client(
            server.url, tieredStoreS3SessionToken=TOKEN, tieredStoreS3MaxAttempts=1
        ) as client,
    ):
        client.meter.metrics = metrics
        server.otherwise = lambda _: listing(["k"])
        list(client.list(""))
        server.otherwise = lambda _: answer
        for call in (
            lambda: client.put_if_absent("k", [b"data"], {}),
            lambda: client.get_range("k", 0, 1),
            lambda: list(client.list("")),
        ):
            with pytest.raises(TieredStoreError) as caught:
                call()
            assert_no_secret("".join(traceback.format_exception(caught.value)))
    assert_no_secret(caplog.text)
    assert_no_secret(repr(list(metrics.snapshot())))
    assert server.requests[0].headers["x-amz-security-token"] == TOKEN


def test_s01_an_unreachable_proxy_does_not_show_its_password(
    server: ScriptedServer, caplog: pytest.LogCaptureFixture
) -> None:
    port = server.port
    server.close()
    proxy = f"http://user:proxy-hush@127.0.0.1:{port}"
    with (
        caplog.at_level(logging.DEBUG),
        s3_client("http://store.invalid", tieredStoreS3Proxy=proxy) as client,
        pytest.raises(TieredStoreError, match="proxy") as caught,
    ):
        client.head("k")
    assert_no_secret("".join(traceback.format_exception(caught.value)) + caplog.text)


@pytest.mark.parametrize(
    "url",
    [
        f"s3://AKID:{TOKEN}@tier/p",
        f"s3://tier/p?secret_key={TOKEN}",
        f"s3://tier/p?access_key={TOKEN}",
        f"s3://tier/p?session_token={TOKEN}",
        f"s3://tier/p?proxy=http://u:{TOKEN}@h",
        f"s3://tier/p?region={TOKEN}&region={TOKEN}",
        f"s3://tier/p?regoin={TOKEN}",
        f"s3://tier/p#{TOKEN}",
        f"ftp://AKID:{TOKEN}@tier/p",
        f"nothing?{TOKEN}",
    ],
)
def test_s01_a_secret_in_a_url_is_refused_and_not_shown(url: str) -> None:
    with pytest.raises(Invalid) as caught:
        registry.tier_at(StoreConfig(), url)
    assert_no_secret("".join(traceback.format_exception(caught.value)))


def test_s01_a_password_in_the_endpoint_is_refused_and_not_shown() -> None:
    client = S3Client(s3_settings(f"http://user:{TOKEN}@127.0.0.1:1"))
    with pytest.raises(Invalid, match="objectStoreEndpoint") as caught:
        client.head("k")
    assert_no_secret("".join(traceback.format_exception(caught.value)))


def test_s01_a_bad_secret_is_told_without_it() -> None:
    with pytest.raises(Invalid, match="tieredStoreS3MaxAttempts"):
        s3_settings("", tieredStoreS3MaxAttempts="many")
