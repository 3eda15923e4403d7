"""Configuration of the store: Java's settings and defaults, read from an ordinary `broker.conf`.

`StoreConfig` holds the settings that this project uses. Each attribute is a Java key with its unit
in the name. `docs/configuration.md` is generated from the fields and the text below each.
"""

from __future__ import annotations

import enum
import io
import os
import re
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypeVar, cast

import msgspec
from msgspec import Meta, field

from tieredstore.disk.user_folders import find_home
from tieredstore.errors import Invalid
from tieredstore.java_settings import (
    DECLINED_SETTINGS,
    REFUSED_VALUES,
    REMOVED_SETTINGS,
    SETTINGS_ELSEWHERE,
    UNUSED_SETTINGS,
    find_unsupported,
)
from tieredstore.properties import (
    PluginProperties,
    fields_by_key,
    find_near_setting,
    find_unknown_settings,
    is_plain_text,
    is_secret,
    make_extra,
    make_key,
    parse_value,
)

_INT32_MAX = 2**31 - 1
_INT64_MAX = 2**63 - 1


class StorageLevel(enum.IntEnum):
    """Values of `tieredStorageLevel`. The setting determines which gets are answered by the
    tier."""

    DISABLE = 0
    NOT_IN_DISK = 1
    NOT_IN_MEM = 2
    FORCE = 3

    @classmethod
    def parse(cls, value: str) -> StorageLevel:
        """Parse the name of a level, or its number as Java does. An unknown number is DISABLE."""
        text = value.strip()
        if re.fullmatch("[+-]?[0-9]{1,10}", text):
            number = int(text)
            return cls(number) if number in cls._value2member_map_ else cls.DISABLE
        try:
            return cls[text]
        except KeyError:
            names = ", ".join(cls.__members__)
            raise Invalid(
                f"tieredStorageLevel: expected one of {names} or 0 to 3, found {value!r}"
            ) from None


_T = TypeVar("_T")
Live = Annotated[_T, Meta(extra=make_extra(runtime=True))]
"""Type of a key whose value may change while a broker runs."""
Int32 = Annotated[int, Meta(ge=1, le=_INT32_MAX)]
Int64 = Annotated[int, Meta(ge=1, le=_INT64_MAX)]
Whole32 = Annotated[int, Meta(ge=0, le=_INT32_MAX)]
Whole64 = Annotated[int, Meta(ge=0, le=_INT64_MAX)]


def _host_name() -> str:
    return socket.gethostname() or "DEFAULT_BROKER"


_BYTE_ORDER_MARK = "\xef\xbb\xbf"
"""Byte order mark of UTF-8, as it appears in a file that was decoded as ISO 8859-1."""


def _default_root() -> str:
    home = find_home()
    return "" if home is None else str(home / "store")


def require_root(config: StoreConfig) -> Path:
    """Return the folder of the store. Raises Invalid if neither a setting nor a home folder
    exists."""
    if not config.store_path_root_dir:
        raise Invalid(
            "storePathRootDir: expected a folder. Without it the store is in the home folder, and "
            f"user {os.getuid()} has none: no entry in passwd, and HOME is not set"
        )
    return Path(config.store_path_root_dir)


MEMORY_PROVIDER = "org.apache.rocketmq.tieredstore.provider.MemoryFileSegment"
JSON_METADATA = "org.apache.rocketmq.tieredstore.metadata.DefaultMetadataStore"


class StoreConfig(msgspec.Struct, frozen=True, kw_only=True, rename=make_key):
    """All settings of a store. The defaults are those of Apache RocketMQ 5.5.0, unless a
    description says "Ours". Build a configuration with keyword arguments, or with
    `load_broker_conf`."""

    # Identity
    broker_name: str = field(default_factory=_host_name)
    """Name of the broker, the first element of every path in the tier."""
    broker_cluster_name: str = "DefaultCluster"
    """Top folder of the Posix tier."""
    broker_role: Annotated[str, Meta(pattern="^(ASYNC_MASTER|SYNC_MASTER|SLAVE)$")] = "ASYNC_MASTER"
    """ASYNC_MASTER or SLAVE. A SLAVE accepts no messages from producers and never uploads."""
    store_path_root_dir: str = field(default_factory=_default_root)
    """Root of the local store, which also holds the metadata JSON and the local index files."""
    store_path_commit_log: str = ""
    """Folder of the commit log. Empty: `commitlog` under the root."""
    message_store_plug_in: str = ""
    """Comma-separated class names of store plugins, the outermost first."""

    # Local store
    store_type: Annotated[str, Meta(pattern="(?i)^(default|defaultRocksDB)$")] = "default"
    """Whether consume queues are in files (`default`) or in RocksDB (`defaultRocksDB`, extra
    `rocksdb`)."""
    use_separate_store_path_for_rocksdb_cq: bool = field(
        name="useSeparateStorePathForRocksdbCQ", default=False
    )
    """Whether the RocksDB queues are in the folder `consumequeue_rocksdb` instead of
    `consumequeue`."""
    flush_disk_type: Annotated[str, Meta(pattern="^(ASYNC_FLUSH|SYNC_FLUSH)$")] = "ASYNC_FLUSH"
    """Durability of a put: on disk within a second (ASYNC_FLUSH), or when its future completes
    (SYNC_FLUSH)."""
    sync_flush_timeout_ms: Live[Int32] = 5000
    """Maximum wait of a put for its flush under SYNC_FLUSH, ms."""
    flush_interval_commit_log_ms: Live[Int32] = 500
    """Time between two flushes of the commit log under ASYNC_FLUSH, ms."""
    flush_commit_log_least_pages: Live[Whole32] = 4
    """Minimum number of dirty pages (4,096 bytes) for a flush of the commit log. With fewer,
    nothing is flushed."""
    flush_commit_log_thorough_interval_ms: Live[Int32] = 10_000
    """Time after which a flush of the commit log writes all dirty pages, however few, ms."""
    flush_commit_log_timed: Live[bool] = True
    """Whether the commit log is flushed at its interval only, and never because of a put."""
    wake_flush_when_put_message: Live[bool] = False
    """Whether a put begins a flush of the commit log. Without effect if `flushCommitLogTimed` is
    true."""
    flush_interval_consume_queue_ms: Live[Int32] = 1000
    """Time between two flushes of consume queues, index and checkpoint, ms."""
    flush_consume_queue_least_pages: Live[Whole32] = 2
    """Minimum number of dirty pages of a consume queue for its flush, unless all queues are
    flushed."""
    flush_consume_queue_thorough_interval_ms: Live[Int32] = 60_000
    """Maximum time between two flushes of all changed consume queues, ms. Usually each flush
    includes all of them, unless flushes take more than a tenth of the time."""
    mapped_file_size_commit_log_bytes: Annotated[int, Meta(ge=64, le=_INT32_MAX)] = 1 << 30
    """Size of a commit log file, bytes."""
    warm_mapped_file_enable: Live[bool] = field(name="warmMapedFileEnable", default=False)
    """Whether the pages of each new commit log file are allocated in advance, in the background,
    and locked in memory until the file is flushed."""
    flush_least_pages_when_warm_mapped_file: Live[Int32] = field(
        name="flushLeastPagesWhenWarmMapedFile", default=4096
    )
    """Number of pages (4,096 bytes) between two syncs while the pages of a new file are allocated,
    under SYNC_FLUSH."""
    transient_store_pool_enable: bool = False
    """Whether messages are first written into a pool of buffers, and committed to the files from
    there. A message is readable after the commit. A killed process loses the uncommitted
    messages."""
    transient_store_pool_size: Int32 = 5
    """Number of buffers in the pool. Each has the size of a commit log file."""
    fast_fail_if_no_buffer_in_store_pool: Live[bool] = False
    """Whether puts are refused while no buffer of the pool is free. Otherwise they are written
    directly to the file."""
    commit_interval_commit_log_ms: Live[Int32] = 200
    """Time between two commits from the pool to the files, ms."""
    commit_commit_log_least_pages: Live[Whole32] = 4
    """Minimum number of pages (4,096 bytes) for a commit from the pool. With fewer, the commit is
    postponed."""
    commit_commit_log_thorough_interval_ms: Live[Whole32] = 200
    """Time after which a commit from the pool is no longer postponed, ms."""
    wake_commit_when_put_message: Live[bool] = True
    """Whether a put begins a commit from the pool before `commitIntervalCommitLog` is over."""
    mapped_file_size_consume_queue_bytes: Annotated[int, Meta(ge=20, le=_INT32_MAX)] = 6_000_000
    """Size of a consume queue file, bytes, rounded up to a multiple of 20."""
    enable_consume_queue_ext: bool = False
    """Whether units in consume queue files may hold addresses of extended units. Queues in RocksDB
    have no extended units, as in Java."""
    mapped_file_size_consume_queue_ext_bytes: Annotated[int, Meta(ge=24, le=_INT32_MAX)] = 48 << 20
    """Size of a file of extended units, bytes."""
    max_hash_slot_num: Int32 = 5_000_000
    """Number of hash slots of a local index file."""
    max_index_num: Annotated[int, Meta(ge=2, le=_INT32_MAX)] = 20_000_000
    """Number of items of a local index file."""
    message_index_enable: Live[bool] = True
    """Whether messages are added to the key indexes, in the local store and in the tier."""
    max_message_size_bytes: Live[Int32] = 4 << 20
    """Maximum size of a message body, bytes."""
    os_page_cache_busy_timeout_ms: Live[Whole32] = field(
        name="osPageCacheBusyTimeOutMills", default=1_000
    )
    """Maximum time that one put may hold the lock before other puts are refused with
    OS_PAGE_CACHE_BUSY, ms. 0: no limit."""
    enabled_append_prop_crc: bool = field(name="enabledAppendPropCRC", default=False)
    """Whether a CRC of the whole record is appended to each record, as its last property."""
    force_verify_prop_crc: bool = field(name="forceVerifyPropCRC", default=False)
    """Whether a recovery ends the log at a record without a CRC of the whole record. An existing
    CRC is always checked."""
    enable_lmq: bool = False
    """Whether light queues are supported."""
    enable_multi_dispatch: Live[bool] = False
    """Whether messages enter the light queues that they name. With queues in RocksDB, `enableLmq`
    alone is enough."""
    enable_lmq_quota: Live[bool] = False
    """Whether to refuse a message that would create a light queue beyond
    `maxLmqConsumeQueueNum`."""
    max_lmq_consume_queue_num: Live[Int32] = 20_000
    """Maximum number of light queues with `enableLmqQuota`."""
    message_delay_level: str = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
    """Delays of the levels 1, 2, …"""
    max_transfer_bytes_in_memory: Live[Int32] = field(
        name="maxTransferBytesOnMessageInMemory", default=262_144
    )
    """Maximum number of bytes that one get returns from memory or from the tier."""
    max_transfer_count_in_memory: Live[Int32] = field(
        name="maxTransferCountOnMessageInMemory", default=32
    )
    """Maximum number of messages that one get returns from memory."""
    max_transfer_bytes_in_disk: Live[Int32] = field(
        name="maxTransferBytesOnMessageInDisk", default=65_536
    )
    """Maximum number of bytes that one get returns from disk."""
    max_transfer_count_in_disk: Live[Int32] = field(
        name="maxTransferCountOnMessageInDisk", default=8
    )
    """Maximum number of messages that one get returns from disk."""
    access_message_in_memory_max_ratio: Live[Annotated[int, Meta(ge=0, le=100)]] = 40
    """Share of the machine's memory that the end of the commit log may occupy, percent. Older
    messages count as on disk."""
    max_filter_message_size_bytes: Live[Int32] = 16_000
    """Number of consume queue bytes that one filtered get may examine."""
    travel_cq_file_num: Live[Int32] = field(name="travelCqFileNumWhenGetMessage", default=1)
    """Number of consume queue files that one get may examine without finding a message."""
    max_msgs_num_batch: Live[Int32] = 64
    """Maximum number of messages that one query by key returns."""

    # Local store: cleaning
    delete_when: Live[str] = "04"
    """Hours of the day (local time) at which expired files are deleted, separated by `;`."""
    local_file_reserved_time_hours: Live[Whole32] = field(name="fileReservedTime", default=72)
    """Age at which a commit log file expires, hours."""
    clean_resource_interval_ms: Int32 = 10_000
    """Time between two cleanings of the local store, ms."""
    delete_commit_log_files_interval_ms: Live[Whole32] = 100
    """Pause after each deleted commit log file, ms."""
    delete_file_batch_max: Live[Int32] = 10
    """Maximum number of commit log files that one cleaning deletes."""
    clean_file_forcibly_enable: Live[bool] = True
    """Whether files are deleted before they expire while the disk is nearly full."""
    disk_max_used_space_ratio: Live[Whole32] = 75
    """Disk usage above which expired files are deleted at any hour, percent, 10 to 95."""
    disk_space_clean_forcibly_ratio: Live[Whole32] = 85
    """Disk usage above which the oldest files are deleted before they expire, percent, 30 to 85."""
    disk_space_warning_level_ratio: Live[Whole32] = 90
    """Disk usage above which puts are refused, percent, 35 to 90."""

    # Tier: location
    storage_level: Live[StorageLevel] = field(
        name="tieredStorageLevel", default=StorageLevel.NOT_IN_DISK
    )
    """Reads that use the tier: DISABLE, NOT_IN_DISK, NOT_IN_MEM or FORCE (0 to 3)."""
    metadata_service_provider: str = field(
        name="tieredMetadataServiceProvider", default=JSON_METADATA
    )
    """Class of the metadata store."""
    backend_service_provider: str = field(
        name="tieredBackendServiceProvider", default=MEMORY_PROVIDER
    )
    """Class of the segment provider. The default keeps segments in memory only, so they are lost
    when the process ends."""
    tier_file_path: str = field(name="tieredStoreFilePath", default="")
    """Root folder of a Posix tier. Empty: the working directory."""
    backlog: Annotated[str, Meta(pattern="^(all|recent)$")] = field(
        name="tieredStoreBacklog", default="all"
    )
    """Ours. Part of a queue's backlog that is uploaded when the tier first sees the queue: `all`,
    or `recent` (the last two minutes, as in Java)."""
    adopt: bool = field(name="tieredStoreAdopt", default=False)
    """Ours. Whether a new local store may start over a tier that holds messages of this broker, and
    continue after these messages. Also allows a store to start over a different, an older or an
    empty tier. Set this for one start only, when the error of a refused start asks for it."""
    backup_interval_ms: Whole32 = field(name="tieredStoreBackupInterval", default=60_000)
    """Ours. Time between two backups of changed topics, groups and consumer offsets to the tier,
    ms. 0: no backups. `tieredstore restore` creates a store from a backup."""

    # Tier: policies
    include_topics: Live[str] = field(name="tieredStoreIncludeTopics", default="")
    """Ours. Topics that are uploaded, as shell patterns separated by commas. Empty: all topics."""
    exclude_topics: Live[str] = field(name="tieredStoreExcludeTopics", default="")
    """Ours. Topics that are not uploaded, as shell patterns separated by commas. They take
    precedence over `tieredStoreIncludeTopics`."""
    upload_bytes_per_s: Live[Whole64] = field(name="tieredStoreUploadBytesPerSecond", default=0)
    """Ours. Maximum upload rate, bytes per second. 0: no limit."""
    download_bytes_per_s: Live[Whole64] = field(name="tieredStoreDownloadBytesPerSecond", default=0)
    """Ours. Maximum rate of reads from the tier, bytes per second. 0: no limit."""

    # Tier: segments
    commit_log_max_size_bytes: Live[Int64] = field(
        name="tieredStoreCommitLogMaxSize", default=1 << 30
    )
    """Maximum size of a commit log segment, bytes."""
    consume_queue_max_size_bytes: Live[Annotated[int, Meta(ge=20, le=_INT64_MAX)]] = field(
        name="tieredStoreConsumeQueueMaxSize", default=104_857_600
    )
    """Maximum size of a consume queue segment, bytes."""
    commit_log_rolling_interval_hours: Live[Whole32] = 24
    """Age at which a commit log segment is rolled, hours."""
    commit_log_rolling_minimum_size_bytes: Live[Whole32] = 16 << 20
    """Size below which a segment is not rolled because of its age, bytes."""
    index_file_max_hash_slot_num: Live[Int32] = field(
        name="tieredStoreIndexFileMaxHashSlotNum", default=5_000_000
    )
    """Number of hash slots of an index file in the tier."""
    index_file_max_index_num: Live[Annotated[int, Meta(ge=2, le=1 << 25)]] = field(
        name="tieredStoreIndexFileMaxIndexNum", default=20_000_000
    )
    """Number of items of an index file in the tier. One item fewer is usable."""
    index_file_upload_interval_ms: Live[Whole32] = field(
        name="tieredStoreIndexFileUploadInterval", default=0
    )
    """Ours. Time after which an index file is uploaded even if it is not full, ms. 0: only full
    files are uploaded, as in Java."""

    # Tier: upload
    dispatch_interval_ms: Live[Annotated[int, Meta(ge=100, le=_INT32_MAX)]] = field(
        name="tieredStoreDispatchInterval", default=20_000
    )
    """Ours. Time between two scans for messages to upload, ms. Java always uses 20 s."""
    group_commit: Live[bool] = field(name="tieredStoreGroupCommit", default=True)
    """Whether to wait for further messages of a queue before an upload. False: each scan uploads
    what it finds."""
    group_commit_timeout_ms: Live[Whole32] = field(
        name="tieredStoreGroupCommitTimeout", default=30_000
    )
    """An upload begins when the oldest message not yet uploaded has this age, ms."""
    group_commit_count: Live[Int32] = field(name="tieredStoreGroupCommitCount", default=4096)
    """Number of waiting messages of a queue at which an upload begins. Also the maximum number of
    messages in one batch."""
    group_commit_size_bytes: Live[Int32] = field(name="tieredStoreGroupCommitSize", default=4 << 20)
    """Maximum size of one batch, bytes. A larger message is uploaded alone."""
    max_group_commit_count: Live[Int32] = field(
        name="tieredStoreMaxGroupCommitCount", default=10_000
    )
    """Maximum number of messages that are appended to a segment and not yet committed."""
    adaptive_commit_max_interval_ms: Live[Whole32] = field(
        name="tieredStoreAdaptiveCommitMaxInterval", default=600_000
    )
    """Ours. Maximum age of the oldest message not yet uploaded, ms, if the provider prefers large
    writes and the queue is too slow to fill one. 0: `tieredStoreGroupCommitTimeout` applies."""
    max_pending_limit: Annotated[int, Meta(ge=4, le=_INT32_MAX)] = field(
        name="tieredStoreMaxPendingLimit", default=10_000
    )
    """Maximum number of concurrent reads of the tier by coroutines. Up to a quarter as many queues
    are uploaded or recovered at once."""
    dispatch_threads: Annotated[int, Meta(ge=1, le=256)] = field(
        name="tieredStoreDispatchThreads", default=8
    )
    """Ours. Number of threads that upload."""

    # Tier: reads
    read_ahead_cache_enable: Live[bool] = True
    """Whether later messages are read from the tier in advance and cached."""
    read_ahead_message_count_threshold: Live[Int32] = 4096
    """Maximum number of messages in one read of the tier."""
    read_ahead_message_size_threshold_bytes: Live[Int32] = 16 << 20
    """Maximum number of commit log bytes in one read of the tier. At least one message is read."""
    read_ahead_cache_expire_duration_ms: Int64 = 15_000
    """Time after its last access at which a cached block is removed, ms."""
    read_ahead_cache_size_threshold_rate: Annotated[float, Meta(ge=0.0, le=1.0)] = 0.3
    """Share of the process's memory that the cache may occupy."""
    read_ahead_cache_size_bytes: Whole64 = field(name="readAheadCacheSizeBytes", default=0)
    """Ours. Maximum size of the read-ahead cache, bytes. 0: `readAheadCacheSizeThresholdRate`
    applies."""
    crc_check_enable: bool = field(name="tieredStoreCrcCheckEnable", default=False)
    """Whether the CRC of each message body from the tier is checked. A message with a wrong CRC is
    left out and counted. Java has this key but ignores it."""
    record_get_message_result: Live[bool] = False
    """Whether the result of each get is logged."""

    # Tier: basis of advice
    trace_enable: Live[bool] = field(name="tieredStoreTraceEnable", default=False)
    """Ours. Whether puts and reads are recorded by queue and group in the store's folder, for
    `tieredstore advise --trace`. The content of messages is not recorded."""

    # Tier: retention
    delete_file_enable: Live[bool] = field(name="tieredStoreDeleteFileEnable", default=True)
    """Whether expired segments are deleted from the tier."""
    file_reserved_time_hours: Live[Whole32] = field(name="tieredStoreFileReservedTime", default=72)
    """Retention in the tier of the index, and of topics without `reserve.time`, hours."""
    delete_file_interval_ms: Int64 = field(name="tieredStoreDeleteFileInterval", default=3_600_000)
    """Time between two deletions of expired segments, ms."""

    # Tier: Posix
    posix_fsync_enable: bool = field(name="tieredStorePosixFsyncEnable", default=True)
    """Ours. Whether the Posix provider syncs each write to disk, as Java does."""
    posix_checksum_enable: bool = field(name="tieredStorePosixChecksumEnable", default=True)
    """Ours. Whether the Posix provider stores checksums of the blocks that it writes. Existing
    checksums are always checked."""

    # All other properties, for plugins that declare settings of their own
    plugin_properties: PluginProperties = field(
        name="plugin_properties", default_factory=PluginProperties
    )

    @property
    def is_rocksdb(self) -> bool:
        """Whether consume queues are in RocksDB."""
        return self.store_type.lower() == "defaultrocksdb"

    @property
    def fills_light_queues(self) -> bool:
        """Whether messages are currently put in the light queues that they name. For queues in
        RocksDB, only `enableLmq` counts, as in Java."""
        return self.enable_lmq and (self.enable_multi_dispatch or self.is_rocksdb)


FIELDS_BY_KEY: Mapping[str, msgspec.structs.FieldInfo] = {
    key: info for key, info in fields_by_key(StoreConfig).items() if key != "plugin_properties"
}

PLUGIN_PREFIXES = ("objectStore", "tieredStoreS3", "tieredStoreFsspec", "tieredStoreChunk")
"""Prefixes of the settings of this project's providers. The registry checks these settings, because
only the registry knows which provider is used."""

_MOST_CHARACTERS = 4 << 20
"""Maximum length of a broker.conf in characters. A longer file is not a broker.conf."""
_MOST_GUESSES = 100
"""Maximum number of unknown keys for which a similar known key is searched, if a file has no known
key at all."""


@dataclass(frozen=True, slots=True)
class LoadedConfig:
    """Configuration, and the problems found when it was loaded.

    `explicit_settings`: names of the settings that were given a value.
    `warnings`: lines for a log.
    `refused`: one line for each setting whose value forbids accepting messages (`REFUSED_VALUES`).
    """

    config: StoreConfig
    explicit_settings: frozenset[str]
    warnings: tuple[str, ...]
    refused: tuple[str, ...] = ()


def config_from_properties(
    properties: Mapping[str, str],
    *,
    origin: str,
    origins: Mapping[str, str] | None = None,
    serving: bool = False,
) -> LoadedConfig:
    """Build a StoreConfig from string properties.

    `origin`: source of the properties, for messages. `origins`: sources of single properties that
    come from elsewhere, by property. `serving`: whether the process accepts messages.

    Unknown `tiered…` and `readAhead…` keys become warnings with the nearest known key. The registry
    checks keys of plugins. Other Java keys without effect are named in one warning. Keys that
    neither Java nor this project knows are ignored. Raises Invalid, with key and origin, for a bad
    value and, if `serving`, for the settings of `REFUSED_VALUES`.
    """
    known: dict[str, Any] = {}
    rest: dict[str, str] = {}
    warnings: list[str] = []
    refused: list[str] = []
    for key, value in properties.items():
        where = (origins or {}).get(key, origin)
        if not isinstance(cast("object", value), str):  # not shown: it may be a secret
            kind = type(value).__name__
            raise Invalid(
                f"{where}: {key}: expected text, as in a broker.conf, found {kind}", path=where
            )
        if key in FIELDS_BY_KEY:
            known[key] = parse_setting(key, value, where)
        elif key in DECLINED_SETTINGS:
            warnings.append(f"{where}: {key} is declined: {DECLINED_SETTINGS[key]}")
        elif key in UNUSED_SETTINGS:
            warnings.append(f"{where}: {key} has no effect: {UNUSED_SETTINGS[key]}")
        elif key in REMOVED_SETTINGS:
            warnings.append(f"{where}: {key} is no longer a setting: {REMOVED_SETTINGS[key]}")
        else:
            rest[key] = value
        # Java reads TRUE as true.
        if key in REFUSED_VALUES and value.lower() == REFUSED_VALUES[key][0].lower():
            refused.append(f"{where}: {key}={value} is refused: {REFUSED_VALUES[key][1]}")
    if serving and refused:
        raise Invalid(refused[0], path=origin)
    others = PluginProperties(rest, origin, origins)
    core = (key for key in rest if not key.startswith(PLUGIN_PREFIXES))
    find_origin = others.find_origin
    warnings += find_unknown_settings(core, ("tiered", "readAhead"), FIELDS_BY_KEY, find_origin)
    unsupported = find_unsupported(rest)
    for where in dict.fromkeys(map(find_origin, unsupported)):
        keys = ", ".join(key for key in unsupported if find_origin(key) == where)
        warnings.append(f"{where}: keys of Java without effect here: {keys}")
    names = {FIELDS_BY_KEY[key].name: value for key, value in known.items()}
    config = StoreConfig(**names, plugin_properties=others)
    return LoadedConfig(config, frozenset(known), tuple(warnings), tuple(refused))


def change_config(config: StoreConfig, values: Mapping[str, object]) -> list[str]:
    """Change a configuration that is in use, and return the changed keys. `values`: values from
    `parse_setting`, by key. Configurations are changed only here. Only keys marked `runtime` may be
    changed, because their values are read again on each use."""
    changed = [
        key for key, value in values.items() if getattr(config, FIELDS_BY_KEY[key].name) != value
    ]
    for key in changed:
        msgspec.structs.force_setattr(config, FIELDS_BY_KEY[key].name, values[key])
    return changed


def parse_setting(key: str, value: str, origin: str) -> object:
    """Parse the text value of a key of `FIELDS_BY_KEY`. Raises Invalid."""
    if key == "tieredStorageLevel":
        return StorageLevel.parse(value)
    return parse_value(FIELDS_BY_KEY[key], value, origin)


def load_broker_conf(
    path: Path,
    overrides: Mapping[str, str] | None = None,
    *,
    origins: Mapping[str, str] | None = None,
    serving: bool = False,
) -> LoadedConfig:
    """Read a Java properties file like a Java broker. `overrides`: settings that replace those of
    the file. `origins`: sources of the overrides, by key. Raises Invalid if the file is missing,
    unreadable or has a bad value."""
    properties = read_broker_conf(path) | dict(overrides or {})
    return config_from_properties(properties, origin=str(path), origins=origins, serving=serving)


class ConfLine(NamedTuple):
    """Setting of a broker.conf. `number`: its first line, counted from 1."""

    number: int
    key: str
    value: str


def read_broker_conf(path: Path) -> dict[str, str]:
    """Read the keys and values of a Java properties file, like `read_conf_lines`."""
    return {line.key: line.value for line in read_conf_lines(path)}


def read_conf_lines(path: Path) -> list[ConfLine]:
    """Read the settings of a Java properties file one by one. If a key occurs twice, its last value
    counts.

    Java reads such a file as ISO 8859-1 with `\\uXXXX` escapes, so any file can be parsed. Raises
    Invalid for a missing or unreadable file, for a file without a known key, and for a value that
    ends with blanks. A byte order mark, which some editors write, is ignored.
    """
    import javaproperties

    lines, number = [], 1
    try:
        with path.open(encoding="latin-1") as file:
            text = file.read(_MOST_CHARACTERS + 1).removeprefix(_BYTE_ORDER_MARK)
        if len(text) > _MOST_CHARACTERS or "\0" in text:
            raise _foreign(path, "something else")
        for element in javaproperties.parse(io.StringIO(text)):
            if isinstance(element, javaproperties.KeyValue):
                lines.append(ConfLine(number, element.key, element.value))
                _refuse_blanks(element.source, lines[-1], path)
            number += element.source.count("\n")
    except FileNotFoundError:
        raise Invalid(f"{path}: no such configuration file", path=str(path)) from None
    except (OSError, javaproperties.InvalidUEscapeError) as error:
        raise Invalid(
            f"{path}: cannot be read as a properties file: {error}", path=str(path)
        ) from (error)
    _refuse_foreign(lines, path)
    return lines


def _refuse_blanks(source: str, line: ConfLine, path: Path) -> None:
    """Raise Invalid for a text value with blanks at the end of its line. They are hard to see, and
    Java would make them part of a folder or a name. Values that are not text are checked by their
    parser."""
    text = source.rstrip("\r\n")
    info = FIELDS_BY_KEY.get(line.key)
    if text == text.rstrip(" \t") or info is None or not is_plain_text(info):
        return
    shown = "" if is_secret(info) else f" after {line.value.rstrip()!r}"
    raise Invalid(
        f"{path}:{line.number}: {line.key}: blanks at the end of the line{shown}: remove them, or "
        "write the last one as \\u0020 where it is meant",
        path=str(path),
    )


def _refuse_foreign(lines: Sequence[ConfLine], path: Path) -> None:
    """Raise Invalid for a file without any known key, which is not a configuration. The error does
    not contain the settings, because they may be secret."""
    if not lines or any(is_known(line.key) for line in lines):
        return
    near = (find_near_setting(line.key, FIELDS_BY_KEY) for line in lines[:_MOST_GUESSES])
    meant = next((f"; did you mean {name}?" for name in near if name), "")
    raise _foreign(path, f"{len(lines)} settings, none with a known key{meant}")


def _foreign(path: Path, found: str) -> Invalid:
    return Invalid(
        f"{path}: no configuration: expected lines as in a broker.conf (brokerName=broker-a), "
        f"found {found}",
        path=str(path),
    )


def is_known(key: str) -> bool:
    """Return whether a key belongs to Java or this project, or has the prefix of one of its
    providers."""
    return key in FIELDS_BY_KEY or key in SETTINGS_ELSEWHERE or key.startswith(PLUGIN_PREFIXES)
