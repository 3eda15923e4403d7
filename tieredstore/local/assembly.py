"""Creates the parts of a local store from its configuration."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tieredstore.clock import Clock
from tieredstore.config import StoreConfig
from tieredstore.local.dispatch.reput import Reput
from tieredstore.local.flush.log_flush import CommitLogCommit
from tieredstore.local.flush.store_flush import StoreFlush
from tieredstore.local.index.reader import IndexShape
from tieredstore.local.index.service import IndexService
from tieredstore.local.log.commit_log import CommitLog, find_log_directory
from tieredstore.local.log.foreign_log import check_log_form
from tieredstore.local.log.transient_pool import TransientStorePool
from tieredstore.local.positional_files import PositionalFiles
from tieredstore.local.put.appender import MessageAppender
from tieredstore.local.put.compiled import find_appender_class
from tieredstore.local.queues.batch_consume_queue_store import BatchConsumeQueueStore
from tieredstore.local.queues.interface import ConsumeQueueStoreInterface
from tieredstore.local.queues.kinds import make_queue_store
from tieredstore.local.running_flags import RunningFlag, RunningFlags
from tieredstore.message.encoding import RecordEncoder
from tieredstore.timestamps import parse_delay_levels


@dataclass(frozen=True, slots=True)
class StoreParts:
    """Parts of one store. `commit`: None without a pool of buffers."""

    root: Path
    config: StoreConfig
    running_flags: RunningFlags
    files: PositionalFiles
    commit_log: CommitLog
    queues: ConsumeQueueStoreInterface
    batch_queues: BatchConsumeQueueStore
    index: IndexService
    appender: MessageAppender
    commit: CommitLogCommit | None
    reput: Reput
    flush: StoreFlush


def make_parts(root: Path, config: StoreConfig, clock: Clock, store_host: bytes) -> StoreParts:
    """Create the parts of a store without reading, writing or starting anything. `store_host`: as
    in `DefaultMessageStore`. Raises Invalid for a configuration that no store can have."""
    flags = RunningFlags()
    files = PositionalFiles(writable=True)
    log = _make_commit_log(root, config, files)
    queues = make_queue_store(root, config, files)
    batch_queues = BatchConsumeQueueStore(root, files)
    shape = IndexShape(config.max_hash_slot_num, config.max_index_num)
    index = IndexService(root, shape, files, clock)
    appender = _make_appender(config, log, flags, clock, store_host)
    commit = CommitLogCommit(config, log, appender) if _uses_pool(config) else None
    levels = parse_delay_levels(config.message_delay_level)
    reput = Reput(log, appender, queues, index, levels, flags, config)
    flush = StoreFlush(root, config, log, queues, index, appender, reput, flags)
    reput.on_batch(batch_queues.append_record)
    reput.dispatcher.sync_log = flush.sync_log
    log.on_damage = lambda error: flags.set(RunningFlag.NOT_WRITEABLE, str(error), lasting=True)
    return StoreParts(
        root, config, flags, files, log, queues, batch_queues, index, appender, commit, reput, flush
    )


def _is_sync(config: StoreConfig) -> bool:
    return config.flush_disk_type == "SYNC_FLUSH"


def _uses_pool(config: StoreConfig) -> bool:
    return config.transient_store_pool_enable and config.broker_role != "SLAVE"


def _make_commit_log(root: Path, config: StoreConfig, files: PositionalFiles) -> CommitLog:
    if "," in config.store_path_commit_log:
        check_log_form(root, config)
    file_size = config.mapped_file_size_commit_log_bytes
    pool = (
        TransientStorePool(config.transient_store_pool_size, file_size)
        if _uses_pool(config)
        else None
    )

    def find_warm_up_pages() -> int:
        pages = config.flush_least_pages_when_warm_mapped_file
        return pages if config.warm_mapped_file_enable else 0

    return CommitLog(
        find_log_directory(config, root),
        file_size,
        files,
        sync_flush=_is_sync(config),
        pool=pool,
        fail_without_buffer=lambda: config.fast_fail_if_no_buffer_in_store_pool,
        warm_up_flush_pages=find_warm_up_pages,
    )


def _make_appender(
    config: StoreConfig, log: CommitLog, flags: RunningFlags, clock: Clock, store_host: bytes
) -> MessageAppender:
    encoder = RecordEncoder(
        store_host,
        append_prop_crc=config.enabled_append_prop_crc,
        max_body_bytes=config.max_message_size_bytes,
    )
    return find_appender_class()(
        log,
        encoder,
        clock,
        flags,
        enable_light_queues=config.enable_lmq,
        fills_light_queues=lambda: config.fills_light_queues,
        holds_rows=_is_sync(config) or _uses_pool(config),
    )
