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
    """Run `run_backfill` with the rows of a pandas or Spark DataFrame, or of a pyarrow Table.

    staging: a folder that all workers see (for Spark also an s3:// URL), where the rows are kept as
    Parquet; it is the caller's to delete. The same pandas or pyarrow rows have the same file there,
    so they are not backfilled twice. A Spark DataFrame is written into it once, in the order of its
    queues; a second run finds it there. Raises as `run_backfill`.
    """
    if isinstance(frame, pa.Table):
        table = _write_parquet(frame, Path(staging))
    elif type(frame).__module__.startswith("pandas."):
        table = _write_parquet(pa.Table.from_pandas(frame, preserve_index=False), Path(staging))
    elif type(frame).__module__.startswith("pyspark.sql."):
        table = run.do_once("stage", lambda: _write_parquet_by_spark(frame, str(staging)), str)
    else:
        raise Invalid(
            "backfill: expected a pandas or Spark DataFrame or a pyarrow Table, found "
            f"{type(frame).__name__}"
        )
    return run_backfill(run, tier, table, options)


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
