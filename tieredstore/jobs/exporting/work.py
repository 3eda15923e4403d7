"""What the tasks of an export do."""

from __future__ import annotations

import logging
import random
import time
from contextlib import closing
from dataclasses import dataclass, field, replace

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from tieredstore.contracts.segment import SegmentProvider
from tieredstore.errors import Invalid, Unavailable
from tieredstore.jobs.exporting.bodies.decode import decode_bodies
from tieredstore.jobs.exporting.bodies.schema import BodySchema
from tieredstore.jobs.exporting.files import FileForm, PartitionedFiles, merge_files
from tieredstore.jobs.exporting.state import DataFile
from tieredstore.jobs.exporting.targets.storage import Files, Folder, translate_errors
from tieredstore.scan.arrow.read import arrow_batches
from tieredstore.scan.arrow.schema import TYPES
from tieredstore.scan.findings import Finding, OnFinding, Severity, raise_on_damage
from tieredstore.scan.location import TierLocation
from tieredstore.scan.plan import ScanRange

_NEEDED = ("store_timestamp", "queue_offset", "physical_offset")
MOST_FINDINGS = 20
"""Kept of each task, as text."""
MAX_ATTEMPTS = 3
"""At one task, where the target is not local."""
_log = logging.getLogger(__name__)


class LastRow(msgspec.Struct, frozen=True, array_like=True):
    """Of a range. rows: how many it gave; early: how many it left out, since they were stored
    before the range's time; oldest_ms: the least store time of all that it gave; unfit: how many of
    their bodies do not fit the schema; the others are those of its last one."""

    rows: int
    queue_offset: int | None = None
    physical_offset: int | None = None
    store_timestamp_ms: int | None = None
    oldest_ms: int | None = None
    early: int = 0
    unfit: int = 0


@dataclass(frozen=True, slots=True)
class WriteTask:
    """Ranges of a tier, to be written to files. skip: leave damaged messages out. bodies: what
    becomes columns of theirs; fail_unfit: one that does not fit ends the job."""

    number: int
    location: TierLocation
    ranges: tuple[ScanRange, ...]
    folder: Folder
    form: FileForm
    skip: bool
    bodies: BodySchema | None = None
    fail_unfit: bool = False

    @property
    def key(self) -> str:
        return str(self.number)

    @property
    def size_bytes(self) -> int:
        return sum(scan_range.size_bytes for scan_range in self.ranges)


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
    Unavailable: for a local target at once, for a remote one after `MAX_ATTEMPTS`, each of which
    writes files of its own. The target's client tries again only what it knows to be passing."""
    with closing(task.folder.connect()) as files:
        for attempt in range(1, MAX_ATTEMPTS + 1):
            try:
                return _write_once(task, files)
            except Unavailable as error:
                if files.is_local or attempt == MAX_ATTEMPTS:
                    raise
                _log.warning("task %s of the export is tried again: %s", task.key, error)
                time.sleep(attempt * random.uniform(0.5, 1))  # noqa: S311
    raise AssertionError


def _write_once(task: WriteTask, target: Files) -> WriteOutcome:
    found: list[str] = []
    unfit: list[str] = []
    damage = 0

    def keep(finding: Finding) -> None:
        nonlocal damage
        if finding.severity is Severity.DAMAGE:
            damage += 1
            if len(found) < MOST_FINDINGS:
                found.append(f"{finding.kind}: {finding}")

    on_finding: OnFinding = keep if task.skip else raise_on_damage
    files = PartitionedFiles(target, task.form)
    provider = task.location.connect()
    with translate_errors(task.folder.place):
        try:
            last = [
                _write_range(provider, item, files, task, on_finding, unfit) for item in task.ranges
            ]
        finally:
            provider.close()
        return WriteOutcome(files.close(), last, damage, found, unfit)


def _write_range(
    provider: SegmentProvider,
    scan_range: ScanRange,
    files: PartitionedFiles,
    task: WriteTask,
    on_finding: OnFinding,
    unfit: list[str],
) -> LastRow:
    wanted = (*task.form.columns, *task.form.partition_by.needed_columns, *_NEEDED)
    bodies = () if task.bodies is None else ("body",)
    columns = tuple(name for name in dict.fromkeys((*wanted, *bodies)) if name in TYPES)
    rows, early, unfit_rows, last = 0, 0, 0, None
    oldest_us: int | None = None
    # Times are compared here, so that damage is told from what was stored too early.
    whole = replace(scan_range, since_ms=None)
    for batch in arrow_batches(provider, whole, columns, on_finding=on_finding):
        chosen = _since(batch, scan_range.since_ms)
        rows += chosen.num_rows
        early += batch.num_rows - chosen.num_rows
        if task.bodies is not None and chosen.num_rows:
            chosen, reasons = _add_bodies(task.bodies, chosen)
            for row, reason in reasons.items():
                offset = chosen.column("queue_offset")[row].as_py()
                _tell_unfit(scan_range, offset, reason, unfit, fail=task.fail_unfit)
            unfit_rows += len(reasons)
        if chosen.num_rows:
            files.write(scan_range.queue.topic, chosen)
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
    )


def _since(batch: pa.RecordBatch, since_ms: int | None) -> pa.RecordBatch:
    """The rows stored at a time or later; a time that microseconds cannot say counts as later."""
    if since_ms is None:
        return batch
    since_us = pa.scalar(min(since_ms * 1000, 2**63 - 1), pa.int64())
    times = batch.column("store_timestamp").view(pa.int64())
    return batch.filter(pc.fill_null(pc.greater_equal(times, since_us), fill_value=True))


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
