"""The published Java broker and our store open each other's consume queues in RocksDB."""

from __future__ import annotations

import hashlib
import json
import random
from collections import Counter
from pathlib import Path

from tests.kit.java import JavaTools, Manifest, copy_tree
from tests.kit.java_messages import BROKER_CONF, QUEUES, fill, made, wanted_of
from tieredstore.config import config_from_properties
from tieredstore.local.message_store import DefaultMessageStore
from tieredstore.local.read_only import open_read_only


def test_java_recovers_a_store_of_ours_with_its_queues_in_rocksdb(
    java: JavaTools, tmp_path: Path
) -> None:
    """Java recovers a killed store of this project that keeps its queues in RocksDB. The store has
    the file `abort`. Some units exist only in RocksDB's write-ahead log, which Java itself never
    writes."""
    keys = {**BROKER_CONF, "storeType": "defaultRocksDB"}
    conf = {**keys, "storePathRootDir": str(tmp_path / "running")}
    store = DefaultMessageStore(config_from_properties(conf, origin="test").config)
    store.load()
    store.start()
    try:
        wanted = list(fill(store))
        store.flush()
        copy_tree(tmp_path / "running", tmp_path / "root" / "store")
    finally:
        store.shutdown()
    assert (tmp_path / "root" / "store" / "abort").exists()
    assert not list((tmp_path / "root" / "store" / "consumequeue").glob("*.sst"))
    manifest: Manifest = {"brokerConf": keys, "messages": wanted}

    report = java.check("local", tmp_path / "root", manifest, tmp_path / "check")

    assert report.wanted == report.right == 700, report.text
    # Java rebuilds index files only from the log file in which the database's position lies.
    assert all("key query misses" in error for error in report.errors), report.text


def test_a_store_of_java_s_with_its_queues_in_rocksdb_goes_from_hand_to_hand(
    java: JavaTools, public_rocksdb: Path, tmp_path: Path
) -> None:
    """Java and this project write a store with its queues in RocksDB in turn, two times each. No
    message is lost, and offsets continue."""
    root = tmp_path / "root"
    copy_tree(public_rocksdb / "store", root / "store")
    manifest: Manifest = json.loads((public_rocksdb / "manifest.json").read_bytes())
    conf = {**manifest["brokerConf"], "storePathRootDir": str(root / "store")}
    config = config_from_properties(conf, origin="test").config
    source = random.Random(12)
    queues = (*QUEUES, ("pub_normal", 0), ("pub_multi", 0))
    store = DefaultMessageStore(config)
    store.load()
    store.start()
    try:
        ours = []
        for number in range(100):
            message, known = made(queues[number % 5], number, source)
            result = store.put_message(message)
            assert result.ok, result
            ours.append(wanted_of(message, result, result.queue_offset, **known))
    finally:
        store.shutdown()

    wanted = [*manifest["messages"], *ours]
    report = java.check("local", root, {**manifest, "messages": wanted}, tmp_path / "check")
    assert report.passed, report.text
    assert report.wanted == report.right == len(wanted)

    seen = java.append(root, manifest, queues, 7)
    reader = open_read_only(root / "store", config)
    try:
        assert not reader.is_live
        ends: dict[tuple[str, int], int] = {}
        for row in seen["messages"]:
            place = row["topic"], row["queueId"]
            got = reader.get_message("g", *place, row["queueOffset"], 1)
            assert hashlib.sha256(got.messages[0].raw).hexdigest() == row["rawSHA256"], row
            ends[place] = max(ends.get(place, 0), row["queueOffset"] + 1)
        assert {place: reader.get_max_offset_in_queue(*place) for place in ends} == ends
        counts = Counter((row["topic"], row["queueId"]) for row in wanted)
        assert [ends[place] for place in queues] == [counts[place] + 7 for place in queues]
    finally:
        reader.shutdown()
