"""Tables of a report as Parquet files."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa
import pyarrow.parquet as pq

from tieredstore.jobs.reporting.summary import QUANTILES, Row, Summary

_COSTS = "storage_usd_month read_requests read_usd write_requests_month write_usd_month"
_SIZES = " ".join(
    f"record_bytes{end}"
    for end in ("", "_mean", "_min", *(f"_{name}" for name, _ in QUANTILES), "_max")
)
_FILES = "messages commit_log_bytes consume_queue_bytes segments objects holes"
_TIMES = "min_store_timestamp max_store_timestamp"
_TYPES = {
    **dict.fromkeys(("topic", "broker", "kind", "value", "age"), pa.string()),
    **dict.fromkeys(("queue_id", "rank"), pa.int32()),
    **dict.fromkeys(_TIMES.split(), pa.timestamp("ms", "UTC")),
    **dict.fromkeys(
        ("storage_usd_month", "read_usd", "write_requests_month", "write_usd_month"), pa.float64()
    ),
    **dict.fromkeys(("record_bytes_mean", "bytes_an_object", "share"), pa.float64()),
}
"""Types of the columns that are not int64."""


def _schema(columns: str) -> pa.Schema:
    return pa.schema({name: _TYPES.get(name, pa.int64()) for name in columns.split()})


TOPICS = _schema(
    f"topic queues {_FILES} index_bytes {_SIZES} {_TIMES} messages_read keys_values keys_distinct "
    f"uniq_key_values uniq_key_distinct tags_values tags_distinct {_COSTS}"
)
QUEUES = _schema(
    f"broker topic queue_id first_offset next_offset {_FILES} bytes_an_object hole_offsets "
    f"{_SIZES} {_TIMES} {_COSTS}"
)
VALUES = _schema("topic kind rank value count count_most share")
AGES = _schema("topic age messages record_bytes")


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
