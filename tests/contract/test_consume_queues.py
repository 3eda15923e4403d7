"""Every kind of consume queue passes the contract tests."""

from __future__ import annotations

from pathlib import Path

from tests.kit.consume_queues import ConsumeQueueStoreContract
from tieredstore.local.positional_files import PositionalFiles
from tieredstore.local.queues.consume_queue_store import ConsumeQueueStore
from tieredstore.local.queues.extension_files import ExtendedConsumeQueueStore
from tieredstore.local.queues.rocksdb.consume_queue_store import RocksDBConsumeQueueStore

UNITS_PER_FILE = 10


class TestConsumeQueuesInFiles(ConsumeQueueStoreContract):
    def open_store(self, root: Path) -> ConsumeQueueStore:
        files = PositionalFiles(writable=True)
        store = ConsumeQueueStore(root, files, UNITS_PER_FILE * 20)
        store.load()
        return store


class TestConsumeQueuesWithExtensions(ConsumeQueueStoreContract):
    def open_store(self, root: Path) -> ExtendedConsumeQueueStore:
        files = PositionalFiles(writable=True)
        store = ExtendedConsumeQueueStore(root, files, UNITS_PER_FILE * 20, 7 * 20 + 4)
        store.load()
        return store


class TestConsumeQueuesInRocksDB(ConsumeQueueStoreContract):
    def open_store(self, root: Path) -> RocksDBConsumeQueueStore:
        store = RocksDBConsumeQueueStore(root / "consumequeue")
        store.load()
        return store
