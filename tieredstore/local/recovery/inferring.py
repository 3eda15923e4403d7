"""Infers the configuration of a store without `broker.conf` from its files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from tieredstore.config import StoreConfig
from tieredstore.disk.errors import wrap_os_errors
from tieredstore.errors import Invalid
from tieredstore.local.index.reader import IndexShape, index_paths, infer_shape
from tieredstore.local.log.commit_log import COMMIT_LOG_DIRECTORY, find_log_directory
from tieredstore.local.log.foreign_log import check_log_form
from tieredstore.local.positional_files import PositionalFiles
from tieredstore.local.queues.consume_queue_store import CONSUME_QUEUE_DIRECTORY, list_queues
from tieredstore.local.queues.kinds import SEPARATE_DIRECTORY, find_queue_database
from tieredstore.message.names import LMQ_PREFIX


def infer_config(root: Path) -> StoreConfig:
    """Infer the settings that a recovery needs: file sizes, shape of the index, kind of the queues,
    and whether there are light queues. Raises Invalid if there is no store, or its files do not
    show the settings."""
    check_log_form(root, StoreConfig())
    if not (root / COMMIT_LOG_DIRECTORY).is_dir():
        raise Invalid(
            f"{root}: no message store: expected a folder {COMMIT_LOG_DIRECTORY}", path=str(root)
        )
    config = infer_sizes(root, StoreConfig())
    keys = list_queues(root / CONSUME_QUEUE_DIRECTORY)
    has_light = any(key.topic.startswith(LMQ_PREFIX) for key in keys)
    shape = _infer_index_shape(root, config)
    return msgspec.structs.replace(
        config,
        max_hash_slot_num=shape.slots,
        max_index_num=shape.max_items,
        enable_lmq=has_light,
        enable_multi_dispatch=has_light,
    )


def infer_sizes(root: Path, config: StoreConfig) -> StoreConfig:
    """Return the configuration with `root` as its root, and with the file sizes and the kind of
    queues found there. Raises Invalid for two kinds of queues."""
    log = find_log_directory(config, root)
    queues = root / CONSUME_QUEUE_DIRECTORY
    folders = (queues / key.topic / str(key.queue_id) for key in list_queues(queues))
    database = find_queue_database(root)
    return msgspec.structs.replace(
        config,
        store_path_root_dir=str(root),
        mapped_file_size_commit_log_bytes=max(_sizes(log), default=0)
        or config.mapped_file_size_commit_log_bytes,
        mapped_file_size_consume_queue_bytes=_find_queue_size(folders)
        or config.mapped_file_size_consume_queue_bytes,
        store_type="default" if database is None else "defaultRocksDB",
        use_separate_store_path_for_rocksdb_cq=database == root / SEPARATE_DIRECTORY,
    )


def _find_queue_size(folders: Iterable[Path]) -> int:
    """Return the file size of the first queue, or 0 without a queue. The largest file of a folder
    counts, because others may be truncated."""
    return next((size for folder in folders if (size := max(_sizes(folder), default=0))), 0)


def _sizes(folder: Path) -> Iterator[int]:
    with wrap_os_errors("list", folder):
        for path in sorted(folder.iterdir()):
            if path.is_file() and path.name.isdigit() and path.stat().st_size:
                yield path.stat().st_size


def _infer_index_shape(root: Path, config: StoreConfig) -> IndexShape:
    configured = IndexShape(config.max_hash_slot_num, config.max_index_num)
    files = PositionalFiles(writable=False)
    try:
        for path in index_paths(root):
            if files.size(path):
                return infer_shape(files, path, configured)
    finally:
        files.close()
    return configured
