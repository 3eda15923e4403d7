"""The published Java broker opens a tier with backups, and a store that was restored from these
backups."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.kit.java import JavaTools, copy_tree, tieredstore
from tests.kit.offloaded import Offloaded
from tieredstore.clock import SYSTEM_CLOCK
from tieredstore.config import config_from_properties
from tieredstore.metadata.json_store import DefaultMetadataStore
from tieredstore.providers.posix.provider import PosixProvider
from tieredstore.scan.location import METADATA_FILE
from tieredstore.tier.backup import TierBackup
from tieredstore.tier.writing import TierWriter


def back_up(root: Path, conf: dict[str, str]) -> None:
    """Write a backup, as a broker does at shutdown."""
    keys = {**conf, "tieredStoreFilePath": str(root / "tiered")}
    config = config_from_properties(keys, origin="a test").config
    provider = PosixProvider.from_config(config)
    metadata = DefaultMetadataStore(root / "store" / METADATA_FILE, config.broker_name)
    with TierWriter.acquire(provider, metadata, config.broker_name, root / "store") as writer:
        backup = TierBackup(config, provider, root / "store", SYSTEM_CLOCK, metadata.flush)
        backup.become_writer(writer)
        assert len(backup.run_once(is_last=True)) == 2


def test_java_serves_all_messages_of_a_restored_store(
    java: JavaTools, offloaded: Offloaded, tmp_path: Path
) -> None:
    root = tmp_path / "root"
    for name in ("store", "tiered"):
        copy_tree(offloaded.root / name, root / name)
    shutil.copy(offloaded.root / "source" / "config" / "topics.json", root / "store" / "config")
    by_offload = set((root / "tiered").rglob(".backups/*"))
    back_up(root, offloaded.manifest["brokerConf"])
    assert len(set((root / "tiered").rglob(".backups/*")) - by_offload) == 2
    shutil.rmtree(root / "store")
    tieredstore("restore", "--tier", root / "tiered", "--store", root / "store")
    assert (root / "store" / "config" / "topics.json").exists()

    report = java.check("tiered", root, offloaded.manifest, tmp_path / "check")

    assert report.passed, report.text
    assert report.right == report.wanted == len(offloaded.manifest["messages"])
    assert report.key_queries_right == report.key_queries > 0
