"""Table of exported metrics with kind, labels and meaning.

The modules that update a metric define its name. The reference page and the HELP lines of
`/metrics` are generated from this table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple


class MetricInfo(NamedTuple):
    """Description of a metric. `kind`: counter, gauge or histogram. `labels`: labels in addition to
    those of every series. `meaning`: one sentence, with the unit."""

    kind: str
    labels: tuple[str, ...]
    meaning: str


_TABLE: Final = """
gauge rocketmq_broker_permission
    Permission of the broker: 2 write, 4 read, 6 both.
gauge rocketmq_consumer_connections consumer_group
    Connected consumers.
gauge rocketmq_consumer_group_number
    Consumer groups.
gauge rocketmq_consumer_lag_latency topic consumer_group is_retry is_system
    Age of the oldest message that a group has not consumed, in milliseconds.
gauge rocketmq_consumer_lag_messages topic consumer_group is_retry is_system
    Messages that a group has not consumed.
counter rocketmq_messages_in_total topic
    Messages put.
counter rocketmq_messages_out_total topic consumer_group
    Messages delivered to consumers.
gauge rocketmq_producer_connections producer_group
    Connected producers.
gauge rocketmq_storage_dispatch_behind_bytes storage_type storage_medium
    Commit log bytes without consume queue units.
gauge rocketmq_storage_flush_behind_bytes storage_type storage_medium
    Commit log bytes that are not flushed.
gauge rocketmq_storage_message_reserve_time storage_type storage_medium topic queue_id
    Age of the oldest stored message, in milliseconds.
gauge rocketmq_storage_size storage_type storage_medium topic file_type
    Stored bytes. The label topic holds the path of a queue in the tier.
counter rocketmq_throughput_in_total topic
    Message bytes put.
histogram rocketmq_tiered_store_api_latency operation topic
    Duration of a read of the tier, in milliseconds.
gauge rocketmq_tiered_store_dispatch_behind topic queue_id file_type
    Messages that are not uploaded.
gauge rocketmq_tiered_store_dispatch_latency topic queue_id file_type
    Age of the oldest message that is not uploaded, in milliseconds.
counter rocketmq_tiered_store_get_message_fallback_total operation topic group
    Reads that the local store answered because the tier could not.
counter rocketmq_tiered_store_messages_dispatch_total topic queue_id file_type
    Messages uploaded.
counter rocketmq_tiered_store_messages_out_total topic group
    Messages read from the tier.
histogram rocketmq_tiered_store_provider_download_bytes operation path file_type
    Bytes of one read of the backend.
histogram rocketmq_tiered_store_provider_rpc_latency operation success path file_type
    Duration of one request to the backend, in milliseconds.
histogram rocketmq_tiered_store_provider_upload_bytes operation path file_type
    Bytes of one write to the backend.
counter rocketmq_tiered_store_read_ahead_cache_access_total
    Look-ups in the read-ahead cache.
gauge rocketmq_tiered_store_read_ahead_cache_bytes
    Weight of the read-ahead cache, in bytes.
gauge rocketmq_tiered_store_read_ahead_cache_count
    Blocks in the read-ahead cache.
counter rocketmq_tiered_store_read_ahead_cache_hit_total
    Look-ups that the read-ahead cache answered.
counter rocketmq_tiered_store_x_bad_messages_total topic queue_id
    Messages of the tier that a read left out because they are damaged.
counter rocketmq_tiered_store_x_cleaned_before_upload_bytes_total
    Commit log bytes that were deleted before they were uploaded.
counter rocketmq_tiered_store_x_cleaned_files_total kind
    Local files deleted by retention.
gauge rocketmq_tiered_store_x_cleaning_held_bytes
    Expired commit log bytes that wait for their upload.
counter rocketmq_tiered_store_x_damaged_local_messages_total topic queue_id
    Local messages that were not uploaded because they are damaged.
gauge rocketmq_tiered_store_x_dispatch_behind_ms
    Age of the oldest message without a consume queue unit, in milliseconds.
counter rocketmq_tiered_store_x_dispatch_failures_total topic queue_id kind
    Upload rounds that failed, by error.
counter rocketmq_tiered_store_x_dispatch_gap_messages_total topic queue_id
    Messages that were missing in the local store when they were due for upload.
gauge rocketmq_tiered_store_x_excluded_topics reason
    Topics that are not uploaded.
counter rocketmq_tiered_store_x_expired_segments_total topic
    Segments of the tier deleted by retention.
gauge rocketmq_tiered_store_x_index_behind_bytes
    Commit log bytes whose keys are not in the local index.
counter rocketmq_tiered_store_x_index_errors_total kind
    Failed operations on the index of the tier, by error.
counter rocketmq_tiered_store_x_index_failures_total topic queue_id
    Keys of uploads that the index did not take.
counter rocketmq_tiered_store_x_index_files_uploaded_total
    Index files uploaded.
counter rocketmq_tiered_store_x_limit_wait_milliseconds_total operation
    Time that uploads and reads waited for a configured limit.
gauge rocketmq_tiered_store_x_lite_runs
    Objects of runs of lite topics.
gauge rocketmq_tiered_store_x_mapped_bytes
    Bytes of mapped commit log files.
gauge rocketmq_tiered_store_x_mapped_files
    Mapped commit log files.
counter rocketmq_tiered_store_x_object_bytes_total direction operation file_type
    Bytes of requests to an object store.
counter rocketmq_tiered_store_x_object_cost_usd_total operation file_type
    Computed price of requests to an object store, in US dollars.
histogram rocketmq_tiered_store_x_object_request_latency operation
    Duration of one request to an object store, in milliseconds.
counter rocketmq_tiered_store_x_object_requests_total status operation file_type
    Requests to an object store.
gauge rocketmq_tiered_store_x_offload_behind_messages
    Messages that an offload has still to copy.
gauge rocketmq_tiered_store_x_offload_behind_seconds
    Age of the oldest message that an offload has still to copy.
gauge rocketmq_tiered_store_x_offload_failing_queues
    Queues that failed in the last round of an offload.
gauge rocketmq_tiered_store_x_offload_held_back_messages
    Messages of a running broker that an offload may not copy yet.
gauge rocketmq_tiered_store_x_offload_last_good_round_timestamp_seconds
    Time of the last round of an offload without a failure.
counter rocketmq_tiered_store_x_offload_rounds_total result
    Rounds of an offload.
gauge rocketmq_tiered_store_x_offload_stuck_queues
    Queues that an offload cannot continue without an operator.
histogram rocketmq_tiered_store_x_put_lock_time_ms
    Time that a put held the lock, in milliseconds.
histogram rocketmq_tiered_store_x_put_time_ms
    Duration of a put, in milliseconds.
counter rocketmq_tiered_store_x_puts_refused_total status
    Puts that the store refused.
counter rocketmq_tiered_store_x_read_ahead_fetched_messages_total
    Messages that read-ahead fetched.
counter rocketmq_tiered_store_x_read_ahead_wasted_messages_total
    Fetched messages that left the cache unread.
counter rocketmq_tiered_store_x_read_errors_total topic kind
    Failed reads of the tier, by error.
gauge rocketmq_tiered_store_x_series_left_out
    Series that a scrape omitted because of its limit.
gauge rocketmq_tiered_store_x_skipped_records topic
    Records that the broker skipped because no client may write them.
counter rocketmq_tiered_store_x_slow_puts_total
    Puts that took longer than 500 ms.
counter rocketmq_tiered_store_x_trace_dropped_rows_total
    Rows that the trace for advise dropped.
gauge rocketmq_tiered_store_x_unreadable_queues
    Queues in which consumers wait at a message that the tier has lost.
gauge rocketmq_tiered_store_x_waiting_pulls
    Pull requests that wait for messages.
gauge rocketmq_topic_number
    Topics.
"""
"""Kind, name and labels of each metric, followed by its meaning."""


def _parse(lines: list[str]) -> dict[str, MetricInfo]:
    found = {}
    for head, meaning in zip(lines[::2], lines[1::2], strict=True):
        kind, name, *labels = head.split()
        found[name] = MetricInfo(kind, tuple(labels), meaning.strip())
    return found


METRICS: Final[Mapping[str, MetricInfo]] = _parse(_TABLE.strip().splitlines())
"""Every metric by name, in the order of names."""
