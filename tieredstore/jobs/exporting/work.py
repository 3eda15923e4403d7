"""What the tasks of an export do."""

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
from tieredstore.jobs.exporting.attempts import try_again
from tieredstore.jobs.exporting.bodies.decode import decode_bodies
from tieredstore.jobs.exporting.bodies.schema import BodySchema
from tieredstore.jobs.exporting.dedup.duplicates import DropSection, read_drops
from tieredstore.jobs.exporting.dedup.keys import Array, select_since
from tieredstore.jobs.exporting.files import FileForm, PartitionedFiles, merge_files
from tieredstore.jobs.exporting.left_out import MOST_FINDINGS, LeftOut
from tieredstore.jobs.exporting.plan import RangesTask
from tieredstore.jobs.exporting.state import DataFile
from tieredstore.jobs.exporting.targets.storage import Files, Folder, translate_errors
from tieredstore.scan.arrow.columns import (
    ArrowColumns,
    find_compressed_rows,
    find_sayable_times,
)
from tieredstore.scan.arrow.read import INFLATED_COLUMNS, arrow_batches
from tieredstore.scan.arrow.schema import TYPES
from tieredstore.scan.findings import OnFinding, raise_on_damage
from tieredstore.scan.plan import ScanRange
from tieredstore.scan.read.joined import JoinedBatch, group_small, read_joined

_NEEDED = ("store_timestamp", "queue_offset", "physical_offset")
"""Kept of each task, as text."""


class LastRow(msgspec.Struct, frozen=True, array_like=True):
    """Of a range. rows: how many it gave; early: how many it left out, since they were stored
    before the range's time; duplicates: how many since they were duplicates; oldest_ms: the least
    store time of all that it gave; unfit: how many of their bodies do not fit the schema; the
    others are those of its last one."""

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
    """Ranges to be written to files. skip: leave damaged messages out. bodies: what
    becomes columns of theirs; fail_unfit: one that does not fit ends the job. first_range: number
    of the first range in the export; drops: its messages that are duplicates."""

    folder: Folder
    form: FileForm
    skip: bool
    bodies: BodySchema | None = None
    fail_unfit: bool = False
    first_range: int = 0
    drops: tuple[DropSection, ...] = ()


@dataclass(frozen=True, slots=True)
class WriteOutcome:
    """ranges: one for each of the task's. findings: damage that was left out, the first of it.
    unfit: bodies that do not fit, the first of them."""

    files: list[DataFile]
    ranges: list[LastRow]
    damage: int = 0
    findings: list[str] = field(default_factory=list)
    unfit: list[str] = field(default_factory=list)


def write(task: WriteTask) -> WriteOutcome:
    """Write the ranges of a task into files. Raises Corrupt, which names segment and byte, and
    Unavailable as `try_again`."""
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


class _RangeWriter:
    """Writes the ranges of a task. drops: by the number of the range."""

    def __init__(
        self,
        task: WriteTask,
        provider: SegmentProvider,
        files: PartitionedFiles,
        drops: Mapping[int, Array],
        on_finding: OnFinding,
    ) -> None:
        self._task = task
        self._provider = provider
        self._files = files
        self._drops = drops
        self._on_finding = on_finding
        self._columns = columns_of(task.form, task.bodies)
        self.unfit: list[str] = []

    def write_group(self, group: Sequence[ScanRange], first: int) -> list[LastRow]:
        """Write neighbours, of which the first has that number."""
        if len(group) == 1:
            return [self._write_alone(group[0], first)]
        sound, batch = read_joined(self._provider, group)
        if batch is None:
            return [self._write_alone(one, first + place) for place, one in enumerate(group)]
        # Rows that are compressed are read again, with their range: joined ones are as they were.
        inflates = not INFLATED_COLUMNS.isdisjoint(self._columns)
        packed = find_compressed_rows(batch) if inflates else np.zeros(len(batch), np.bool_)
        rows = ArrowColumns(batch).record_batch(self._columns)
        summary = _Summary(batch)
        found: list[LastRow] = []
        pending: list[tuple[str, int]] = []  # topics of what is to be written, and their rows
        begin = end = 0  # rows of `pending`, and of what was looked at
        places = iter(range(len(batch.counts)))
        for number, (one, is_sound) in enumerate(zip(group, sound, strict=True), first):
            place = next(places) if is_sound else None
            low, end = end, end + (0 if place is None else one.count)
            is_packed = bool(packed[low:end].any())
            is_plain = (
                place is not None
                and not is_packed
                and one.since_ms is None
                and number not in self._drops
                and self._task.bodies is None
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
        """Write rows from one on, so many of each topic."""
        if not self._task.form.partition_by.topic and topics:
            topics = [(topics[0][0], sum(count for _, count in topics))]
        for topic, group in groupby(topics, key=lambda one: one[0]):
            count = sum(count for _, count in group)
            self._files.write(topic, rows.slice(begin, count))
            begin += count

    def _write_alone(self, scan_range: ScanRange, number: int) -> LastRow:
        # Times are compared here, so that damage is told from what was stored too early.
        whole = replace(scan_range, since_ms=None)
        batches = arrow_batches(self._provider, whole, self._columns, on_finding=self._on_finding)
        return self._write_batches(scan_range, batches, number)

    def _write_batches(
        self, scan_range: ScanRange, batches: Iterable[pa.RecordBatch], number: int
    ) -> LastRow:
        task, drops = self._task, self._drops.get(number)
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
                chosen, reasons = _add_bodies(task.bodies, chosen)
                for row, reason in reasons.items():
                    offset = chosen.column("queue_offset")[row].as_py()
                    _tell_unfit(scan_range, offset, reason, self.unfit, fail=task.fail_unfit)
                unfit_rows += len(reasons)
            if chosen.num_rows:
                self._files.write(scan_range.queue.topic, chosen)
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


class _Summary:
    """What is kept of each range of a batch. is_sayable: whether Arrow can say all times."""

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
    """Return the columns of messages that are read to write files of that form."""
    wanted = (*form.columns, *form.partition_by.needed_columns, *_NEEDED)
    decoded = () if bodies is None else ("body",)
    return tuple(name for name in dict.fromkeys((*wanted, *decoded)) if name in TYPES)


def _drop(batch: pa.RecordBatch, drops: Array) -> pa.RecordBatch:
    """The rows whose queue offset is none of `drops`, which are sorted, as the rows are."""
    offsets = batch.column("queue_offset").to_numpy()
    first, last = np.searchsorted(drops, (offsets[0], offsets[-1] + 1))
    if first == last:
        return batch
    return batch.filter(pa.array(~np.isin(offsets, drops[first:last])))


def _add_bodies(schema: BodySchema, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, dict[int, str]]:
    """The batch with the columns of its bodies, and the rows whose bodies do not fit."""
    decoded = decode_bodies(schema, batch.column("body"))
    columns = dict(zip(batch.schema.names, batch.columns, strict=True))
    columns |= dict(zip(schema.types, decoded.columns, strict=True))
    return pa.RecordBatch.from_pydict(columns), decoded.unfit


def _tell_unfit(
    scan_range: ScanRange, offset: int, reason: str, unfit: list[str], *, fail: bool
) -> None:
    queue = scan_range.queue
    text = f"{queue.path}, queue offset {offset}: the body does not fit the schema: {reason}"
    if fail:
        raise Invalid(text, topic=queue.topic, queue_id=queue.queue_id, offset=offset)
    if len(unfit) < MOST_FINDINGS:
        unfit.append(text)


@dataclass(frozen=True, slots=True)
class MergeTask:
    """Small files of one partition, to become one."""

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
