"""Tables in memory, and Spark's DataFrames, as the Parquet that a backfill reads."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tieredstore.disk.sync import sync_folder, sync_path
from tieredstore.errors import Invalid
from tieredstore.jobs.backfilling.job import BackfillOptions, run_backfill
from tieredstore.jobs.backfilling.pandas_columns import table_of_pandas
from tieredstore.jobs.run import JobRun
from tieredstore.scan.location import TierLocation

_GROUP_ROWS = 1 << 16
_ORDER = ("topic", "queue_id", "queue_offset", "store_timestamp")


def backfill_frame(
    run: JobRun,
    tier: TierLocation,
    frame: Any,
    staging: str | Path,
    options: BackfillOptions | None = None,
) -> dict[str, object]:
    """Run `run_backfill` with the rows of a pandas, Polars or Spark DataFrame, a pyarrow Table, or
    anything else that gives an Arrow stream (`Scan`, a DuckDB relation).

    staging: a folder that all workers see (for Spark also an s3:// URL), where the rows are kept as
    Parquet; it is the caller's to delete. The same rows in memory have the same file there, so they
    are not backfilled twice. A Spark DataFrame is written into it once, in the order of its
    queues; a second run finds it there. Raises as `run_backfill`.
    """
    if type(frame).__module__.startswith("pyspark.sql."):
        table = run.do_once("stage", lambda: _write_parquet_by_spark(frame, str(staging)), str)
    else:
        table = _write_parquet(table_of(frame), Path(staging))
    return run_backfill(run, tier, table, options)


def table_of(frame: Any) -> pa.Table:
    """Return the rows of a frame in memory. Raises Invalid for what is no frame, and for values of
    pandas that no message has."""
    module = type(frame).__module__.partition(".")[0]
    if isinstance(frame, pa.Table):
        return frame
    if module == "pandas":
        return table_of_pandas(frame)
    if module == "polars":
        return (frame.collect() if hasattr(frame, "collect") else frame).to_arrow()
    if hasattr(frame, "__arrow_c_stream__"):
        return pa.RecordBatchReader.from_stream(frame).read_all()
    raise Invalid(
        "backfill: expected a pandas, Polars or Spark DataFrame or an Arrow table or stream, found "
        f"{type(frame).__name__}"
    )


def _write_parquet(rows: pa.Table, folder: Path) -> str:
    """The file is named by what is in it."""
    folder.mkdir(parents=True, exist_ok=True)
    temporary = folder / "rows.tmp"
    pq.write_table(rows, temporary, row_group_size=_GROUP_ROWS, compression="zstd")
    with temporary.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    path = folder / f"{digest[:32]}.parquet"
    if path.exists():
        temporary.unlink()
    else:
        # Its name vouches for what is in it, also after a crash.
        sync_path(temporary)
        temporary.replace(path)
        sync_folder(folder)
    return str(path)


def _write_parquet_by_spark(frame: Any, staging: str) -> str:
    """Sorted, so that a task reads few row groups beside its own."""
    order = [name for name in _ORDER if name in frame.columns]
    rows = frame.repartitionByRange(*order).sortWithinPartitions(*order) if order else frame
    rows.write.mode("overwrite").parquet(staging)
    return staging
