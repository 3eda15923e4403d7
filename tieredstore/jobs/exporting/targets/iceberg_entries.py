"""Entries of an Iceberg manifest for data files, from the results of the tasks. pyiceberg's
`add_files` would read each file's footer again, search the whole table for its name, and convert
times to Python's, which end with the year 9999."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tieredstore.jobs.exporting.partition import Partition, day_text
from tieredstore.jobs.exporting.state import DataFile

_FIRST_HOUR, _LAST_HOUR = -(1 << 31), (1 << 31) - 1
"""First and last hour that Iceberg can represent: 244,983 years before and after 1970. Rows with
other hours get the nearest one."""


def data_files(table: Any, folder: str, files: Sequence[DataFile]) -> list[Any]:
    """Return the entries of data files of a folder, for an append to a table."""
    if any(_is_far(file.partition.day) for file in files):
        table.metadata = _name_far_days(table.metadata)
    return [_entry(table, folder, file) for file in files]


def _entry(table: Any, folder: str, file: DataFile) -> Any:
    from pyiceberg.conversions import to_bytes
    from pyiceberg.manifest import DataFile as Entry
    from pyiceberg.manifest import DataFileContent, FileFormat

    nulls, least, most = {}, {}, {}
    for name, found in file.statistics.items():
        column = table.schema().find_field(name)
        nulls[column.field_id] = found.nulls
        if found.least is not None:
            least[column.field_id] = to_bytes(column.field_type, found.least)
        if found.most is not None:
            most[column.field_id] = to_bytes(column.field_type, found.most)
    return Entry.from_args(
        content=DataFileContent.DATA,
        file_path=f"{folder}/{file.name}",
        file_format=FileFormat.PARQUET,
        partition=_partition(table, file),
        record_count=file.rows,
        file_size_in_bytes=file.size_bytes,
        column_sizes={},
        value_counts=dict.fromkeys(nulls, file.rows),
        null_value_counts=nulls,
        nan_value_counts={},
        lower_bounds=least,
        upper_bounds=most,
        key_metadata=None,
        split_offsets=file.row_groups,
        equality_ids=None,
        sort_order_id=None,
        spec_id=table.metadata.default_spec_id,
    )


def _partition(table: Any, file: DataFile) -> Any:
    """Return one value for each field of the table's partition spec."""
    from pyiceberg.transforms import BucketTransform
    from pyiceberg.typedef import Record

    values = []
    for field in table.spec().fields:
        if isinstance(field.transform, BucketTransform):
            values.append(file.partition.bucket)
            continue
        column = table.schema().find_field(field.source_id)
        is_topic = column.name == "topic"
        value = file.partition.topic if is_topic else _time_of(file.partition)
        found = None if value is None else field.transform.transform(column.field_type)(value)
        if not is_topic and found is not None:
            found = max(_FIRST_HOUR, min(found, _LAST_HOUR))
        values.append(found)
    return Record(*values)


def _time_of(partition: Partition) -> int | None:
    """Return a store time within the day and hour of a partition, µs."""
    if partition.day is None:
        return None
    return (partition.day * 24 + (partition.hour or 0)) * 3_600_000_000


def _is_far(day: int | None) -> bool:
    return day is not None and day_text(day) is None


def _name_far_days(metadata: Any) -> Any:
    """Return table metadata whose partition fields can print days after the year 9999. pyiceberg
    prints each partition in the summary of a snapshot."""
    from pyiceberg.partitioning import PartitionField, PartitionSpec
    from pyiceberg.transforms import DayTransform, HourTransform
    from pyiceberg.types import IcebergType

    class FarDayTransform(DayTransform[object]):
        def to_human_string(self, _: IcebergType, value: Any) -> str:
            return "null" if value is None else day_text(value) or str(value)

    class FarHourTransform(HourTransform[object]):
        def to_human_string(self, source: IcebergType, value: Any) -> str:
            is_near = value is None or not _is_far(value // 24)
            return str(super().to_human_string(source, value)) if is_near else str(value)

    def far(field: Any) -> Any:
        for kind, own in ((DayTransform, FarDayTransform), (HourTransform, FarHourTransform)):
            if isinstance(field.transform, kind):
                return PartitionField(field.source_id, field.field_id, own(), field.name)
        return field

    specs = [
        PartitionSpec(*map(far, spec.fields), spec_id=spec.spec_id)
        for spec in metadata.partition_specs
    ]
    return metadata.model_copy(update={"partition_specs": specs})
