"""Parquet files of a table, as they are at the start of the job."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs

from tieredstore.errors import Invalid, Unavailable
from tieredstore.scan.arrow.schema import TYPES
from tieredstore.tier_url import parse_tier_url, show_url

BATCH_BYTES = 16 << 20
"""Approximate memory of one batch of rows from a file."""
_FOOTER_THREADS = 16
_MOST_ROWS = 1 << 18
_PARTITION = re.compile(r"(?:^|/)topic=([^/]+)/")


@dataclass(frozen=True, slots=True)
class TableFile:
    """File of a table.

    `path`: path in its file system.
    `name`: path below the table.
    `first_row`: row number of its first row in the table.
    `group_rows`, `group_bytes`: rows and uncompressed bytes of the row groups.
    `columns`: column names.
    `topic`: topic in the folder name `topic=…`.
    """

    path: str
    name: str
    size_bytes: int
    changed_ms: int
    first_row: int
    group_rows: tuple[int, ...]
    group_bytes: tuple[int, ...]
    columns: tuple[str, ...]
    topic: str | None = None


@dataclass(frozen=True, slots=True)
class Place:
    """Position of a row in a table, for error messages. `row`: row number in the row group."""

    file: str
    group: int
    row: int

    def __str__(self) -> str:
        return f"{self.file}, row group {self.group}, row {self.row}"


@dataclass(frozen=True, slots=True)
class Rows:
    """Consecutive rows of one row group. `first_row`: row number of the first row in the table.
    `place`: position of that row in its file. `topic`: as in `TableFile`."""

    first_row: int
    place: Place
    topic: str | None
    batch: pa.RecordBatch


def filesystem(url: str) -> tuple[fs.FileSystem, str]:
    """Return the file system of a folder or file, and the path in it. An s3 URL may have the
    parameters `region`, `endpoint` and `path_style`, as for tiers. Raises Invalid."""
    if "://" not in url:
        return fs.LocalFileSystem(), str(Path(url).absolute())
    place = parse_tier_url(url)
    if place.scheme == "file":
        return fs.LocalFileSystem(), place.path
    if place.scheme not in {"s3", "s3a"}:
        raise Invalid(f"table {place}: expected a path, file:// or s3://")
    options: dict[str, object] = {}
    if "region" in place.query:
        options["region"] = place.query["region"]
    if "endpoint" in place.query:
        scheme, separator, host = place.query["endpoint"].rpartition("://")
        options["endpoint_override"] = host
        options["scheme"] = scheme if separator else "https"
        virtual = place.query.get("path_style", "true") == "false"
        options["force_virtual_addressing"] = virtual
    return fs.S3FileSystem(**options), f"{place.authority}{place.path}".rstrip("/")


def list_table(url: str) -> list[TableFile]:
    """List all Parquet files of a table by name, except names that begin with `_` or `.`. Raises
    Invalid for a location without Parquet files and for a file that is not Parquet, Unavailable."""
    system, root = filesystem(url)
    try:
        found = system.get_file_info(root)
        if found.type == fs.FileType.File:
            infos, root = [found], root.rpartition("/")[0]
        else:
            everything = system.get_file_info(fs.FileSelector(root, recursive=True))
            infos = [info for info in everything if _is_data(info, root)]
    except OSError as error:
        raise _unreadable(show_url(url), error) from error
    if not infos:
        raise Invalid(f"table {show_url(url)}: no Parquet file there")
    infos.sort(key=lambda info: info.path)
    with ThreadPoolExecutor(_FOOTER_THREADS) as pool:
        footers = list(pool.map(lambda info: _footer(system, info.path), infos))
    files = []
    first_row = 0
    for info, footer in zip(infos, footers, strict=True):
        name = info.path.removeprefix(root).lstrip("/")
        groups = [footer.row_group(group) for group in range(footer.num_row_groups)]
        partition = _PARTITION.search(name)
        files.append(
            TableFile(
                info.path,
                name,
                info.size,
                (info.mtime_ns or 0) // 1_000_000,
                first_row,
                tuple(group.num_rows for group in groups),
                tuple(group.total_byte_size for group in groups),
                tuple(footer.schema.to_arrow_schema().names),
                unquote(partition[1]) if partition is not None else None,
            )
        )
        first_row += footer.num_rows
    _check_columns(files)
    return files


def fingerprint(files: Sequence[TableFile]) -> str:
    """Return a text that changes when a file is added, removed or modified."""
    named = [[file.name, file.size_bytes, file.changed_ms] for file in files]
    return hashlib.sha256(orjson.dumps(named)).hexdigest()


def _check_columns(files: Sequence[TableFile]) -> None:
    first = files[0]
    for file in files:
        differing = {*TYPES} & ({*file.columns} ^ {*first.columns})
        if differing:
            raise Invalid(
                f"table: {file.name}: expected the columns of {first.name}, found them to differ "
                f"in {', '.join(sorted(differing))}",
                path=file.name,
            )


def _is_data(info: fs.FileInfo, root: str) -> bool:
    parts = info.path.removeprefix(root).strip("/").split("/")
    hidden = any(part.startswith(("_", ".")) for part in parts)
    return info.type == fs.FileType.File and info.path.endswith(".parquet") and not hidden


def _footer(system: fs.FileSystem, path: str) -> pq.FileMetaData:
    try:
        with system.open_input_file(path) as file:
            return pq.read_metadata(file)
    except pa.ArrowInvalid as error:
        raise Invalid(f"table: {path}: expected a Parquet file: {error}", path=path) from error
    except OSError as error:
        raise _unreadable(path, error) from error


class Table:
    """Reader for rows of a table that `list_table` has listed."""

    def __init__(self, url: str) -> None:
        self._system, _ = filesystem(url)

    def read(
        self, file: TableFile, groups: Sequence[int], columns: Sequence[str]
    ) -> Iterator[Rows]:
        """Read rows of row groups in order, with the given columns. Raises Invalid if the file has
        changed since the listing, Unavailable."""
        path = file.path
        try:
            info = self._system.get_file_info(path)
            changed_ms = (info.mtime_ns or 0) // 1_000_000
            if (info.size, changed_ms) != (file.size_bytes, file.changed_ms):
                raise Invalid(
                    f"table: {path}: changed while the job ran: expected {file.size_bytes} bytes "
                    f"of {file.changed_ms} ms, found {info.size} of {changed_ms}",
                    path=path,
                )
            with self._system.open_input_file(path) as opened:
                # 96 bits (Spark, Hive) hold more times than nanoseconds of 64.
                parquet = pq.ParquetFile(opened, coerce_int96_timestamp_unit="ms")
                for group in groups:
                    yield from self._read_group(parquet, file, group, columns)
        except pa.ArrowInvalid as error:
            raise Invalid(f"table: {path}: {error}", path=path) from error
        except OSError as error:
            raise _unreadable(path, error) from error

    def _read_group(
        self, parquet: pq.ParquetFile, file: TableFile, group: int, columns: Sequence[str]
    ) -> Iterator[Rows]:
        first = file.first_row + sum(file.group_rows[:group])
        row = 0
        width = max(file.group_bytes[group] // max(file.group_rows[group], 1), 1)
        for batch in parquet.iter_batches(
            min(max(BATCH_BYTES // width, 1), _MOST_ROWS),
            row_groups=[group],
            columns=list(columns),
            use_threads=False,
        ):
            yield Rows(first + row, Place(file.name, group, row), file.topic, batch)
            row += batch.num_rows


def place_of(files: Sequence[TableFile], row: int) -> Place:
    """Return the position of a row in the table."""
    file = max((file for file in files if file.first_row <= row), key=lambda file: file.first_row)
    row -= file.first_row
    for group, count in enumerate(file.group_rows):
        if row < count:
            return Place(file.name, group, row)
        row -= count
    raise AssertionError(f"row {row} is behind the end of {file.name}")


def _unreadable(path: str, error: OSError) -> Unavailable | Invalid:
    kind = Invalid if isinstance(error, FileNotFoundError) else Unavailable
    return kind(f"table: cannot read {path}: {error}", path=path)
