"""`export`: plans on the driver, writes files in tasks, commits once."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from itertools import chain

from msgspec import UNSET

from tieredstore.clock import Clock
from tieredstore.errors import Corrupt, Fenced, Unavailable
from tieredstore.jobs.exporting.dedup.drops import (
    KNOWN_STEP,
    DropFinder,
    Drops,
    first_ranges,
    taken_from,
)
from tieredstore.jobs.exporting.files import FileForm
from tieredstore.jobs.exporting.following import Behind
from tieredstore.jobs.exporting.partition import Partition
from tieredstore.jobs.exporting.per_topic import (
    JobReport,
    export_each,
    is_per_topic,
    measure_each,
    split_by_topic,
)
from tieredstore.jobs.exporting.plan import Plan, PlannedRange, make_plan, scan_ranges
from tieredstore.jobs.exporting.report import Written, find_positions, make_report
from tieredstore.jobs.exporting.request import ExportRequest, Format, OnCorrupt, OnUnfit
from tieredstore.jobs.exporting.resuming import find_lost
from tieredstore.jobs.exporting.state import (
    DataFile,
    Target,
    TargetState,
    identity_of,
    require_same,
    version_of,
)
from tieredstore.jobs.exporting.targets.storage import Folder
from tieredstore.jobs.exporting.work import (
    MergeTask,
    WriteOutcome,
    WriteTask,
    columns_of,
    merge,
    write,
)
from tieredstore.jobs.run import TASK_BYTES, JobRun, gather_groups
from tieredstore.scan.ahead import map_ahead
from tieredstore.scan.catalogue import TierCatalogue, load_catalogue
from tieredstore.scan.extents import QueueReader
from tieredstore.scan.location import TierLocation
from tieredstore.scan.plan import ScanRange, store_time

_log = logging.getLogger(__name__)
_SMALL = 4
"""Files below this part of the wanted size are merged."""


def run_export(
    run: JobRun, location: TierLocation, request: ExportRequest, *, task_bytes: int = TASK_BYTES
) -> dict[str, object]:
    """Export what the target does not have yet, and return the report (`docs/jobs.md`).

    A run that was killed goes on with its journal; without it, or where the target lacks what the
    run had written there, a new run begins where the target ends. Raises Invalid (a target of
    something else, a gap, a topic that was made again), Corrupt (names segment and byte), Fenced
    (another export committed meanwhile), Unavailable.
    """
    target = target_of(request)
    target.prepare()
    catalogue = cache(lambda: _catalogue(location))
    pinned = run.journal if "pin" in run.journal else None

    def pin() -> Plan:
        plan = run.do_once(
            "pin", lambda: _pin_plan(location, catalogue(), request, target, task_bytes), Plan
        )
        if plan.tasks:
            target.make()
        return plan

    plan = pin()
    lost = None if pinned is None else find_lost(pinned, plan, target)
    if lost is not None:
        _log.warning("%s: begins anew: %s", request.target, lost)
        run.journal.begin_anew()
        plan = pin()
    export = PinnedExport(run, location, request, target, plan, task_bytes)
    export.require_turn()
    try:
        written = export.write_files(catalogue)
    except Corrupt as error:
        _require_alive(run, location, plan, error)
        raise
    except Unavailable:
        # An export that committed meanwhile removes what others have staged. Where the target
        # cannot be asked either, the first error says why.
        with suppress(Unavailable):
            export.require_turn()
        raise
    commit: str | None = None
    # A first export without a message leaves no target: it would bind the next one to its columns,
    # its partitions and its choice of topics.
    if plan.positions and (plan.base or plan.tasks):
        commit = run.do_once("commit", lambda: export.commit(written), str)
        used = {file.name for file in written.files}
        target.discard(export.folder, [name for name in written.names if name not in used])
    return run.report(make_report(request, plan, written, commit))


@dataclass(frozen=True, slots=True)
class PinnedExport:
    """One export whose plan is pinned."""

    run: JobRun
    location: TierLocation
    request: ExportRequest
    target: Target
    plan: Plan
    task_bytes: int

    @property
    def folder(self) -> Folder:
        return self.target.folder(self.plan.base, self.plan.export)

    def require_turn(self) -> TargetState:
        """Return the target's state, if this export can be committed or is. A journal of one that
        cannot is of no more use."""
        state = self.target.load()
        if state.sequence != self.plan.base and state.export != self.plan.export:
            self.run.journal.finish()
            raise Fenced(
                f"{self.request.target}: another export was committed meanwhile: expected commit "
                f"{self.plan.base} to be the last, found {state.sequence}; run again to export "
                "what it left",
                path=self.request.target,
            )
        return state

    def write_files(self, catalogue: Callable[[], TierCatalogue]) -> Written:
        """Do the tasks. Raises Corrupt, Unavailable."""
        form, short = self._form(), self.plan.export[:8]
        ranges = list(scan_ranges(catalogue(), self.plan.tasks)) if self.plan.tasks else []
        drops = self._find_drops(catalogue, ranges, form)
        tasks = [
            WriteTask(
                number,
                self.location,
                items,
                self.folder,
                replace(form, prefix=f"{short}-{number:05d}"),
                self._skips,
                self.request.body_schema,
                self.request.on_unfit is OnUnfit.FAIL,
                first,
                drops.sections.get(number, ()),
            )
            for number, (items, first) in enumerate(zip(ranges, first_ranges(ranges), strict=True))
        ]
        written: list[WriteOutcome] = self.run.map("write", write, tasks, WriteOutcome)
        if drops.ranges:
            found = ([row.rows + row.duplicates for row in outcome.ranges] for outcome in written)
            drops.require_same_rows(self.run, list(found))
        staged = [file for outcome in written for file in outcome.files]
        kept, groups = _group_small_files(staged, form.target_bytes)
        merges = [
            MergeTask(number, self.folder, group, replace(form, prefix=f"{short}-m{number:05d}"))
            for number, group in enumerate(groups)
        ]
        files: list[DataFile] = [*kept, *self.run.map("merge", merge, merges, DataFile)]
        names = {*(file.name for file in (*staged, *files)), *drops.names}
        return Written(written, drops, files, sorted(names))

    @property
    def _skips(self) -> bool:
        return self.request.on_corrupt is OnCorrupt.SKIP

    def _form(self) -> FileForm:
        request = self.request
        return FileForm(
            self.target.file_columns,
            self.plan.export,
            ".part" if request.format is Format.PARQUET else ".parquet",
            request.target_file_bytes,
            request.zstd_level,
            in_folders=request.format is Format.DELTA,
            partition_by=request.partition_by,
        )

    def _find_drops(
        self,
        catalogue: Callable[[], TierCatalogue],
        ranges: list[tuple[ScanRange, ...]],
        form: FileForm,
    ) -> Drops:
        if self.request.dedup_window_ms is None or not ranges:
            return Drops()
        return DropFinder(
            self.run,
            self.location,
            catalogue(),
            self.plan,
            self.folder,
            columns_of(form, self.request.body_schema),
            self._skips,
            self.request.dedup_window_ms,
            self.task_bytes,
        ).find(ranges)

    def commit(self, written: Written) -> str:
        """Return the name of the commit, made if no run of this export has made it. Raises Fenced,
        Unavailable."""
        try:
            state = self.require_turn()
            if state.export == self.plan.export:
                return self.target.find_commit(state)
            commit = self.target.commit(self._following(state, written), written.files)
            return self.target.find_commit(self.require_turn()) if commit is None else commit
        except Fenced:
            self.target.discard(self.folder, written.names)
            raise

    def _following(self, state: TargetState, written: Written) -> TargetState:
        """The state behind this export."""
        identity = identity_of(self.location, self.request)
        return TargetState(
            self.plan.base + 1,
            self.plan.export,
            identity,
            {**state.queues, **find_positions(self.plan, self.request, written.outcomes)},
            version_of(identity),
            UNSET
            if self.request.dedup_window_ms is None
            else {**(state.taken_from or {}), **taken_from(self.plan, written.drops.ranges)},
        )


def export_topics(
    location: TierLocation,
    request: ExportRequest,
    export_one: Callable[[ExportRequest], JobReport],
    *,
    keeps_part: bool,
) -> JobReport:
    """Do one export, or one for each topic where each has a target of its own. keeps_part: as of
    `export_each`. Raises as `export_one`, as `per_topic.split_by_topic`, and Unavailable."""
    if not is_per_topic(request):
        return export_one(request)
    requests = split_by_topic(request, _catalogue(location))
    return export_each(requests, export_one, request.target, keeps_part=keeps_part)


def measure_left(location: TierLocation, request: ExportRequest, clock: Clock) -> Behind:
    """Compare a tier and a target, or those of each topic. Raises as `run_export`; writes
    nothing."""
    catalogue = _catalogue(location)
    if is_per_topic(request):
        requests = split_by_topic(request, catalogue)
        return measure_each(requests, lambda one: _measure_one(location, catalogue, one, clock))
    return _measure_one(location, catalogue, request, clock)


def _measure_one(
    location: TierLocation, catalogue: TierCatalogue, request: ExportRequest, clock: Clock
) -> Behind:
    plan = _pin_plan(location, catalogue, request, target_of(request), TASK_BYTES)
    firsts: dict[str, PlannedRange] = {}
    for item in chain.from_iterable(plan.tasks):
        firsts.setdefault(item.queue, item)
    queues = {queue.path: queue for queue in catalogue.queues}
    provider = location.connect()

    def find_time(item: PlannedRange) -> int:
        with QueueReader(provider, queues[item.queue]) as reader:
            return store_time(reader, item.from_offset)

    try:
        times = list(map_ahead(provider, find_time, list(firsts.values())))
    finally:
        provider.close()
    messages = sum(item.until_offset - item.from_offset for item in chain(*plan.tasks))
    oldest_ms = min((time for time in times if time > 0), default=clock.now_ms())
    return Behind(messages, max(clock.now_ms() - oldest_ms, 0) / 1000)


def target_of(request: ExportRequest) -> Target:
    """Return the place to export into. Raises Invalid, Unavailable."""
    match request.format:
        case Format.PARQUET:
            from tieredstore.jobs.exporting.targets.parquet import ParquetTarget

            return ParquetTarget(request)
        case Format.ICEBERG:
            from tieredstore.jobs.exporting.targets.iceberg import IcebergTarget

            return IcebergTarget(request)
        case Format.DELTA:
            from tieredstore.jobs.exporting.targets.delta import DeltaTarget

            return DeltaTarget(request)


def _catalogue(location: TierLocation) -> TierCatalogue:
    provider, metadata = location.connect(), location.metadata()
    try:
        catalogue = load_catalogue(provider, metadata, broker=location.broker)
        catalogue.require_own_state()
        return catalogue
    finally:
        provider.close()
        if metadata is not None:
            metadata.close()


def _pin_plan(
    location: TierLocation,
    catalogue: TierCatalogue,
    request: ExportRequest,
    target: Target,
    task_bytes: int,
) -> Plan:
    state = target.load()
    require_same(state, identity_of(location, request), request)
    provider = location.connect()
    try:
        return make_plan(provider, catalogue, request, state, task_bytes=task_bytes)
    finally:
        provider.close()


def _require_alive(run: JobRun, location: TierLocation, plan: Plan, error: Corrupt) -> None:
    """Raise Unavailable if messages of the plan have expired since it was made: then it is of no
    more use."""
    firsts: dict[str, PlannedRange] = {}
    known: list[list[PlannedRange]] = []
    if KNOWN_STEP in run.journal:
        known = run.journal.outcome(KNOWN_STEP, list[list[PlannedRange]])
    for item in chain.from_iterable((*known, *plan.tasks)):
        firsts.setdefault(item.queue, item)
    queues = {queue.path: queue for queue in _catalogue(location).queues}
    provider = location.connect()

    def find_alive(path: str) -> int | None:
        queue = queues.get(path)
        if queue is None or not queue.has_units:
            return None
        with QueueReader(provider, queue) as reader:
            return reader.min_offset()

    try:
        found = map_ahead(provider, find_alive, list(firsts))
        for (path, item), alive in zip(firsts.items(), found, strict=True):
            if alive is None or alive > item.from_offset:
                run.journal.finish()
                begins = "is gone" if alive is None else f"begins at {alive}"
                raise Unavailable(
                    f"{path}: messages expired while they were exported: planned from queue offset "
                    f"{item.from_offset}, the queue now {begins}; nothing was committed, run again",
                    path=path,
                    offset=item.from_offset,
                ) from error
    finally:
        provider.close()


def _group_small_files(
    files: Iterable[DataFile], target_bytes: int
) -> tuple[list[DataFile], list[tuple[DataFile, ...]]]:
    """Files to keep, and groups of small ones of a partition to be merged."""
    kept: list[DataFile] = []
    groups: list[tuple[DataFile, ...]] = []

    partitions: dict[Partition, list[DataFile]] = {}
    for file in files:
        partitions.setdefault(file.partition, []).append(file)
    for of_partition in partitions.values():
        small: list[DataFile] = []
        for file in of_partition:
            (small if file.size_bytes * _SMALL < target_bytes else kept).append(file)
        for group in gather_groups(
            small, lambda file: file.size_bytes, target_bytes, len(small) or 1
        ):
            if len(group) > 1:
                groups.append(group)
            else:
                kept.extend(group)
    return kept, groups
