"""Tests of S3Provider that are specific to S3. The common contract is tested in
`tests/integration/object_store`."""

from __future__ import annotations

from contextlib import closing

import pytest

from tests.kit.s3.scripted_server import (
    Reply,
    Request,
    ScriptedServer,
    listing,
    ranged,
    s3_client,
    s3_settings,
)
from tieredstore import registry
from tieredstore.config import StoreConfig
from tieredstore.contracts.segment import FileSegmentType, SegmentId, Written
from tieredstore.contracts.usage import MeteredProvider, WrittenBytes
from tieredstore.errors import Invalid
from tieredstore.metrics import Metrics
from tieredstore.properties import PluginProperties
from tieredstore.providers.s3 import meter as s3_meter
from tieredstore.providers.s3.client import S3Client
from tieredstore.providers.s3.provider import S3Provider

SEGMENT = SegmentId("broker-a/T/0", FileSegmentType.COMMIT_LOG, 0)


def open_tier(endpoint: str, bucket: str, owner: str = "host:1", **changes: int) -> S3Provider:
    settings = s3_settings(
        endpoint,
        objectStoreBucket=bucket,
        tieredStoreS3Prefix="p",
    )
    return S3Provider(S3Client(settings), settings=settings.chunk_settings(**changes), owner=owner)


def test_a_segment_goes_to_the_bucket_and_comes_back(moto_endpoint: str, bucket: str) -> None:
    with closing(open_tier(moto_endpoint, bucket)) as provider:
        epoch = provider.acquire_writer("broker-a")
        assert provider.open(SEGMENT).write(0, [b"abc"]) == Written(3)
        epoch.release()
    with closing(open_tier(moto_endpoint, bucket)) as provider:
        assert bytes(provider.open(SEGMENT).read(1, 2)) == b"bc"
        assert [found.id for found in provider.list()] == [SEGMENT]
        assert provider.url == f"s3://{bucket}/p"


def test_clusters_are_the_folders_that_are_named_like_one(moto_endpoint: str, bucket: str) -> None:
    url = f"s3://{bucket}/p?endpoint={moto_endpoint}&region=us-east-1"
    keys = PluginProperties({"objectStoreAccessKey": "a", "objectStoreSecretKey": "b"})
    config = registry.tier_at(StoreConfig(plugin_properties=keys), url)
    assert registry.clusters(config) == []
    with closing(open_tier(moto_endpoint, bucket)) as provider:
        provider.open(SEGMENT).write(0, [b"abc"])
        provider.client.put_if_absent("other/x", [b""], {})
    assert registry.clusters(config) == ["DefaultCluster"]


def test_usage_counts_by_operation_and_file_type_and_prices_it(
    moto_endpoint: str, bucket: str
) -> None:
    with closing(open_tier(moto_endpoint, bucket)) as provider:
        metrics = Metrics()
        provider.bind_metrics(metrics)
        assert isinstance(provider, MeteredProvider)
        provider.open(SEGMENT).write(0, [b"abc"])
        rows = {(row.operation, row.file_type): row for row in provider.usage().rows}
        put = rows["PutObject", "COMMIT_LOG"]
        assert (put.requests, put.failed, put.sent_bytes) == (1, 0, 3)
        assert put.cost_usd == pytest.approx(5e-6)
        assert provider.usage().requests_by_operation["PutObject"] == 1
        labels = {"operation": "PutObject", "file_type": "COMMIT_LOG"}
        assert metrics.value(s3_meter.REQUESTS, status="200", **labels) == 1
        assert metrics.value(s3_meter.COST, **labels) == pytest.approx(5e-6)


def test_usage_tells_how_often_a_byte_was_written(moto_endpoint: str, bucket: str) -> None:
    """The usage shows how often each byte was written: by commits, by merges, and by copies on the
    server."""
    # Nothing is merged beside the test, so that all of it is counted when a run ends.
    with closing(open_tier(moto_endpoint, bucket, maintenance_threads=0)) as provider:
        epoch = provider.acquire_writer("broker-a")
        segment = provider.open(SEGMENT)
        piece = bytes(64 << 10)
        for turn in range(16):
            segment.write(turn * len(piece), [piece])
        size = 16 * len(piece)
        provider.run_maintenance()
        assert provider.usage().written == WrittenBytes(kept=size, merged=size)
        large = bytes(9 << 20)
        segment.write(size, [large])
        segment.seal()
        provider.run_maintenance()
        epoch.release()
        written = provider.usage().written
    assert written.kept == size + len(large)
    # A first part below 5 MiB is sent with the beginning of what follows.
    assert written.merged + written.copied == size + written.kept
    assert written.copied >= 4 << 20
    assert written.per_kept_byte == pytest.approx(2.1)


def test_o11_an_endpoint_that_ignores_conditions_has_no_writer(server: ScriptedServer) -> None:
    stored: dict[str, bytes] = {}

    def careless(request: Request) -> Reply:
        """A server that stores every body and ignores headers."""
        key = request.path.removeprefix("/tier/")
        if request.method == "PUT":
            stored[key] = request.body
            return Reply()
        if request.operation == "POST ?delete":
            return Reply(body=b"<DeleteResult/>")
        if request.query.get("list-type"):
            prefix = request.query["prefix"]
            return listing(sorted(name for name in stored if name.startswith(prefix)))
        if request.method == "GET" and key in stored:
            return ranged(stored[key], 0, len(stored[key]))
        return Reply(404)

    server.otherwise = careless
    settings = s3_settings(server.url)
    with (
        closing(S3Provider(S3Client(settings), settings=settings.chunk_settings())) as provider,
        pytest.raises(Invalid, match="If-None-Match"),
    ):
        provider.acquire_writer("broker-a")
    without = s3_settings(server.url, tieredStoreChunkFencing="none")
    with closing(S3Provider(S3Client(without), settings=without.chunk_settings())) as provider:
        provider.acquire_writer("broker-b")


def test_as_many_reads_at_once_help_as_there_are_connections(server: ScriptedServer) -> None:
    settings = s3_settings(server.url, objectStoreBucket="b", tieredStoreS3MaxConnections=7)
    with closing(S3Provider(S3Client(settings), settings=settings.chunk_settings())) as provider:
        assert provider.capabilities.concurrent_reads == 7


def test_no_bucket_is_ever_made_or_located(moto_endpoint: str, bucket: str) -> None:
    with closing(open_tier(moto_endpoint, bucket)) as provider:
        provider.acquire_writer("broker-a")
        provider.open(SEGMENT).write(0, [b"abc"])
        provider.open(SEGMENT).seal()
        provider.run_maintenance()
        provider.open(SEGMENT).delete()
        asked = set(provider.usage().requests_by_operation)
    assert asked <= {
        "AbortMultipartUpload",
        "CompleteMultipartUpload",
        "CreateMultipartUpload",
        "DeleteObject",
        "DeleteObjects",
        "GetObject",
        "HeadObject",
        "ListMultipartUploads",
        "ListObjectsV2",
        "PutObject",
        "UploadPart",
        "UploadPartCopy",
    }


def test_a_tier_without_a_bucket_is_one_clear_error(server: ScriptedServer) -> None:
    with pytest.raises(Invalid, match="objectStoreBucket"), s3_client("", objectStoreBucket=""):
        pass
