"""Partitioning of rows by topic, day, hour and bucket, with Hive-style folders."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from urllib.parse import quote

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tieredstore.errors import Invalid
from tieredstore.jobs.exporting.buckets import bucket_numbers
from tieredstore.message.names import MAX_NAME_BYTES
from tieredstore.scan.arrow.schema import TYPES

NULL_PARTITION = "__HIVE_DEFAULT_PARTITION__"
_EPOCH = date(1970, 1, 1)
_FIRST_DAY, _LAST_DAY = -719_162, 2_932_896
"""First day of the year 1 and last day of the year 9999, as days since 1970-01-01."""
FIRST_TIME_US, LAST_TIME_US = _FIRST_DAY * 86_400_000_000, (_LAST_DAY + 1) * 86_400_000_000 - 1
_DAY_US, _HOUR_US = 86_400_000_000, 3_600_000_000
_NULL = np.iinfo(np.int64).min
_MOST_BUCKETS = 256
_BUCKET = re.compile(r"bucket\(\s*(\d{1,4})\s*(?:,\s*(\w+)\s*)?\)", re.ASCII)
_WORD = re.compile(r"\s*(bucket\([^)]*\)|[^,()]+)\s*(?:,|$)")


class Partition(msgspec.Struct, frozen=True, array_like=True, order=True):
    """Partition values that all rows of one data file share. Unused fields are None. `day`: days
    since 1970-01-01 (UTC), None for null store times. `hour`: 0 to 23, None for null store times.
    `era`: 0, or another number for times outside of four-digit years (`eras_of`)."""

    topic: str | None = None
    day: int | None = None
    hour: int | None = None
    bucket: int | None = None
    era: int = 0


@dataclass(frozen=True, slots=True)
class PartitionBy:
    """Partitioning of a target. `hour`: partition by day and hour. `buckets`: number of buckets, 0
    for none."""

    topic: bool = True
    day: bool = True
    hour: bool = False
    buckets: int = 0
    bucket_column: str = "msg_id"

    @property
    def names(self) -> list[str]:
        """Names of the partition fields as given."""
        bucket = f"bucket({self.buckets}, {self.bucket_column})"
        found = {"topic": self.topic, "day": self.day, "hour": self.hour, bucket: self.buckets > 0}
        return [name for name, is_on in found.items() if is_on]

    @property
    def types(self) -> dict[str, pa.DataType]:
        """Columns whose values are in folder names instead of data files."""
        found = {
            "topic": (self.topic, TYPES["topic"]),
            "day": (self.day, pa.date32()),
            "hour": (self.hour, pa.int32()),
            "bucket": (self.buckets > 0, pa.int32()),
        }
        return {name: type_ for name, (is_on, type_) in found.items() if is_on}

    @property
    def needed_columns(self) -> tuple[str, ...]:
        """Message columns that partitioning needs."""
        return ("topic", "store_timestamp", *([self.bucket_column] if self.buckets else []))

    def values(self, partition: Partition) -> dict[str, str | None]:
        """Return the value of each column, as text."""
        found = {name: getattr(partition, name) for name in self.types}
        texts = {name: None if value is None else str(value) for name, value in found.items()}
        return texts | ({"day": day_text(partition.day)} if "day" in texts else {})

    def folder(self, partition: Partition) -> str:
        """Return the folder such as `topic=…/day=…`, or empty without a partition."""
        return "/".join(
            f"{name}={NULL_PARTITION if value is None else quote(value, safe='')}"
            for name, value in self.values(partition).items()
        )

    def require_names(self, topics: Iterable[str], target: str) -> None:
        """Raise Invalid for a topic whose name is too long for a folder name. Its commit could
        never be published, and every later export would fail too."""
        for topic in sorted(topics) if self.topic else ():
            size = len(self.folder(Partition(topic)).partition("/")[0])
            if size > MAX_NAME_BYTES:
                raise Invalid(
                    f"{target}: topic {topic!r}: its folder would have a name of {size} bytes, at "
                    f"most {MAX_NAME_BYTES} are possible. Leave it out (--topics), or export it by "
                    "itself, not partitioned by topic (--partition-by day)",
                    topic=topic,
                    path=target,
                )

    def cut(self, topic: str, batch: pa.RecordBatch) -> Iterator[tuple[Partition, pa.RecordBatch]]:
        """Cut the rows of one topic into partitions. The batch has the needed columns."""
        count = batch.num_rows
        if not count:
            return
        none = np.full(count, _NULL)
        times = none
        if self.day or self.hour:
            column = batch.column("store_timestamp").view(pa.int64())
            times = pc.fill_null(column, _NULL).to_numpy()
            unit = _HOUR_US if self.hour else _DAY_US
            times = np.where(times == _NULL, _NULL, times // unit)
        buckets = none
        if self.buckets:
            buckets = bucket_numbers(batch.column(self.bucket_column), self.buckets, _NULL)
        eras = eras_of(batch)
        keys = [times, buckets, np.zeros(count, np.int64) if eras is None else eras]
        groups = _group(keys)
        for rows in groups:
            time, bucket, era = (int(key[0 if rows is None else rows[0]]) for key in keys)
            yield (
                self._partition(topic, time, bucket, era),
                batch if rows is None else batch.take(pa.array(rows)),
            )

    def _partition(self, topic: str, time: int, bucket: int, era: int) -> Partition:
        day, hour = None, None
        if time != _NULL:
            day, hour = divmod(time, 24) if self.hour else (time, None)
        number = None if bucket == _NULL else bucket
        return Partition(topic if self.topic else None, day, hour, number, era)


BY_TOPIC_AND_DAY = PartitionBy()


def parse_partition_by(given: str | Sequence[str]) -> PartitionBy:
    """Parse `topic,hour,bucket(16)`, a sequence of such names, or `none`. Raises Invalid."""
    names = _split(given) if isinstance(given, str) else list(given)
    if names == ["none"]:
        names = []
    found = {"topic": False, "day": False, "hour": False}
    buckets, column = 0, "msg_id"
    for name in names:
        bucket = _BUCKET.fullmatch(name)
        if bucket is not None:
            buckets, column = int(bucket[1]), bucket[2] or "msg_id"
            if not 1 <= buckets <= _MOST_BUCKETS:
                raise Invalid(
                    f"partition_by: expected 1 to {_MOST_BUCKETS} buckets, found {bucket[1]}"
                )
            if TYPES.get(column) not in (pa.string(), pa.int32(), pa.int64()):
                raise Invalid(
                    f"partition_by: expected a bucket of a column of text or numbers, such as "
                    f"msg_id or queue_id, found {column!r}"
                )
        elif name in found:
            found[name] = True
        else:
            raise Invalid(
                f"partition_by: expected topic, day, hour, bucket(N), bucket(N, column), or none, "
                f"found {name!r}"
            )
    return PartitionBy(
        found["topic"], found["day"] or found["hour"], found["hour"], buckets, column
    )


def day_text(day: int | None) -> str | None:
    """Return the day in ISO 8601, or None for null and for days outside of four-digit years."""
    if day is None or not _FIRST_DAY <= day <= _LAST_DAY:
        return None
    return (_EPOCH + timedelta(days=day)).isoformat()


def eras_of(batch: pa.RecordBatch) -> np.ndarray | None:
    """Return a number for each row that shows which of its times are before the year 1 or after the
    year 9999. It is 0 if none is. Return None if all are 0. Rows with different numbers go to
    different files, because a table's log cannot represent such times."""
    found: np.ndarray | None = None
    weight = 1
    for column in batch.columns:
        if not pa.types.is_timestamp(column.type):
            continue
        times = pc.fill_null(column.cast(pa.int64()), 0).to_numpy()
        if len(times) and (times.min() < FIRST_TIME_US or times.max() > LAST_TIME_US):
            era = (times < FIRST_TIME_US) + 2 * (times > LAST_TIME_US)
            found = era * weight + (0 if found is None else found)
        weight *= 3
    return found


def _group(keys: Sequence[np.ndarray]) -> Iterator[np.ndarray | None]:
    """Yield groups of rows with the same keys. None means all rows."""
    varying = [key for key in keys if len(key) and key.min() != key.max()]
    if not varying:
        yield None
        return
    codes = np.zeros(len(keys[0]), np.int64)
    for key in varying:
        found, inverse = np.unique(key, return_inverse=True)
        codes = codes * len(found) + inverse
    order = np.argsort(codes, kind="stable")
    yield from np.split(order, np.flatnonzero(np.diff(codes[order])) + 1)


def _split(text: str) -> list[str]:
    names, place = [], 0
    while place < len(text):
        found = _WORD.match(text, place)
        if found is None:
            raise Invalid(
                f"partition_by {text!r}, character {place + 1}: expected names such as "
                "topic,day,bucket(16)"
            )
        names.append(found[1].strip())
        place = found.end()
    return names
