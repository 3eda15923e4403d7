"""Real object store for the rows of S3: versitygw on loopback, and raw clients."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from tieredstore.properties import PluginProperties, read_settings
from tieredstore.providers.s3.settings import S3Settings

if TYPE_CHECKING:
    from types_boto3_s3.client import S3Client as BotoClient

SCRIPTS = Path(__file__).resolve().parent.parent / "localstack"
SERVER = "versitygw"
ACCESS_KEY, SECRET_KEY, REGION = "testing", "testing123", "us-east-1"
CONNECTIONS = 16


class ServerMissing(Exception):
    """A server is missing on this machine. The message names the missing part."""


@dataclass(frozen=True, slots=True)
class Bucket:
    """A new bucket of the server."""

    endpoint: str
    name: str
    boto: BotoClient

    def properties(self, **more: object) -> PluginProperties:
        """Configuration keys of a tier in the bucket."""
        values = {
            "objectStoreEndpoint": self.endpoint,
            "objectStoreBucket": self.name,
            "objectStoreAccessKey": ACCESS_KEY,
            "objectStoreSecretKey": SECRET_KEY,
            "tieredStoreS3Region": REGION,
            **more,
        }
        return PluginProperties({key: str(value) for key, value in values.items()})

    def settings(self, **more: object) -> S3Settings:
        return read_settings(S3Settings, self.properties(**more))

    def sizes(self, prefix: str = "") -> dict[str, int]:
        """Return the size in bytes of the object at each key."""
        pages = self.boto.get_paginator("list_objects_v2").paginate(Bucket=self.name, Prefix=prefix)
        return {o["Key"]: o["Size"] for page in pages for o in page.get("Contents", [])}


@contextmanager
def bucket(folder: Path) -> Iterator[Bucket]:
    """Start the server with its data in `folder`. Raises ServerMissing."""
    folder.mkdir(parents=True, exist_ok=True)
    endpoint = _up(folder)
    boto = _boto(endpoint)
    name = f"bench-{uuid.uuid4().hex[:12]}"
    try:
        boto.create_bucket(Bucket=name)
        yield Bucket(endpoint, name, boto)
    finally:
        boto.close()
        _localstack("down", folder, SERVER)


def _up(folder: Path) -> str:
    answer = _localstack("up", folder, SERVER)
    words = answer.stdout.split()
    if answer.returncode or len(words) < 2:
        raise ServerMissing((answer.stderr or answer.stdout).strip()[-500:])
    return words[1]


def _localstack(verb: str, folder: Path, *names: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(SCRIPTS / verb), "--run-dir", str(folder / "run"), *names],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHON": sys.executable},
        preexec_fn=_every_core,
    )


def _every_core() -> None:
    """Let the server use all cores, although this process is pinned to one."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, range(os.cpu_count() or 1))


def _boto(endpoint: str) -> BotoClient:
    import boto3
    from botocore.config import Config

    return boto3.client(
        "s3",
        endpoint_url=endpoint,
        region_name=REGION,
        aws_access_key_id=ACCESS_KEY,
        aws_secret_access_key=SECRET_KEY,
        config=Config(
            max_pool_connections=CONNECTIONS,
            signature_version="s3v4",
            s3={"addressing_style": "path"},
            retries={"mode": "standard", "total_max_attempts": 4},
        ),
    )


def in_parallel(work: Callable[[Any], Any], items: Sequence[Any], threads: int) -> list[Any]:
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(work, items))


class RawSocket:
    """Presigned requests over one keep-alive connection: the lower bound for a Python client."""

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket
        parts = urlsplit(bucket.endpoint)
        self._host = parts.netloc
        self._socket = socket.create_connection((parts.hostname, parts.port or 80))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def path(self, operation: str, key: str) -> str:
        """Return a URL that is signed for an hour. Call this before the measurement."""
        url = self._bucket.boto.generate_presigned_url(
            operation, Params={"Bucket": self._bucket.name, "Key": key}, ExpiresIn=3600
        )
        parts = urlsplit(url)
        return f"{parts.path}?{parts.query}"

    def put(self, path: str, data: bytes) -> None:
        head = f"PUT {path} HTTP/1.1\r\nHost: {self._host}\r\nContent-Length: {len(data)}\r\n\r\n"
        self._socket.sendall(head.encode())
        self._socket.sendall(data)
        status, _, _ = self._head()
        assert status == 200, status

    def get(self, path: str, position: int, buffer: memoryview) -> None:
        """Read an object into the buffer."""
        last = position + len(buffer) - 1
        head = (
            f"GET {path} HTTP/1.1\r\nHost: {self._host}\r\nRange: bytes={position}-{last}\r\n\r\n"
        )
        self._socket.sendall(head.encode())
        status, length, begin = self._head()
        assert (status, length) == (206, len(buffer)), (status, length)
        buffer[: len(begin)] = begin
        done = len(begin)
        while done < length:
            done += self._socket.recv_into(buffer[done:])

    def _head(self) -> tuple[int, int, bytes]:
        """Return the status, the length of the body, and the first bytes of the body."""
        received = b""
        while b"\r\n\r\n" not in received:
            piece = self._socket.recv(65536)
            assert piece, "connection closed"
            received += piece
        head, _, begin = received.partition(b"\r\n\r\n")
        lines = head.decode("latin-1").split("\r\n")
        fields = {n.lower(): v.strip() for n, _, v in (line.partition(":") for line in lines[1:])}
        return int(lines[0].split()[1]), int(fields.get("content-length", 0)), begin

    def close(self) -> None:
        self._socket.close()
