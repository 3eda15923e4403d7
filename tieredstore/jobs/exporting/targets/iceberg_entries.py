"""Data files as entries of an Iceberg manifest, of what the tasks said of them.

pyiceberg's own `add_files` reads each file's footer again, looks for its name in the whole table,
and takes times for Python's, which end with the year 9999.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tieredstore.errors import Invalid
from tieredstore.jobs.exporting.partition import day_text
from tieredstore.jobs.exporting.state import DataFile

_TIME = "store_timestamp"


def data_files(table: Any, folder: str, files: Sequence[DataFile]) -> list[Any]:
    """Return the entries of data files of a folder, for an append to a table."""
    if any(file.day is not None and day_text(file.day) is None for file in files):
        table.metadata = _name_far_days(table.metadata)
    return [_entry(table, folder, file) for file in files]


def require_cut(table: Any, where: str) -> None:
    """Raise Invalid for a table that is partitioned finer than the files are cut: by topic and
    day."""
    from pyiceberg.transforms import DayTransform, MonthTransform, VoidTransform, YearTransform

    for field in table.spec().fields:
        name = table.schema().find_column_name(field.source_id)
        days = isinstance(field.transform, (DayTransform, MonthTransform, YearTransform))
        if not (
            isinstance(field.transform, VoidTransform)
            or name == "topic"
            or (name == _TIME and days)
        ):
            raise Invalid(
                f"{where}: partitioned by {field.transform} of {name}: expected topic, or day, "
                f"month or year of {_TIME}"
            )


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
    """One value of each field of the table's partition spec; `require_cut` has looked at it."""
    from pyiceberg.typedef import Record

    values = []
    for field in table.spec().fields:
        column = table.schema().find_field(field.source_id)
        value = file.topic if column.name == "topic" else _time_of(file)
        transform = field.transform.transform(column.field_type)
        values.append(None if value is None else transform(value))
    return Record(*values)


def _time_of(file: DataFile) -> int | None:
    """A store time of the file's day, µs."""
    if file.day is None:
        return None
    return file.day * 86_400_000_000


def _name_far_days(metadata: Any) -> Any:
    """The metadata for one append, with days that have a name beyond the year 9999 too: pyiceberg
    names each partition in a snapshot's summary. The catalog's own are not changed."""
    from pyiceberg.partitioning import PartitionField, PartitionSpec
    from pyiceberg.transforms import DayTransform
    from pyiceberg.types import IcebergType

    class FarDayTransform(DayTransform[Any]):
        def to_human_string(self, _: IcebergType, value: Any) -> str:
            return "null" if value is None else day_text(value) or str(value)

    def far(field: Any) -> Any:
        if not isinstance(field.transform, DayTransform):
            return field
        return PartitionField(field.source_id, field.field_id, FarDayTransform(), field.name)

    specs = [
        PartitionSpec(*map(far, spec.fields), spec_id=spec.spec_id)
        for spec in metadata.partition_specs
    ]
    return metadata.model_copy(update={"partition_specs": specs})
