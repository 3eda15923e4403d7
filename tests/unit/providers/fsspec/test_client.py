"""Tests of FsspecClient on local files, in memory and, through s3fs, on an S3 server."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import boto3
import fsspec
import pytest
from fsspec.implementations.local import LocalFileSystem
from fsspec.implementations.memory import MemoryFileSystem
from moto.server import ThreadedMotoServer
from s3fs import S3FileSystem

from tieredstore.clock import ManualClock
from tieredstore.contracts.objects import CopiedPart, Part
from tieredstore.contracts.segment import Buffer
from tieredstore.errors import Invalid, Unavailable
from tieredstore.providers.fsspec import client as fsspec_objects
from tieredstore.providers.fsspec import writes as fsspec_writes
from tieredstore.providers.fsspec.client import FsspecClient

STAMP = {"w": "00000000000000000001:someone", "crc": "0badcafe"}
KEYS = ("t/c.1", "t/c.10", "t/c.2", "t/m.1-2", "t%TOPIC@x/é 你:1", "u", "t!/a")


@pytest.fixture(scope="module")
def s3_endpoint() -> Iterator[str]:
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


def s3_options(endpoint: str) -> dict[str, Any]:
    return {
        "endpoint_url": endpoint,
        "key": "testing",
        "secret": "testing-secret",
        "client_kwargs": {"region_name": "us-east-1"},
    }


def boto_client(endpoint: str) -> Any:
    return boto3.client(
        "s3",
        endpoint_url=endpoint,
        region_name="us-east-1",
        aws_access_key_id="testing",
        aws_secret_access_key="testing-secret",
    )


@pytest.fixture
def s3_bucket(s3_endpoint: str) -> str:
    name = f"bucket-{uuid.uuid4().hex}"
    client = boto_client(s3_endpoint)
    client.create_bucket(Bucket=name)
    client.close()
    return name


@pytest.fixture(params=["file", "memory", "s3"])
def client(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[FsspecClient]:
    if request.param == "file":
        made = FsspecClient("file", str(tmp_path / "tier"))
    elif request.param == "memory":
        made = FsspecClient("memory", f"tier-{uuid.uuid4().hex}")
    else:
        bucket = request.getfixturevalue("s3_bucket")
        options = s3_options(request.getfixturevalue("s3_endpoint"))
        made = FsspecClient("s3", f"{bucket}/some/prefix", options)
    yield made
    made.close()


def put(client: FsspecClient, key: str, data: bytes = b"x") -> None:
    assert client.put_if_absent(key, [data], STAMP)


class TestObjects:
    def test_an_object_is_the_buffers_one_after_another(self, client: FsspecClient) -> None:
        buffers: list[Buffer] = [b"ab", bytearray(b"cd"), memoryview(b"xefx")[1:3]]
        assert client.put_if_absent("t/c.0", buffers, STAMP)
        assert client.get_range("t/c.0", 0, 6) == b"abcdef"
        info = client.head("t/c.0")
        assert info is not None
        assert (info.key, info.size_bytes) == ("t/c.0", 6)
        assert abs(info.modified_ms - client.now_ms()) < 60_000
        assert info.metadata in (None, STAMP)

    def test_a_taken_key_keeps_its_bytes(self, client: FsspecClient) -> None:
        put(client, "t/c.0", b"first")
        assert not client.put_if_absent("t/c.0", [b"second"], STAMP)
        assert not client.compose("t/c.0", [[b"third"]], STAMP)
        assert client.get_range("t/c.0", 0, 100) == b"first"

    def test_an_empty_object_is_an_object(self, client: FsspecClient) -> None:
        assert client.put_if_absent("t/c.5", [], STAMP)
        assert not client.put_if_absent("t/c.5", [b"late"], STAMP)
        info = client.head("t/c.5")
        assert info is not None
        assert info.size_bytes == 0
        assert client.get_range("t/c.5", 0, 10) == b""
        assert client.get_range("t/c.5", 0, 0) == b""
        assert [found.key for found in client.list("t/")] == ["t/c.5"]

    @pytest.mark.parametrize(
        ("position", "length", "expected"),
        [
            (0, 10, b"0123456789"),
            (3, 4, b"3456"),
            (8, 5, b"89"),
            (10, 1, b""),
            (99, 5, b""),
            (4, 0, b""),
        ],
    )
    def test_a_range_ends_where_its_object_ends(
        self, client: FsspecClient, position: int, length: int, expected: bytes
    ) -> None:
        put(client, "t/c.0", b"0123456789")
        assert client.get_range("t/c.0", position, length) == expected

    def test_what_is_not_there_is_none(self, client: FsspecClient) -> None:
        put(client, "t/c.0")
        for key in ("t/c.1", "t", "x/y/z", "t/c.0/below"):
            assert client.head(key) is None
            assert client.get_range(key, 0, 1) is None
            assert client.get_range(key, 0, 0) is None

    def test_deleting_is_idempotent(self, client: FsspecClient) -> None:
        put(client, "t/c.0")
        put(client, "t/c.1")
        client.delete(["t/c.0", "t/never"])
        client.delete(["t/c.0"])
        assert [found.key for found in client.list("")] == ["t/c.1"]
        put(client, "t/c.0", b"again")
        assert client.get_range("t/c.0", 0, 5) == b"again"


class TestLists:
    def test_keys_come_in_the_order_of_their_bytes(self, client: FsspecClient) -> None:
        for n, key in enumerate(KEYS):
            put(client, key, b"x" * n)
        found = list(client.list(""))
        assert [info.key for info in found] == sorted(KEYS, key=str.encode)
        assert {info.key: info.size_bytes for info in found} == {k: n for n, k in enumerate(KEYS)}
        assert all(info.metadata is None for info in found)

    def test_a_prefix_may_end_inside_a_name(self, client: FsspecClient) -> None:
        for key in KEYS:
            put(client, key)
        for prefix in ("t", "t/", "t/c", "t/c.1", "t/c.1x", "u", "é", "t%TOPIC@x/é", "v/w/"):
            expected = sorted((key for key in KEYS if key.startswith(prefix)), key=str.encode)
            assert [info.key for info in client.list(prefix)] == expected, prefix

    def test_a_list_can_start_behind_a_key(self, client: FsspecClient) -> None:
        for key in KEYS:
            put(client, key)
        assert [info.key for info in client.list("t/", "t/c.10")] == ["t/c.2", "t/m.1-2"]

    def test_a_list_shows_what_was_written_and_deleted_since_the_last_one(
        self, client: FsspecClient
    ) -> None:
        assert list(client.list("t/")) == []
        put(client, "t/c.0")
        assert len(list(client.list("t/"))) == 1
        put(client, "t/c.1")
        assert len(list(client.list("t/"))) == 2
        client.delete(["t/c.0"])
        assert [info.key for info in client.list("t/")] == ["t/c.1"]


class TestComposing:
    def test_parts_are_joined(self, client: FsspecClient) -> None:
        put(client, "t/c.0", b"0123456789")
        put(client, "t/c.10", b"abcdef")
        parts: list[Part] = [CopiedPart("t/c.0", 2, 8), [b"--", b"=="], CopiedPart("t/c.10", 0, 6)]
        assert client.compose("t/s", parts, STAMP)
        assert client.get_range("t/s", 0, 100) == b"23456789--==abcdef"

    def test_large_objects_are_copied_in_pieces(
        self, client: FsspecClient, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(fsspec_objects, "COPY_PIECE_BYTES", 1000)
        monkeypatch.setattr(client._writes, "_max_memory_bytes", 4096, raising=False)
        data = bytes(range(256)) * 100
        put(client, "t/c.0", data)
        assert client.compose("t/s", [CopiedPart("t/c.0", 0, len(data)), [b"end"]], STAMP)
        assert client.get_range("t/s", 0, len(data) + 100) == data + b"end"
        assert not client.compose("t/s", [CopiedPart("t/c.0", 0, len(data))], STAMP)

    @pytest.mark.parametrize("source", ["t/c.0", "t/none"])
    def test_a_source_that_is_not_whole_makes_no_object(
        self, client: FsspecClient, source: str
    ) -> None:
        put(client, "t/c.0", b"short")
        with pytest.raises(Unavailable, match=source):
            client.compose("t/s", [[b"begin"], CopiedPart(source, 0, 10)], STAMP)
        assert client.head("t/s") is None
        assert [info.key for info in client.list("")] == ["t/c.0"]


class TestLocalFiles:
    """An interrupted write never leaves a file that looks like an object."""

    @pytest.fixture
    def client(self, tmp_path: Path) -> FsspecClient:
        return FsspecClient("file", str(tmp_path / "tier"), clock=ManualClock())

    def test_o03_a_killed_write_leaves_nothing_that_is_listed(
        self, client: FsspecClient, tmp_path: Path
    ) -> None:
        class Killed(BaseException):
            pass

        def pieces() -> Iterator[bytes]:
            yield b"half of it"
            raise Killed

        put(client, "t/c.0")
        killed: Any = pieces()
        # as after a SIGKILL: the clean-up of a living process does not run
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(LocalFileSystem, "rm_file", lambda self, path: None)
            with pytest.raises(Killed):
                client._writes.put(client._path("t/c.1"), killed, 20, STAMP)
        assert len(list((tmp_path / "tier/t").iterdir())) == 2
        assert [info.key for info in client.list("")] == ["t/c.0"]
        assert client.head("t/c.1") is None

        left = next((tmp_path / "tier/t").glob(".upload-*"))
        made_ms = int(left.stat().st_mtime * 1000)
        assert client.abort_uploads("t/", made_ms - 1) == 0
        assert client.abort_uploads("u/", made_ms) == 0
        assert client.abort_uploads("", made_ms) == 1
        assert [path.name for path in (tmp_path / "tier/t").iterdir()] == ["c.0"]

    def test_without_hard_links_files_are_renamed(
        self, client: FsspecClient, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def no_links(*names: object) -> None:
            raise PermissionError("no hard links here")

        monkeypatch.setattr(LocalFileSystem, "link", no_links)
        put(client, "t/c.0", b"abc")
        assert not client.put_if_absent("t/c.0", [b"other"], STAMP)
        assert client.get_range("t/c.0", 0, 10) == b"abc"
        assert [info.key for info in client.list("")] == ["t/c.0"]

    def test_a_file_where_a_folder_should_be_is_one_of_our_errors(self, tmp_path: Path) -> None:
        (tmp_path / "tier").write_bytes(b"x")
        client = FsspecClient("file", str(tmp_path / "tier"))
        for key in ("c.0", "t/c.0"):
            with pytest.raises(Invalid, match=f"{key}: write"):
                client.put_if_absent(key, [b"x"], STAMP)
            with pytest.raises(Invalid, match=f"{key}: write"):
                client.compose(key, [[b"x"]], STAMP)
        with pytest.raises(Invalid):
            list(client.list("t/"))

    def test_o09_a_folder_that_cannot_be_listed_is_no_empty_folder(
        self, client: FsspecClient, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        put(client, "a/c.0")
        put(client, "b/below/c.0")
        list_folder = LocalFileSystem.ls

        def failing(self: LocalFileSystem, path: str, **options: object) -> Any:
            if path.endswith("below"):
                raise OSError(5, "Input/output error")
            return list_folder(self, path, **options)

        monkeypatch.setattr(LocalFileSystem, "ls", failing)
        # what fsspec itself makes of it
        found = fsspec.filesystem("file").find(client._path(""), on_error="raise")
        assert len(found) == 1
        with pytest.raises(Unavailable, match="Input/output error"):
            list(client.list(""))


def test_o07_a_file_that_is_added_during_a_listing_in_memory_is_no_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    client = FsspecClient("memory", uuid.uuid4().hex)
    assert client.put_if_absent("t/c.0", [b"abc"], STAMP)

    class Growing(dict[str, Any]):
        """A dictionary of files that appears to grow during the first iteration."""

        copies = 0

        def items(self) -> Any:
            for number, item in enumerate(list(super().items())):
                if not self.copies and number == 0:
                    self.copies += 1
                    raise RuntimeError("dictionary changed size during iteration")
                yield item

    store = Growing(MemoryFileSystem.store)
    monkeypatch.setattr(MemoryFileSystem, "store", store)
    assert [info.key for info in client.list("")] == ["t/c.0"]
    assert store.copies == 1


class TestS3:
    def test_the_writers_stamp_is_kept(self, s3_endpoint: str, s3_bucket: str) -> None:
        client = FsspecClient("s3", s3_bucket, s3_options(s3_endpoint))
        put(client, "t/c.0")
        info = client.head("t/c.0")
        assert info is not None
        assert info.metadata == STAMP

    def test_o07_a_list_of_many_pages_is_complete(
        self, s3_endpoint: str, s3_bucket: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("MOTO_S3_DEFAULT_MAX_KEYS", "10")
        boto = boto_client(s3_endpoint)
        keys = [f"tier/c.{n:05d}" for n in range(31)]
        assert boto.list_objects_v2(Bucket=s3_bucket)["MaxKeys"] == 10
        for key in keys:
            boto.put_object(Bucket=s3_bucket, Key=key, Body=b"x")
        boto.close()
        client = FsspecClient("s3", f"{s3_bucket}/tier", s3_options(s3_endpoint))
        assert [f"tier/{info.key}" for info in client.list("")] == keys

    def test_o09_a_bucket_that_is_not_there_is_no_empty_tier(self, s3_endpoint: str) -> None:
        client = FsspecClient("s3", "no-such-bucket/prefix", s3_options(s3_endpoint))
        with pytest.raises(Invalid, match="no-such-bucket"):
            list(client.list(""))

    def test_o09_nothing_is_written_to_a_bucket_that_is_not_there(self, s3_endpoint: str) -> None:
        client = FsspecClient("s3", "no-such-bucket/prefix", s3_options(s3_endpoint))
        with pytest.raises(Invalid, match="no-such-bucket"):
            client.put_if_absent("t/c.0", [b"x"], STAMP)

    def test_a_server_that_is_away_is_unavailable(
        self, s3_bucket: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(S3FileSystem, "retries", 1)
        options = s3_options("http://127.0.0.1:9")
        options["config_kwargs"] = {"retries": {"max_attempts": 0}, "connect_timeout": 1}
        client = FsspecClient("s3", s3_bucket, options)
        for call in (
            lambda: client.put_if_absent("t/c.0", [b"x"], STAMP),
            lambda: client.get_range("t/c.0", 0, 1),
            lambda: client.head("t/c.0"),
            lambda: list(client.list("")),
            lambda: client.delete(["t/c.0"]),
        ):
            with pytest.raises(Unavailable):
                call()

    def test_uploads_that_a_killed_process_left_are_aborted(
        self, s3_endpoint: str, s3_bucket: str
    ) -> None:
        client = FsspecClient("s3", f"{s3_bucket}/tier", s3_options(s3_endpoint))
        filesystem = fsspec.filesystem(
            "s3", **s3_options(s3_endpoint), skip_instance_cache=True, use_listings_cache=False
        )
        for key in ("tier/t/s", "tier/u/s", "elsewhere"):
            filesystem.call_s3("create_multipart_upload", Bucket=s3_bucket, Key=key)
        assert client.abort_uploads("t/", 0) == 0
        assert client.abort_uploads("t/", 2**52) == 1
        assert client.abort_uploads("", 2**52) == 1
        left = filesystem.list_multipart_uploads(s3_bucket)
        assert [upload["Key"] for upload in left] == ["elsewhere"]


class TestErrors:
    def test_an_unknown_protocol_is_invalid(self) -> None:
        with pytest.raises(Invalid, match="no-such-protocol"):
            FsspecClient("no-such-protocol", "x")

    def test_a_missing_package_is_named(self) -> None:
        with pytest.raises(Invalid, match="gcsfs"):
            FsspecClient("gs", "bucket/prefix")

    def test_a_filesystem_of_unknown_promises_is_not_written(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        class Strange(LocalFileSystem):  # type: ignore[misc]
            protocol = "strange"

        fsspec.register_implementation("strange", Strange, clobber=True)
        root = str(tmp_path)
        (tmp_path / "c.0").write_bytes(b"abc")
        client = FsspecClient("strange", root)
        assert client.get_range("c.0", 0, 3) == b"abc"
        with pytest.raises(Invalid, match="atomic_writes=true"):
            client.put_if_absent("c.3", [b"x"], STAMP)
        vouched = FsspecClient("strange", root, atomic_writes=True)
        assert vouched.put_if_absent("c.3", [b"x"], STAMP)
        assert not vouched.put_if_absent("c.3", [b"y"], STAMP)

    @pytest.mark.parametrize("secret_name", ["secret", "account_key", "sas_token", "password"])
    def test_s01_no_message_shows_a_secret(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, secret_name: str
    ) -> None:
        secret = "hunter/2+plus=="
        options: Mapping[str, Any] = {"nested": {secret_name: secret}, "auto_mkdir": True}
        client = FsspecClient("file", str(tmp_path), options)

        def failing(*_: object, **__: object) -> None:
            raise OSError(f"denied: {secret} sig=hunter%2F2%2Bplus%3D%3D&x")

        monkeypatch.setattr(LocalFileSystem, "ls", failing)
        with pytest.raises(Unavailable) as caught:
            list(client.list(""))
        text = f"{caught.value!r} {caught.value.__cause__!r} {client.url}"
        assert "hunter" not in text
        assert "***" in text

    def test_no_permission_is_not_retried(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        def denied(*_: object, **__: object) -> None:
            raise PermissionError("denied")

        monkeypatch.setattr(LocalFileSystem, "cat_file", denied)
        client = FsspecClient("file", str(tmp_path))
        with pytest.raises(Invalid, match=r"t/c\.0: read: PermissionError: denied"):
            client.get_range("t/c.0", 0, 1)

    def test_o08_a_body_cut_short_is_an_error(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        client = FsspecClient("file", str(tmp_path))
        put(client, "t/c.0", b"0123456789")
        monkeypatch.setattr(LocalFileSystem, "cat_file", lambda *_, **__: b"012")
        with pytest.raises(Unavailable, match="expected 10 bytes at 0, found 3"):
            client.get_range("t/c.0", 0, 10)


def test_protocols_that_are_written_are_the_documented_ones() -> None:
    assert set(fsspec_writes._METADATA_OPTIONS) <= fsspec_writes._CREATING
    assert os.sep not in fsspec_writes.UPLOAD_MARK
