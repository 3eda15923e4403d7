"""Small ranges are read through obstore with the same results and limits as through boto3."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator

import pytest
from botocore.credentials import Credentials, RefreshableCredentials

from tests.kit.s3.scripted_server import (
    Reply,
    Request,
    ScriptedServer,
    ranged,
    refusal,
    s3_client,
    s3_settings,
)
from tieredstore.errors import Invalid, Unavailable
from tieredstore.providers.s3.client import S3Client
from tieredstore.providers.s3.fast_reads.obstore_reader import (
    MAX_FAST_BYTES,
    NO_ANSWER,
    FreshCredentials,
    _path_style,
)

KEY = "hash_cluster/broker/topic/0/COMMIT_LOG/seg/c.00000000000000000000"
DATA = bytes(range(256)) * 8192


@pytest.fixture
def client(moto_endpoint: str, bucket: str) -> Iterator[S3Client]:
    changes = {"objectStoreBucket": bucket, "tieredStoreS3Prefix": "a/b"}
    with s3_client(moto_endpoint, tieredStoreS3FastReads=True, **changes) as made:
        yield made


def requests(client: S3Client, operation: str = "GetObject") -> int:
    return sum(row.requests for row in client.meter.usage().rows if row.operation == operation)


@pytest.mark.parametrize(
    ("position", "length"),
    [(0, 1), (5, 65_536), (len(DATA) - 3, 9), (len(DATA), 5), (3, 0), (0, MAX_FAST_BYTES + 1)],
)
def test_the_answers_are_those_of_boto3(client: S3Client, position: int, length: int) -> None:
    assert client.put_if_absent(KEY, [DATA], {})
    assert client.get_range(KEY, position, length) == DATA[position : position + length]
    assert client.get_range("none", position, length) is None


def test_a_small_range_is_one_counted_request_and_none_of_boto3s(client: S3Client) -> None:
    assert client.put_if_absent(KEY, [DATA], {})
    assert client._fast is not None
    client._reader = None  # type: ignore[assignment]
    assert client.get_range(KEY, 7, 100) == DATA[7:107]
    assert client.get_range("none", 0, 1) is None
    assert requests(client) == 2
    rows = [row for row in client.meter.usage().rows if row.operation == "GetObject"]
    assert {row.file_type: row.received_bytes for row in rows} == {"COMMIT_LOG": 100, "OTHER": 0}


def test_it_can_be_switched_off(moto_endpoint: str, bucket: str) -> None:
    with s3_client(moto_endpoint, objectStoreBucket=bucket, tieredStoreS3FastReads=False) as client:
        assert client._fast is None


def test_maintenance_does_not_take_the_way_of_reads(client: S3Client) -> None:
    assert client.bulk._fast is None


def test_without_obstore_boto3_reads(client: S3Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "obstore.store", None)
    assert client.put_if_absent(KEY, [DATA], {})
    assert client.get_range(KEY, 0, 10) == DATA[:10]
    assert requests(client) == 1


def test_o08_what_obstore_cannot_read_boto3_reads(server: ScriptedServer) -> None:
    for faulty in (
        refusal(503, "SlowDown"),
        refusal(403, "ExpiredToken"),
        ranged(b"01234", 0, 10),
        ranged(b"0123456789", 0, 10, cut=4),
        ranged(b"1234567890", 1, 11),
    ):
        server.script = [faulty]
        server.otherwise = lambda _: ranged(b"0123456789", 0, 10)
        with s3_client(server.url, tieredStoreS3FastReads=True) as client:
            assert client.get_range("x", 0, 10) == b"0123456789"
            assert requests(client) == 2


def test_an_endpoint_that_is_away_is_unavailable(server: ScriptedServer) -> None:
    server.otherwise = lambda _: refusal(500, "InternalError")
    with (
        s3_client(server.url, tieredStoreS3FastReads=True) as client,
        pytest.raises(Unavailable),
    ):
        client.get_range("x", 0, 10)


class TestCredentials:
    def test_those_that_do_not_renew_themselves_are_kept_for_some_minutes(self) -> None:
        found = [Credentials("a", "1"), Credentials("b", "2")]
        now = [1000.0]
        fresh = FreshCredentials(lambda: found.pop(0), lambda: now[0])
        for later, key in ((0, "a"), (299, "a"), (2, "b"), (299, "b")):
            now[0] += later
            assert fresh.get_frozen_credentials().access_key == key

    def test_those_with_which_a_request_failed_are_looked_up_again(self) -> None:
        found = [Credentials("a", "1"), None, Credentials("b", "2")]
        fresh = FreshCredentials(lambda: found.pop(0))
        assert fresh.get_frozen_credentials().access_key == "a"
        fresh.doubt()
        with pytest.raises(Invalid, match="no credentials"):
            fresh.get_frozen_credentials()
        assert fresh.get_frozen_credentials().access_key == "b"

    @pytest.mark.parametrize("status", [400, 403])
    def test_new_ones_of_the_environment_are_found_after_a_refusal(
        self, server: ScriptedServer, monkeypatch: pytest.MonkeyPatch, status: int
    ) -> None:
        def answer(request: Request) -> Reply:
            is_new = "Credential=new/" in request.headers["authorization"]
            return ranged(b"0123456789", 0, 10) if is_new else refusal(status, "ExpiredToken")

        server.otherwise = answer
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "old")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "s")
        none = {"objectStoreAccessKey": "", "objectStoreSecretKey": ""}
        with s3_client(server.url, tieredStoreS3FastReads=True, **none) as client:
            with pytest.raises(Unavailable):
                client.get_range("x", 0, 10)
            monkeypatch.setenv("AWS_ACCESS_KEY_ID", "new")
            for _ in range(3):  # obstore asks for them again after a tenth of a second
                threading.Event().wait(0.05)
            assert client._fast is not None
            assert client._fast.get_range("x", 0, 10) == b"0123456789"

    def test_those_of_a_role_are_kept_and_renew_themselves(self) -> None:
        renewed = []

        def renew() -> dict[str, str]:
            renewed.append(1)
            return {
                "access_key": "role",
                "secret_key": "2",
                "token": "t",
                "expiry_time": "2999-01-01T00:00:00Z",
            }

        role = RefreshableCredentials.create_from_metadata(
            metadata=renew(), refresh_using=renew, method="assume-role"
        )
        looked_up = [role]
        fresh = FreshCredentials(lambda: looked_up.pop())
        for _ in range(2):
            assert fresh.get_frozen_credentials().access_key == "role"


@pytest.mark.parametrize(
    ("endpoint", "bucket", "style", "expected"),
    [
        ("", "plain-name", "auto", False),
        ("", "with.dots", "auto", True),
        ("https://s3.eu-central-1.amazonaws.com", "plain-name", "auto", False),
        ("https://storage.example", "plain-name", "auto", None),
        ("https://storage.example", "plain-name", "path", True),
        ("https://storage.example", "plain-name", "false", False),
        ("http://127.0.0.1:9000", "plain-name", "auto", True),
    ],
)
def test_addressing_is_boto3s(
    endpoint: str, bucket: str, style: str, expected: bool | None
) -> None:
    settings = s3_settings(endpoint, objectStoreBucket=bucket, tieredStoreS3PathStyle=style)
    assert _path_style(settings) is expected


def test_where_only_boto3_knows_the_address_boto3_reads(server: ScriptedServer) -> None:
    server.otherwise = lambda _: ranged(b"0123456789", 0, 10)
    with s3_client(server.url, tieredStoreS3FastReads=True, tieredStoreS3Proxy=server.url) as c:
        assert c._fast is not None
        assert c._fast.get_range("x", 0, 10) is NO_ANSWER
