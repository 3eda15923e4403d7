"""Endpoints for the tests of S3: moto for correct behaviour, and a scripted server for faulty
behaviour."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from runpy import run_path

import boto3
import pytest
from moto.server import ThreadedMotoServer

from tests.kit.paths import ROOT
from tests.kit.s3.backoff import no_backoff
from tests.kit.s3.scripted_server import ACCESS_KEY, SECRET_KEY, ScriptedServer

__all__ = ["no_backoff"]
_NUMBERS = itertools.count()


@pytest.fixture(autouse=True)
def no_credentials_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Isolate tests from the environment and the network."""
    for name in ("AWS_PROFILE", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy", "AWS_ENDPOINT_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nonexistent/config")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nonexistent/credentials")


@pytest.fixture(scope="session")
def moto_endpoint() -> Iterator[str]:
    run_path(str(ROOT / "localstack" / "moto_server.py"))["put_in_one_step"]()
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def bucket(moto_endpoint: str) -> str:
    """Return the name of a new bucket."""
    name = f"tier-{next(_NUMBERS)}"
    client = boto3.client(
        "s3",
        endpoint_url=moto_endpoint,
        region_name="us-east-1",
        aws_access_key_id=ACCESS_KEY,
        aws_secret_access_key=SECRET_KEY,
    )
    client.create_bucket(Bucket=name)
    client.close()
    return name


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    scripted = ScriptedServer()
    yield scripted
    scripted.close()
