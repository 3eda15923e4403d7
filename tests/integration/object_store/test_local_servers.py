"""What `localstack/up` starts is ready for an example of the documentation."""

from __future__ import annotations

from tests.kit.object_store.servers import ObjectStore, boto_client


def test_a_server_starts_with_an_empty_bucket_for_a_tier(object_store: ObjectStore) -> None:
    listing = boto_client(object_store.server_endpoint).list_objects_v2(Bucket="tier")
    assert listing["KeyCount"] == 0
