"""S3Client fulfils the contract of an ObjectClient on moto."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from moto.s3.models import s3_backends

from tests.kit.s3.scripted_server import s3_client
from tieredstore.contracts.objects import CopiedPart, Part
from tieredstore.errors import Invalid, Unavailable
from tieredstore.providers.s3.client import S3Client

FIVE_MIB = 5 << 20


@pytest.fixture
def client(moto_endpoint: str, bucket: str) -> Iterator[S3Client]:
    with s3_client(moto_endpoint, objectStoreBucket=bucket, tieredStoreS3Prefix="a/b") as client:
        yield client


def fill(bucket: str, keys: list[str]) -> None:
    """Create empty objects directly in moto, without HTTP requests."""
    backend: Any = s3_backends["123456789012"]["aws"]
    for key in keys:
        backend.put_object(bucket, key, b"")


def test_an_object_is_the_concatenation_of_its_buffers_with_its_metadata(client: S3Client) -> None:
    metadata = {"w": "1:me", "crc": "00ff"}
    assert client.put_if_absent("k", [b"ab", bytearray(b"cd"), memoryview(b"ef")], metadata)
    found = client.head("k")
    assert found is not None
    assert (found.key, found.size_bytes, found.metadata) == ("k", 6, metadata)
    assert client.get_range("k", 0, 6) == b"abcdef"


def test_of_two_writers_of_a_key_the_second_is_told_and_changes_nothing(client: S3Client) -> None:
    assert client.put_if_absent("k", [b"first"], {"w": "1"})
    assert not client.put_if_absent("k", [b"second"], {"w": "2"})
    assert client.get_range("k", 0, 100) == b"first"


def test_of_16_racing_writers_one_wins(client: S3Client) -> None:
    with ThreadPoolExecutor(16) as pool:
        won = list(pool.map(lambda n: client.put_if_absent("k", [b"%d" % n], {}), range(16)))
    assert won.count(True) == 1
    assert client.get_range("k", 0, 9) == b"%d" % won.index(True)


@pytest.mark.parametrize(
    ("position", "length", "expected"),
    [(0, 3, b"012"), (4, 3, b"456"), (8, 5, b"89"), (10, 1, b""), (50, 2, b""), (3, 0, b"")],
)
def test_a_range_has_the_bytes_that_there_are(
    client: S3Client, position: int, length: int, expected: bytes
) -> None:
    client.put_if_absent("k", [b"0123456789"], {})
    assert client.get_range("k", position, length) == expected


def test_an_empty_object_has_an_empty_range(client: S3Client) -> None:
    client.put_if_absent("k", [], {"w": "1"})
    assert client.get_range("k", 0, 10) == b""
    assert client.head("k").size_bytes == 0  # type: ignore[union-attr]


def test_an_object_that_is_not_there_is_none(client: S3Client) -> None:
    assert client.head("none") is None
    assert client.get_range("none", 0, 1) is None
    assert client.get_range("none", 0, 0) is None


def test_keys_with_any_characters_come_back_as_they_went(client: S3Client) -> None:
    keys = ["t%TOPIC x=y&z/é 你/q@1:2/+", "%RETRY%g/0/~", "a b/c"]
    for key in keys:
        client.put_if_absent(key, [key.encode()], {})
        assert client.get_range(key, 0, 100) == key.encode()
    assert {found.key for found in client.list("")} == set(keys)
    client.delete(keys)
    assert list(client.list("")) == []


def test_o07_a_listing_goes_on_after_1000_keys(client: S3Client, bucket: str) -> None:
    keys = [f"x/{number:04d}" for number in range(2001)]
    fill(bucket, [f"a/b/{key}" for key in keys] + ["a/bb/other", "z"])
    assert [found.key for found in client.list("x/")] == keys
    assert [found.key for found in client.list("x/", "x/0999")] == keys[1000:]
    assert [found.key for found in client.list("x/2")] == ["x/2000"]


def test_a_listing_is_in_order_of_utf_8_bytes(client: S3Client, bucket: str) -> None:
    keys = ["A", "Z", "a", "a!", "a-1", "a/1", "aé", "a你", "😀", "\ufffd"]
    fill(bucket, [f"a/b/{key}" for key in keys])
    assert [found.key for found in client.list("")] == sorted(keys, key=str.encode)


def test_an_empty_prefix_is_an_empty_listing_and_a_missing_bucket_is_not(
    client: S3Client, moto_endpoint: str
) -> None:
    assert list(client.list("nothing/")) == []
    with (
        s3_client(moto_endpoint, objectStoreBucket="no-such-bucket") as other,
        pytest.raises(Invalid, match="bucket does not exist"),
    ):
        list(other.list(""))


def test_folders_are_what_is_below_the_prefix(client: S3Client) -> None:
    client.put_if_absent("one/x/y", [b""], {})
    client.put_if_absent("two/x", [b""], {})
    client.put_if_absent("file", [b""], {})
    assert client.folders() == ["one", "two"]


def test_deleting_more_than_1000_keys_deletes_them_all(client: S3Client, bucket: str) -> None:
    keys = [f"{number:04d}" for number in range(1001)]
    fill(bucket, [f"a/b/{key}" for key in keys] + ["a/b/stays"])
    client.delete([*keys, "never-there"])
    assert [found.key for found in client.list("")] == ["stays"]
    client.delete([])


def test_an_object_is_composed_of_copied_and_sent_parts(client: S3Client) -> None:
    client.put_if_absent("source", [b"x" * 100, b"y" * FIVE_MIB], {})
    parts: list[Part] = [CopiedPart("source", 100, FIVE_MIB), [b"a" * FIVE_MIB, b"b"], [b"end"]]
    assert client.compose("k", parts, {"w": "1"})
    found = client.head("k")
    assert found is not None
    assert (found.size_bytes, found.metadata) == (2 * FIVE_MIB + 4, {"w": "1"})
    assert client.get_range("k", FIVE_MIB - 1, 3) == b"yaa"
    assert client.get_range("k", 2 * FIVE_MIB, 10) == b"bend"


def test_composing_a_key_that_is_taken_is_told_and_leaves_nothing(client: S3Client) -> None:
    client.put_if_absent("k", [b"first"], {})
    assert not client.compose("k", [[b"second"]], {})
    assert client.get_range("k", 0, 100) == b"first"
    assert client.abort_uploads("", client.now_ms() + 10_000) == 0


def test_composing_from_an_object_that_is_gone_leaves_nothing(client: S3Client) -> None:
    with pytest.raises(Unavailable, match=r"source c\.0 is gone"):
        client.compose("k", [CopiedPart("c.0", 0, FIVE_MIB), [b"end"]], {})
    assert client.head("k") is None
    assert client.abort_uploads("", client.now_ms() + 10_000) == 0


@pytest.mark.parametrize("parts", [[], [[b"small"], [b"end"]], [[b""]]])
def test_parts_that_no_endpoint_takes_are_refused_before_anything_is_sent(
    client: S3Client, parts: list[list[bytes]]
) -> None:
    with pytest.raises(Invalid):
        client.compose("k", parts, {})
    assert client.meter.usage().requests == 0


def test_o08_uploads_left_open_are_aborted_below_their_prefix(
    client: S3Client, moto_endpoint: str, bucket: str
) -> None:
    boto = client._lane._open_client()
    for key in ("a/b/x/1", "a/b/x/2", "a/b/y/1", "a/c/1"):
        boto.create_multipart_upload(Bucket=bucket, Key=key)
    assert client.abort_uploads("x/", client.now_ms() + 10_000) == 2
    assert client.abort_uploads("", client.now_ms() + 10_000) == 1
    left = boto.list_multipart_uploads(Bucket=bucket).get("Uploads", [])
    assert [upload["Key"] for upload in left] == ["a/c/1"]


def test_a_key_that_is_too_long_is_refused_before_anything_is_sent(client: S3Client) -> None:
    with pytest.raises(Invalid, match="1024"):
        client.put_if_absent("k" * 1021, [b""], {})
    assert client.put_if_absent("k" * 1020, [b""], {})


def test_the_bulk_client_has_the_same_objects_and_a_pool_of_its_own(client: S3Client) -> None:
    bulk = client.bulk
    assert bulk.put_if_absent("k", [b"abc"], {})
    assert client.get_range("k", 0, 3) == bulk.get_range("k", 0, 3) == b"abc"
    assert bulk.meter is client.meter
    assert bulk._lane._open_client() is not client._lane._open_client()
