"""Files of a target in an object store are complete or absent, and can be read at random
positions."""

from __future__ import annotations

import io
import random
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tieredstore import registry
from tieredstore.errors import Busy, Invalid, Unavailable
from tieredstore.jobs.exporting.targets.iceberg_io import ObjectFile, S3FileIO
from tieredstore.jobs.exporting.targets.objects import ObjectFiles
from tieredstore.providers.memory.objects import MemoryObjectClient


@pytest.fixture
def client() -> MemoryObjectClient:
    return MemoryObjectClient()


@pytest.fixture
def files(client: MemoryObjectClient) -> ObjectFiles:
    return ObjectFiles(client)  # type: ignore[arg-type]


@pytest.mark.parametrize("size", [0, 1, 100, 12 << 20])
def test_a_file_is_there_when_it_is_closed(files: ObjectFiles, size: int) -> None:
    data = random.Random(1).randbytes(size)
    writer = files.create("a/b")
    writer.write(data[: size // 2])
    writer.write(data[size // 2 :])
    assert writer.tell() == size
    assert not files.exists("a/b")
    writer.close()
    writer.close()
    assert files.read("a/b") == data
    with files.open("a/b") as reader:
        assert reader.read() == data
        reader.seek(-10, io.SEEK_END)
        assert reader.read(4) == data[-10:][:4]


def test_parquet_is_read_at_random(files: ObjectFiles) -> None:
    table = pa.table({"n": range(100_000)})
    with files.create("t") as stream, pq.ParquetWriter(stream, table.schema) as writer:
        writer.write_table(table, row_group_size=1000)
    with files.open("t") as reader:
        assert pq.ParquetFile(reader).read_row_group(7)["n"].to_pylist() == [*range(7000, 8000)]


def test_a_file_that_failed_half_way_is_not_there(files: ObjectFiles) -> None:
    def write_half() -> None:
        with files.create("a") as writer:
            writer.write(b"half")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        write_half()
    assert not files.exists("a")
    assert files.put_new("a", b"whole")
    assert not files.put_new("a", b"other")
    assert files.read("a") == b"whole"


def test_the_lost_answer_to_an_earlier_attempt_is_no_error(files: ObjectFiles) -> None:
    files.put("a", b"same")
    with files.create("a") as writer:
        writer.write(b"same")
    with (
        pytest.raises(Unavailable, match="a: expected no object or one of 5 bytes"),
        files.create("a") as writer,
    ):
        writer.write(b"other")


def test_a_busy_server_is_asked_again(
    files: ObjectFiles, client: MemoryObjectClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "sleep", lambda _: None)
    put, failures = client.put_if_absent, [Busy("slow down")] * 2

    def flaky(*args: object) -> bool:
        if failures:
            raise failures.pop()
        return put(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(client, "put_if_absent", flaky)
    assert files.put_new("a", b"x")
    failures += [Busy("slow down")] * 9
    with pytest.raises(Unavailable, match="slow down"):
        files.put_new("b", b"x")


def test_what_is_gone_is_told(files: ObjectFiles) -> None:
    with pytest.raises(Unavailable, match="a: there is no such object"):
        files.read("a")
    with pytest.raises(Unavailable, match="a: there is no such object"):
        files.open("a")


def test_what_our_client_is_not_told_is_pyicebergs(tmp_path: Path) -> None:
    known = {"s3.endpoint": "http://127.0.0.1:1", "s3.access-key-id": "a", "uri": "x"}
    known |= {"s3.secret-access-key": "b", "s3.region": "us-east-1"}
    assert isinstance(S3FileIO(known).new_input("s3://bucket/key"), ObjectFile)
    signed = S3FileIO({**known, "s3.proxy-uri": "http://127.0.0.1:2"})
    assert not isinstance(signed.new_input("s3://bucket/key"), ObjectFile)
    path = tmp_path / "file"
    path.write_bytes(b"here")
    with S3FileIO(known).new_input(f"file://{path}").open() as stream:
        assert stream.read() == b"here"


def test_a_provider_without_objects_is_told() -> None:
    with pytest.raises(Invalid, match="segment provider 'posix' makes no client for objects"):
        registry.object_client("posix", {}, "test")
