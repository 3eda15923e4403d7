"""Every message in a store written by Java can be found by offset, message id, key and time. The
tests run as the store's owner and as a reader."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.kit.local_stores import FOREVER, PUBLIC_A_SIZES, copy_store
from tests.kit.record_forms import record_positions
from tieredstore.clock import ManualClock
from tieredstore.config import StoreConfig
from tieredstore.contracts.dispatch_source import QueueKey
from tieredstore.contracts.message_store import BoundaryType
from tieredstore.local.message_store import DefaultMessageStore
from tieredstore.local.read_only import open_read_only
from tieredstore.local.recovery.store_lock import StoreLock
from tieredstore.local.store_reads import StoreReads
from tieredstore.message.tag_filter import TagFilter

Manifest = dict[str, Any]
STORES = [
    *itertools.product(["public_a", "public_rocksdb"], ["owner", "reader"]),
    ("public_rocksdb", "reader beside an owner"),
]


@pytest.fixture(scope="module", params=STORES, ids=" ".join)
def opened(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[StoreReads, Manifest]]:
    """A store written by Java, and its manifest."""
    name, way = request.param
    source: Path = request.getfixturevalue(name)
    manifest = json.loads((source / "manifest.json").read_bytes())
    if way == "reader":
        reader = open_read_only(source / "store")
        yield reader, manifest
        reader.shutdown()
        return
    root = copy_store(source / "store", tmp_path_factory.mktemp("owner") / "store")
    if way == "owner":
        kind = manifest["brokerConf"].get("storeType", "default")
        owner = DefaultMessageStore(
            StoreConfig(store_path_root_dir=str(root), store_type=kind, **PUBLIC_A_SIZES),
            ManualClock(),
        )
        owner.load()
        owner.start()
        yield owner, manifest
        owner.shutdown()
        return
    lock = StoreLock(root)
    lock.acquire()
    reader = open_read_only(root)
    assert reader.is_live
    yield reader, manifest
    reader.shutdown()
    lock.release()


@pytest.fixture(scope="module")
def store(opened: tuple[StoreReads, Manifest]) -> StoreReads:
    return opened[0]


@pytest.fixture(scope="module")
def manifest(opened: tuple[StoreReads, Manifest]) -> Manifest:
    return opened[1]


def test_every_message_by_queue_offset_physical_offset_and_message_id(
    store: StoreReads, manifest: Manifest
) -> None:
    assert len(manifest["messages"]) > 2000
    for row in manifest["messages"]:
        result = store.get_message("g", row["topic"], row["queueId"], row["queueOffset"], 1)
        (message,) = result.messages
        assert result.next_begin_offset == row["queueOffset"] + 1
        assert hashlib.sha256(message.raw).hexdigest() == row["rawSHA256"]
        assert message.tags_code == 0 or message.topic == row["topic"]
        other = store.look_message_by_offset(row["physicalOffset"])
        assert other is not None
        assert bytes(other.raw) == bytes(message.raw)
        assert other.offset_message_id == row["offsetMsgId"]


def test_every_message_by_each_of_its_keys(store: StoreReads, manifest: Manifest) -> None:
    expected: dict[tuple[str, str], list[int]] = defaultdict(list)
    for row in manifest["messages"]:
        keys = {key for key in (row["keys"] or "").split(" ") if key} | {row["uniqKey"]}
        for key in keys - {None}:
            expected[row["topic"], key].append(row["physicalOffset"])
    for (topic, key), offsets in expected.items():
        found = store.query_message(topic, key, 64, *FOREVER)
        assert [message.physical_offset for message in found] == sorted(offsets)[-64:]


def test_key_windows_are_exact(store: StoreReads, manifest: Manifest) -> None:
    messages = manifest["messages"]
    keyed: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    for row in messages:
        for key in (row["keys"] or "").split(" "):
            keyed[row["topic"], key].append(row)
    differences = 0
    for query in manifest["queries"]["byKey"]:
        begin, end = query["begin"], query["end"]
        truth = [
            [row["queueId"], row["queueOffset"], row["storeTimestamp"], row["topic"]]
            for row in messages
            if row["topic"] == query["topic"]
            and query["key"] in {row["uniqKey"], *(row["keys"] or "").split(" ")}
            and begin <= row["storeTimestamp"] <= end
        ][-min(query["maxNum"], 64) :]
        found = store.query_message(query["topic"], query["key"], query["maxNum"], begin, end)
        assert [[m.queue_id, m.queue_offset, m.store_timestamp_ms, m.topic] for m in found] == truth
        differences += sorted(query["local"]) != sorted(truth)
    # Java's windows are whole seconds: it answers some of these queries wrongly.
    assert differences > 0


def test_time_queries_are_right_and_agree_with_java(store: StoreReads, manifest: Manifest) -> None:
    times: dict[tuple[str, int], list[int]] = defaultdict(list)
    for row in sorted(manifest["messages"], key=lambda row: row["queueOffset"]):
        times[row["topic"], row["queueId"]].append(row["storeTimestamp"])
    queries = manifest["queries"]["offsetByTime"]
    assert len(queries) > 1000
    for query in queries:
        queue = times[query["topic"], query["queueId"]]
        timestamp = query["timestamp"]
        if query["boundary"] == "lower":
            right = next((o for o, time in enumerate(queue) if time >= timestamp), len(queue))
        else:
            right = max((o for o, time in enumerate(queue) if time <= timestamp), default=0)
        found = store.get_offset_in_queue_by_time(
            query["topic"], query["queueId"], timestamp, BoundaryType(query["boundary"])
        )
        assert found == right == query["local"], query


def test_get_message_answers_as_java_does(store: StoreReads, manifest: Manifest) -> None:
    rows = [row for row in manifest["queries"]["getMessage"] if row["store"] == "local"]
    assert Counter(row["status"] for row in rows)["FOUND"] > 100
    for row in rows:
        result = store.get_message(
            "g",
            row["topic"],
            row["queueId"],
            row["offset"],
            row["maxNums"],
            TagFilter.parse(row["filter"]),
        )
        assert (
            result.status.name,
            result.next_begin_offset,
            result.min_offset,
            result.max_offset,
            [message.queue_offset for message in result.messages],
            result.size_bytes,
        ) == (
            row["status"],
            row["next"],
            row["min"],
            row["max"],
            row["queueOffsets"],
            row["bufferTotalSize"],
        ), row


def test_min_max_and_times_are_java_s(store: StoreReads, manifest: Manifest) -> None:
    for row in manifest["queries"]["minMax"]:
        topic, queue_id = row["topic"], row["queueId"]
        assert store.get_min_offset_in_queue(topic, queue_id) == row["storeMin"]
        assert store.get_max_offset_in_queue(topic, queue_id) == row["storeMax"]
        assert store.get_earliest_message_time(topic, queue_id) == row["localEarliestTime"]
        assert store.get_message_store_timestamp(topic, queue_id, row["storeMax"]) == -1
    for row in manifest["messages"]:
        place = row["topic"], row["queueId"], row["queueOffset"]
        assert store.get_message_store_timestamp(*place) == row["storeTimestamp"]
    first = min(manifest["messages"], key=lambda row: row["physicalOffset"])
    assert store.get_earliest_message_time() == first["storeTimestamp"]


def test_light_queues_are_read_through_their_own_units(store: StoreReads) -> None:
    result = store.get_message("g", "%LMQ%all", 0, 0, 32)
    assert len(result.messages) == 15
    for message in result.messages:
        assert message.topic == "pub_lmq"
        assert "%LMQ%all" in message.properties["INNER_MULTI_DISPATCH"].split(",")


def test_dispatch_source_gives_every_record_in_few_pieces(
    store: DefaultMessageStore, manifest: Manifest
) -> None:
    source = store.dispatch_source
    by_queue: dict[QueueKey, list[dict[str, Any]]] = defaultdict(list)
    for row in manifest["messages"]:
        by_queue[QueueKey(row["topic"], row["queueId"])].append(row)
    assert set(by_queue) <= set(source.queues())
    for key, rows in by_queue.items():
        rows.sort(key=lambda row: row["queueOffset"])
        queue_range = source.queue_range(key)
        assert queue_range is not None
        assert (queue_range.min_offset, queue_range.max_offset) == (0, len(rows))
        offset, hashes, pieces = 0, [], 0
        while offset < len(rows):
            units = source.read_units(key, offset, 10_000)
            for piece in source.read_records(units):
                pieces += 1
                for position in record_positions(piece).tolist():
                    size = int.from_bytes(piece[position : position + 4], "big")
                    hashes.append(hashlib.sha256(piece[position : position + size]).hexdigest())
            offset += len(units)
        assert hashes == [row["rawSHA256"] for row in rows]
        breaks = sum(
            before["physicalOffset"] + before["storeSize"] != after["physicalOffset"]
            for before, after in itertools.pairwise(rows)
        )
        assert pieces <= breaks + 1 + len(rows) // 200  # a queue file holds 200 units
        assert source.is_in_store(key, 0)
        assert source.is_in_memory(key, 0, 4)
        assert not source.is_in_store(key, len(rows))
