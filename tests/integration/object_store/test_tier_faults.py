"""Tests of a chunk log provider whose real object store fails. Maintenance runs only when the test
calls it (`killable.open_tier`)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest

from tests.kit.fault_proxy.faults import (
    answer,
    answer_whole_object,
    cut_body,
    drop_from_list,
    ignore_conditions,
    lose_reply,
    slow_down,
)
from tests.kit.fault_proxy.proxy import FaultProxy
from tests.kit.killable.object_store import BROKER, open_tier
from tests.kit.object_store.servers import ObjectStore
from tieredstore.contracts.segment import FileSegment, FileSegmentType, UnknownWrite
from tieredstore.errors import Corrupt, Invalid, TieredStoreError, Unavailable
from tieredstore.testing.provider.samples import content, segment_id, write_whole

if TYPE_CHECKING:
    from tieredstore.providers.s3.provider import S3Provider

OPTIONS = {"max_attempts": "2", "fast_reads": "false"}
QUEUE = segment_id(type=FileSegmentType.CONSUME_QUEUE)


@pytest.fixture
def proxy(strict_proxy: FaultProxy) -> FaultProxy:
    return strict_proxy


@pytest.fixture
def store(versitygw: ObjectStore) -> ObjectStore:
    return versitygw


@pytest.fixture
def provider(store: ObjectStore, proxy: FaultProxy) -> Iterator[S3Provider]:
    """A provider that owns the writer epoch, behind the proxy."""
    with closing(open_tier(store.through(proxy.endpoint).url(**OPTIONS))) as provider:
        epoch = provider.acquire_writer(BROKER)
        yield provider
        proxy.heal()
        epoch.release()


def names(store: ObjectStore) -> list[str]:
    """Return the names of the objects of the tier's only segment, without their folders."""
    return sorted(key.rpartition("/")[2] for key in store.keys("tier/") if "/." not in key)


def chunks(segment: FileSegment, count: int, length: int = 100) -> bytes:
    """Return the expected content of a segment after `count` writes."""
    whole = content(count * length)
    for start in range(0, len(whole), length):
        write_whole(segment, whole[start : start + length], start)
    return whole


def check(store: ObjectStore, whole: bytes, segment: FileSegment) -> None:
    """Check the segment's content in another process, without the proxy."""
    with closing(open_tier(store.url(**OPTIONS))) as other:
        found = other.open(segment.id)
        assert found.size() == len(whole)
        assert bytes(found.read(0, len(whole))) == whole


def test_o01_a_tier_that_fails_for_a_while_is_unavailable_and_goes_on(
    provider: S3Provider, proxy: FaultProxy, store: ObjectStore
) -> None:
    segment = provider.open(segment_id())
    whole = chunks(segment, 2)
    proxy.inject(answer(503, "ServiceUnavailable"))
    try:
        result = segment.write(200, [b"x" * 100])
        assert isinstance(result, UnknownWrite)
    except Unavailable:
        pass
    for call in (segment.size, lambda: segment.read(0, 200), lambda: list(provider.list())):
        with pytest.raises(Unavailable):
            call()
    proxy.heal()
    write_whole(segment, b"x" * 100, 200)
    check(store, whole + b"x" * 100, segment)


def test_o03_lost_reply_of_a_put_is_no_second_chunk(
    provider: S3Provider, proxy: FaultProxy, store: ObjectStore
) -> None:
    segment = provider.open(segment_id())
    lost = proxy.inject(lose_reply(), "PutObject", key=r"/c\.", calls={2, 5})
    whole = chunks(segment, 4)
    assert lost.hits == 2
    assert names(store) == [f"c.{start:020d}" for start in (0, 100, 200, 300)]
    check(store, whole, segment)


def test_o03_a_put_without_any_reply_is_unknown_and_then_the_same(
    provider: S3Provider, proxy: FaultProxy, store: ObjectStore
) -> None:
    segment = provider.open(segment_id())
    whole = chunks(segment, 1)
    # the server does it, but neither the retries nor the later fence check get an answer
    proxy.inject(lose_reply(), "PutObject", "HeadObject", "ListObjectsV2")
    assert isinstance(segment.write(100, [b"second"]), UnknownWrite)
    proxy.heal()
    write_whole(segment, b"second", 100)
    write_whole(segment, b"third", 106)
    assert len(names(store)) == 3
    check(store, whole + b"second" + b"third", segment)


@pytest.mark.parametrize(
    ("operation", "key"),
    [
        ("PutObject", r"/m\."),
        ("PutObject", r"/c\.0+500$"),
        ("PutObject", r"/s$"),
        ("DeleteObjects", ""),
    ],
    ids=["merge", "marker", "whole", "delete"],
)
def test_o03_lost_replies_of_maintenance_change_nothing_twice(
    provider: S3Provider, proxy: FaultProxy, store: ObjectStore, operation: str, key: str
) -> None:
    segment = provider.open(segment_id())
    lost = proxy.inject(lose_reply(), operation, key=key, calls={1})
    whole = chunks(segment, 4)
    provider.run_maintenance(sweep=False)
    whole += bytes(content(100, 9))
    write_whole(segment, content(100, 9), 400)
    segment.seal()
    for _ in range(3):
        provider.run_maintenance()
    assert lost.hits == 1
    assert names(store) == [f"c.{500:020d}", "s"]
    check(store, whole, segment)


def test_o03_a_lost_reply_of_a_completion_publishes_once(
    provider: S3Provider, proxy: FaultProxy, store: ObjectStore
) -> None:
    segment = provider.open(segment_id())
    whole = content(5 << 20) + b"the end"
    write_whole(segment, whole[:-7])
    write_whole(segment, whole[-7:], len(whole) - 7)
    segment.seal()
    lost = proxy.inject(lose_reply(), "CompleteMultipartUpload", calls={1})
    for _ in range(2):
        provider.run_maintenance()
    assert lost.hits == 1
    assert names(store) == [f"c.{len(whole):020d}", "s"]
    assert store.open_uploads() == 0
    check(store, whole, segment)


def test_o03_a_deletion_whose_reply_is_lost_is_done(
    provider: S3Provider, proxy: FaultProxy, store: ObjectStore
) -> None:
    segment = provider.open(segment_id())
    chunks(segment, 3)
    proxy.inject(lose_reply(), "DeleteObjects", calls={1, 3})
    segment.delete()
    assert names(store) == ["t"]  # that it is deleted
    assert segment.size() == 0


def test_o04_a_conflict_is_tried_again(
    provider: S3Provider, proxy: FaultProxy, store: ObjectStore
) -> None:
    segment = provider.open(segment_id())
    conflict = answer(409, "ConditionalRequestConflict")
    rule = proxy.inject(conflict, "PutObject", key=r"/c\.", calls={1, 2})
    whole = chunks(segment, 2)
    assert rule.hits == 2
    proxy.heal()
    proxy.inject(conflict, "PutObject", key=r"/c\.")
    with pytest.raises(Unavailable):
        segment.write(200, [b"never"])
    assert len(names(store)) == 2
    check(store, whole, segment)


def test_o05_bodies_cut_short_are_read_on(provider: S3Provider, proxy: FaultProxy) -> None:
    whole = chunks(provider.open(segment_id()), 3, 30_000)
    proxy.inject(cut_body(1000), "GetObject", calls={1, 3})
    with closing(open_tier(provider_url(proxy, provider))) as reader:
        assert bytes(reader.open(segment_id()).read(10, 80_000)) == whole[10:80_010]


def provider_url(proxy: FaultProxy, provider: S3Provider) -> str:
    bucket = provider.url.removeprefix("s3://").partition("/")[0]
    return ObjectStore("versitygw", proxy.endpoint, bucket, "").url(**OPTIONS)


@pytest.mark.parametrize("fault", [cut_body(0), answer_whole_object()], ids=["cut", "whole"])
def test_o06_reads_that_never_come_right_are_errors(
    provider: S3Provider, proxy: FaultProxy, fault: Any
) -> None:
    chunks(provider.open(segment_id()), 2)
    proxy.inject(fault, "GetObject")
    with closing(open_tier(provider_url(proxy, provider))) as reader, pytest.raises(Unavailable):
        reader.open(segment_id()).read(10, 150)


def test_o07_a_key_that_a_listing_leaves_out_is_a_gap_and_not_the_end(
    provider: S3Provider, proxy: FaultProxy
) -> None:
    whole = chunks(provider.open(segment_id()), 3)
    proxy.inject(drop_from_list(1), "ListObjectsV2", key="COMMIT_LOG|broker-a/$")
    with closing(open_tier(provider_url(proxy, provider))) as reader:
        segment = reader.open(segment_id())
        with pytest.raises((Corrupt, Unavailable)):
            segment.read(0, 300)
        proxy.heal()
        assert bytes(segment.read(0, 300)) == whole


@pytest.mark.parametrize("fault", [slow_down(), answer(200, "InternalError"), lose_reply()])
def test_o07_a_listing_that_fails_never_looks_like_an_empty_segment(
    provider: S3Provider, proxy: FaultProxy, store: ObjectStore, fault: Any
) -> None:
    whole = chunks(provider.open(segment_id()), 3)
    proxy.inject(fault, "ListObjectsV2")
    with closing(open_tier(provider_url(proxy, provider))) as other:
        segment = other.open(segment_id())
        for call in (segment.size, lambda: list(other.list()), lambda: segment.read(0, 1)):
            with pytest.raises(TieredStoreError) as caught:
                call()
            assert isinstance(caught.value, Unavailable)
    proxy.heal()
    check(store, whole, provider.open(segment_id()))


def test_o08_an_upload_left_open_by_a_kill_is_reaped_after_its_age(
    store: ObjectStore, provider: S3Provider
) -> None:
    chunks(provider.open(segment_id()), 1)
    folder = next(key for key in store.keys("tier/") if "/c." in key).rpartition("/")[0]
    client = store.client()
    client.create_multipart_upload(Bucket=store.bucket, Key=f"{folder}/s")
    client.create_multipart_upload(Bucket=store.bucket, Key="somebody/else")
    client.close()
    assert store.open_uploads() == 2
    report = provider.run_maintenance()  # by its clock weeks went by
    assert report.aborted_upload_count == 1
    assert store.open_uploads() == 1, "uploads of others are left alone"


def test_o09_an_object_that_somebody_deleted_is_a_gap_with_its_offsets(
    provider: S3Provider, store: ObjectStore
) -> None:
    segment = provider.open(segment_id())
    whole = chunks(segment, 3)
    store.delete(next(key for key in store.keys("tier/") if key.endswith("c.00000000000000000100")))
    with closing(open_tier(store.url(**OPTIONS))) as other:
        found = other.open(segment_id())
        with pytest.raises(Corrupt, match=r"100 to 200.* next valid offset is 200") as caught:
            found.read(50, 100)
        assert caught.value.offset == 100
        assert bytes(found.read(200, 100)) == whole[200:]
        assert bytes(found.read(0, 100)) == whole[:100]


def test_o09_an_object_that_somebody_replaced_is_not_served_as_another(
    provider: S3Provider, store: ObjectStore
) -> None:
    segment = provider.open(segment_id())
    chunks(segment, 4)
    provider.run_maintenance(sweep=False)
    merged = next(key for key in store.keys("tier/") if "/m." in key)
    store.put([merged], b"shorter")
    with (
        closing(open_tier(store.url(**OPTIONS))) as other,
        pytest.raises(Corrupt, match="expected 400 bytes"),
    ):
        other.open(segment_id()).read(0, 400)


def test_o11_an_endpoint_that_ignores_conditions_gets_no_writer(
    store: ObjectStore, proxy: FaultProxy
) -> None:
    proxy.inject(ignore_conditions())
    through = store.through(proxy.endpoint)
    provider = open_tier(through.url(**OPTIONS))
    with closing(provider), pytest.raises(Invalid, match="If-None-Match"):
        provider.acquire_writer(BROKER)
    with closing(open_tier(through.url(**OPTIONS, fencing="none"))) as provider:
        provider.acquire_writer(BROKER).release()
