"""The job `export`: messages of a tier as Parquet files, an Iceberg table or a Delta table.

Each run adds what is new since the last one, exactly once: the target itself keeps, together with
the data, up to where each queue was exported (`docs/jobs.md`).
"""

from tieredstore.jobs.exporting.compaction import CompactionRequest, run_compact_export
from tieredstore.jobs.exporting.following import DEFAULT_INTERVAL, follow_exports, parse_interval
from tieredstore.jobs.exporting.job import export_topics, measure_left, run_export
from tieredstore.jobs.exporting.request import (
    DEFAULT_DEDUP_WINDOW,
    Accept,
    ExportRequest,
    Format,
    OnCorrupt,
    OnUnfit,
)

__all__ = [
    "DEFAULT_DEDUP_WINDOW",
    "DEFAULT_INTERVAL",
    "Accept",
    "CompactionRequest",
    "ExportRequest",
    "Format",
    "OnCorrupt",
    "OnUnfit",
    "export_topics",
    "follow_exports",
    "measure_left",
    "parse_interval",
    "run_compact_export",
    "run_export",
]
