"""Store for a consumer that catches up: the first messages of its queues are only in a Posix
tier."""

from __future__ import annotations

import shutil
from pathlib import Path

from benchmarks.broker.generator import Generator
from benchmarks.broker.servers import OURS, TIER, Server
from tests.kit.java import copy_tree
from tieredstore.testing.broker import Broker

WARM_TOPIC, COLD_TOPIC = "warm", "cold"
FILE_BYTES = 16 << 20
KEPT_FILES = 2
"""Number of commit log files that stay in the local store. The messages of older files are only in
the tier."""


def make_cold_store(folder: Path, generator: Generator, messages: int) -> None:
    """Create `folder/store` and `folder/tier`, with the given number of messages in each of two
    topics."""
    settings = {
        "storePathRootDir": folder / "store",
        "brokerName": "broker-a",
        "brokerClusterName": "c",
        "defaultTopicQueueNums": 4,
        **settings_of(folder),
    }
    # The topics are filled one after the other, so that the end of the second one stays in the log.
    with Broker(folder, {name: str(value) for name, value in settings.items()}) as broker:
        server = Server(OURS, 1, broker.remoting, "")
        for topic in (WARM_TOPIC, COLD_TOPIC):
            options = ("--mode", "batch", "--in-flight", 4, "--messages", messages)
            generator.run(topic, server, *options, "--topic", topic, "--seconds", 120)
            broker.flush_tier()
    files = sorted((folder / "store" / "commitlog").iterdir())
    for file in files[:-KEPT_FILES]:
        file.unlink()


def copy_cold_store(source: Path, target: Path) -> dict[str, object]:
    """Copy a cold store, and return the broker.conf settings of the copy."""
    shutil.rmtree(target, ignore_errors=True)
    copy_tree(source / "store", target / "store")
    copy_tree(source / "tier", target / "tier")
    return settings_of(target)


def settings_of(folder: Path) -> dict[str, object]:
    """Return the broker.conf settings of a store with its tier."""
    return {
        "mappedFileSizeCommitLog": FILE_BYTES,
        "mappedFileSizeConsumeQueue": 20 * 300_000,
        "maxHashSlotNum": 5_000_000,
        "maxIndexNum": 20_000_000,
        "tieredStoreFilePath": folder / "tier",
        "tieredStoreFileReservedTime": 72,
        **TIER,
    }
