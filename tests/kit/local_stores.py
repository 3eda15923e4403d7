"""Small stores for the tests of the local store."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from tests.kit.store_type import STORE_TYPE
from tieredstore.clock import ManualClock
from tieredstore.config import StoreConfig
from tieredstore.local.log.gathering import Runs
from tieredstore.local.message_store import DefaultMessageStore
from tieredstore.message.encoding import Message

START_MS = 1_700_000_000_000
FOREVER = (0, 2**63 - 1)

PUBLIC_A_SIZES: dict[str, Any] = {
    "mapped_file_size_commit_log_bytes": 2_097_152,
    "mapped_file_size_consume_queue_bytes": 4_000,
    "max_hash_slot_num": 500,
    "max_index_num": 2_000,
    "enable_lmq": True,
    "enable_multi_dispatch": True,
}


def small_config(root: Path, **changes: Any) -> StoreConfig:
    """Return settings with commit log files of 4 KiB, 10 units per consume queue file, and 20 items
    per index file."""
    config = StoreConfig(
        store_path_root_dir=str(root),
        store_type=STORE_TYPE,
        mapped_file_size_commit_log_bytes=4096,
        mapped_file_size_consume_queue_bytes=200,
        max_hash_slot_num=10,
        max_index_num=20,
    )
    return msgspec.structs.replace(config, **changes)


@contextmanager
def running(config: StoreConfig, clock: Any = None) -> Iterator[DefaultMessageStore]:
    """Run a store within the block, and shut it down at the end."""
    store = DefaultMessageStore(config, clock or ManualClock(START_MS))
    store.load()
    store.start()
    try:
        yield store
    finally:
        store.shutdown()


def plain(topic: str = "T", queue_id: int = 0, number: int = 0, **more: Any) -> Message:
    """Make a message with a unique body, key and UNIQ_KEY."""
    values: dict[str, Any] = {
        "tags": f"Tag{number % 3}",
        "keys": [f"k{number}"],
        "uniq_key": f"U{number:08d}",
        **more,
    }
    body = values.pop("body", b"body-%d" % number)
    return Message.create(topic, body, queue_id=queue_id, **values)


def put_all(store: DefaultMessageStore, messages: list[Message]) -> list[Any]:
    """Put messages, which the store must accept, and dispatch them."""
    results = [store.put_message(message) for message in messages]
    assert all(result.ok for result in results), [r.status for r in results if not r.ok]
    store.wait_until_dispatched()
    return results


def copy_store(source: Path, target: Path) -> Path:
    """Make a writable copy of a store directory."""
    shutil.copytree(source, target)
    for folder, folders, files in os.walk(target):
        for name in folders + files:
            (Path(folder) / name).chmod(0o755 if name in folders else 0o644)
    return target


def runs_of(*spans: tuple[int, int]) -> Runs:
    """Return `Runs` of the given (start, end) ranges of a log."""
    starts, ends = np.array(spans, np.int64).T
    return Runs.of(starts, ends)
