"""Tests of the choice of an S3 dialect, and of its headers.
`tests/integration/object_store/test_dialects.py` tests the dialects over a real server."""

from __future__ import annotations

from http.client import HTTPMessage

import pytest

from tests.kit.s3.scripted_server import Reply, ScriptedServer, ranged, refusal, s3_client
from tieredstore.contracts.objects import CopiedPart
from tieredstore.errors import Busy, Invalid, Unavailable
from tieredstore.providers.s3.dialects.dialect import DIALECTS, choose_dialect
from tieredstore.providers.s3.errors import Answer


@pytest.mark.parametrize(
    ("endpoint", "dialect"),
    [
        ("", "s3"),
        ("https://s3.eu-central-1.amazonaws.com", "s3"),
        ("http://127.0.0.1:9000", "s3"),
        ("https://account.r2.cloudflarestorage.com", "s3"),
        ("https://oss-cn-hangzhou.aliyuncs.com", "oss"),
        ("https://s3.oss-cn-hangzhou-internal.aliyuncs.com:443/", "oss"),
        ("https://OSS-CN-HANGZHOU.ALIYUNCS.COM.", "oss"),
        ("https://notaliyuncs.com", "s3"),
        ("https://aliyuncs.com.example.org", "s3"),
        ("https://cos.ap-guangzhou.myqcloud.com", "cos"),
        ("https://cos.ap-guangzhou.tencentcos.cn", "cos"),
        ("https://obs.cn-north-4.myhuaweicloud.com", "obs"),
        ("https://storage.googleapis.com", "google"),
        ("https://bucket.storage.googleapis.com", "google"),
    ],
)
def test_the_host_of_the_endpoint_picks_the_dialect(endpoint: str, dialect: str) -> None:
    assert choose_dialect("auto", endpoint).name == dialect
    assert choose_dialect("s3", endpoint).name == "s3"
    assert choose_dialect("obs", endpoint).name == "obs"


@pytest.mark.parametrize(
    ("name", "header", "value"),
    [
        ("s3", "if-none-match", "*"),
        ("oss", "x-oss-forbid-overwrite", "true"),
        ("cos", "x-cos-forbid-overwrite", "true"),
        ("obs", "x-obs-forbid-overwrite", "true"),
        ("google", "x-goog-if-generation-match", "0"),
    ],
)
def test_the_condition_is_asked_for_in_the_vendors_word_and_signed(
    server: ScriptedServer, name: str, header: str, value: str
) -> None:
    with s3_client(server.url, tieredStoreS3Dialect=name) as client:
        assert client.put_if_absent("k", [b"data"], {"w": "1"})
    (request,) = server.requests
    assert request.headers[header] == value
    signed = request.headers["authorization"].partition("SignedHeaders=")[2].partition(",")[0]
    assert header in signed.split(";")
    conditions = [n for n in request.headers if "match" in n or "overwrite" in n]
    assert conditions == [header]


@pytest.mark.parametrize(
    ("name", "status", "code"),
    [
        ("s3", 412, "PreconditionFailed"),
        ("oss", 409, "FileAlreadyExists"),
        ("cos", 409, "FileAlreadyExists"),
        ("obs", 409, "ObjectAlreadyExists"),
        ("google", 412, "PreconditionFailed"),
    ],
)
def test_a_taken_key_is_told_from_a_conflict_that_passes(
    server: ScriptedServer, name: str, status: int, code: str
) -> None:
    with s3_client(server.url, tieredStoreS3Dialect=name) as client:
        server.script = [refusal(status, code)]
        assert not client.put_if_absent("k", [b"data"], {})
        server.script = [refusal(409, "OperationAborted")]
        with pytest.raises(Busy, match="OperationAborted"):
            client.put_if_absent("k", [b"data"], {})


def test_what_another_vendor_says_is_no_refusal() -> None:
    taken = Answer("FileAlreadyExists", 409, "")
    assert DIALECTS["oss"].translate_refusal(taken).status == 412
    assert DIALECTS["s3"].translate_refusal(taken) is taken
    assert DIALECTS["google"].translate_refusal(taken) is taken
    other = Answer("NoSuchBucket", 404, "")
    assert all(found.translate_refusal(other) is other for found in DIALECTS.values())


def test_requests_to_google_have_headers_of_one_family_and_its_signature(
    server: ScriptedServer,
) -> None:
    server.otherwise = lambda _: Reply(
        headers={"x-goog-meta-w": "1", "Last-Modified": "Sat, 21 Nov 2026 12:00:00 GMT"}
    )
    with s3_client(server.url, tieredStoreS3Dialect="google") as client:
        client.put_if_absent("a/b c|é", [b"data"], {"w": "1"})
        found = client.head("a/b c|é")
    for request in server.requests:
        assert not [name for name in request.headers if name.startswith("x-amz-")]
        assert request.headers["authorization"].startswith("GOOG4-HMAC-SHA256 Credential=")
        assert "/storage/goog4_request," in request.headers["authorization"]
    assert server.requests[0].headers["x-goog-meta-w"] == "1"
    assert found is not None
    assert found.metadata == {"w": "1"}


@pytest.mark.parametrize("name", ["oss", "cos", "obs", "google"])
def test_bodies_go_with_their_md5(server: ScriptedServer, name: str) -> None:
    """Requests to vendors that check MD5 contain the MD5 of the body. Some vendors require it for
    deletions of many objects."""
    server.otherwise = lambda _: Reply(body=b"<DeleteResult/>")
    with s3_client(server.url, tieredStoreS3Dialect=name) as client:
        client.put_if_absent("k", [b"data"], {})
        client.delete(["k", "l"])
    for request in server.requests:
        assert "content-md5" in request.headers
        assert not [n for n in request.headers if "checksum" in n]
    assert [request.operation for request in server.requests] == ["PUT", "POST ?delete"]
    with (
        pytest.raises(Invalid, match=f"required.*dialect {name} confirms"),
        s3_client(server.url, tieredStoreS3Dialect=name, tieredStoreS3Checksums="required"),
    ):
        pass


@pytest.mark.parametrize("name", ["oss", "cos"])
def test_an_upload_whose_key_is_taken_may_end_at_its_beginning(
    server: ScriptedServer, name: str
) -> None:
    server.script = [refusal(409, "FileAlreadyExists")]
    with s3_client(server.url, tieredStoreS3Dialect=name) as client:
        assert not client.compose("k", [[b"data"]], {})
    (request,) = server.requests
    assert request.operation == "POST ?uploads"
    assert request.headers[f"x-{name}-forbid-overwrite"] == "true"


@pytest.mark.parametrize(
    ("source", "found"),
    [(refusal(404, "NoSuchKey"), "no object"), (ranged(b"dat", 0, 3), "3")],
    ids=["gone", "shorter"],
)
def test_nothing_is_composed_of_a_source_that_is_not_whole(
    server: ScriptedServer, source: Reply, found: str
) -> None:
    """No object is composed from a truncated source. Without part copies, the client reads the
    source and puts it as one object."""
    server.otherwise = lambda request: source if request.method == "GET" else Reply()
    with (
        s3_client(server.url, tieredStoreS3Dialect="google") as client,
        pytest.raises(Unavailable, match=rf"source s: expected 4 bytes at 0, found {found}$"),
    ):
        client.compose("k", [CopiedPart("s", 0, 4)], {})
    assert {request.method for request in server.requests} == {"GET"}


def test_headers_are_renamed_whatever_their_case() -> None:
    headers = HTTPMessage()
    headers["X-Amz-Meta-W"] = "1"
    headers["X-Amz-Date"] = "now"
    headers["If-None-Match"] = "*"
    DIALECTS["oss"].translate_request("PutObject", headers)  # type: ignore[arg-type]
    found = {name.lower(): value for name, value in headers.items()}
    assert found == {"x-oss-meta-w": "1", "x-amz-date": "now", "x-oss-forbid-overwrite": "true"}
