"""First pass over a table: find the queue, the order and the record size of each row. Bodies are
not read if the table has their lengths."""

from __future__ import annotations

import zlib
from collections import defaultdict
from dataclasses import dataclass

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tieredstore.errors import Invalid
from tieredstore.jobs.backfilling.rows import (
    RowRules,
    add_message_ids,
    columns_of,
    first_failing,
    messages_of,
    topic_fault,
)
from tieredstore.jobs.backfilling.table_files import Place, Table, TableFile
from tieredstore.jobs.run import gather_groups
from tieredstore.message.encoding import topic_field
from tieredstore.scan.arrow.buffers import Int64s
from tieredstore.scan.arrow.encode import record_sizes


@dataclass(frozen=True, slots=True)
class MeasureTask:
    """Task that measures some row groups of a table. `files`: each file and the numbers of its row
    groups."""

    url: str
    files: tuple[tuple[TableFile, tuple[int, ...]], ...]
    rules: RowRules
    size_bytes: int

    @property
    def key(self) -> str:
        file, groups = self.files[0]
        return f"{file.name}#{groups[0]}"


class QueueRows(msgspec.Struct):
    """Rows of one queue in table order: row numbers, queue offsets (-1 for none), store times (ms)
    and record sizes (bytes). Each column is packed by `pack_numbers`."""

    topic: str
    queue_id: int
    rows: bytes
    offsets: bytes
    times: bytes
    sizes: bytes


class Measured(msgspec.Struct):
    """Result of a measuring task. `queues`: the rows of each queue. `brokers`: broker names in the
    rows."""

    queues: list[QueueRows]
    brokers: list[str]


def pack_numbers(values: Int64s) -> bytes:
    """Pack numbers that are mostly consecutive into few bytes."""
    steps = np.diff(values, prepend=0)
    low, high = (int(steps.min()), int(steps.max())) if len(steps) else (0, 0)
    # Signed: from an unsigned and a negative number numpy would make floats, which lose bits.
    dtype = np.min_scalar_type(min(low, -1 - high))
    return dtype.char.encode() + zlib.compress(steps.astype(dtype).tobytes(), 1)


def unpack_numbers(data: bytes) -> Int64s:
    """Unpack numbers packed by `pack_numbers`."""
    steps = np.frombuffer(zlib.decompress(data[1:]), np.dtype(data[:1].decode()))
    return np.cumsum(steps, dtype=np.int64)


def measure_tasks(
    url: str, files: list[TableFile], rules: RowRules, task_bytes: int
) -> list[MeasureTask]:
    """Cut a table into tasks, in table order."""
    groups = [(file, group) for file in files for group, rows in enumerate(file.group_rows) if rows]
    tasks = []
    for part in gather_groups(groups, lambda item: item[0].group_bytes[item[1]], task_bytes):
        of_files: dict[TableFile, list[int]] = defaultdict(list)
        for file, group in part:
            of_files[file].append(group)
        size = sum(file.group_bytes[group] for file, group in part)
        pairs = tuple((file, tuple(chosen)) for file, chosen in of_files.items())
        tasks.append(MeasureTask(url, pairs, rules, size))
    return tasks


def measure(task: MeasureTask) -> Measured:
    """Measure the rows of a task. Raises Invalid for rows that are not messages, Unavailable."""
    table = Table(task.url)
    queues: dict[tuple[str, int], list[tuple[Int64s, Int64s, Int64s, Int64s]]]
    queues = defaultdict(list)
    brokers: set[str] = set()
    for file, groups in task.files:
        columns = columns_of(file.columns, lengths_only=True)
        for rows in table.read(file, groups, columns):
            batch = messages_of(rows, task.rules)
            if "broker" in batch.schema.names:
                brokers.update(batch.column("broker").unique().drop_null().to_pylist())
            topics = batch.column("topic").dictionary_encode()
            names = topics.dictionary.to_pylist()
            numbers = topics.indices.to_numpy().astype(np.int64)
            ids = batch.column("queue_id").to_numpy().astype(np.int64)
            _check_topics(topics, rows.place, task.rules)
            sizes = _sizes(batch, rows.place, names, numbers, task.rules.max_body_bytes)
            offsets = pc.fill_null(batch.column("queue_offset"), -1).to_numpy()
            times = batch.column("store_timestamp").to_numpy()
            row_numbers = rows.first_row + np.arange(batch.num_rows)
            both = numbers << 32 | ids
            order = np.argsort(both, kind="stable")
            values, starts = np.unique(both[order], return_index=True)
            for value, its in zip(values.tolist(), np.split(order, starts[1:]), strict=True):
                queues[names[value >> 32], value & 0xFFFFFFFF].append(
                    (row_numbers[its], offsets[its], times[its], sizes[its])
                )
    found = []
    for (topic, queue_id), parts in queues.items():
        columns_ = [pack_numbers(np.concatenate(column)) for column in zip(*parts, strict=True)]
        found.append(QueueRows(topic, queue_id, *columns_))
    return Measured(found, sorted(brokers))


def _check_topics(topics: pa.DictionaryArray, place: Place, rules: RowRules) -> None:
    for number, topic in enumerate(topics.dictionary.to_pylist()):
        fault = topic_fault(topic, rules)
        if fault is not None:
            row = place.row + int(pc.index(topics.indices, number).as_py())
            where = Place(place.file, place.group, row)
            raise Invalid(f"{where}, column topic: {topic[:300]!r}: {fault}", topic=topic)


def _sizes(
    batch: pa.RecordBatch, place: Place, names: list[str], numbers: Int64s, max_body_bytes: int
) -> Int64s:
    lengths = np.array([len(topic_field(name)[1]) for name in names], np.int64)[numbers]
    batch = add_message_ids(batch, "", 0, None)

    def sizes_of(part: pa.RecordBatch, topic_lengths: Int64s) -> Int64s:
        bodies = part.column("body_length").to_numpy().astype(np.int64)
        return record_sizes(part, bodies, topic_lengths, max_body_bytes)

    try:
        return sizes_of(batch, lengths)
    except Invalid:
        longest = int(lengths.max())

        def check(part: pa.RecordBatch) -> None:
            sizes_of(part, np.full(part.num_rows, longest, np.int64))

        raise first_failing(place, batch, check) from None
