"""ObstoreReader returns exactly the requested range, or fails."""

from __future__ import annotations

import sys
import uuid
from collections.abc import Iterator
from typing import ClassVar

import boto3
import pytest
from botocore.credentials import Credentials
from moto.server import ThreadedMotoServer

from tieredstore.providers.s3.fast_reads import obstore_reader
from tieredstore.providers.s3.fast_reads.obstore_reader import (
    MAX_FAST_BYTES,
    NO_ANSWER,
    ObstoreReader,
    ReaderSettings,
)

DATA = bytes(range(256)) * 8192
KEY = "tier/t%TOPIC@x/é 你/c.00000000000000000000"


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture(scope="module")
def bucket(endpoint: str) -> str:
    name = f"bucket-{uuid.uuid4().hex}"
    client = boto3.client(
        "s3",
        endpoint_url=endpoint,
        region_name="us-east-1",
        aws_access_key_id="testing",
        aws_secret_access_key="testing-secret",
    )
    client.create_bucket(Bucket=name)
    client.put_object(Bucket=name, Key=KEY, Body=DATA)
    client.close()
    return name


class CountedCredentials:
    """Credentials of a role. Each request for them is counted and returns a new token."""

    def __init__(self) -> None:
        self.count = 0

    def get_frozen_credentials(self) -> Credentials:
        self.count += 1
        return Credentials("testing", "testing-secret", f"token-{self.count}")


def settings(endpoint: str, bucket: str, **changes: object) -> ReaderSettings:
    values = {"credentials": CountedCredentials(), "path_style": True, **changes}
    return ReaderSettings(bucket, "us-east-1", endpoint, **values)  # type: ignore[arg-type]


def not_counted(*_: object) -> None:
    """Ignore a request. Stands in for the meter in tests that do not count requests."""


def reader(endpoint: str, bucket: str, **changes: object) -> ObstoreReader:
    made = ObstoreReader.make(settings(endpoint, bucket, **changes), not_counted)
    assert made is not None
    return made


def test_a_range_ends_where_its_object_ends(endpoint: str, bucket: str) -> None:
    fast = reader(endpoint, bucket)
    end = len(DATA)
    for position, length in ((0, 1), (77, 65_536), (end - 5, 5), (end - 5, 9), (0, MAX_FAST_BYTES)):
        assert fast.get_range(KEY, position, length) == DATA[position : position + length]


@pytest.mark.parametrize(
    ("key", "position", "length"),
    [
        (KEY, len(DATA), 1),
        (KEY, 0, 0),
        (KEY, 0, MAX_FAST_BYTES + 1),
    ],
)
def test_all_else_is_left_to_boto3(
    endpoint: str, bucket: str, key: str, position: int, length: int
) -> None:
    assert reader(endpoint, bucket).get_range(key, position, length) is NO_ANSWER


def test_an_object_that_is_not_there_is_none(endpoint: str, bucket: str) -> None:
    assert reader(endpoint, bucket).get_range("tier/none", 0, 10) is None


def test_o09_a_bucket_that_is_not_there_is_no_missing_object(endpoint: str) -> None:
    assert reader(endpoint, "no-such-bucket").get_range("tier/none", 0, 10) is NO_ANSWER


def test_the_environment_does_not_lead_elsewhere(
    endpoint: str, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {
        "AWS_ENDPOINT_URL": "http://127.0.0.1:9",
        "AWS_ENDPOINT_URL_S3": "http://127.0.0.1:9",
        "AWS_REGION": "elsewhere",
        "AWS_SKIP_SIGNATURE": "true",
        "AWS_S3_EXPRESS": "true",
    }.items():
        monkeypatch.setenv(name, value)
    assert reader(endpoint, bucket).get_range(KEY, 3, 4) == DATA[3:7]


def test_credentials_are_asked_for_and_not_shown(endpoint: str, bucket: str) -> None:
    credentials = CountedCredentials()
    fast = reader(endpoint, bucket, credentials=credentials)
    assert credentials.count == 0
    assert fast.get_range(KEY, 0, 1) == DATA[:1]
    assert credentials.count == 1
    given = settings(endpoint, bucket, credentials=Credentials("testing", "s3cr3t"), proxy="s3cr3t")
    assert "s3cr3t" not in repr(given)


def test_what_obstore_cannot_do_is_left_to_boto3(endpoint: str, bucket: str) -> None:
    assert (
        ObstoreReader.make(settings(endpoint, bucket, ca_bundle="/etc/ours.pem"), not_counted)
        is None
    )
    assert (
        ObstoreReader.make(settings(endpoint, bucket, proxy="http://127.0.0.1:9"), not_counted)
        is None
    )


def test_without_obstore_there_is_no_reader(
    endpoint: str, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "obstore.store", None)
    assert ObstoreReader.make(settings(endpoint, bucket), not_counted) is None


def test_an_endpoint_that_fails_is_left_alone_for_a_while(
    endpoint: str, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(obstore_reader, "_CALLS_LEFT_OUT", 5)
    fast = reader(endpoint, bucket)
    works = fast._get
    calls = []

    def failing(*given: object, **options: object) -> object:
        calls.append(given)
        raise OSError("connection refused")

    fast._get = failing
    for _ in range(8):
        assert fast.get_range(KEY, 0, 1) is NO_ANSWER
    assert len(calls) == 3
    fast._get = works
    assert fast.get_range(KEY, 0, 1) == DATA[:1]


def test_objects_that_are_not_there_are_no_failure_of_the_endpoint(
    endpoint: str, bucket: str
) -> None:
    fast = reader(endpoint, bucket)
    for _ in range(5):
        assert fast.get_range("tier/none", 0, 1) is None
    assert fast.get_range(KEY, 0, 1) == DATA[:1]


def test_virtual_host_addressing_puts_the_bucket_in_front_of_the_host() -> None:
    given = settings("https://s3.example:9000", "b", path_style=False)
    assert obstore_reader._bucket_endpoint(given) == "https://b.s3.example:9000"


@pytest.mark.parametrize(("told", "size"), [((0, 9), 10), ((1, 11), 20), ((0, 10), 5)])
def test_o08_another_range_than_asked_for_is_no_answer(
    endpoint: str, bucket: str, told: tuple[int, int], size: int
) -> None:
    class Answer:
        range = told
        meta: ClassVar[dict[str, int]] = {"size": size}

        def bytes(self) -> bytes:
            return b"0123456789"

    fast = reader(endpoint, bucket)
    fast._get = lambda *_, **__: Answer()
    assert fast.get_range(KEY, 0, 10) is NO_ANSWER


def test_each_request_is_counted(endpoint: str, bucket: str) -> None:
    counted: list[tuple[str, str, int]] = []
    fast = ObstoreReader.make(
        settings(endpoint, bucket),
        lambda key, status, received, _: counted.append((key, status, received)),
    )
    assert fast is not None
    fast.get_range(KEY, 0, 100)
    fast.get_range(KEY, len(DATA) - 5, 10)
    fast.get_range("tier/none", 0, 10)
    fast.get_range(KEY, 0, MAX_FAST_BYTES + 1)
    assert counted == [(KEY, "206", 100), (KEY, "206", 5), ("tier/none", "404", 0)]
