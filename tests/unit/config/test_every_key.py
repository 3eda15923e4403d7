"""Every configuration key has a test in which changing the key changes the store's behaviour. Keys
without an effect are listed."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tieredstore.config import FIELDS_BY_KEY
from tieredstore.java_settings import REFUSED_VALUES, UNSUPPORTED_SETTINGS, UNUSED_SETTINGS
from tieredstore.properties import fields_by_key
from tieredstore.providers.s3.settings import S3Settings

HERE = Path(__file__).parent
NAMES, LOCAL, FLUSH, LOG_FILES, CLEANING, POLICIES, UPLOAD, READS, TRACE, REST = (
    f"test_{name}.py"
    for name in (
        "names_and_places",
        "local_store",
        "flush",
        "commit_log_files",
        "cleaning",
        "policies",
        "segments_and_upload",
        "reads",
        "trace",
        "retention_and_posix",
    )
)

TESTS = {
    "brokerName": f"{NAMES}::test_broker_name_is_the_first_element_of_every_path",
    "brokerClusterName": f"{NAMES}::test_broker_cluster_name_is_the_top_folder_of_a_posix_tier",
    "brokerRole": f"{NAMES}::test_broker_role_slave_never_uploads",
    "storePathRootDir": (
        f"{NAMES}::test_store_path_root_dir_is_the_root_of_store_metadata_and_index_files"
    ),
    "storePathCommitLog": f"{NAMES}::test_store_path_commit_log_is_the_folder_of_the_log",
    "messageStorePlugIn": (
        f"{NAMES}::test_message_store_plug_in_names_the_stores_around_the_local_one"
    ),
    "storeType": f"{NAMES}::test_store_type_says_where_the_consume_queues_are",
    "useSeparateStorePathForRocksdbCQ": (
        f"{NAMES}::test_use_separate_store_path_for_rocksdb_cq_moves_the_database"
    ),
    "flushDiskType": f"{FLUSH}::test_flush_disk_type_says_whether_a_put_waits",
    "syncFlushTimeout": f"{FLUSH}::test_sync_flush_timeout_is_how_long_a_put_waits",
    "flushIntervalCommitLog": f"{FLUSH}::test_flush_interval_commit_log_is_when_the_log_is_flushed",
    "flushCommitLogLeastPages": (
        f"{FLUSH}::test_flush_commit_log_least_pages_is_what_makes_a_flush_worth_it"
    ),
    "flushCommitLogThoroughInterval": (
        f"{FLUSH}::test_flush_commit_log_thorough_interval_is_when_every_page_is_flushed"
    ),
    "flushCommitLogTimed": f"{FLUSH}::test_flush_commit_log_timed_lets_no_put_begin_a_flush",
    "wakeFlushWhenPutMessage": f"{FLUSH}::test_wake_flush_when_put_message_flushes_at_a_put",
    "flushIntervalConsumeQueue": (
        f"{FLUSH}::test_flush_interval_consume_queue_is_when_the_checkpoint_moves"
    ),
    "flushConsumeQueueLeastPages": (
        f"{FLUSH}::test_flush_consume_queue_least_pages_leaves_small_queues_for_later"
    ),
    "flushConsumeQueueThoroughInterval": (
        f"{FLUSH}::test_flush_consume_queue_thorough_interval_is_the_longest_wait"
    ),
    "mappedFileSizeCommitLog": (
        f"{LOCAL}::test_mapped_file_size_commit_log_is_the_size_of_each_file"
    ),
    "warmMapedFileEnable": (
        f"{LOG_FILES}::test_warm_mapped_file_enable_makes_and_locks_all_pages_of_a_new_file"
    ),
    "flushLeastPagesWhenWarmMapedFile": (
        f"{LOG_FILES}::"
        "test_flush_least_pages_when_warm_mapped_file_is_how_often_a_warm_file_is_synced"
    ),
    "transientStorePoolEnable": (
        f"{LOG_FILES}::"
        "test_transient_store_pool_enable_holds_messages_back_until_they_are_committed"
    ),
    "transientStorePoolSize": (
        f"{LOG_FILES}::test_transient_store_pool_size_is_how_many_files_may_wait_for_a_commit"
    ),
    "fastFailIfNoBufferInStorePool": (
        f"{LOG_FILES}::test_fast_fail_if_no_buffer_in_store_pool_refuses_puts_that_else_go_directly"
    ),
    "commitIntervalCommitLog": (
        f"{LOG_FILES}::test_commit_interval_commit_log_is_how_often_the_pool_is_committed"
    ),
    "commitCommitLogLeastPages": (
        f"{LOG_FILES}::test_commit_commit_log_least_pages_lets_a_commit_wait_for_more"
    ),
    "commitCommitLogThoroughInterval": (
        f"{LOG_FILES}::test_commit_commit_log_thorough_interval_is_how_long_it_waits"
    ),
    "wakeCommitWhenPutMessage": (
        f"{LOG_FILES}::test_wake_commit_when_put_message_commits_at_a_put"
    ),
    "mappedFileSizeConsumeQueue": (
        f"{LOCAL}::test_mapped_file_size_consume_queue_is_rounded_up_to_whole_units"
    ),
    "enableConsumeQueueExt": (
        f"{LOCAL}::test_enable_consume_queue_ext_puts_tags_codes_in_files_of_their_own"
    ),
    "mappedFileSizeConsumeQueueExt": (
        f"{LOCAL}::test_mapped_file_size_consume_queue_ext_is_the_size_of_each_file"
    ),
    "maxHashSlotNum": f"{LOCAL}::test_max_hash_slot_num_is_in_the_size_of_a_local_index_file",
    "maxIndexNum": f"{LOCAL}::test_max_index_num_is_how_many_keys_a_local_index_file_takes",
    "messageIndexEnable": f"{LOCAL}::test_message_index_enable_puts_keys_in_both_indexes",
    "maxMessageSize": f"{LOCAL}::test_max_message_size_is_the_largest_body",
    "osPageCacheBusyTimeOutMills": (
        f"{LOCAL}::test_os_page_cache_busy_timeout_is_how_long_one_put_may_have_the_lock"
    ),
    "enabledAppendPropCRC": (
        f"{LOCAL}::test_enabled_append_prop_crc_ends_the_properties_with_a_crc"
    ),
    "forceVerifyPropCRC": (
        f"{LOCAL}::test_force_verify_prop_crc_ends_a_recovered_log_at_a_record_without_one"
    ),
    "enableLmq": f"{LOCAL}::test_enable_lmq_serves_light_queues",
    "enableMultiDispatch": (
        f"{LOCAL}::test_enable_multi_dispatch_puts_messages_in_the_light_queues_that_they_name"
    ),
    "enableLmqQuota": f"{LOCAL}::test_enable_lmq_quota_limits_the_number_of_light_queues",
    "maxLmqConsumeQueueNum": (
        f"{LOCAL}::test_max_lmq_consume_queue_num_is_the_number_of_light_queues"
    ),
    "messageDelayLevel": f"{LOCAL}::test_message_delay_level_is_when_a_delayed_message_is_due",
    "maxTransferBytesOnMessageInMemory": (
        f"{LOCAL}::test_max_transfer_bytes_in_memory_limits_a_get_of_the_log_s_tail"
    ),
    "maxTransferCountOnMessageInMemory": (
        f"{LOCAL}::test_max_transfer_count_in_memory_limits_a_get_of_the_log_s_tail"
    ),
    "maxTransferBytesOnMessageInDisk": (
        f"{LOCAL}::test_max_transfer_bytes_in_disk_limits_a_get_of_what_is_not_in_memory"
    ),
    "maxTransferCountOnMessageInDisk": (
        f"{LOCAL}::test_max_transfer_count_in_disk_limits_a_get_of_what_is_not_in_memory"
    ),
    "accessMessageInMemoryMaxRatio": (
        f"{LOCAL}::test_access_message_in_memory_max_ratio_says_what_counts_as_in_memory"
    ),
    "maxFilterMessageSize": (
        f"{LOCAL}::test_max_filter_message_size_limits_how_far_a_filtered_get_walks"
    ),
    "travelCqFileNumWhenGetMessage": (
        f"{LOCAL}::test_travel_cq_file_num_is_how_many_queue_files_a_get_walks"
    ),
    "maxMsgsNumBatch": f"{LOCAL}::test_max_msgs_num_batch_limits_a_key_query",
    "deleteWhen": f"{CLEANING}::test_delete_when_is_the_hour_at_which_what_has_expired_goes",
    "fileReservedTime": (f"{CLEANING}::test_file_reserved_time_is_the_age_at_which_a_file_expires"),
    "cleanResourceInterval": (
        f"{CLEANING}::test_clean_resource_interval_is_the_time_between_two_rounds"
    ),
    "deleteCommitLogFilesInterval": (
        f"{CLEANING}::test_delete_commit_log_files_interval_is_the_pause_between_two_files"
    ),
    "deleteFileBatchMax": (
        f"{CLEANING}::test_delete_file_batch_max_is_how_many_files_a_round_deletes"
    ),
    "cleanFileForciblyEnable": (
        f"{CLEANING}::test_clean_file_forcibly_enable_lets_a_nearly_full_disk_take_files"
    ),
    "diskMaxUsedSpaceRatio": (
        f"{CLEANING}::"
        "test_disk_max_used_space_ratio_is_the_use_above_which_the_hour_does_not_matter"
    ),
    "diskSpaceCleanForciblyRatio": (
        f"{CLEANING}::"
        "test_disk_space_clean_forcibly_ratio_is_the_use_above_which_the_oldest_files_go"
    ),
    "diskSpaceWarningLevelRatio": (
        f"{CLEANING}::test_disk_space_warning_level_ratio_is_the_use_above_which_nothing_is_put"
    ),
    "tieredStorageLevel": (
        f"{NAMES}::test_storage_level_says_whether_the_tier_is_written_and_read"
    ),
    "tieredMetadataServiceProvider": (
        f"{NAMES}::test_metadata_service_provider_is_the_class_that_is_loaded"
    ),
    "tieredBackendServiceProvider": (
        f"{NAMES}::test_backend_service_provider_is_the_class_that_is_loaded"
    ),
    "tieredStoreFilePath": f"{NAMES}::test_tier_file_path_is_the_root_of_a_posix_tier",
    "tieredStoreBacklog": f"{UPLOAD}::test_backlog_is_what_of_a_queue_goes_to_the_tier_at_first",
    "tieredStoreAdopt": f"{UPLOAD}::test_adopt_lets_a_new_local_store_go_on_behind_the_tier",
    "tieredStoreBackupInterval": (
        f"{REST}::test_backup_interval_is_how_often_topics_and_offsets_are_copied_into_the_tier"
    ),
    "tieredStoreIncludeTopics": (f"{POLICIES}::test_include_topics_says_which_topics_are_uploaded"),
    "tieredStoreExcludeTopics": (
        f"{POLICIES}::test_exclude_topics_says_which_topics_are_not_uploaded"
    ),
    "tieredStoreUploadBytesPerSecond": (
        f"{POLICIES}::test_upload_bytes_per_second_is_how_fast_the_tier_is_written"
    ),
    "tieredStoreDownloadBytesPerSecond": (
        f"{POLICIES}::test_download_bytes_per_second_is_how_fast_the_tier_is_read"
    ),
    "tieredStoreCommitLogMaxSize": (
        f"{UPLOAD}::test_commit_log_max_size_is_the_largest_commit_log_segment"
    ),
    "tieredStoreConsumeQueueMaxSize": (
        f"{UPLOAD}::test_consume_queue_max_size_is_the_largest_consume_queue_segment"
    ),
    "commitLogRollingInterval": (
        f"{UPLOAD}::test_commit_log_rolling_interval_is_the_age_at_which_a_segment_ends"
    ),
    "commitLogRollingMinimumSize": (
        f"{UPLOAD}::test_commit_log_rolling_minimum_size_keeps_small_segments_whatever_their_age"
    ),
    "tieredStoreIndexFileMaxHashSlotNum": (
        f"{UPLOAD}::test_index_file_max_hash_slot_num_is_in_the_size_of_an_index_segment"
    ),
    "tieredStoreIndexFileMaxIndexNum": (
        f"{UPLOAD}::test_index_file_max_index_num_is_how_many_keys_a_tiered_index_file_takes"
    ),
    "tieredStoreIndexFileUploadInterval": (
        f"{POLICIES}::test_index_file_upload_interval_is_when_keys_of_a_file_that_is_not_full_go"
    ),
    "tieredStoreDispatchInterval": (
        f"{POLICIES}::test_dispatch_interval_is_the_time_between_two_looks"
    ),
    "tieredStoreGroupCommit": f"{UPLOAD}::test_group_commit_gathers_messages_before_an_upload",
    "tieredStoreGroupCommitTimeout": (
        f"{UPLOAD}::test_group_commit_timeout_is_the_age_at_which_messages_go"
    ),
    "tieredStoreGroupCommitCount": (
        f"{UPLOAD}::test_group_commit_count_is_the_backlog_that_starts_an_upload"
    ),
    "tieredStoreGroupCommitSize": (
        f"{UPLOAD}::test_group_commit_size_is_the_most_bytes_of_a_write"
    ),
    "tieredStoreMaxGroupCommitCount": (
        f"{UPLOAD}::test_max_group_commit_count_is_how_much_may_wait_for_a_commit"
    ),
    "tieredStoreAdaptiveCommitMaxInterval": (
        f"{UPLOAD}::test_adaptive_commit_max_interval_is_how_long_a_slow_queue_waits"
    ),
    "tieredStoreMaxPendingLimit": f"{UPLOAD}::test_max_pending_limit_bounds_the_queues_in_upload",
    "tieredStoreDispatchThreads": f"{UPLOAD}::test_dispatch_threads_upload_at_once",
    "readAheadCacheEnable": f"{READS}::test_read_ahead_cache_enable_keeps_what_was_read_ahead",
    "readAheadMessageCountThreshold": (
        f"{READS}::test_read_ahead_message_count_threshold_is_how_many_messages_one_read_brings_at_most"
    ),
    "readAheadMessageSizeThreshold": (
        f"{READS}::test_read_ahead_message_size_threshold_is_how_many_bytes_one_read_brings_at_most"
    ),
    "readAheadCacheExpireDuration": (
        f"{READS}::test_read_ahead_cache_expire_duration_is_how_long_a_block_waits_for_a_reader"
    ),
    "readAheadCacheSizeThresholdRate": (
        f"{READS}::test_read_ahead_cache_size_threshold_rate_is_the_cache_s_share_of_the_memory"
    ),
    "readAheadCacheSizeBytes": f"{READS}::test_read_ahead_cache_size_bytes_limits_the_cache",
    "tieredStoreCrcCheckEnable": (
        f"{READS}::test_crc_check_enable_leaves_out_messages_with_a_bad_body"
    ),
    "recordGetMessageResult": f"{READS}::test_record_get_message_result_logs_each_get",
    "tieredStoreTraceEnable": f"{TRACE}::test_trace_enable_records",
    "tieredStoreDeleteFileEnable": f"{REST}::test_delete_file_enable_runs_the_expiry",
    "tieredStoreFileReservedTime": (
        f"{REST}::test_file_reserved_time_is_the_retention_of_messages_and_index"
    ),
    "tieredStoreDeleteFileInterval": (
        f"{REST}::test_delete_file_interval_is_the_time_between_two_runs_of_the_expiry"
    ),
    "tieredStorePosixFsyncEnable": f"{REST}::test_posix_fsync_enable_syncs_each_write",
    "tieredStorePosixChecksumEnable": (
        f"{REST}::test_posix_checksum_enable_leaves_checksums_beside_segments"
    ),
}
"""For each Java key, the test in this folder that changes the key."""

JAVA_TIERED_KEYS = {
    "brokerName",
    "brokerClusterName",
    "tieredStorageLevel",
    "storePathRootDir",
    "messageIndexEnable",
    "recordGetMessageResult",
    "tieredStoreCommitLogMaxSize",
    "tieredStoreConsumeQueueMaxSize",
    "tieredStoreIndexFileMaxHashSlotNum",
    "tieredStoreIndexFileMaxIndexNum",
    "tieredMetadataServiceProvider",
    "tieredBackendServiceProvider",
    "tieredStoreDeleteFileEnable",
    "tieredStoreFileReservedTime",
    "tieredStoreDeleteFileInterval",
    "commitLogRollingInterval",
    "commitLogRollingMinimumSize",
    "tieredStoreGroupCommit",
    "tieredStoreGroupCommitTimeout",
    "tieredStoreGroupCommitCount",
    "tieredStoreGroupCommitSize",
    "tieredStoreMaxGroupCommitCount",
    "readAheadCacheEnable",
    "readAheadMessageCountThreshold",
    "readAheadMessageSizeThreshold",
    "readAheadCacheExpireDuration",
    "readAheadCacheSizeThresholdRate",
    "tieredStoreMaxPendingLimit",
    "tieredStoreFilePath",
    "writeWithoutMmap",
    "tieredStoreCrcCheckEnable",
    "objectStoreEndpoint",
    "objectStoreBucket",
    "objectStoreAccessKey",
    "objectStoreSecretKey",
}
"""All keys of the tiered module's MessageStoreConfig, Apache RocketMQ 5.5.0."""


def test_the_table_and_the_configuration_have_the_same_keys() -> None:
    assert list(TESTS) == list(FIELDS_BY_KEY)


def test_every_key_of_java_s_tiered_module_has_an_effect_or_is_listed_without_one() -> None:
    known = FIELDS_BY_KEY.keys() | UNUSED_SETTINGS.keys() | fields_by_key(S3Settings).keys()
    assert known >= JAVA_TIERED_KEYS
    assert not FIELDS_BY_KEY.keys() & UNUSED_SETTINGS.keys()
    assert not REFUSED_VALUES.keys() & UNUSED_SETTINGS.keys()


def test_no_key_is_supported_and_not_supported_and_none_is_listed_twice() -> None:
    known = FIELDS_BY_KEY.keys() | UNUSED_SETTINGS.keys() | REFUSED_VALUES.keys()
    known |= fields_by_key(S3Settings).keys()
    seen: set[str] = set()
    for keys in UNSUPPORTED_SETTINGS.values():
        assert not keys & (known | seen)
        seen |= keys


@pytest.mark.parametrize("key", TESTS)
def test_the_named_test_is_there_and_sets_the_key(key: str) -> None:
    file, _, name = TESTS[key].partition("::")
    source = (HERE / file).read_text()
    [function] = [
        node
        for node in ast.parse(source).body
        if isinstance(node, ast.FunctionDef) and node.name == name
    ]
    names = {node.arg for node in ast.walk(function) if isinstance(node, ast.keyword)}
    texts = {node.value for node in ast.walk(function) if isinstance(node, ast.Constant)}
    assert key in names | texts or FIELDS_BY_KEY[key].name in names


def test_no_two_keys_share_a_test() -> None:
    assert len(set(TESTS.values())) == len(TESTS)
