"""Tasks of an export."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from itertools import groupby

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tieredstore.contracts.segment import SegmentProvider
from tieredstore.errors import Invalid
from tieredstore.jobs.exporting.bodies.decode import decode_bodies
from tieredstore.jobs.exporting.bodies.schema import BodySchema
from tieredstore.jobs.exporting.dedup.duplicates import DropSection, read_drops
from tieredstore.jobs.exporting.dedup.keys import Array, select_since
from tieredstore.jobs.exporting.files import FileForm, PartitionedFiles, merge_files
from tieredstore.jobs.exporting.plan import RangesTask
from tieredstore.jobs.exporting.state import DataFile
from tieredstore.jobs.exporting.targets.storage import Files, Folder, translate_errors, try_again
from tieredstore.scan.arrow.columns import ArrowColumns, find_compressed_rows, find_sayable_times
from tieredstore.scan.arrow.read import INFLATED_COLUMNS, arrow_batches
from tieredstore.scan.arrow.schema import STORE_TIME_MS, TYPES
from tieredstore.scan.catalogue import QueueFiles
from tieredstore.scan.findings import MOST_FINDINGS, LeftOut, OnFinding, raise_on_damage
from tieredstore.scan.plan import ScanRange
from tieredstore.scan.read.joined import JoinedBatch, group_small, read_joined

_NEEDED = ("store_timestamp", "queue_offset", "physical_offset")
"""Columns that each task always reads."""


class LastRow(msgspec.Struct, frozen=True, array_like=True):
    """Last row and counts of a range. `rows`: exported messages. `early`: messages that were
    omitted because they were stored before `since_ms`. `duplicates`: messages that were omitted as
    duplicates. `oldest_ms`: earliest store time of the exported messages. `unfit`: bodies that do
    not fit the schema. The other fields are offsets and store time of the last message."""

    rows: int
    queue_offset: int | None = None
    physical_offset: int | None = None
    store_timestamp_ms: int | None = None
    oldest_ms: int | None = None
    early: int = 0
    unfit: int = 0
    duplicates: int = 0


@dataclass(frozen=True, slots=True)
class WriteTask(RangesTask):
    """Ranges to write to files. `skip`: omit damaged messages. `bodies`: schema of the body
    columns. `fail_unfit`: end the job if a body does not fit. `first_range`: number of the first
    range in the export. `drops`: duplicates in the task."""

    folder: Folder
    form: FileForm
    skip: bool
    bodies: BodySchema | None = None
    fail_unfit: bool = False
    first_range: int = 0
    drops: tuple[DropSection, ...] = ()


@dataclass(frozen=True, slots=True)
class WriteOutcome:
    """Outcome of a write task. `ranges`: one per range of the task. `findings`: first findings
    about skipped damage. `unfit`: first bodies that do not fit."""

    files: list[DataFile]
    ranges: list[LastRow]
    damage: int = 0
    findings: list[str] = field(default_factory=list)
    unfit: list[str] = field(default_factory=list)


def write(task: WriteTask) -> WriteOutcome:
    """Write the ranges of a task into files. Raises Corrupt, and Unavailable like `try_again`."""
    return try_again(task.folder, task.key, lambda files: _write_once(task, files))


def _write_once(task: WriteTask, target: Files) -> WriteOutcome:
    left_out = LeftOut()
    files = PartitionedFiles(target, task.form)
    provider = task.location.connect()
    with translate_errors(task.folder.place):
        try:
            drops = read_drops(target, task.drops)
            writer = _RangeWriter(
                task, provider, files, drops, left_out if task.skip else raise_on_damage
            )
            last: list[LastRow] = []
            for group in group_small(task.ranges):
                last += writer.write_group(group, task.first_range + len(last))
        finally:
            provider.close()
        return WriteOutcome(files.close(), last, left_out.count, left_out.texts, writer.unfit)


@dataclass
class _RangeWriter:
    """Writes the ranges of a task. `drops`: duplicates by range number."""

    task: WriteTask
    provider: SegmentProvider
    files: PartitionedFiles
    drops: Mapping[int, Array]
    on_finding: OnFinding
    unfit: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._columns = columns_of(self.task.form, self.task.bodies)

    def write_group(self, group: Sequence[ScanRange], first: int) -> list[LastRow]:
        """Write neighbouring ranges. `first`: number of the first range."""
        if len(group) == 1:
            return [self._write_alone(group[0], first)]
        sound, batch = read_joined(self.provider, group)
        if batch is None:
            return [self._write_alone(one, first + place) for place, one in enumerate(group)]
        # Rows read in compressed form are read again with their range. Joined rows are
        # uncompressed.
        inflates = not INFLATED_COLUMNS.isdisjoint(self._columns)
        packed = find_compressed_rows(batch) if inflates else np.zeros(len(batch), np.bool_)
        compares = any(one.since_ms is not None for one in group)
        names = (*self._columns, STORE_TIME_MS) if compares else self._columns
        rows = ArrowColumns(batch).record_batch(names)
        summary = _Summary(batch)
        found: list[LastRow] = []
        pending: list[tuple[str, int]] = []  # topics of the rows to write, and their counts
        begin = end = 0  # rows of `pending`, and rows examined
        places = iter(range(len(batch.counts)))
        for number, (one, is_sound) in enumerate(zip(group, sound, strict=True), first):
            place = next(places) if is_sound else None
            low, end = end, end + (0 if place is None else one.count)
            is_packed = bool(packed[low:end].any())
            is_plain = (
                place is not None
                and not is_packed
                and one.since_ms is None
                and number not in self.drops
                and self.task.bodies is None
                and summary.is_sayable
            )
            if is_plain and place is not None:
                pending.append((one.queue.topic, one.count))
                found.append(summary.last_rows[place])
                continue
            self._write_rows(rows, begin, pending)
            pending, begin = [], end
            if place is None or is_packed:
                found.append(self._write_alone(one, number))
            else:
                found.append(self._write_batches(one, [rows.slice(low, one.count)], number))
        self._write_rows(rows, begin, pending)
        return found

    def _write_rows(
        self, rows: pa.RecordBatch, begin: int, topics: Sequence[tuple[str, int]]
    ) -> None:
        """Write the rows from row number `begin` on. `topics`: the topics of these rows in order,
        and their numbers of rows."""
        if not self.task.form.partition_by.topic and topics:
            topics = [(topics[0][0], sum(count for _, count in topics))]
        for topic, group in groupby(topics, key=lambda one: one[0]):
            count = sum(count for _, count in group)
            self.files.write(topic, rows.slice(begin, count))
            begin += count

    def _write_alone(self, scan_range: ScanRange, number: int) -> LastRow:
        # Times are compared here, so that damage is distinguished from messages stored too early.
        whole = replace(scan_range, since_ms=None)
        batches = arrow_batches(
            self.provider,
            whole,
            self._columns,
            on_finding=self.on_finding,
            with_time_ms=scan_range.since_ms is not None,
        )
        return self._write_batches(scan_range, batches, number)

    def _write_batches(
        self, scan_range: ScanRange, batches: Iterable[pa.RecordBatch], number: int
    ) -> LastRow:
        task, drops = self.task, self.drops.get(number)
        rows, early, duplicates, unfit_rows, last = 0, 0, 0, 0, None
        oldest_us: int | None = None
        for batch in batches:
            chosen = select_since(batch, scan_range.since_ms)
            early += batch.num_rows - chosen.num_rows
            if drops is not None and chosen.num_rows:
                found = chosen.num_rows
                chosen = _drop(chosen, drops)
                duplicates += found - chosen.num_rows
            rows += chosen.num_rows
            if task.bodies is not None and chosen.num_rows:
                decoded = decode_bodies(task.bodies, chosen.column("body"))
                columns = dict(zip(chosen.schema.names, chosen.columns, strict=True))
                columns |= dict(zip(task.bodies.types, decoded.columns, strict=True))
                chosen = pa.RecordBatch.from_pydict(columns)
                for row, reason in decoded.unfit.items():
                    offset = chosen.column("queue_offset")[row].as_py()
                    self._tell_unfit(scan_range.queue, offset, reason)
                unfit_rows += len(decoded.unfit)
            if chosen.num_rows:
                self.files.write(scan_range.queue.topic, chosen)
            last = batch.slice(batch.num_rows - 1).select(_NEEDED)
            least_us = pc.min(chosen.column("store_timestamp").view(pa.int64())).as_py()
            if least_us is not None:
                oldest_us = least_us if oldest_us is None else min(oldest_us, least_us)
        if last is None:
            return LastRow(0)
        time_us = last.column("store_timestamp").view(pa.int64())[0].as_py()
        return LastRow(
            rows,
            last.column("queue_offset")[0].as_py(),
            last.column("physical_offset")[0].as_py(),
            None if time_us is None else time_us // 1000,
            None if oldest_us is None else oldest_us // 1000,
            early,
            unfit_rows,
            duplicates,
        )

    def _tell_unfit(self, queue: QueueFiles, offset: int, reason: str) -> None:
        text = f"{queue.path}, queue offset {offset}: the body does not fit the schema: {reason}"
        if self.task.fail_unfit:
            raise Invalid(text, topic=queue.topic, queue_id=queue.queue_id, offset=offset)
        if len(self.unfit) < MOST_FINDINGS:
            self.unfit.append(text)


class _Summary:
    """Summary of each range of a batch. `is_sayable`: whether all store times fit into 64-bit
    microseconds."""

    def __init__(self, batch: JoinedBatch) -> None:
        columns, ends = batch.columns, np.cumsum(batch.counts)
        times_ms = columns.store_timestamps
        self.is_sayable = bool(find_sayable_times(times_ms).all())
        last = ends - 1
        oldest_ms = np.minimum.reduceat(times_ms, ends - batch.counts)
        described = zip(
            batch.counts.tolist(),
            columns.queue_offsets[last].tolist(),
            columns.physical_offsets[last].tolist(),
            times_ms[last].tolist(),
            oldest_ms.tolist(),
            strict=True,
        )
        self.last_rows = [LastRow(*row) for row in described]


def columns_of(form: FileForm, bodies: BodySchema | None) -> tuple[str, ...]:
    """Return the message columns that a task must read for files of this form."""
    wanted = (*form.columns, *form.partition_by.needed_columns, *_NEEDED)
    decoded = () if bodies is None else ("body",)
    return tuple(name for name in dict.fromkeys((*wanted, *decoded)) if name in TYPES)


def _drop(batch: pa.RecordBatch, drops: Array) -> pa.RecordBatch:
    """Return the rows whose queue offset is not in `drops`. Both are sorted."""
    offsets = batch.column("queue_offset").to_numpy()
    first, last = np.searchsorted(drops, (offsets[0], offsets[-1] + 1))
    if first == last:
        return batch
    return batch.filter(pa.array(~np.isin(offsets, drops[first:last])))


@dataclass(frozen=True, slots=True)
class MergeTask:
    """Small files of one partition to merge."""

    number: int
    folder: Folder
    parts: tuple[DataFile, ...]
    form: FileForm

    @property
    def key(self) -> str:
        return str(self.number)

    @property
    def size_bytes(self) -> int:
        return sum(part.size_bytes for part in self.parts)


def merge(task: MergeTask) -> DataFile:
    """Merge the files of a task. Raises Unavailable."""
    with translate_errors(task.folder.place), closing(task.folder.connect()) as files:
        return merge_files(files, task.parts, task.form)
