"""The store's configuration: Java's settings and defaults, read from an ordinary `broker.conf`.

`StoreConfig` holds the settings that this project acts on. Each attribute is a Java key with its
unit made visible; `docs/configuration.md` is generated from the annotations here.
"""

from __future__ import annotations

import enum
import io
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, NamedTuple, cast

import msgspec
from msgspec import Meta, field

from tieredstore.errors import Invalid
from tieredstore.java_settings import (
    DECLINED_SETTINGS,
    REFUSED_VALUES,
    SETTINGS_ELSEWHERE,
    UNUSED_SETTINGS,
    find_unsupported,
)
from tieredstore.properties import (
    PluginProperties,
    fields_by_key,
    find_near_setting,
    find_unknown_settings,
    make_extra,
    parse_value,
)

_INT32_MAX = 2**31 - 1
_INT64_MAX = 2**63 - 1


class StorageLevel(enum.IntEnum):
    """Which reads go to the tier (`tieredStorageLevel`)."""

    DISABLE = 0
    NOT_IN_DISK = 1
    NOT_IN_MEM = 2
    FORCE = 3

    @classmethod
    def parse(cls, value: str) -> StorageLevel:
        """Parse a name, or an integer as Java reads it (an unknown integer is DISABLE)."""
        text = value.strip()
        if text.lstrip("+-").isdigit():
            number = int(text)
            return cls(number) if number in cls._value2member_map_ else cls.DISABLE
        try:
            return cls[text]
        except KeyError:
            names = ", ".join(cls.__members__)
            raise Invalid(
                f"tieredStorageLevel: expected one of {names} or 0 to 3, found {value!r}"
            ) from None


def _meta(description: str, ge: float, le: float, *, runtime: bool = False) -> Meta:
    return Meta(description=description, ge=ge, le=le, extra=make_extra(runtime=runtime))


def _int32(description: str, minimum: int = 1, *, runtime: bool = False) -> Meta:
    return _meta(description, minimum, _INT32_MAX, runtime=runtime)


def _int64(description: str, minimum: int = 1, *, runtime: bool = False) -> Meta:
    return _meta(description, minimum, _INT64_MAX, runtime=runtime)


def _text(description: str, pattern: str | None = None, *, runtime: bool = False) -> Meta:
    return Meta(description=description, pattern=pattern, extra=make_extra(runtime=runtime))


def _host_name() -> str:
    return socket.gethostname() or "DEFAULT_BROKER"


def _default_root() -> str:
    return str(Path("~").expanduser() / "store")


POSIX_PROVIDER = "org.apache.rocketmq.tieredstore.provider.PosixFileSegment"
MEMORY_PROVIDER = "org.apache.rocketmq.tieredstore.provider.MemoryFileSegment"
JSON_METADATA = "org.apache.rocketmq.tieredstore.metadata.DefaultMetadataStore"


class StoreConfig(msgspec.Struct, frozen=True, kw_only=True):
    """All settings, defaults as in Apache RocketMQ 5.5.0 unless a description says "ours".

    Build one with keyword arguments, or with `load_broker_conf`.
    """

    # Who and where
    broker_name: Annotated[str, _text("First element of every path in the tier.")] = field(
        name="brokerName", default_factory=_host_name
    )
    broker_cluster_name: Annotated[str, _text("Top folder of the Posix tier.")] = field(
        name="brokerClusterName", default="DefaultCluster"
    )
    broker_role: Annotated[
        str,
        _text(
            "ASYNC_MASTER or SLAVE; a SLAVE takes no messages from producers and never uploads.",
            "^(ASYNC_MASTER|SYNC_MASTER|SLAVE)$",
        ),
    ] = field(name="brokerRole", default="ASYNC_MASTER")
    store_path_root_dir: Annotated[
        str, _text("Root of the local store, the metadata JSON and the local index files.")
    ] = field(name="storePathRootDir", default_factory=_default_root)
    store_path_commit_log: Annotated[
        str, _text("Folder of the commit log; empty for `commitlog` under the root.")
    ] = field(name="storePathCommitLog", default="")
    message_store_plug_in: Annotated[
        str, _text("Comma-separated class names of store plugins, the outermost first.")
    ] = field(name="messageStorePlugIn", default="")

    # Local store
    store_type: Annotated[
        str,
        _text(
            "Consume queues in files (`default`) or RocksDB (`defaultRocksDB`, extra `rocksdb`).",
            "(?i)^(default|defaultRocksDB)$",
        ),
    ] = field(name="storeType", default="default")
    use_separate_store_path_for_rocksdb_cq: Annotated[
        bool, _text("Whether the RocksDB queues are in `consumequeue_rocksdb`, not `consumequeue`.")
    ] = field(name="useSeparateStorePathForRocksdbCQ", default=False)
    flush_disk_type: Annotated[
        str,
        _text(
            "When a put is durable: ASYNC_FLUSH (on disk within a second) or SYNC_FLUSH (on disk "
            "when its future says so).",
            "^(ASYNC_FLUSH|SYNC_FLUSH)$",
        ),
    ] = field(name="flushDiskType", default="ASYNC_FLUSH")
    sync_flush_timeout_ms: Annotated[
        int, _int32("How long a put waits for its flush under SYNC_FLUSH, ms.", runtime=True)
    ] = field(name="syncFlushTimeout", default=5000)
    flush_interval_commit_log_ms: Annotated[
        int, _int32("Between two flushes of the commit log under ASYNC_FLUSH, ms.", runtime=True)
    ] = field(name="flushIntervalCommitLog", default=500)
    flush_commit_log_least_pages: Annotated[
        int,
        _int32(
            "Dirty pages (4,096 bytes) from which on such a flush does something.", 0, runtime=True
        ),
    ] = field(name="flushCommitLogLeastPages", default=4)
    flush_commit_log_thorough_interval_ms: Annotated[
        int, _int32("Between two such flushes that take every page, ms.", runtime=True)
    ] = field(name="flushCommitLogThoroughInterval", default=10_000)
    flush_commit_log_timed: Annotated[
        bool,
        _text("Whether such a flush comes at its interval alone, whatever is put.", runtime=True),
    ] = field(name="flushCommitLogTimed", default=True)
    wake_flush_when_put_message: Annotated[
        bool,
        _text("Whether a put begins such a flush; not with flushCommitLogTimed.", runtime=True),
    ] = field(name="wakeFlushWhenPutMessage", default=False)
    flush_interval_consume_queue_ms: Annotated[
        int,
        _int32("Between two flushes of consume queues, index and checkpoint, ms.", runtime=True),
    ] = field(name="flushIntervalConsumeQueue", default=1000)
    flush_consume_queue_least_pages: Annotated[
        int,
        _int32(
            "Dirty pages from which on a queue is flushed, in a flush that is not thorough.",
            0,
            runtime=True,
        ),
    ] = field(name="flushConsumeQueueLeastPages", default=2)
    flush_consume_queue_thorough_interval_ms: Annotated[
        int,
        _int32(
            "Longest time between two flushes of all queues that were written, ms; mostly each "
            "flush is one, unless they take more than a tenth of the time.",
            runtime=True,
        ),
    ] = field(name="flushConsumeQueueThoroughInterval", default=60_000)
    mapped_file_size_commit_log_bytes: Annotated[
        int, _int32("Size of a commit log file, bytes.", 64)
    ] = field(name="mappedFileSizeCommitLog", default=1 << 30)
    warm_mapped_file_enable: Annotated[
        bool,
        _text(
            "Whether all pages of a new commit log file are made at once, in the background, and "
            "locked in memory until the file is flushed.",
            runtime=True,
        ),
    ] = field(name="warmMapedFileEnable", default=False)
    flush_least_pages_when_warm_mapped_file: Annotated[
        int,
        _int32(
            "Pages of 4,096 bytes between two syncs of that, under SYNC_FLUSH.", 1, runtime=True
        ),
    ] = field(name="flushLeastPagesWhenWarmMapedFile", default=4096)
    transient_store_pool_enable: Annotated[
        bool,
        _text(
            "Whether messages are put into buffers, from which they are committed to the files. "
            "They can be read after that, and a killed process loses what was not committed."
        ),
    ] = field(name="transientStorePoolEnable", default=False)
    transient_store_pool_size: Annotated[
        int, _int32("Buffers of that pool, each of the size of a commit log file.", 1)
    ] = field(name="transientStorePoolSize", default=5)
    fast_fail_if_no_buffer_in_store_pool: Annotated[
        bool,
        _text(
            "Whether puts are refused while no buffer is free, and not written directly.",
            runtime=True,
        ),
    ] = field(name="fastFailIfNoBufferInStorePool", default=False)
    commit_interval_commit_log_ms: Annotated[
        int, _int32("Time between two commits of the pool, ms.", 1, runtime=True)
    ] = field(name="commitIntervalCommitLog", default=200)
    commit_commit_log_least_pages: Annotated[
        int, _int32("Pages of 4,096 bytes below which a commit waits for more.", 0, runtime=True)
    ] = field(name="commitCommitLogLeastPages", default=4)
    commit_commit_log_thorough_interval_ms: Annotated[
        int, _int32("Time after which a commit waits no longer, ms.", 0, runtime=True)
    ] = field(name="commitCommitLogThoroughInterval", default=200)
    wake_commit_when_put_message: Annotated[
        bool,
        _text(
            "Whether a put begins a commit of the pool, before its interval is over.", runtime=True
        ),
    ] = field(name="wakeCommitWhenPutMessage", default=True)
    mapped_file_size_consume_queue_bytes: Annotated[
        int, _int32("Size of a consume queue file, bytes, rounded up to a multiple of 20.", 20)
    ] = field(name="mappedFileSizeConsumeQueue", default=6_000_000)
    enable_consume_queue_ext: Annotated[
        bool,
        _text(
            "Whether units of consume queues in files hold addresses of extended units; queues in "
            "RocksDB have none, as in Java."
        ),
    ] = field(name="enableConsumeQueueExt", default=False)
    mapped_file_size_consume_queue_ext_bytes: Annotated[
        int, _int32("Size of a file of extended units, bytes.", 24)
    ] = field(name="mappedFileSizeConsumeQueueExt", default=48 << 20)
    max_hash_slot_num: Annotated[int, _int32("Hash slots of a local index file.")] = field(
        name="maxHashSlotNum", default=5_000_000
    )
    max_index_num: Annotated[int, _int32("Items of a local index file.", 2)] = field(
        name="maxIndexNum", default=20_000_000
    )
    message_index_enable: Annotated[
        bool, _text("Whether messages are put in the key indexes, local and tiered.", runtime=True)
    ] = field(name="messageIndexEnable", default=True)
    max_message_size_bytes: Annotated[
        int, _int32("Largest body accepted, bytes.", runtime=True)
    ] = field(name="maxMessageSize", default=4 << 20)
    os_page_cache_busy_timeout_ms: Annotated[
        int,
        _int32(
            "How long one put may have the lock before others are refused with OS_PAGE_CACHE_BUSY, "
            "ms; 0: for ever.",
            0,
            runtime=True,
        ),
    ] = field(name="osPageCacheBusyTimeOutMills", default=1_000)
    enabled_append_prop_crc: Annotated[
        bool, _text("Append a CRC of the whole record as its last property.")
    ] = field(name="enabledAppendPropCRC", default=False)
    force_verify_prop_crc: Annotated[
        bool,
        _text(
            "Whether a recovery ends the log at a record without a CRC of the whole record. One "
            "that is there is checked anyway."
        ),
    ] = field(name="forceVerifyPropCRC", default=False)
    enable_lmq: Annotated[bool, _text("Whether light message queues are served.")] = field(
        name="enableLmq", default=False
    )
    enable_multi_dispatch: Annotated[
        bool,
        _text(
            "Whether messages get a place in the light queues that they name; with queues in "
            "RocksDB `enableLmq` is enough.",
            runtime=True,
        ),
    ] = field(name="enableMultiDispatch", default=False)
    message_delay_level: Annotated[str, _text("Delays of the levels 1, 2, …")] = field(
        name="messageDelayLevel",
        default="1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h",
    )
    max_transfer_bytes_in_memory: Annotated[
        int, _int32("Most bytes of one get, of messages in memory or in the tier.", runtime=True)
    ] = field(name="maxTransferBytesOnMessageInMemory", default=262_144)
    max_transfer_count_in_memory: Annotated[
        int, _int32("Most messages of one get, of messages in memory.", runtime=True)
    ] = field(name="maxTransferCountOnMessageInMemory", default=32)
    max_transfer_bytes_in_disk: Annotated[
        int, _int32("Most bytes of one get, of messages on disk.", runtime=True)
    ] = field(name="maxTransferBytesOnMessageInDisk", default=65_536)
    max_transfer_count_in_disk: Annotated[
        int, _int32("Most messages of one get, of messages on disk.", runtime=True)
    ] = field(name="maxTransferCountOnMessageInDisk", default=8)
    access_message_in_memory_max_ratio: Annotated[
        int,
        _meta(
            "Share of the memory that the tail of the log may take, percent.", 0, 100, runtime=True
        ),
    ] = field(name="accessMessageInMemoryMaxRatio", default=40)
    max_filter_message_size_bytes: Annotated[
        int, _int32("Consume queue bytes that one filtered get may walk.", runtime=True)
    ] = field(name="maxFilterMessageSize", default=16_000)
    travel_cq_file_num: Annotated[
        int,
        _int32("Consume queue files that one get may walk while it finds nothing.", runtime=True),
    ] = field(name="travelCqFileNumWhenGetMessage", default=1)
    max_msgs_num_batch: Annotated[int, _int32("Most messages of one key query.", runtime=True)] = (
        field(name="maxMsgsNumBatch", default=64)
    )

    # Local store: cleaning
    delete_when: Annotated[
        str,
        _text(
            "Hours of the day, local time, at which what has expired goes; `;` between.",
            runtime=True,
        ),
    ] = field(name="deleteWhen", default="04")
    local_file_reserved_time_hours: Annotated[
        int, _int32("Age at which a commit log file expires, hours.", 0, runtime=True)
    ] = field(name="fileReservedTime", default=72)
    clean_resource_interval_ms: Annotated[
        int, _int32("Time between two rounds of cleaning, ms.")
    ] = field(name="cleanResourceInterval", default=10_000)
    delete_commit_log_files_interval_ms: Annotated[
        int, _int32("Pause between two commit log files that are deleted, ms.", 0, runtime=True)
    ] = field(name="deleteCommitLogFilesInterval", default=100)
    delete_file_batch_max: Annotated[
        int, _int32("Most commit log files that one round deletes.", runtime=True)
    ] = field(name="deleteFileBatchMax", default=10)
    clean_file_forcibly_enable: Annotated[
        bool,
        _text("Whether a disk that is nearly full takes files before they expire.", runtime=True),
    ] = field(name="cleanFileForciblyEnable", default=True)
    disk_max_used_space_ratio: Annotated[
        int,
        _int32(
            "Disk use above which what has expired goes at any hour, percent, 10 to 95.",
            0,
            runtime=True,
        ),
    ] = field(name="diskMaxUsedSpaceRatio", default=75)
    disk_space_clean_forcibly_ratio: Annotated[
        int,
        _int32(
            "Disk use above which the oldest files go unexpired, percent, 30 to 85.",
            0,
            runtime=True,
        ),
    ] = field(name="diskSpaceCleanForciblyRatio", default=85)
    disk_space_warning_level_ratio: Annotated[
        int, _int32("Disk use above which nothing may be put, percent, 35 to 90.", 0, runtime=True)
    ] = field(name="diskSpaceWarningLevelRatio", default=90)

    # Tier: where and what
    storage_level: Annotated[
        StorageLevel,
        _text(
            "DISABLE, NOT_IN_DISK, NOT_IN_MEM or FORCE (0 to 3): which reads go to the tier.",
            runtime=True,
        ),
    ] = field(name="tieredStorageLevel", default=StorageLevel.NOT_IN_DISK)
    metadata_service_provider: Annotated[str, _text("Class of the metadata store.")] = field(
        name="tieredMetadataServiceProvider", default=JSON_METADATA
    )
    backend_service_provider: Annotated[
        str, _text("Class of the segment provider. The default, memory, keeps nothing.")
    ] = field(name="tieredBackendServiceProvider", default=MEMORY_PROVIDER)
    tier_file_path: Annotated[
        str, _text("Root of a Posix tier; empty for the working directory.")
    ] = field(name="tieredStoreFilePath", default="")
    backlog: Annotated[
        str,
        Meta(
            description="Ours. What of a queue's backlog is uploaded when the tier first sees it: "
            "`all`, or `recent` (the last two minutes, as Java).",
            pattern="^(all|recent)$",
        ),
    ] = field(name="tieredStoreBacklog", default="all")

    adopt: Annotated[
        bool,
        _text(
            "Ours. Whether a new local store may start above a tier that holds messages of this "
            "broker, and goes on behind them. To be set once, after a local disk was lost."
        ),
    ] = field(name="tieredStoreAdopt", default=False)

    backup_interval_ms: Annotated[
        int,
        _int32(
            "Ours. How often topics, groups and consumer offsets that have changed are copied into "
            "the tier, ms; 0 for never. `tieredstore restore` makes a store of them.",
            0,
        ),
    ] = field(name="tieredStoreBackupInterval", default=60_000)

    # Tier: policies
    include_topics: Annotated[
        str,
        _text(
            "Ours. Topics that are uploaded, shell patterns with commas between; empty for all.",
            runtime=True,
        ),
    ] = field(name="tieredStoreIncludeTopics", default="")
    exclude_topics: Annotated[
        str,
        _text(
            "Ours. Topics that are not uploaded, shell patterns with commas between; they beat "
            "`tieredStoreIncludeTopics`.",
            runtime=True,
        ),
    ] = field(name="tieredStoreExcludeTopics", default="")
    upload_bytes_per_s: Annotated[
        int, _int64("Ours. Most bytes a second that are uploaded; 0 for no limit.", 0, runtime=True)
    ] = field(name="tieredStoreUploadBytesPerSecond", default=0)
    upload_requests_per_s: Annotated[
        int, _int32("Ours. Most writes of segments a second; 0 for no limit.", 0, runtime=True)
    ] = field(name="tieredStoreUploadRequestsPerSecond", default=0)
    download_bytes_per_s: Annotated[
        int,
        _int64(
            "Ours. Most bytes a second that are read from the tier; 0 for no limit.",
            0,
            runtime=True,
        ),
    ] = field(name="tieredStoreDownloadBytesPerSecond", default=0)
    download_requests_per_s: Annotated[
        int, _int32("Ours. Most reads of segments a second; 0 for no limit.", 0, runtime=True)
    ] = field(name="tieredStoreDownloadRequestsPerSecond", default=0)

    # Tier: segments
    commit_log_max_size_bytes: Annotated[
        int, _int64("Largest commit log segment, bytes.", runtime=True)
    ] = field(name="tieredStoreCommitLogMaxSize", default=1 << 30)
    consume_queue_max_size_bytes: Annotated[
        int, _int64("Largest consume queue segment, bytes.", 20, runtime=True)
    ] = field(name="tieredStoreConsumeQueueMaxSize", default=104_857_600)
    commit_log_rolling_interval_hours: Annotated[
        int, _int32("Age at which a commit log segment is rolled, hours.", 0, runtime=True)
    ] = field(name="commitLogRollingInterval", default=24)
    commit_log_rolling_minimum_size_bytes: Annotated[
        int, _int32("Size below which age does not roll a segment, bytes.", 0, runtime=True)
    ] = field(name="commitLogRollingMinimumSize", default=16 << 20)
    index_file_max_hash_slot_num: Annotated[
        int, _int32("Hash slots of a tiered index file.", runtime=True)
    ] = field(name="tieredStoreIndexFileMaxHashSlotNum", default=5_000_000)
    index_file_max_index_num: Annotated[
        int, _meta("Items of a tiered index file; one less is usable.", 2, 1 << 25, runtime=True)
    ] = field(name="tieredStoreIndexFileMaxIndexNum", default=20_000_000)

    index_file_upload_interval_ms: Annotated[
        int,
        _int32(
            "Ours. Time after which an index file is uploaded though it is not full, ms; 0 for "
            "full ones only, as Java.",
            0,
            runtime=True,
        ),
    ] = field(name="tieredStoreIndexFileUploadInterval", default=0)

    # Tier: upload
    dispatch_interval_ms: Annotated[
        int,
        _int32(
            "Ours. Time between two looks at what is to be uploaded, ms. Java's 20 s are fixed.",
            100,
            runtime=True,
        ),
    ] = field(name="tieredStoreDispatchInterval", default=20_000)
    group_commit: Annotated[
        bool, _text("Gather messages before an upload; false uploads at every scan.", runtime=True)
    ] = field(name="tieredStoreGroupCommit", default=True)
    group_commit_timeout_ms: Annotated[
        int,
        _int32(
            "Age of the oldest message not uploaded that starts an upload, ms.", 0, runtime=True
        ),
    ] = field(name="tieredStoreGroupCommitTimeout", default=30_000)
    group_commit_count: Annotated[
        int, _int32("Backlog that starts an upload, and most messages of one batch.", runtime=True)
    ] = field(name="tieredStoreGroupCommitCount", default=4096)
    group_commit_size_bytes: Annotated[
        int,
        _int32(
            "Most bytes of one batch; a single larger message is a batch of its own.", runtime=True
        ),
    ] = field(name="tieredStoreGroupCommitSize", default=4 << 20)
    max_group_commit_count: Annotated[
        int, _int32("Most messages appended to a segment and not yet committed.", runtime=True)
    ] = field(name="tieredStoreMaxGroupCommitCount", default=10_000)
    adaptive_commit_max_interval_ms: Annotated[
        int,
        _int32(
            "Ours. Longest age of the oldest message not uploaded, ms, on a provider that prefers "
            "large writes, for a queue too slow to fill one; 0 for the plain timeout.",
            0,
            runtime=True,
        ),
    ] = field(name="tieredStoreAdaptiveCommitMaxInterval", default=600_000)
    max_pending_limit: Annotated[
        int,
        _int32(
            "Most reads of the tier that coroutines have under way; a quarter of it is the number "
            "of queues in upload or recovery at once.",
            4,
        ),
    ] = field(name="tieredStoreMaxPendingLimit", default=10_000)
    dispatch_threads: Annotated[int, _meta("Ours. Threads that upload.", 1, 256)] = field(
        name="tieredStoreDispatchThreads", default=8
    )

    # Tier: reads
    read_ahead_cache_enable: Annotated[
        bool, _text("Whether reads are cached ahead.", runtime=True)
    ] = field(name="readAheadCacheEnable", default=True)
    read_ahead_message_count_threshold: Annotated[
        int, _int32("Most messages of one backend read.", runtime=True)
    ] = field(name="readAheadMessageCountThreshold", default=4096)
    read_ahead_message_size_threshold_bytes: Annotated[
        int,
        _int32("Most commit log bytes of one backend read (one message at least).", runtime=True),
    ] = field(name="readAheadMessageSizeThreshold", default=16 << 20)
    read_ahead_cache_expire_duration_ms: Annotated[
        int, _int64("Time after its last access at which a block leaves the cache, ms.")
    ] = field(name="readAheadCacheExpireDuration", default=15_000)
    read_ahead_cache_size_threshold_rate: Annotated[
        float, _meta("Share of the process's memory that the cache may take.", 0.0, 1.0)
    ] = field(name="readAheadCacheSizeThresholdRate", default=0.3)
    read_ahead_cache_size_bytes: Annotated[
        int, _int64("Ours. Absolute limit of the cache, bytes; 0 to use the share.", 0)
    ] = field(name="readAheadCacheSizeBytes", default=0)
    crc_check_enable: Annotated[
        bool,
        _text(
            "Whether bodies read from the tier are checked against their CRC; a message that fails "
            "is left out and counted. Java has the key and ignores it."
        ),
    ] = field(name="tieredStoreCrcCheckEnable", default=False)
    record_get_message_result: Annotated[bool, _text("Log each result of a get.", runtime=True)] = (
        field(name="recordGetMessageResult", default=False)
    )

    # Tier: what advice rests on
    trace_enable: Annotated[
        bool,
        _text(
            "Ours. Whether what is put and read is recorded in the store's folder, by queue and "
            "group, for `tieredstore advise --trace`; no message is.",
            runtime=True,
        ),
    ] = field(name="tieredStoreTraceEnable", default=False)
    trace_interval_ms: Annotated[
        int,
        _int32(
            "Ours. Time that is one record of a queue, ms; after so long a change of "
            "`tieredStoreTraceEnable` counts.",
            1_000,
            runtime=True,
        ),
    ] = field(name="tieredStoreTraceInterval", default=10_000)
    trace_max_size_bytes: Annotated[
        int,
        _int64("Ours. Most bytes of these records; the oldest go first.", 1 << 20, runtime=True),
    ] = field(name="tieredStoreTraceMaxSize", default=256 << 20)

    # Tier: retention
    delete_file_enable: Annotated[bool, _text("Whether the expiry job runs.", runtime=True)] = (
        field(name="tieredStoreDeleteFileEnable", default=True)
    )
    file_reserved_time_hours: Annotated[
        int,
        _int32(
            "Retention of topics without `reserve.time`, and of the index, hours.", 0, runtime=True
        ),
    ] = field(name="tieredStoreFileReservedTime", default=72)
    delete_file_interval_ms: Annotated[
        int, _int64("Time between two runs of the expiry job, ms.")
    ] = field(name="tieredStoreDeleteFileInterval", default=3_600_000)

    tier_delete_file_batch_max: Annotated[
        int,
        _int32(
            "Ours. Most segments that one run of the expiry job deletes; the next one comes after "
            "a minute then.",
            runtime=True,
        ),
    ] = field(name="tieredStoreDeleteFileBatchMax", default=1000)

    # Tier: Posix
    posix_fsync_enable: Annotated[
        bool, _text("Ours. Whether the Posix provider syncs each write to disk, as Java does.")
    ] = field(name="tieredStorePosixFsyncEnable", default=True)
    posix_checksum_enable: Annotated[
        bool,
        _text(
            "Ours. Whether the Posix provider leaves checksums of blocks beside what it writes. "
            "Reads check what has them in any case."
        ),
    ] = field(name="tieredStorePosixChecksumEnable", default=True)
    posix_max_open_files: Annotated[
        int, _meta("Ours. Open segment files of the Posix provider.", 4, 1 << 20)
    ] = field(name="tieredStorePosixMaxOpenFiles", default=512)

    # All other properties, for the plugins that declare settings of their own
    plugin_properties: PluginProperties = field(default_factory=PluginProperties)


FIELDS_BY_KEY: Mapping[str, msgspec.structs.FieldInfo] = {
    key: info for key, info in fields_by_key(StoreConfig).items() if key != "plugin_properties"
}

PLUGIN_PREFIXES = ("objectStore", "tieredStoreS3", "tieredStoreFsspec", "tieredStoreChunk")
"""Keys that begin so are those of the providers that come with the project: the registry, which
knows the provider, checks them."""

_MOST_CHARACTERS = 4 << 20
"""Of a broker.conf: what is longer is something else."""
_MOST_GUESSES = 100
"""Keys of a foreign file that are compared with known ones."""


@dataclass(frozen=True, slots=True)
class LoadedConfig:
    """A configuration and what was noticed while loading it.

    explicit_settings: names that were given a value; warnings: one line each, for a log; refused:
    one line for each setting with which no process may accept messages (`REFUSED_VALUES`).
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

    origin: where they are from, for messages; origins: of those that are from elsewhere.

    Unknown `tiered…` and `readAhead…` keys are warnings with the nearest match, except those of
    plugins, which the registry checks; all other keys of Java's that nothing here reads are named
    in one warning; what neither Java nor this project knows is ignored. Raises Invalid on a bad
    value, naming key and origin; with `serving` (a process that accepts messages) also on the
    settings of `REFUSED_VALUES`.
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
        warnings.append(f"{where}: keys that are not supported: {keys}")
    names = {FIELDS_BY_KEY[key].name: value for key, value in known.items()}
    config = StoreConfig(**names, plugin_properties=others)
    return LoadedConfig(config, frozenset(known), tuple(warnings), tuple(refused))


def change_config(config: StoreConfig, values: Mapping[str, object]) -> list[str]:
    """Change a configuration that stores are using, by keys whose values `parse_setting` made;
    returns the keys that have changed. Nothing else changes one, and only keys marked `runtime`:
    who needs such a setting reads it each time."""
    changed = [
        key for key, value in values.items() if getattr(config, FIELDS_BY_KEY[key].name) != value
    ]
    for key in changed:
        msgspec.structs.force_setattr(config, FIELDS_BY_KEY[key].name, values[key])
    return changed


def parse_setting(key: str, value: str, origin: str) -> object:
    """Read the text of a key of `FIELDS_BY_KEY`. Raises Invalid."""
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
    """Read a Java properties file as a Java broker would; `overrides`, which are from `origins`,
    win over it. Raises Invalid when the file is missing, cannot be read or holds a bad value."""
    properties = read_broker_conf(path) | dict(overrides or {})
    return config_from_properties(properties, origin=str(path), origins=origins, serving=serving)


class ConfLine(NamedTuple):
    """A setting of a broker.conf. number: of its (first) line, from 1."""

    number: int
    key: str
    value: str


def read_broker_conf(path: Path) -> dict[str, str]:
    """Read the keys and values of a Java properties file, as `read_conf_lines` does."""
    return {line.key: line.value for line in read_conf_lines(path)}


def read_conf_lines(path: Path) -> list[ConfLine]:
    """Read the settings of a Java properties file one by one; of a key that is there twice the last
    counts.

    Java reads such a file as ISO 8859-1 with `\\uXXXX` escapes, and any file is one. Raises Invalid
    when the file is missing or cannot be read, and for one in which no key is known.
    """
    import javaproperties

    lines, number = [], 1
    try:
        with path.open(encoding="latin-1") as file:
            text = file.read(_MOST_CHARACTERS + 1)
        if len(text) > _MOST_CHARACTERS or "\0" in text:
            raise _foreign(path, "something else")
        for element in javaproperties.parse(io.StringIO(text)):
            if isinstance(element, javaproperties.KeyValue):
                lines.append(ConfLine(number, element.key, element.value))
            number += element.source.count("\n")
    except FileNotFoundError:
        raise Invalid(f"{path}: no such configuration file", path=str(path)) from None
    except (OSError, javaproperties.InvalidUEscapeError) as error:
        raise Invalid(
            f"{path}: cannot be read as a properties file: {error}", path=str(path)
        ) from (error)
    _refuse_foreign(lines, path)
    return lines


def _refuse_foreign(lines: Sequence[ConfLine], path: Path) -> None:
    """Raise Invalid for a file that is no configuration. What it has may be secret: it is not
    shown."""
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
    """Tell whether a key is Java's or this project's, or begins as those of its providers do."""
    return key in FIELDS_BY_KEY or key in SETTINGS_ELSEWHERE or key.startswith(PLUGIN_PREFIXES)
