"""Kind of a store's consume queues: files or RocksDB."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Final

from tieredstore.config import StoreConfig
from tieredstore.errors import Invalid
from tieredstore.local.positional_files import PositionalFiles
from tieredstore.local.queues.consume_queue_store import CONSUME_QUEUE_DIRECTORY, ConsumeQueueStore
from tieredstore.local.queues.extension_files import ExtendedConsumeQueueStore
from tieredstore.local.queues.interface import ConsumeQueueStoreInterface
from tieredstore.local.queues.rocksdb.consume_queue import QueueReads
from tieredstore.local.queues.rocksdb.consume_queue_store import RocksDBConsumeQueueStore
from tieredstore.local.queues.rocksdb.database import CURRENT_FILE, ReadOnlyDatabase

SEPARATE_DIRECTORY: Final = "consumequeue_rocksdb"
"""Folder of the database if `useSeparateStorePathForRocksdbCQ` is set."""


def find_queue_database(root: Path) -> Path | None:
    """Return the folder of a store's consume queue database, or None. Raises Invalid if there are
    two."""
    places = (root / CONSUME_QUEUE_DIRECTORY, root / SEPARATE_DIRECTORY)
    found = [place for place in places if (place / CURRENT_FILE).exists()]
    if len(found) > 1:
        raise Invalid(
            f"{root}: expected one consume queue database, found one in each of "
            f"{CONSUME_QUEUE_DIRECTORY} and {SEPARATE_DIRECTORY}",
            path=str(root),
        )
    return found[0] if found else None


def find_queues_of(root: Path, topic: str) -> Path | None:
    """Return the folder or database with the queues of a topic, or None. The store must have no
    owner. Raises Invalid, Corrupt or Unavailable for a database that cannot be opened."""
    directory = find_queue_database(root)
    if directory is None:
        folder = root / CONSUME_QUEUE_DIRECTORY / topic
        return folder if folder.is_dir() else None
    with closing(ReadOnlyDatabase(directory)) as database:
        found = any(key.topic == topic for key in QueueReads(database).list_queues())
    return directory if found else None


def make_queue_store(
    root: Path, config: StoreConfig, files: PositionalFiles
) -> ConsumeQueueStoreInterface:
    """Create the consume queues of an owner without loading them."""
    if config.is_rocksdb:
        return RocksDBConsumeQueueStore(find_database_directory(root, config))
    file_size = config.mapped_file_size_consume_queue_bytes
    if config.enable_consume_queue_ext:
        extension_size = config.mapped_file_size_consume_queue_ext_bytes
        return ExtendedConsumeQueueStore(root, files, file_size, extension_size)
    return ConsumeQueueStore(root, files, file_size)


def find_database_directory(root: Path, config: StoreConfig) -> Path:
    """Return the folder of the consume queue database for this configuration. It need not exist."""
    is_separate = config.use_separate_store_path_for_rocksdb_cq
    return root / (SEPARATE_DIRECTORY if is_separate else CONSUME_QUEUE_DIRECTORY)


def check_kind_of_queues(root: Path, config: StoreConfig) -> None:
    """Raise Invalid if a store's consume queues are not of the configured kind or not in the
    configured location. The queues would otherwise continue in a second place."""
    found = find_queue_database(root)
    if found is None:
        return
    if not config.is_rocksdb:
        raise Invalid(
            f"{found}: this store keeps its consume queues in RocksDB: expected "
            f"storeType=defaultRocksDB, found storeType={config.store_type}",
            path=str(found),
        )
    expected = find_database_directory(root, config)
    if found != expected:
        separate = str(found.name == SEPARATE_DIRECTORY).lower()
        raise Invalid(
            f"{found}: the consume queue database is here, expected {expected.name}: set "
            f"useSeparateStorePathForRocksdbCQ={separate}, or move it",
            path=str(found),
        )
