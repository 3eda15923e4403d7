"""Our store continues where the Java broker of the public-a fixture stopped. It uses the same local
store, tier and metadata."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.kit import public_a as kit
from tests.kit.oracle import Oracle
from tieredstore.clock import SYSTEM_CLOCK
from tieredstore.contracts.dispatch_source import QueueKey
from tieredstore.local.message_store import DefaultMessageStore
from tieredstore.message.encoding import Message
from tieredstore.metadata.json_store import DefaultMetadataStore
from tieredstore.providers.posix.provider import PosixProvider
from tieredstore.tier.store import TieredMessageStore


@pytest.fixture(scope="module")
def oracle(public_a_manifest: dict[str, Any]) -> Oracle:
    return Oracle(public_a_manifest)


@pytest.fixture
def opened(public_a: Path, tmp_path: Path) -> Iterator[Callable[..., TieredMessageStore]]:
    """Return a function that opens and reopens the store of the copied broker."""
    stores: list[TieredMessageStore] = []
    for folder in ("store", "tiered"):
        shutil.copytree(public_a / folder, tmp_path / folder)
    for path in tmp_path.rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)

    def open_store(**overrides: str) -> TieredMessageStore:
        close_all()
        config = kit.config_at(public_a, tmp_path, **overrides)
        root = tmp_path / "store"
        store = TieredMessageStore(
            DefaultMessageStore(config),
            config,
            PosixProvider(config.tier_file_path, config.broker_cluster_name, fsync=False),
            DefaultMetadataStore(root / "config" / "tieredStoreMetadata.json", config.broker_name),
            root,
            SYSTEM_CLOCK,
        )
        store.load()
        stores.append(store)
        return store

    def close_all() -> None:
        while stores:
            stores.pop().shutdown()

    yield open_store
    close_all()


def test_every_query_of_the_broker_is_answered_right(
    opened: Callable[..., TieredMessageStore], oracle: Oracle, public_a_manifest: dict[str, Any]
) -> None:
    store = opened()
    queries = public_a_manifest["queries"]
    rows = [row for row in queries["getMessage"] if row["store"] == "broker"]
    # What Java's tier has lost, the local store has.
    assert kit.wrong_gets(rows, oracle, store.get_message, low={}, broker_low=0) == []
    search = store.get_offset_in_queue_by_time
    assert kit.wrong_times(queries["offsetByTime"], oracle, search, low={}) == []
    for row in queries["minMax"]:
        queue = row["topic"], row["queueId"]
        assert store.get_min_offset_in_queue(*queue) == row["rpcMin"]
        assert store.get_max_offset_in_queue(*queue) == row["rpcMax"]


def test_without_force_both_stores_are_one(
    opened: Callable[..., TieredMessageStore], oracle: Oracle, public_a_manifest: dict[str, Any]
) -> None:
    store = opened(tieredStorageLevel="NOT_IN_MEM")
    queries = public_a_manifest["queries"]
    search = store.get_offset_in_queue_by_time
    assert kit.wrong_times(queries["offsetByTime"], oracle, search, low={}) == []
    for (topic, queue_id), queue in oracle.queues.items():
        if not topic.startswith("pub_"):
            continue
        offset, found = 0, []
        while offset < len(queue.rows):
            result = store.get_message("group", topic, queue_id, offset, 32)
            found += [kit.sha256_at(message, 0) for message in result.messages]
            assert result.next_begin_offset > offset
            offset = result.next_begin_offset
        assert len(found) == len(set(found)) == len(queue.rows)


def test_uploading_goes_on_where_java_stopped(
    opened: Callable[..., TieredMessageStore], oracle: Oracle
) -> None:
    store = opened()
    before = {file.path: file.consume_queue_commit_offset for file in store.flat_files.files()}
    assert all(not outcome.messages for outcome in store.dispatcher.scan(force=True))
    store.start()
    for number in range(20):
        message = Message.create(
            "pub_normal", b"new %d" % number, keys=[f"new{number}"], uniq_key=f"NEW{number}"
        )
        assert store.put_message(message).ok
    local = store.next_store
    assert isinstance(local, DefaultMessageStore)
    local.wait_until_dispatched()
    store.dispatcher.dispatch(QueueKey("pub_normal", 0), force=True)
    end = oracle.end("pub_normal", 0)
    file = store.flat_files.get("pub_normal", 0)
    assert file is not None
    assert file.consume_queue_commit_offset == end + 20 == before[file.path] + 20
    result = store.get_message("group", "pub_normal", 0, end - 2, 32)
    assert [message.queue_offset for message in result.messages] == list(range(end - 2, end + 20))
    assert bytes(result.messages[-1].body) == b"new 19"
    [found] = store.query_message("pub_normal", "new7", 32, 0, 2**62)
    assert (found.queue_offset, found.uniq_key) == (end + 7, "NEW7")

    again = opened()
    result = again.get_message("group", "pub_normal", 0, end, 32)
    assert [bytes(message.body) for message in result.messages] == [
        b"new %d" % number for number in range(20)
    ]
    [found] = again.query_message("pub_normal", "NEW7", 32, 0, 2**62)
    assert found.queue_offset == end + 7
