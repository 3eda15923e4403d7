"""The Java broker and our store exchange consume queues with extended units
(`enableConsumeQueueExt`)."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tests.kit.java import JavaTools, Manifest, key_queries
from tests.kit.java_messages import BROKER_CONF, QUEUES, fill
from tieredstore.config import config_from_properties
from tieredstore.contracts.dispatch_source import QueueKey
from tieredstore.local.message_store import DefaultMessageStore
from tieredstore.local.positional_files import PositionalFiles
from tieredstore.local.queues.consume_queue import ConsumeQueue
from tieredstore.local.queues.extension_files import ConsumeQueueExt
from tieredstore.local.queues.interface import Int64s
from tieredstore.local.read_only import ReadOnlyMessageStore, open_read_only
from tieredstore.message.consume_queue import MIN_EXTENDED_ADDRESS
from tieredstore.message.hashes import tags_code

# 50 units a file of the extension
CONF = {
    **BROKER_CONF,
    "enableConsumeQueueExt": "true",
    "mappedFileSizeConsumeQueueExt": "1004",
}
UPLOADING = {**CONF, "tieredStoreGroupCommitTimeout": "1000"}
"""Configuration with which Java uploads after one second instead of 30."""
APPENDED = 120


def filled(root: Path) -> list[dict[str, object]]:
    conf = {**CONF, "storePathRootDir": str(root)}
    store = DefaultMessageStore(config_from_properties(conf, origin="test").config)
    store.load()
    store.start()
    try:
        return list(fill(store))
    finally:
        store.shutdown()


def extended_tags_codes(root: Path, key: QueueKey) -> list[int]:
    """Return the tags codes in the extension entries of a queue's units."""
    place = Path(key.topic) / str(key.queue_id)
    files = PositionalFiles(writable=False)
    extension = ConsumeQueueExt(root / "consumequeue_ext" / place, files, 0)
    extension.find_file_size()
    queue = ConsumeQueue(*key, root / "consumequeue" / place, files, None)
    queue.load(owner=False)
    found: list[Int64s] = []
    offset = queue.min_offset
    while offset < queue.max_offset:
        units = queue.read_units(offset, 1000)
        addresses = units["tags_code"].astype(np.int64)
        assert (addresses <= MIN_EXTENDED_ADDRESS).all()
        found.append(extension.find_tags_codes(addresses))
        offset += len(units)
    files.close()
    return [int(code) for code in np.concatenate(found)]


def test_java_reads_our_store_with_extended_units(java: JavaTools, tmp_path: Path) -> None:
    wanted = filled(tmp_path / "root" / "store")
    assert len(list((tmp_path / "root" / "store" / "consumequeue_ext").glob("*/*/*"))) > 10
    manifest: Manifest = {"brokerConf": CONF, "messages": wanted}

    report = java.check("local", tmp_path / "root", manifest, tmp_path / "check")

    assert report.passed, report.text
    assert report.wanted == report.right == 700
    assert report.key_queries == report.key_queries_right == key_queries(wanted)


def test_java_and_we_go_on_with_each_other_s_extended_units(
    java: JavaTools, tmp_path: Path
) -> None:
    root = tmp_path / "root"
    filled(root / "store")
    queues = [QueueKey(*queue) for queue in QUEUES]
    ours = {key: extended_tags_codes(root / "store", key) for key in queues}

    seen = java.append(root, {"brokerConf": UPLOADING}, [*QUEUES, ("java_new", 0)], APPENDED)

    # Java has put its units behind ours, and left those as they were.
    for key in queues:
        codes = extended_tags_codes(root / "store", key)
        assert codes[: len(ours[key])] == ours[key]
        assert len(codes) == len(ours[key]) + APPENDED
        assert max(codes) > MIN_EXTENDED_ADDRESS
    _check_tags_codes(open_read_only(root / "store"))

    # And we put ours behind Java's.
    filled(root / "store")
    _check_tags_codes(open_read_only(root / "store"))
    for key in queues:
        codes = extended_tags_codes(root / "store", key)
        assert len(codes) == 2 * len(ours[key]) + APPENDED
        assert codes[-len(ours[key]) :] == ours[key]
        assert all(code > MIN_EXTENDED_ADDRESS for code in codes)
    again = java.append(root, {"brokerConf": UPLOADING}, [("java_new", 0)], 1)
    assert len(again["messages"]) == len(seen["messages"]) + 701


def _check_tags_codes(store: ReadOnlyMessageStore) -> None:
    source = store.dispatch_source
    try:
        for key in source.queues():
            found = source.queue_range(key)
            if found is None or key.topic not in {topic for topic, _ in QUEUES}:
                continue
            offset = found.min_offset
            while offset < found.max_offset:
                result = store.get_message("g", key.topic, key.queue_id, offset, 32)
                assert result.messages
                for message in result.messages:
                    assert message.tags_code == tags_code(message.tags)
                offset = result.next_begin_offset
    finally:
        store.shutdown()
