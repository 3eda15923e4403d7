"""The rows of a report as Parquet files."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa
import pyarrow.parquet as pq

from tieredstore.jobs.reporting.summary import QUANTILES, Row, Summary

_COSTS = {
    "storage_usd_month": pa.float64(),
    "read_requests": pa.int64(),
    "read_usd": pa.float64(),
    "write_requests_month": pa.float64(),
    "write_usd_month": pa.float64(),
}
_SIZES = {
    "record_bytes": pa.int64(),
    "record_bytes_mean": pa.float64(),
    "record_bytes_min": pa.int64(),
    **{f"record_bytes_{name}": pa.int64() for name, _ in QUANTILES},
    "record_bytes_max": pa.int64(),
}
_FILES = {
    "messages": pa.int64(),
    "commit_log_bytes": pa.int64(),
    "consume_queue_bytes": pa.int64(),
    "segments": pa.int64(),
    "objects": pa.int64(),
    "holes": pa.int64(),
}
_TIMES = dict.fromkeys(("min_store_timestamp", "max_store_timestamp"), pa.timestamp("ms", "UTC"))
TOPICS = pa.schema(
    {
        "topic": pa.string(),
        "queues": pa.int64(),
        **_FILES,
        "index_bytes": pa.int64(),
        **_SIZES,
        **_TIMES,
        "messages_read": pa.int64(),
        "keys_values": pa.int64(),
        "keys_distinct": pa.int64(),
        "uniq_key_values": pa.int64(),
        "uniq_key_distinct": pa.int64(),
        "tags_values": pa.int64(),
        "tags_distinct": pa.int64(),
        **_COSTS,
    }
)
QUEUES = pa.schema(
    {
        "broker": pa.string(),
        "topic": pa.string(),
        "queue_id": pa.int32(),
        "first_offset": pa.int64(),
        "next_offset": pa.int64(),
        **_FILES,
        "bytes_an_object": pa.float64(),
        "hole_offsets": pa.int64(),
        **_SIZES,
        **_TIMES,
        **_COSTS,
    }
)
VALUES = pa.schema(
    {
        "topic": pa.string(),
        "kind": pa.string(),
        "rank": pa.int32(),
        "value": pa.string(),
        "count": pa.int64(),
        "count_most": pa.int64(),
        "share": pa.float64(),
    }
)
AGES = pa.schema(
    {"topic": pa.string(), "age": pa.string(), "messages": pa.int64(), "record_bytes": pa.int64()}
)


def tables(summary: Summary) -> dict[str, bytes]:
    """Return the Parquet files by name."""
    return {
        "topics.parquet": _parquet(summary.topics, TOPICS),
        "queues.parquet": _parquet(summary.queues, QUEUES),
        "values.parquet": _parquet(summary.values, VALUES),
        "ages.parquet": _parquet(summary.ages, AGES),
    }


def _parquet(rows: Iterable[Row], schema: pa.Schema) -> bytes:
    table = pa.Table.from_pylist(list(rows), schema)
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="zstd")
    written: bytes = sink.getvalue().to_pybytes()
    return written
