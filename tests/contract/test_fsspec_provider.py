"""The provider contract on fsspec: local files, memory, and an S3 server through s3fs.

gcsfs and adlfs cannot be tested without their services.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import boto3
import pytest
from moto.server import ThreadedMotoServer

from tieredstore.contracts.segment import (
    FencedWrite,
    SegmentProvider,
    UnknownWrite,
    Written,
)
from tieredstore.errors import Invalid
from tieredstore.providers.chunks.settings import ChunkSettings
from tieredstore.providers.chunks.upkeep.policy import MergePolicy
from tieredstore.providers.fsspec.client import FsspecClient
from tieredstore.providers.fsspec.provider import FsspecProvider
from tieredstore.testing.provider.capabilities import PairedProviderContract
from tieredstore.testing.provider.samples import content, segment_id, write_whole

SETTINGS = ChunkSettings(
    fencing=False,
    maintenance_threads=0,
    pause_ms=0,
    grace_ms=0,
    policy=MergePolicy(fan_in=4, target_bytes=8192, part_bytes=4096, settle_ms=0),
)


def open_tier(protocol: str, root: str, **options: Any) -> FsspecProvider:
    return FsspecProvider(FsspecClient(protocol, root, options), settings=SETTINGS)


class FsspecPromises:
    """Promises of the fsspec provider beyond the contract."""

    def reopen(self, provider: Any) -> SegmentProvider:
        return FsspecProvider(provider.client, settings=SETTINGS)

    def test_merged_and_sealed_segments_have_the_same_bytes(self, provider: FsspecProvider) -> None:
        epoch = provider.acquire_writer("broker-a")
        segment = provider.open(segment_id())
        for n in range(20):
            write_whole(segment, content(1000, n), n * 1000)
        provider.run_maintenance()
        segment.seal()
        provider.run_maintenance()
        provider.run_maintenance()
        epoch.release()
        whole = b"".join(content(1000, n) for n in range(20))
        found = self.reopen(provider).open(segment_id())
        assert bytes(found.read(0, found.size())) == whole
        objects = [info.key.rpartition("/")[2] for info in provider.client.list("")]
        assert len([name for name in objects if name.startswith(("c.", "m.", "s"))]) <= 2

    def test_it_promises_no_fence(self, provider: FsspecProvider) -> None:
        assert not provider.capabilities.conditional
        assert not provider.capabilities.rewritable
        with closing(FsspecProvider(provider.client)) as fenced:
            with pytest.raises(Invalid, match="fencing=none"):
                fenced.acquire_writer("broker-a")
            with pytest.raises(Invalid, match="fencing=none"):
                fenced.open(segment_id()).write(0, [b"x"])
            assert fenced.open(segment_id()).size() == 0

    def test_a_write_whose_reply_was_lost_is_written(self, provider: FsspecProvider) -> None:
        """A write whose reply was lost counts as written. The provider recognises its write by the
        writer's name in the object's metadata, or by the bytes if the backend has no metadata."""
        epoch = provider.acquire_writer("broker-a")
        segment = write_whole(provider.open(segment_id()), b"abc")
        assert segment.write(3, [b"de", b"f"]) == Written(6)
        again = self.reopen(provider).open(segment_id())
        assert segment.write(3, [b"def"]) == Written(6)
        assert isinstance(segment.write(3, [b"xyz"]), (FencedWrite, UnknownWrite))
        assert bytes(again.read(0, 6)) == b"abcdef"
        epoch.release()


class FsspecContract(FsspecPromises, PairedProviderContract):
    pass


class TestLocalFiles(FsspecContract):
    @pytest.fixture
    def provider(self, tmp_path: Path) -> Iterator[SegmentProvider]:
        with closing(open_tier("file", str(tmp_path / "tier"))) as provider:
            yield provider


class TestMemory(FsspecContract):
    @pytest.fixture
    def provider(self) -> Iterator[SegmentProvider]:
        with closing(open_tier("memory", f"tier-{uuid.uuid4().hex}")) as provider:
            yield provider


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


class TestS3fs(FsspecPromises):
    @pytest.fixture
    def provider(self, endpoint: str) -> Iterator[SegmentProvider]:
        bucket = f"bucket-{uuid.uuid4().hex}"
        client = boto3.client(
            "s3",
            endpoint_url=endpoint,
            region_name="us-east-1",
            aws_access_key_id="testing",
            aws_secret_access_key="testing-secret",
        )
        client.create_bucket(Bucket=bucket)
        client.close()
        tier = open_tier(
            "s3",
            f"{bucket}/tier",
            endpoint_url=endpoint,
            key="testing",
            secret="testing-secret",
            client_kwargs={"region_name": "us-east-1"},
        )
        with closing(tier) as provider:
            yield provider


@pytest.mark.slow  # a request takes moto and s3fs about 20 ms
class TestS3fsContract(TestS3fs, PairedProviderContract):
    pass
