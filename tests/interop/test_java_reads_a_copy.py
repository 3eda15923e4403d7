"""The published Java broker reads a tier that `tieredstore copy` copied to S3 and back."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import boto3
import pytest
from moto.server import ThreadedMotoServer

from tests.kit.java import JavaTools, key_queries, tieredstore
from tests.kit.offloaded import Offloaded, stored_messages

BUCKET = "tiers"
CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "testing",
    "AWS_SECRET_ACCESS_KEY": "testing123",
    "AWS_EC2_METADATA_DISABLED": "true",
    "AWS_CONFIG_FILE": os.devnull,
    "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
}


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Return the URL of an empty prefix in a bucket."""
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        endpoint = f"http://{host}:{port}"
        client = boto3.client("s3", endpoint_url=endpoint, region_name="us-east-1")
        client.create_bucket(Bucket=BUCKET)
        client.close()
        yield f"s3://{BUCKET}/tier?endpoint={endpoint}&region=us-east-1&path_style=true"
    finally:
        server.stop()


def copy(*arguments: str | Path) -> dict[str, object]:
    record: dict[str, object] = json.loads(
        tieredstore("copy", *arguments, "--quiet", "--output", "json")
    )
    return record


def test_java_reads_every_message_and_finds_every_key_of_a_tier_that_came_back(
    java: JavaTools, offloaded: Offloaded, bucket: str, tmp_path: Path
) -> None:
    """Java reads every message of a tier that was copied to S3 with its state, and copied back
    without it. Without the state, the second copy takes topic ids from the index."""
    source = f"file://{offloaded.root / 'tiered'}"
    there = copy(
        "--from", source, "--from-state", offloaded.root / "store",
        "--to", bucket, "--to-state", tmp_path / "state-of-s3",
    )  # fmt: skip
    root = tmp_path / "back"
    back = copy("--from", bucket, "--to", f"file://{root / 'tiered'}", "--to-state", root / "store")
    for copied in (there, back):
        assert copied["failed"] == copied["damage"] == []
    assert there["copied_bytes"] == back["copied_bytes"]

    report = java.check("tiered", root, offloaded.manifest, tmp_path / "check")

    topics = {message["topic"] for message in offloaded.manifest["messages"]}
    ours = [
        {"topic": message.topic, "uniqKey": message.uniq_key, "keys": message.keys or None}
        for message in stored_messages(offloaded.source, topics)
    ]
    assert report.passed, report.text
    assert report.wanted == report.right == len(ours) > 0
    assert report.key_queries == report.key_queries_right == key_queries(ours) > 0
