"""Which kind of consume queues a store has: in files, or in RocksDB."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Final

from tieredstore.config import StoreConfig
from tieredstore.errors import Invalid
from tieredstore.local.positional_files import PositionalFiles
from tieredstore.local.queues.consume_queue_store import CONSUME_QUEUE_DIRECTORY, ConsumeQueueStore
from tieredstore.local.queues.extension.consume_queue_store import ExtendedConsumeQueueStore
from tieredstore.local.queues.interface import ConsumeQueueStoreInterface
from tieredstore.local.queues.rocksdb.consume_queue_store import RocksDBConsumeQueueStore
from tieredstore.local.queues.rocksdb.database import CURRENT_FILE, ReadOnlyDatabase
from tieredstore.local.queues.rocksdb.reading import QueueReads

SEPARATE_DIRECTORY: Final = "consumequeue_rocksdb"
"""Where the database is with `useSeparateStorePathForRocksdbCQ`."""


def is_rocksdb(config: StoreConfig) -> bool:
    """Tell whether a broker's configuration asks for consume queues in RocksDB."""
    return config.store_type.lower() == "defaultrocksdb"


def fills_light_queues(config: StoreConfig) -> bool:
    """Tell whether messages are put in the light queues that they name, as the configuration is
    now. Of a database Java asks for one key only."""
    return config.enable_lmq and (config.enable_multi_dispatch or is_rocksdb(config))


def find_queue_database(root: Path) -> Path | None:
    """Find the folder of a store's consume queue database; None for a store without one. Raises
    Invalid where there are two."""
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
    """Find the folder, or the database, in which a store that nobody owns has queues of a topic;
    None for a topic that is not there. Raises Invalid, Corrupt or Unavailable for a database that
    cannot be opened."""
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
    """Make the consume queues of an owner, not loaded yet."""
    if is_rocksdb(config):
        return RocksDBConsumeQueueStore(_database_directory(root, config))
    file_size = config.mapped_file_size_consume_queue_bytes
    if config.enable_consume_queue_ext:
        extension_size = config.mapped_file_size_consume_queue_ext_bytes
        return ExtendedConsumeQueueStore(root, files, file_size, extension_size)
    return ConsumeQueueStore(root, files, file_size)


def _database_directory(root: Path, config: StoreConfig) -> Path:
    is_separate = config.use_separate_store_path_for_rocksdb_cq
    return root / (SEPARATE_DIRECTORY if is_separate else CONSUME_QUEUE_DIRECTORY)


def check_kind_of_queues(root: Path, config: StoreConfig) -> None:
    """Raise Invalid when a store keeps its consume queues elsewhere than its configuration says:
    they would go on in two places."""
    found = find_queue_database(root)
    if found is None:
        return
    if not is_rocksdb(config):
        raise Invalid(
            f"{found}: this store keeps its consume queues in RocksDB: expected "
            f"storeType=defaultRocksDB, found storeType={config.store_type}",
            path=str(found),
        )
    expected = _database_directory(root, config)
    if found != expected:
        separate = str(found.name == SEPARATE_DIRECTORY).lower()
        raise Invalid(
            f"{found}: the consume queue database is here, expected {expected.name}: set "
            f"useSeparateStorePathForRocksdbCQ={separate}, or move it",
            path=str(found),
        )
