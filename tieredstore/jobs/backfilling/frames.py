"""Conversion of tables in memory and DataFrames to the Parquet files that a backfill reads."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tieredstore.disk.file_operations import FILES
from tieredstore.disk.sync import sync_folder, sync_path
from tieredstore.errors import Invalid
from tieredstore.jobs.backfilling.job import run_backfill
from tieredstore.jobs.options import BackfillOptions
from tieredstore.jobs.run import JobRun
from tieredstore.scan.arrow.schema import TYPES
from tieredstore.scan.location import TierLocation

_GROUP_ROWS = 1 << 16
_TIMES = ("born_timestamp", "store_timestamp")
_ORDER = ("topic", "queue_id", "queue_offset", "store_timestamp")


def backfill_frame(
    run: JobRun,
    tier: TierLocation,
    frame: object,
    staging: str | Path,
    options: BackfillOptions | None = None,
) -> dict[str, object]:
    """Run `run_backfill` with the rows of a pandas, Polars or Spark DataFrame, a pyarrow Table, or
    any other source of an Arrow stream (`Scan`, a DuckDB relation). `staging`: a folder for the
    rows as Parquet that all workers can read (for Spark also an s3:// URL). The caller deletes it.
    Equal rows in memory are backfilled only once, because they get the same file. A Spark DataFrame
    is written once, sorted by queue, and a second run reuses the files. Raises the errors of
    `run_backfill`."""
    if type(frame).__module__.startswith("pyspark.sql."):
        table = run.do_once("stage", lambda: _write_parquet_by_spark(frame, str(staging)), str)
    else:
        table = _write_parquet(table_of(frame), Path(staging))
    return run_backfill(run, tier, table, options)


def table_of(frame: Any) -> pa.Table:
    """Return a frame in memory as a table. Raises Invalid for an object that is not a frame, and
    for pandas values that do not fit a message field."""
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
    folder.mkdir(parents=True, exist_ok=True)
    temporary = FILES.name_temporary(folder / "rows")
    try:
        pq.write_table(rows, temporary, row_group_size=_GROUP_ROWS, compression="zstd")
        with temporary.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        path = folder / f"{digest[:32]}.parquet"
        if not path.exists():
            # The name guarantees the content, also after a crash.
            sync_path(temporary)
            temporary.replace(path)
            sync_folder(folder)
    finally:
        FILES.discard(temporary)
    return str(path)


def _write_parquet_by_spark(frame: Any, staging: str) -> str:
    """Write the DataFrame as sorted Parquet files, so that each task finds its rows in few row
    groups."""
    order = [name for name in _ORDER if name in frame.columns]
    rows = frame.repartitionByRange(*order).sortWithinPartitions(*order) if order else frame
    rows.write.mode("overwrite").parquet(staging)
    return staging


def table_of_pandas(frame: Any) -> pa.Table:
    """Return the columns of a DataFrame that are message fields. Raises Invalid."""
    names = [name for name in frame.columns if name in TYPES]
    return pa.table({name: _column(name, frame[name]) for name in names})


def _column(name: str, series: Any) -> pa.Array:
    whole = pa.types.is_integer(TYPES[name]) or name in _TIMES
    try:
        if series.dtype == object and name == "properties":
            pairs = [_pairs(row, value) for row, value in enumerate(series)]
            return pa.array(pairs, TYPES[name])
        if series.dtype == object and name == "keys":
            return pa.array([_keys(row, value) for row, value in enumerate(series)], TYPES[name])
        if whole and getattr(series.dtype, "kind", "") == "f":
            return _whole_numbers(name, series)
        return pa.array(series, from_pandas=True)
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise Invalid(f"frame, column {name}: {error}") from error


def _whole_numbers(name: str, series: Any) -> pa.Array:
    there = series[series.notna()]
    odd = there[there % 1 != 0]
    if len(odd):
        raise Invalid(f"frame, column {name}: expected whole numbers, found {odd.iloc[0]}")
    return pa.array(series.astype("Int64"), from_pandas=True)


def _pairs(row: int, value: Any) -> list[tuple[str, str]] | None:
    """Return the properties of a message from a dict, or from pairs of pyarrow or Polars."""
    if _is_missing(value):
        return None
    try:
        if isinstance(value, Mapping):
            pairs = list(value.items())
        else:
            pairs = [
                (item["key"], item["value"]) if isinstance(item, Mapping) else tuple(item)
                for item in value
            ]
        texts: list[tuple[str, str]] | None = [
            (name, text) for name, text in pairs if not _is_missing(text)
        ]
    except (TypeError, ValueError, KeyError):
        texts = None
    if texts is None or not all(isinstance(part, str) for pair in texts for part in pair):
        raise Invalid(
            f"frame, column properties, row {row}: expected texts by name, found {value!r}"
        )
    return texts


def _keys(row: int, value: Any) -> list[str] | None:
    if _is_missing(value):
        return None
    if isinstance(value, str):
        raise Invalid(f"frame, column keys, row {row}: expected a list of texts, found {value!r}")
    return list(value)


def _is_missing(value: object) -> bool:
    """Return whether a value is None, NaN, NA or NaT."""
    if value is None or type(value).__name__ in {"NAType", "NaTType"}:
        return True
    return isinstance(value, float) and value != value  # noqa: PLR0124
