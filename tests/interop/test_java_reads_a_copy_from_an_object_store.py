"""The Java broker serves a tier that was copied from an object store to files."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kit.java import JavaTools, Manifest, tieredstore, write_broker_conf
from tests.kit.object_store.fixtures import credentials, new_bucket, servers
from tests.kit.object_store.servers import NAMES, Servers
from tests.kit.offloaded import OUR_OFFLOAD, tier_manifest

__all__ = ["credentials", "servers"]


@pytest.mark.parametrize("server", NAMES)
def test_java_serves_a_tier_that_was_copied_out_of_an_object_store(
    java: JavaTools,
    servers: Servers,
    server: str,
    public_a: Path,
    public_a_manifest: Manifest,
    tmp_path: Path,
) -> None:
    store = new_bucket(servers, server)
    manifest = tier_manifest(public_a_manifest)
    conf = write_broker_conf(tmp_path / "broker.conf", manifest, **OUR_OFFLOAD)
    tieredstore(
        "offload", public_a / "store", "--tier", store.url(), "--state", tmp_path / "state",
        "--config", conf, "--quiet", "--upload-index",
    )  # fmt: skip
    tieredstore(
        "copy", "--from", store.url(), "--to", f"file://{tmp_path / 'root' / 'tiered'}",
        "--to-state", tmp_path / "root" / "store", "--broker", "labBroker", "--quiet",
    )  # fmt: skip

    report = java.check("tiered", tmp_path / "root", manifest, tmp_path / "check")

    assert report.passed, report.text
    assert report.wanted == report.right == len(manifest["messages"]) > 0
    assert report.key_queries == report.key_queries_right > 0
