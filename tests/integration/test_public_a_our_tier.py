"""This project uploads the local store of the public-a fixture into a new tier, and reads the
tier."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.kit import public_a as kit
from tests.kit.oracle import Oracle
from tieredstore.clock import SYSTEM_CLOCK
from tieredstore.config import StorageLevel, StoreConfig
from tieredstore.contracts.dispatch_source import QueueKey
from tieredstore.contracts.message_store import BoundaryType
from tieredstore.local.message_store import DefaultMessageStore
from tieredstore.message.record import StoredMessage
from tieredstore.metadata.json_store import DefaultMetadataStore
from tieredstore.providers.posix.provider import PosixProvider
from tieredstore.tier.store import TieredMessageStore


@pytest.fixture(scope="module")
def oracle(public_a_manifest: dict[str, Any]) -> Oracle:
    return Oracle(public_a_manifest)


def open_store(config: StoreConfig, root: Path) -> TieredMessageStore:
    store = TieredMessageStore(
        DefaultMessageStore(config),
        config,
        PosixProvider(config.tier_file_path, config.broker_cluster_name, fsync=False),
        DefaultMetadataStore(root / "config" / "tieredStoreMetadata.json", config.broker_name),
        root,
        SYSTEM_CLOCK,
    )
    store.load()
    return store


@pytest.fixture(scope="module")
def store(public_a: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TieredMessageStore]:
    """Our store over Java's local store, with the storage level FORCE. Our dispatcher has uploaded
    all messages into an empty tier."""
    root = tmp_path_factory.mktemp("our-tier")
    shutil.copytree(public_a / "store", root / "store")
    for path in (root / "store").rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)
    config = kit.config_at(public_a, root)
    assert config.storage_level is StorageLevel.FORCE
    store = open_store(config, root / "state")
    for outcome in store.dispatcher.scan(force=True):
        assert outcome.error is None, outcome
        assert not outcome.more
    yield store
    store.shutdown()


def all_messages(store: TieredMessageStore, topic: str, queue_id: int) -> Iterator[StoredMessage]:
    offset = store.fetcher.get_message("group", topic, queue_id, -1, 1).next_begin_offset
    while True:
        result = store.fetcher.get_message("group", topic, queue_id, offset, 32)
        if not result.messages:
            return
        yield from result.messages
        offset = result.next_begin_offset


def test_all_messages_are_in_our_tier_and_equal_javas(
    store: TieredMessageStore, public_a_manifest: dict[str, Any]
) -> None:
    expected = {
        (m["topic"], m["queueId"], m["queueOffset"]): m
        for m in public_a_manifest["messages"]
        if m["topic"].startswith("pub_")
    }
    assert len(expected) == 2103
    found = {
        (topic, queue_id, message.queue_offset): message
        for topic, queue_id in sorted({place[:2] for place in expected})
        for message in all_messages(store, topic, queue_id)
    }
    assert found.keys() == expected.keys()
    same_as_java = 0
    for place, m in expected.items():
        message = found[place]
        assert message.size == m["storeSize"]
        assert hashlib.sha256(message.decode_body()).hexdigest() == m["bodySHA256"]
        # But for the physical offset the bytes are those of the local store.
        assert kit.sha256_at(message, m["physicalOffset"]) == m["rawSHA256"]
        java = m.get("tiered")
        if java is None:
            continue
        same_as_java += 1
        assert message.size == java["size"]
        assert message.tags_code == java["tagsCode"]
        assert kit.sha256_at(message, java["commitLogOffset"]) == java["rawSHA256"]
        if place[:2] not in kit.JAVA_TIER_LOW:
            assert message.physical_offset == java["commitLogOffset"]
    assert same_as_java == 1759


def test_system_topics_stay_out(store: TieredMessageStore) -> None:
    topics = {file.topic for file in store.flat_files.files()}
    assert {topic for topic in topics if not topic.startswith("pub_")} == set()


def test_every_get_of_the_broker_is_answered_right(
    store: TieredMessageStore, oracle: Oracle, public_a_manifest: dict[str, Any]
) -> None:
    rows = [r for r in public_a_manifest["queries"]["getMessage"] if r["store"] == "broker"]
    assert kit.wrong_gets(rows, oracle, store.get_message, low={}) == []


def test_every_time_query_is_answered_right(
    store: TieredMessageStore, oracle: Oracle, public_a_manifest: dict[str, Any]
) -> None:
    rows = public_a_manifest["queries"]["offsetByTime"]
    assert kit.wrong_times(rows, oracle, store.fetcher.offset_by_time, low={}) == []
    assert kit.wrong_times(rows, oracle, store.get_offset_in_queue_by_time, low={}) == []


def test_every_key_query_is_answered_right(
    store: TieredMessageStore, oracle: Oracle, public_a_manifest: dict[str, Any]
) -> None:
    rows = public_a_manifest["queries"]["byKey"]
    assert kit.wrong_queries(rows, oracle, store.query_message, low={}) == []


def test_minima_maxima_and_times_are_those_of_the_messages(
    store: TieredMessageStore, oracle: Oracle, public_a_manifest: dict[str, Any]
) -> None:
    for row in public_a_manifest["queries"]["minMax"]:
        queue = row["topic"], row["queueId"]
        times = oracle.queues[queue].times
        assert store.get_min_offset_in_queue(*queue) == row["storeMin"]
        assert store.get_max_offset_in_queue(*queue) == row["storeMax"]
        assert store.get_earliest_message_time(*queue) == (times[0] if times else -1)
        for asked in row["storeTimestampAt"]:
            right = times[asked["offset"]] if asked["offset"] < len(times) else -1
            assert store.get_message_store_timestamp(*queue, asked["offset"]) == right


def test_a_second_scan_uploads_nothing(store: TieredMessageStore) -> None:
    before = {file.path: file.size_bytes for file in store.flat_files.files()}
    assert all(not outcome.messages for outcome in store.dispatcher.scan(force=True))
    assert {file.path: file.size_bytes for file in store.flat_files.files()} == before


def test_a_lost_local_store_is_read_from_the_tier(
    store: TieredMessageStore, public_a: Path, oracle: Oracle, tmp_path: Path
) -> None:
    """The tier alone serves all reads if the local store is empty, as after local retention or a
    lost disk."""
    source = next(iter(store.flat_files.files())).path.split("/")[0]
    config = kit.config_at(
        public_a, tmp_path, tieredStorageLevel="NOT_IN_DISK", tieredStoreAdopt="true"
    )
    assert config.broker_name == source
    shutil.copytree(store.flat_files.provider.url.removeprefix("file://"), tmp_path / "tiered")
    (tmp_path / "state" / "config").mkdir(parents=True)
    name = "tieredStoreMetadata.json"
    metadata = store._metadata
    assert isinstance(metadata, DefaultMetadataStore)
    metadata.flush()
    shutil.copy(metadata.path, tmp_path / "state" / "config" / name)
    emptied = open_store(config, tmp_path / "state")
    try:
        for (topic, queue_id), queue in oracle.queues.items():
            if not topic.startswith("pub_") or not queue.rows:
                continue
            assert emptied.get_min_offset_in_queue(topic, queue_id) == 0
            assert emptied.get_max_offset_in_queue(topic, queue_id) == len(queue.rows)
            result = emptied.get_message("group", topic, queue_id, 0, 32)
            right = oracle.get(topic, queue_id, 0, 32, "*")
            assert tuple(m.queue_offset for m in result.messages) == right.offsets
            search = emptied.get_offset_in_queue_by_time
            time_ms = queue.times[-1]
            assert search(topic, queue_id, time_ms, BoundaryType.UPPER) == len(queue.rows) - 1
        assert emptied.dispatch_source.queue_range(QueueKey("pub_big", 0)) is None
    finally:
        emptied.shutdown()
