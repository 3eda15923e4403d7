"""The published Java broker opens a local store that our DefaultMessageStore wrote."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kit.java import JavaTools, Manifest, key_queries
from tests.kit.java_messages import BROKER_CONF, fill
from tieredstore.config import config_from_properties
from tieredstore.local.message_store import DefaultMessageStore


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"storeType": "defaultRocksDB"},
        {"enabledAppendPropCRC": "true", "forceVerifyPropCRC": "true"},
    ],
    ids=["files", "RocksDB", "property CRC"],
)
def test_java_reads_every_message_and_finds_every_key_of_our_local_store(
    java: JavaTools, tmp_path: Path, changes: dict[str, str]
) -> None:
    keys = {**BROKER_CONF, **changes}
    conf = {**keys, "storePathRootDir": str(tmp_path / "root" / "store")}
    store = DefaultMessageStore(config_from_properties(conf, origin="test").config)
    store.load()
    store.start()
    try:
        wanted = list(fill(store))
    finally:
        store.shutdown()
    assert len(list((tmp_path / "root" / "store" / "commitlog").iterdir())) > 3
    manifest: Manifest = {"brokerConf": keys, "messages": wanted}

    report = java.check("local", tmp_path / "root", manifest, tmp_path / "check")

    assert report.passed, report.text
    assert report.wanted == report.right == 700
    assert report.key_queries == report.key_queries_right == key_queries(wanted) > 700


@pytest.mark.parametrize("store_type", ["default", "defaultRocksDB"])
def test_java_reads_what_our_cleaning_left(
    java: JavaTools, tmp_path: Path, store_type: str
) -> None:
    keys = {**BROKER_CONF, "storeType": store_type}
    conf = {
        **keys,
        "storePathRootDir": str(tmp_path / "root" / "store"),
        "deleteCommitLogFilesInterval": "0",
        "deleteFileBatchMax": "2",
        "diskSpaceCleanForciblyRatio": "30",
    }
    store = DefaultMessageStore(config_from_properties(conf, origin="test").config)
    store.cleaning._disk._measure = lambda _: 0.1  # no round of its own deletes anything
    store.load()
    store.start()
    try:
        messages = list(fill(store))
        store.flush()
        store.wait_until_dispatched()  # data that is not dispatched yet is kept
        store.cleaning._disk._measure = lambda _: 0.5
        assert store.cleaning.run_once().log_files == 2
        wanted = [
            message
            for message in messages
            if message["queueOffset"]
            >= store.get_min_offset_in_queue(message["topic"], message["queueId"])
        ]
    finally:
        store.shutdown()
    assert 0 < len(wanted) < len(messages)
    manifest: Manifest = {"brokerConf": keys, "messages": wanted}

    report = java.check("local", tmp_path / "root", manifest, tmp_path / "check")

    assert report.passed, report.text
    assert report.wanted == report.right == len(wanted)
    assert report.key_queries == report.key_queries_right == key_queries(wanted)
