"""The fault proxy runs in front of real servers, two of which check requests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from botocore.exceptions import ClientError, HTTPClientError
from types_boto3_s3.client import S3Client

from tests.kit.fault_proxy.faults import (
    answer_other_range,
    answer_whole_object,
    corrupt_upload,
    cut_body,
    drop_from_list,
    ignore_conditions,
    lose_reply,
)
from tests.kit.fault_proxy.http import Credentials
from tests.kit.fault_proxy.proxy import FaultProxy
from tests.kit.object_store.servers import ObjectStore

KEY = "a+b c/%RETRY%é/0"
DATA = bytes(range(256)) * 40


@pytest.fixture
def client(proxied: ObjectStore) -> Iterator[S3Client]:
    client = proxied.client()
    yield client
    client.close()


def status_of(error: ClientError) -> int:
    status: int = error.response["ResponseMetadata"]["HTTPStatusCode"]
    return status


def test_signed_requests_pass_unharmed(
    proxied: ObjectStore, client: S3Client, proxy: FaultProxy
) -> None:
    bucket = proxied.bucket
    client.put_object(
        Bucket=bucket, Key=KEY, Body=DATA, IfNoneMatch="*", Metadata={"w": "1"},
        ChecksumAlgorithm="CRC32",
    )  # fmt: skip
    upload = client.create_multipart_upload(Bucket=bucket, Key="m")["UploadId"]
    big = b"x" * (5 << 20)
    part = client.upload_part(Bucket=bucket, Key="m", UploadId=upload, PartNumber=1, Body=big)
    copied = client.upload_part_copy(
        Bucket=bucket, Key="m", UploadId=upload, PartNumber=2,
        CopySource={"Bucket": bucket, "Key": KEY}, CopySourceRange="bytes=0-9",
    )  # fmt: skip
    etags = [part["ETag"], copied["CopyPartResult"]["ETag"]]
    client.complete_multipart_upload(
        Bucket=bucket, Key="m", UploadId=upload, IfNoneMatch="*",
        MultipartUpload={"Parts": [{"ETag": e, "PartNumber": n} for n, e in enumerate(etags, 1)]},
    )  # fmt: skip
    got = client.get_object(Bucket=bucket, Key=KEY, Range="bytes=250-260")
    assert got["Body"].read() == DATA[250:261]
    assert client.head_object(Bucket=bucket, Key=KEY)["Metadata"] == {"w": "1"}
    assert proxied.keys() == {KEY: len(DATA), "m": len(big) + 10}
    client.delete_objects(Bucket=bucket, Delete={"Objects": [{"Key": KEY}, {"Key": "m"}]})
    assert proxied.keys() == {}
    assert [e.operation for e in proxy.seen if e.answered == 200][:5] == [
        "PutObject",
        "CreateMultipartUpload",
        "UploadPart",
        "UploadPartCopy",
        "CompleteMultipartUpload",
    ]
    assert all(e.applied == e.answered for e in proxy.seen)


def test_a_fault_that_changes_the_request_is_signed_again(
    proxied: ObjectStore, client: S3Client, proxy: FaultProxy
) -> None:
    client.put_object(Bucket=proxied.bucket, Key=KEY, Body=DATA)
    proxy.inject(answer_whole_object(), "GetObject", calls={1})
    proxy.inject(answer_other_range(5, honest=False), "GetObject", calls={2})
    proxy.inject(ignore_conditions(), "PutObject", calls={1})
    ranged = {"Bucket": proxied.bucket, "Key": KEY, "Range": "bytes=10-19"}
    answers = [client.get_object(**ranged) for _ in range(3)]  # type: ignore[arg-type]
    bodies = [answer["Body"].read() for answer in answers]
    assert bodies == [DATA, DATA[15:25], DATA[10:20]]
    assert answers[1]["ContentRange"] == answers[2]["ContentRange"]
    client.put_object(Bucket=proxied.bucket, Key=KEY, Body=b"over it", IfNoneMatch="*")
    with pytest.raises(ClientError) as caught:
        client.put_object(Bucket=proxied.bucket, Key=KEY, Body=b"again", IfNoneMatch="*")
    assert status_of(caught.value) == 412


def test_without_credentials_a_changed_request_is_refused(versitygw: ObjectStore) -> None:
    for credentials in (None, Credentials("testing", "wrong")):
        with FaultProxy(versitygw.endpoint, credentials) as proxy:
            client = versitygw.through(proxy.endpoint).client()
            client.put_object(Bucket=versitygw.bucket, Key="k", Body=b"x")
            proxy.inject(ignore_conditions(), "PutObject")
            with pytest.raises(ClientError) as caught:
                client.put_object(Bucket=versitygw.bucket, Key="k", Body=b"y", IfNoneMatch="*")
            client.close()
            assert status_of(caught.value) == 403


def test_damage_on_the_way_up_is_refused_where_checksums_are_checked(
    proxied: ObjectStore, client: S3Client, proxy: FaultProxy
) -> None:
    proxy.inject(corrupt_upload(), "PutObject")
    put = {"Bucket": proxied.bucket, "Key": "k", "Body": b"data"}
    if not proxied.checks_checksums:
        client.put_object(**put)  # type: ignore[arg-type]
        return
    with pytest.raises(ClientError) as caught:
        client.put_object(**put)  # type: ignore[arg-type]
    assert status_of(caught.value) == 400


def test_replies_are_lost_cut_and_changed(
    proxied: ObjectStore, client: S3Client, proxy: FaultProxy
) -> None:
    bucket = proxied.bucket
    proxy.inject(lose_reply(), "PutObject", key="^lost$")
    with pytest.raises(HTTPClientError):
        client.put_object(Bucket=bucket, Key="lost", Body=DATA)
    client.put_object(Bucket=bucket, Key="other", Body=DATA)
    assert set(proxied.keys()) == {"lost", "other"}
    proxy.inject(cut_body(100), "GetObject")
    body = client.get_object(Bucket=bucket, Key="lost")["Body"]
    with pytest.raises(HTTPClientError):
        body.read()
    proxy.inject(drop_from_list(), "ListObjectsV2")
    page = client.list_objects_v2(Bucket=bucket)
    assert [found["Key"] for found in page["Contents"]] == ["other"]
