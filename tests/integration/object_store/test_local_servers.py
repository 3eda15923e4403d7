"""An example of the documentation runs on the servers that `localstack/up` starts."""

from __future__ import annotations

import pytest

from tests.kit.object_store.servers import NAMES, ObjectStore, Servers, boto_client

pytestmark = pytest.mark.parametrize("object_store", NAMES, indirect=True)


def test_a_server_starts_with_an_empty_bucket_for_a_tier(object_store: ObjectStore) -> None:
    listing = boto_client(object_store.server_endpoint).list_objects_v2(Bucket="tier")
    assert listing["KeyCount"] == 0


def test_a_second_up_finds_the_running_server_whatever_it_holds(
    servers: Servers, object_store: ObjectStore
) -> None:
    """A second `up` finds the running server even if the server cannot list its objects. moto
    cannot list them while a multipart upload has a part."""
    client = object_store.client()
    upload = client.create_multipart_upload(Bucket=object_store.bucket, Key="k")["UploadId"]
    client.upload_part(
        Bucket=object_store.bucket, Key="k", UploadId=upload, PartNumber=1, Body=b"x"
    )
    object_store.put(["kept"], b"x")
    assert servers.up(object_store.server) == object_store.server_endpoint
    assert list(object_store.keys()) == ["kept"]
