"""For every key of an S3 tier, a test changes the key and checks the requests or results."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from botocore.loaders import JSONFileLoader

from tests.kit.certificates import self_signed
from tests.kit.s3.scripted_server import (
    ACCESS_KEY,
    SECRET_KEY,
    Reply,
    Request,
    ScriptedServer,
    listing,
    s3_client,
    s3_settings,
)
from tieredstore.config import config_from_properties
from tieredstore.errors import Invalid, Unavailable
from tieredstore.properties import fields_by_key
from tieredstore.providers.chunks.settings import ChunkSettings
from tieredstore.providers.chunks.shared_settings import SharedSettings
from tieredstore.providers.s3.client import S3Client
from tieredstore.providers.s3.lane import Lane
from tieredstore.providers.s3.provider import S3Provider
from tieredstore.providers.s3.session import make_client, open_session
from tieredstore.providers.s3.settings import S3Settings

UPLOAD = Reply(
    body=b"<InitiateMultipartUploadResult><UploadId>u1</UploadId></InitiateMultipartUploadResult>"
)


class Setting:
    """Resources of a configuration key's test: a scripted server, a folder and a monkeypatch."""

    def __init__(self, server: ScriptedServer, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.server = server
        self.folder = folder
        self.patch = patch

    def put(self, key: str = "k", **properties: object) -> Request:
        """Put an object with these configuration keys. Return the request."""
        with s3_client(self.server.url, **properties) as client:
            client.put_if_absent(key, [b"data"], {})
        return self.server.requests[-1]

    def upload(self, key: str = "k", **properties: object) -> list[Request]:
        """Compose an object with these configuration keys. Return the requests."""
        self.server.requests.clear()
        self.server.script = [UPLOAD, Reply(headers={"ETag": '"p"'})]
        self.server.otherwise = lambda _: Reply(body=b"<CompleteMultipartUploadResult/>")
        with s3_client(self.server.url, **properties) as client:
            client.compose(key, [[b"data"]], {})
        return self.server.requests


def put(client: S3Client) -> object:
    return client.put_if_absent("k", [b"data"], {})


def endpoint(setting: Setting) -> None:
    setting.put()
    assert len(setting.server.requests) == 1


def bucket(setting: Setting) -> None:
    assert setting.put(objectStoreBucket="other").path == "/other/k"


def prefix(setting: Setting) -> None:
    assert setting.put(tieredStoreS3Prefix="/a/b/").path == "/tier/a/b/k"
    setting.server.otherwise = lambda _: listing(["a/b/x/1"])
    with s3_client(setting.server.url, tieredStoreS3Prefix="a/b") as client:
        assert [found.key for found in client.list("x/")] == ["x/1"]
    assert setting.server.requests[-1].query["prefix"] == "a/b/x/"


def region(setting: Setting) -> None:
    request = setting.put(tieredStoreS3Region="us-west-2")
    assert "/us-west-2/s3/" in request.headers["authorization"]


def path_style(setting: Setting) -> None:
    def host(style: str, endpoint: str) -> str:
        with s3_client(endpoint, tieredStoreS3PathStyle=style) as client:
            url: str = client._lane._open_client().generate_presigned_url(
                "get_object", {"Bucket": "tier", "Key": "k"}
            )
            return url.partition("?")[0]

    store = "https://store.example"
    assert host("path", store) == host("true", store) == "https://store.example/tier/k"
    assert host("virtual", store) == host("false", store) == "https://tier.store.example/k"
    assert host("auto", "").startswith("https://tier.s3.")
    assert ".amazonaws.com/k" in host("auto", "")
    assert host("auto", "http://localhost:9000") == "http://localhost:9000/tier/k"
    assert host("auto", "http://127.0.0.1:9000") == "http://127.0.0.1:9000/tier/k"


def dialect(setting: Setting) -> None:
    name = "x-oss-forbid-overwrite"
    assert setting.put(tieredStoreS3Dialect="oss").headers[name] == "true"
    assert name not in setting.put().headers
    by_host = {
        "objectStoreEndpoint": "http://oss-cn-hangzhou.aliyuncs.com",
        "tieredStoreS3Proxy": setting.server.url,
    }
    assert setting.put(**by_host).headers[name] == "true"
    assert name not in setting.put(**by_host, tieredStoreS3Dialect="s3").headers
    with pytest.raises(Invalid):
        s3_settings("", tieredStoreS3Dialect="azure")


def access_key(setting: Setting) -> None:
    request = setting.put(objectStoreAccessKey="AKIDOTHER")
    assert "Credential=AKIDOTHER/" in request.headers["authorization"]
    with pytest.raises(Invalid, match="one is given without the other"):
        setting.put(objectStoreAccessKey="")


def secret_key(setting: Setting) -> None:
    session = open_session(s3_settings(setting.server.url, objectStoreSecretKey="other"))
    credentials = session.get_credentials()
    assert credentials is not None
    assert credentials.secret_key == "other"


def session_token(setting: Setting) -> None:
    request = setting.put(tieredStoreS3SessionToken="token-1")
    assert request.headers["x-amz-security-token"] == "token-1"


def profile(setting: Setting) -> None:
    file = setting.folder / "credentials"
    file.write_text("[cold]\naws_access_key_id = AKIDCOLD\naws_secret_access_key = x\n")
    setting.patch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(file))
    own = {"objectStoreAccessKey": "", "objectStoreSecretKey": ""}
    request = setting.put(tieredStoreS3Profile="cold", **own)
    assert "Credential=AKIDCOLD/" in request.headers["authorization"]
    with pytest.raises(Invalid, match="profile is not in"):
        setting.put(tieredStoreS3Profile="none", **own)


ASSUMED = Reply(
    body=b"""<AssumeRoleResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/">
    <AssumeRoleResult><Credentials><AccessKeyId>AKIDROLE</AccessKeyId>
    <SecretAccessKey>s</SecretAccessKey><SessionToken>role-token</SessionToken>
    <Expiration>2099-01-01T00:00:00Z</Expiration></Credentials></AssumeRoleResult>
    </AssumeRoleResponse>"""
)


def role_arn(setting: Setting) -> None:
    setting.patch.setenv("AWS_ENDPOINT_URL_STS", setting.server.url)
    setting.server.script = [ASSUMED]
    request = setting.put(tieredStoreS3RoleArn="arn:aws:iam::123456789012:role/tier")
    assert "Credential=AKIDROLE/" in request.headers["authorization"]
    assert request.headers["x-amz-security-token"] == "role-token"
    assert b"role%2Ftier" in setting.server.requests[0].body
    assert f"Credential={ACCESS_KEY}/" in setting.server.requests[0].headers["authorization"]


def external_id(setting: Setting) -> None:
    setting.patch.setenv("AWS_ENDPOINT_URL_STS", setting.server.url)
    setting.server.script = [ASSUMED]
    arn = "arn:aws:iam::123456789012:role/tier"
    setting.put(tieredStoreS3RoleArn=arn, tieredStoreS3ExternalId="ours-1")
    assert b"ExternalId=ours-1" in setting.server.requests[0].body


def sse(setting: Setting) -> None:
    name = "x-amz-server-side-encryption"
    assert name not in setting.put().headers
    assert setting.put(tieredStoreS3Sse="AES256").headers[name] == "AES256"
    assert setting.upload(tieredStoreS3Sse="AES256")[0].headers[name] == "AES256"
    assert setting.put(tieredStoreS3Sse="aws:kms").headers[name] == "aws:kms"


def sse_kms_key_id(setting: Setting) -> None:
    name = "x-amz-server-side-encryption-aws-kms-key-id"
    keys = {"tieredStoreS3Sse": "aws:kms", "tieredStoreS3SseKmsKeyId": "key-1"}
    assert setting.put(**keys).headers[name] == "key-1"
    assert setting.upload(**keys)[0].headers[name] == "key-1"


def sse_bucket_key(setting: Setting) -> None:
    name = "x-amz-server-side-encryption-bucket-key-enabled"
    keys: dict[str, Any] = {"tieredStoreS3Sse": "aws:kms", "tieredStoreS3SseBucketKey": True}
    assert setting.put(**keys).headers[name] == "true"
    assert setting.upload(**keys)[0].headers[name] == "true"


def storage_class(setting: Setting) -> None:
    name = "x-amz-storage-class"
    key = {"tieredStoreS3StorageClass": "STANDARD_IA"}
    assert setting.put("a/s", **key).headers[name] == "STANDARD_IA"
    assert setting.upload("a/s", **key)[0].headers[name] == "STANDARD_IA"
    assert name not in setting.put("a/c.0", **key).headers
    assert name not in setting.upload("a/m.0-1", **key)[0].headers
    with pytest.raises(Invalid):
        s3_settings("", tieredStoreS3StorageClass="GLACIER")


def checksums(setting: Setting) -> None:
    name = "x-amz-checksum-crc32"
    assert setting.put().headers[name] == "rfPzYw=="  # of b"data", as S3 writes it
    assert "content-md5" in setting.upload()[1].headers
    off = {"tieredStoreS3Checksums": "off"}
    assert name not in setting.put(**off).headers
    assert "content-md5" not in setting.upload(**off)[1].headers
    with s3_client(setting.server.url, **off) as client:
        client.delete(["k", "l"])
    assert [request.method for request in setting.server.requests[-2:]] == ["DELETE", "DELETE"]
    required = {"tieredStoreS3Checksums": "required"}
    with pytest.raises(Invalid, match="does not confirm checksums"):
        setting.put(**required)
    setting.server.otherwise = lambda _: Reply(headers={name: "rfPzYw=="})
    setting.put(**required)


def boto_config(lane: Lane) -> Any:
    return lane._open_client().meta.config


def read_timeout(setting: Setting) -> None:
    with s3_client(setting.server.url, tieredStoreS3ReadTimeout=1234) as client:
        assert boto_config(client._lane).read_timeout == 1.234
        assert client._reader.read_timeout_ms == 1234


def max_attempts(setting: Setting) -> None:
    setting.server.otherwise = lambda _: Reply(500)
    with pytest.raises(Unavailable):
        setting.put(tieredStoreS3MaxAttempts=3)
    assert len(setting.server.requests) == 3


def max_connections(setting: Setting) -> None:
    with s3_client(setting.server.url, tieredStoreS3MaxConnections=7) as client:
        assert client._lane.gate.limit == 7
        assert client._lane.find_gate(is_read=True).limit == 7
        assert boto_config(client._lane).max_pool_connections == 14


def proxy(setting: Setting) -> None:
    keys = {"objectStoreEndpoint": "http://store.invalid", "tieredStoreS3PathStyle": "path"}
    request = setting.put(tieredStoreS3Proxy=setting.server.url, **keys)
    assert request.path == "store.invalid/tier/k"


def over_tls(setting: Setting, **properties: Any) -> None:
    certificate = self_signed(setting.folder)
    server = ScriptedServer(certificate)
    try:
        with pytest.raises(Invalid, match="not trusted: set tieredStoreS3CaBundle"):
            Setting(server, setting.folder, setting.patch).put()
        Setting(server, setting.folder, setting.patch).put(**properties)
        assert len(server.requests) == 1
    finally:
        server.close()


def ca_bundle(setting: Setting) -> None:
    over_tls(setting, tieredStoreS3CaBundle=setting.folder / "cert.pem")


def verify_tls(setting: Setting) -> None:
    over_tls(setting, tieredStoreS3VerifyTls=False)


def cost(setting: Setting, call: Callable[[S3Client], object], **properties: object) -> float:
    with s3_client(setting.server.url, **properties) as client:
        call(client)
        return client.meter.usage().cost_usd


def write_price(setting: Setting) -> None:
    assert cost(setting, put, tieredStoreS3WritePrice=7) == pytest.approx(7e-6)


def read_price(setting: Setting) -> None:
    setting.server.otherwise = lambda _: Reply(404)
    found = cost(setting, lambda client: client.head("k"), tieredStoreS3ReadPrice=7)
    assert found == pytest.approx(7e-6)


def transfer_price(setting: Setting) -> None:
    body = listing([])
    setting.server.otherwise = lambda _: body
    keys = {"tieredStoreS3WritePrice": 0, "tieredStoreS3TransferPrice": 1024}
    found = cost(setting, lambda client: list(client.list("")), **keys)
    assert found == pytest.approx(len(body.body) / (1 << 20))


def fast_reads(setting: Setting) -> None:
    with s3_client(setting.server.url, tieredStoreS3FastReads=True) as client:
        assert client._fast is not None
    with s3_client(setting.server.url, tieredStoreS3FastReads=False) as client:
        assert client._fast is None


CHECKS: dict[str, Callable[[Setting], None]] = {
    "objectStoreEndpoint": endpoint,
    "objectStoreBucket": bucket,
    "tieredStoreS3Prefix": prefix,
    "tieredStoreS3Region": region,
    "tieredStoreS3PathStyle": path_style,
    "tieredStoreS3Dialect": dialect,
    "objectStoreAccessKey": access_key,
    "objectStoreSecretKey": secret_key,
    "tieredStoreS3SessionToken": session_token,
    "tieredStoreS3Profile": profile,
    "tieredStoreS3RoleArn": role_arn,
    "tieredStoreS3ExternalId": external_id,
    "tieredStoreS3Sse": sse,
    "tieredStoreS3SseKmsKeyId": sse_kms_key_id,
    "tieredStoreS3SseBucketKey": sse_bucket_key,
    "tieredStoreS3StorageClass": storage_class,
    "tieredStoreS3Checksums": checksums,
    "tieredStoreS3ReadTimeout": read_timeout,
    "tieredStoreS3MaxAttempts": max_attempts,
    "tieredStoreS3MaxConnections": max_connections,
    "tieredStoreS3Proxy": proxy,
    "tieredStoreS3CaBundle": ca_bundle,
    "tieredStoreS3VerifyTls": verify_tls,
    "tieredStoreS3WritePrice": write_price,
    "tieredStoreS3ReadPrice": read_price,
    "tieredStoreS3TransferPrice": transfer_price,
    "tieredStoreS3FastReads": fast_reads,
}

CHUNKS: dict[str, tuple[str, Callable[[ChunkSettings], object], object]] = {
    "tieredStoreChunkFencing": ("none", lambda found: found.fencing, False),
    "tieredStoreChunkTakeOverEpoch": ("77", lambda found: found.take_over_epoch, 77),
    "tieredStoreChunkTakeOverAfter": ("77", lambda found: found.take_over_after_ms, 77),
    "tieredStoreChunkGroupSize": ("777777", lambda found: found.group_bytes, 777_777),
    "tieredStoreChunkHedge": ("true", lambda found: found.hedge, True),
}


def test_every_key_has_a_check() -> None:
    assert CHECKS.keys() | CHUNKS.keys() == fields_by_key(S3Settings).keys()
    assert CHUNKS.keys() == fields_by_key(SharedSettings).keys()


@pytest.mark.parametrize("key", CHECKS)
def test_the_key_has_its_effect(
    key: str, server: ScriptedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    CHECKS[key](Setting(server, tmp_path, monkeypatch))


@pytest.mark.parametrize("key", CHUNKS)
def test_the_key_reaches_the_chunk_log(key: str, server: ScriptedServer) -> None:
    value, found, expected = CHUNKS[key]
    properties = {
        "objectStoreBucket": "tier",
        "objectStoreEndpoint": server.url,
        "tieredStoreS3Region": "eu-central-1",
        key: value,
    }
    config = config_from_properties(properties, origin="broker.conf").config
    with closing(S3Provider.from_config(config)) as provider:
        assert found(provider._settings) == expected
        assert found(ChunkSettings()) != expected


def test_the_secret_of_these_tests_is_not_in_their_repr() -> None:
    assert SECRET_KEY not in repr(s3_settings("http://x"))


def test_a_process_reads_the_descriptions_of_services_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings = s3_settings("http://x")
    make_client(settings, bulk=False).close()
    read: list[str] = []

    def load_file(_: object, path: str) -> None:
        read.append(path)

    monkeypatch.setattr(JSONFileLoader, "load_file", load_file)
    make_client(settings, bulk=True).close()
    assert read == []
