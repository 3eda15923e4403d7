"""Data files: one Parquet file per partition."""

from __future__ import annotations

import sys
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tieredstore.errors import Corrupt
from tieredstore.jobs.exporting.partition import BY_TOPIC_AND_DAY, Partition, PartitionBy
from tieredstore.jobs.exporting.state import ColumnStatistics, DataFile
from tieredstore.jobs.exporting.targets.storage import Files, InputFile
from tieredstore.scan.arrow.schema import TYPES

ROW_GROUP_BYTES = 64 << 20
"""Approximate bytes of a row group in memory. On disk a row group takes half or less."""
_MOST_PENDING_BYTES = 192 << 20
_MOST_FILES = 64
"""Maximum number of open files."""
_MOST_PARTS = 1024
"""Maximum number of partitions with pending rows."""
_REPEATED = (
    "topic", "broker", "queue_id", "tags", "born_host", "store_host", "sys_flag", "flag",
    "reconsume_times", "properties.key_value.key",
)  # fmt: skip
"""Columns with many equal values. In measurements, dictionary encoding made files smaller only for
these columns."""
_NO_STATISTICS = frozenset({"body", "properties", "keys"})
_BOUND_LENGTH = 16
"""Maximum number of characters of a text in the statistics of a column (its lowest and highest
value)."""


@dataclass(frozen=True, slots=True)
class FileForm:
    """Form of data files. `columns`: columns in order. `prefix`: prefix of file names. The rest of
    a name is unique to one attempt at a task. `in_folders`: whether files are in the folders of
    their partitions. `partition_by`: partitioning of the files."""

    columns: tuple[str, ...]
    prefix: str
    suffix: str
    target_bytes: int
    zstd_level: int
    in_folders: bool = False
    partition_by: PartitionBy = BY_TOPIC_AND_DAY

    def name(self, attempt: str, number: int, partition: Partition) -> str:
        """Return the name of a file."""
        name = f"{self.prefix}-{attempt}-{number}{self.suffix}"
        folder = self.partition_by.folder(partition) if self.in_folders else ""
        return f"{folder}/{name}" if folder else name


@dataclass
class PartitionedFiles:
    """Writes batches to files by partition. Memory: about 200 MiB."""

    files: Files
    form: FileForm
    _parts: dict[Partition, _Part] = field(default_factory=dict)
    _count: int = 0
    _pending_bytes: int = 0
    done: list[DataFile] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._attempt = uuid.uuid4().hex[:12]

    def write(self, topic: str, batch: pa.RecordBatch) -> None:
        """Write rows of one topic. The batch includes the partition columns."""
        for partition, rows in self.form.partition_by.cut(topic, batch):
            part = self._part(partition)
            part.add(rows.select(self.form.columns))
            if part.pending_bytes >= ROW_GROUP_BYTES:
                self._flush(part)
        self._pending_bytes = sum(part.pending_bytes for part in self._parts.values())
        while self._pending_bytes > _MOST_PENDING_BYTES:
            largest = max(self._parts.values(), key=lambda part: part.pending_bytes)
            self._pending_bytes -= largest.pending_bytes
            self._flush(largest)

    def close(self) -> list[DataFile]:
        """Close and return all files. The files are durable."""
        for part in self._parts.values():
            self._end(part)
        self._parts.clear()
        return self.done

    def _part(self, partition: Partition) -> _Part:
        """Return the open file and pending rows of a partition. If too many partitions are open,
        close the least recently used one."""
        part = self._parts.pop(partition, None)
        if part is None:
            while len(self._parts) >= _MOST_PARTS:
                self._end(self._parts.pop(next(iter(self._parts))))
            part = _Part(partition)
        self._parts[partition] = part
        return part

    def _flush(self, part: _Part) -> None:
        """Write pending rows as a row group, and close a large file."""
        if part.pending:
            if part.file is None:
                open_parts = [part for part in self._parts.values() if part.file is not None]
                if len(open_parts) >= _MOST_FILES:
                    self._end(open_parts[0])
                form = self.form
                name = form.name(self._attempt, self._count, part.partition)
                self._count += 1
                part.file = OpenFile(self.files, name, part.pending[0].schema, form.zstd_level)
            part.file.write(part.take())
        self._close(part, self.form.target_bytes)

    def _end(self, part: _Part) -> None:
        self._flush(part)
        self._close(part, 0)

    def _close(self, part: _Part, least_bytes: int) -> None:
        if part.file is not None and part.file.size_bytes >= least_bytes:
            self.done.append(part.file.close(part.partition))
            part.file = None


@dataclass(slots=True)
class _Part:
    partition: Partition
    file: OpenFile | None = None
    pending: list[pa.RecordBatch] = field(default_factory=list)
    pending_bytes: int = 0

    def add(self, batch: pa.RecordBatch) -> None:
        self.pending.append(batch)
        self.pending_bytes += batch.nbytes

    def take(self) -> pa.Table:
        table = pa.Table.from_batches(self.pending)
        self.pending, self.pending_bytes = [], 0
        return table


class OpenFile:
    """A Parquet file that is being written."""

    def __init__(self, files: Files, name: str, schema: pa.Schema, zstd_level: int) -> None:
        self._files = files
        self._name = name
        self._stream = files.create(name)
        self._metadata: list[pq.FileMetaData] = []
        # Members of bodies have a dictionary too, without measurement.
        repeated = [column for column in _REPEATED if column.split(".")[0] in schema.names]
        repeated += [name for name in schema.names if name not in TYPES]
        self._writer = pq.ParquetWriter(
            self._stream,
            schema,
            compression="zstd",
            compression_level=zstd_level,
            use_dictionary=repeated,
            write_statistics=[column for column in schema.names if column not in _NO_STATISTICS],
            metadata_collector=self._metadata,
        )

    @property
    def size_bytes(self) -> int:
        return int(self._stream.tell())

    def write(self, table: pa.Table) -> None:
        """Write a table as one row group."""
        self._writer.write_table(table, row_group_size=max(table.num_rows, 1))

    def close(self, partition: Partition) -> DataFile:
        self._writer.close()
        size_bytes = self.size_bytes
        self._stream.close()
        self._files.seal(self._name)
        [metadata] = self._metadata
        return DataFile(
            self._name,
            partition,
            metadata.num_rows,
            size_bytes,
            statistics_of(metadata),
            [_start_of(metadata.row_group(group)) for group in range(metadata.num_row_groups)],
        )


def merge_files(files: Files, parts: tuple[DataFile, ...], form: FileForm) -> DataFile:
    """Write one file with the rows of several files of the same partition."""
    partition = parts[0].partition
    name = form.name(uuid.uuid4().hex[:12], 0, partition)
    target: OpenFile | None = None
    pending: list[pa.RecordBatch] = []
    pending_bytes = 0
    for part in parts:
        with files.open(part.name) as stream:
            for batch in _read_batches(stream, part.name):
                if pending and not batch.schema.equals(pending[0].schema):
                    raise Corrupt(
                        f"{part.name}: a file of other columns: expected "
                        f"{pending[0].schema.names} as in {parts[0].name}, found "
                        f"{batch.schema.names}, or other types",
                        path=part.name,
                    )
                pending.append(batch)
                pending_bytes += batch.nbytes
                if pending_bytes >= ROW_GROUP_BYTES:
                    target = target or OpenFile(files, name, batch.schema, form.zstd_level)
                    target.write(pa.Table.from_batches(pending))
                    pending, pending_bytes = [], 0
    if pending:
        target = target or OpenFile(files, name, pending[0].schema, form.zstd_level)
        target.write(pa.Table.from_batches(pending))
    assert target is not None
    return target.close(partition)


def _read_batches(stream: InputFile, name: str) -> Iterator[pa.RecordBatch]:
    try:
        # Bodies are large, so few rows at a time.
        yield from pq.ParquetFile(stream).iter_batches(batch_size=4096)
    except pa.ArrowInvalid as error:
        text = " ".join(str(error).split())
        raise Corrupt(f"{name}: not a Parquet file that can be read: {text}", path=name) from error


def statistics_of(metadata: pq.FileMetaData) -> dict[str, ColumnStatistics]:
    """Return the statistics of the plain message columns from a file's footer."""
    found: dict[str, ColumnStatistics] = {}
    for index in range(metadata.num_columns):
        column = metadata.schema.column(index)
        if column.max_repetition_level or column.path in _NO_STATISTICS or column.path not in TYPES:
            continue
        groups = [
            metadata.row_group(group).column(index).statistics
            for group in range(metadata.num_row_groups)
        ]
        if all(group is not None and group.has_null_count for group in groups):
            least, most = _bounds(groups)
            nulls = sum(group.null_count for group in groups)
            found[column.path] = ColumnStatistics(nulls, least, most)
    return found


def _bounds(groups: list[Any]) -> tuple[int | str | None, int | str | None]:
    """Return the bounds of row groups. Long texts are truncated, and a truncated upper bound is
    raised."""
    groups = [group for group in groups if group.num_values]
    if not groups or not all(group.has_min_max for group in groups):
        return None, None
    if groups[0].physical_type in {"INT32", "INT64"}:
        # `min` is not used, since the times of Python end with the year 9999.
        return int(min(g.min_raw for g in groups)), int(max(g.max_raw for g in groups))
    least, most = min(g.min for g in groups), max(g.max for g in groups)
    return least[:_BOUND_LENGTH], _cut_upper_bound(most)


def _cut_upper_bound(text: str) -> str:
    if len(text) <= _BOUND_LENGTH:
        return text
    for place in range(_BOUND_LENGTH - 1, -1, -1):
        following = ord(text[place]) + 1
        if following <= sys.maxunicode and not 0xD800 <= following < 0xE000:
            return text[:place] + chr(following)
    return text


def _start_of(group: pq.RowGroupMetaData) -> int:
    column = group.column(0)
    dictionary = column.dictionary_page_offset
    return int(column.data_page_offset if dictionary is None else dictionary)
