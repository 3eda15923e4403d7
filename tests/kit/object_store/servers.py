"""Object stores for tests: new buckets on the servers that `localstack/` starts."""

from __future__ import annotations

import functools
import os
import subprocess
import uuid
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from tests.kit.paths import ROOT

if TYPE_CHECKING:
    from boto3.session import Session
    from types_boto3_s3.client import S3Client

NAMES = ("moto", "localstack", "versitygw")
REGION = "us-east-1"
CREDENTIALS = ("testing", "testing123")
ENVIRONMENT = {
    "AWS_ACCESS_KEY_ID": CREDENTIALS[0],
    "AWS_SECRET_ACCESS_KEY": CREDENTIALS[1],
    "AWS_DEFAULT_REGION": REGION,
    "AWS_EC2_METADATA_DISABLED": "true",
    "AWS_CONFIG_FILE": os.devnull,
    "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
}
SCRIPTS = ROOT / "localstack"


class NotHere(Exception):
    """A server is missing on this machine. The message names the missing part."""


@dataclass(frozen=True, slots=True)
class ObjectStore:
    """A bucket on a server. Tests use `endpoint`. `server_endpoint` bypasses all proxies."""

    server: str
    endpoint: str
    bucket: str
    server_endpoint: str = ""

    @property
    def checks_checksums(self) -> bool:
        return self.server != "moto"

    def url(self, prefix: str = "tier", **options: str) -> str:
        """URL of the bucket for the option `--tier`."""
        named = {"endpoint": self.endpoint, "region": REGION, "path_style": "true", **options}
        query = "&".join(f"{key}={quote(value, safe=':/')}" for key, value in named.items())
        return f"s3://{self.bucket}/{prefix}?{query}"

    def through(self, endpoint: str) -> ObjectStore:
        """Return the same bucket behind a proxy."""
        return replace(self, endpoint=endpoint)

    def client(self) -> S3Client:
        return boto_client(self.endpoint)

    def keys(self, prefix: str = "") -> dict[str, int]:
        """Return the object sizes in bytes by key, listed without a proxy."""
        paginator = _shared_client(self.server_endpoint or self.endpoint).get_paginator(
            "list_objects_v2"
        )
        pages = paginator.paginate(Bucket=self.bucket, Prefix=prefix)
        return {o["Key"]: o["Size"] for page in pages for o in page.get("Contents", [])}

    def open_uploads(self) -> int:
        client = _shared_client(self.server_endpoint or self.endpoint)
        return len(client.list_multipart_uploads(Bucket=self.bucket).get("Uploads", []))

    def put(self, keys: Iterable[str], body: bytes = b"") -> None:
        """Put the same body at each key."""
        client = _shared_client(self.server_endpoint or self.endpoint)
        with ThreadPoolExecutor(16) as pool:
            futures = [
                pool.submit(client.put_object, Bucket=self.bucket, Key=key, Body=body)
                for key in keys
            ]
            for future in futures:
                future.result()

    def delete(self, *keys: str) -> None:
        for key in keys:
            _shared_client(self.server_endpoint or self.endpoint).delete_object(
                Bucket=self.bucket, Key=key
            )


class Servers:
    """Starts each server once, when a test first needs it."""

    def __init__(self, run_directory: Path) -> None:
        self._run_directory = run_directory
        self._endpoints: dict[str, str | NotHere] = {}

    def bucket(self, server: str) -> ObjectStore:
        """Create a bucket. Raises NotHere if its server is missing."""
        if server not in self._endpoints:
            self._endpoints[server] = self.up(server)
        endpoint = self._endpoints[server]
        if isinstance(endpoint, NotHere):
            raise endpoint
        bucket = f"test-{uuid.uuid4().hex[:16]}"
        _shared_client(endpoint).create_bucket(Bucket=bucket)
        return ObjectStore(server, endpoint, bucket, endpoint)

    def stop(self) -> None:
        for client in _clients.values():
            client.close()
        _clients.clear()
        if self._endpoints:
            subprocess.run([f"{SCRIPTS}/down", "--run-dir", self._run_directory], check=True)

    def up(self, server: str) -> str | NotHere:
        """Run `localstack/up`. Return the server's endpoint, or the reason why it does not run."""
        # CI has all servers. Elsewhere a server is built only on request.
        optional = [] if os.environ.get("TIEREDSTORE_NO_SKIPS") else ["--no-install"]
        command = [f"{SCRIPTS}/up", "--run-dir", str(self._run_directory), *optional, server]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            return NotHere(done.stderr.strip())
        return done.stdout.split()[1]


_clients: dict[str, S3Client] = {}


def _shared_client(endpoint: str) -> S3Client:
    """Return the shared client of a server, because creating one takes longer than most tests."""
    if endpoint not in _clients:
        _clients[endpoint] = boto_client(endpoint)
    return _clients[endpoint]


def boto_client(endpoint: str) -> S3Client:
    """Create a boto3 client with the test credentials, separate from the provider's client."""
    from botocore.config import Config

    make: Callable[..., S3Client] = _session().client
    return make(
        "s3",
        endpoint_url=endpoint,
        region_name=REGION,
        aws_access_key_id=CREDENTIALS[0],
        aws_secret_access_key=CREDENTIALS[1],
        config=Config(
            s3={"addressing_style": "path"},
            retries={"total_max_attempts": 1},
            read_timeout=30,
            max_pool_connections=32,
        ),
    )


@functools.cache
def _session() -> Session:
    """Return the session of all clients, because each new session loads boto3's model of S3
    again."""
    import boto3

    return boto3.session.Session()
