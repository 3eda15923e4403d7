"""The export job: plan on the driver, write files in tasks, commit once."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from functools import cache
from importlib import import_module
from itertools import chain, compress

from msgspec import UNSET

from tieredstore.clock import Clock
from tieredstore.errors import Corrupt, Expired, Fenced, Unavailable
from tieredstore.jobs.exporting.dedup.drops import (
    KNOWN_STEP,
    DropFinder,
    Drops,
    first_ranges,
    taken_from,
)
from tieredstore.jobs.exporting.dedup.duplicates import DropSection
from tieredstore.jobs.exporting.dedup.keys import KeysOutcome
from tieredstore.jobs.exporting.files import FileForm
from tieredstore.jobs.exporting.following import Behind
from tieredstore.jobs.exporting.partition import Partition
from tieredstore.jobs.exporting.per_topic import (
    export_each,
    is_per_topic,
    measure_each,
    split_by_topic,
)
from tieredstore.jobs.exporting.plan import (
    Plan,
    PlannedRange,
    make_plan,
    scan_ranges,
)
from tieredstore.jobs.exporting.report import Written, find_positions, make_report
from tieredstore.jobs.exporting.request import ExportRequest, Format, OnUnfit
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
from tieredstore.jobs.journal import Journal
from tieredstore.jobs.run import TASK_BYTES, JobReport, JobRun, gather_groups
from tieredstore.scan.ahead import map_ahead
from tieredstore.scan.catalogue import TierCatalogue
from tieredstore.scan.expired import open_queue
from tieredstore.scan.extents import QueueReader
from tieredstore.scan.findings import OnDamage
from tieredstore.scan.listing import load_catalogue
from tieredstore.scan.location import TierLocation
from tieredstore.scan.opening import open_location
from tieredstore.scan.plan import store_time

_log = logging.getLogger(__name__)
_THREADS = 8
_SMALL = 4
"""Files that are smaller than the target size divided by this number are merged."""


def run_export(
    run: JobRun, location: TierLocation, request: ExportRequest, *, task_bytes: int = TASK_BYTES
) -> dict[str, object]:
    """Export messages that the target lacks, and return the report (`docs/jobs.md`). A killed run
    continues with its journal. Without a journal, or if the files of the killed run are lost, a new
    run begins at the end of the target. Raises Invalid (a foreign target, a gap, a recreated
    topic), Corrupt (names segment and byte), Fenced (another export has committed), Unavailable."""
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
        _log.warning("%s: starts from the beginning: %s", request.target, lost)
        run.journal.begin_anew()
        plan = pin()
    export = PinnedExport(run, location, request, target, plan, task_bytes)
    export.require_turn()
    try:
        written = export.write_files(catalogue)
    except (Corrupt, Expired) as error:
        _require_alive(run, location, plan, error)
        if isinstance(error, Expired):  # The plan is useless.
            run.journal.finish()
        raise
    except Unavailable:
        # A concurrent export that commits deletes the staged files of others. If the target is
        # unreachable too, the first error gives the reason.
        with suppress(Unavailable):
            export.require_turn()
        raise
    commit: str | None = None
    # A first export without a message creates no target. It would bind the next one to its columns,
    # its partitions and its choice of topics.
    if plan.positions and (plan.base or plan.tasks):
        commit = run.do_once("commit", lambda: export.commit(written), str)
        used = {file.name for file in written.files}
        target.discard(export.folder, [name for name in written.names if name not in used])
    return run.report(make_report(request, plan, written, commit))


@dataclass(frozen=True, slots=True)
class PinnedExport:
    """One export with a pinned plan."""

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
        """Return the target's state before this export. Raises Fenced if another export has
        committed since this one was planned."""
        state = self.target.load()
        if state.sequence != self.plan.base and state.export != self.plan.export:
            self.run.journal.finish()
            raise Fenced(
                f"{self.request.target}: another export was committed: expected commit "
                f"{self.plan.base} to be the last, found {state.sequence}. Run again to export "
                "the rest",
                path=self.request.target,
            )
        return state

    def write_files(self, catalogue: Callable[[], TierCatalogue]) -> Written:
        """Run the tasks. Raises Corrupt, Expired if a topic was recreated, Unavailable."""
        request, short = self.request, self.plan.export[:8]
        form = FileForm(
            self.target.file_columns,
            self.plan.export,
            ".part" if request.format is Format.PARQUET else ".parquet",
            request.target_file_bytes,
            request.zstd_level,
            in_folders=request.format is Format.DELTA,
            partition_by=request.partition_by,
        )
        planned, marks = self.plan.tasks, self.plan.marks
        ranges = list(scan_ranges(catalogue(), planned, marks)) if planned else []
        skips = request.on_damage is OnDamage.SKIP
        drops = Drops()
        if request.dedup_window_ms is not None and ranges:
            columns = columns_of(form, request.body_schema)
            drops = DropFinder(
                *(self.run, self.location, catalogue(), self.plan, self.folder, columns, skips),
                request.dedup_window_ms,
                self.task_bytes,
            ).find(ranges)
        tasks = [
            WriteTask(
                number,
                self.location,
                items,
                self.folder,
                replace(form, prefix=f"{short}-{number:05d}"),
                skips,
                request.body_schema,
                request.on_unfit is OnUnfit.FAIL,
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

    def commit(self, written: Written) -> str:
        """Commit the written files, unless an earlier run of this export did so. Returns the name
        of the commit. Raises Fenced, Unavailable."""
        try:
            state = self.require_turn()
            if state.export == self.plan.export:
                return self.target.find_commit(state)
            commit = self.target.commit(self._following(state, written), written.files)
            return self.target.find_commit(self.require_turn()) if commit is None else commit
        except Fenced:
            self.run.journal.finish()
            self.target.discard(self.folder, written.names)
            raise

    def _following(self, state: TargetState, written: Written) -> TargetState:
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
    """Run one export, or one per topic if each has its own target. `keeps_part`: as in
    `export_each`. Raises the errors of `export_one` and `per_topic.split_by_topic`, and
    Unavailable."""
    if not is_per_topic(request):
        return export_one(request)
    requests = split_by_topic(request, _catalogue(location))
    return export_each(requests, export_one, request.target, keeps_part=keeps_part)


def measure_left(location: TierLocation, request: ExportRequest, clock: Clock) -> Behind:
    """Return the lag of the target, or of each topic's target, without writing anything. Raises the
    errors of `run_export`."""
    catalogue = _catalogue(location)
    if is_per_topic(request):
        requests = split_by_topic(request, catalogue)
        return measure_each(requests, lambda one: _measure_one(location, catalogue, one, clock))
    return _measure_one(location, catalogue, request, clock)


def _measure_one(
    location: TierLocation, catalogue: TierCatalogue, request: ExportRequest, clock: Clock
) -> Behind:
    plan = _pin_plan(location, catalogue, request, target_of(request), TASK_BYTES)
    planned = list(chain.from_iterable(plan.tasks))
    queues = {queue.path: queue for queue in catalogue.queues}
    with closing(location.connect()) as provider:

        def find_time(item: PlannedRange) -> int:
            with open_queue(provider, queues[item.queue]) as reader:
                return store_time(reader, item.from_offset)

        times = list(map_ahead(provider, find_time, list(_first_of_each(planned).values())))
    messages = sum(item.until_offset - item.from_offset for item in planned)
    oldest_ms = min((time for time in times if time > 0), default=clock.now_ms())
    return Behind(messages, max(clock.now_ms() - oldest_ms, 0) / 1000)


def _first_of_each(planned: Iterable[PlannedRange]) -> dict[str, PlannedRange]:
    firsts: dict[str, PlannedRange] = {}
    for item in planned:
        firsts.setdefault(item.queue, item)
    return firsts


def target_of(request: ExportRequest) -> Target:
    """Return the target of an export. Raises Invalid, Unavailable."""
    module = import_module(f"tieredstore.jobs.exporting.targets.{request.format}")
    target: Target = getattr(module, f"{request.format.capitalize()}Target")(request)
    return target


def _catalogue(location: TierLocation) -> TierCatalogue:
    with open_location(location) as tier:
        catalogue = load_catalogue(tier.provider, tier.metadata, broker=tier.broker)
        catalogue.require_own_state()
        return catalogue


def _pin_plan(
    location: TierLocation,
    catalogue: TierCatalogue,
    request: ExportRequest,
    target: Target,
    task_bytes: int,
) -> Plan:
    state = target.load()
    require_same(state, identity_of(location, request), request)
    with closing(location.connect()) as provider:
        plan = make_plan(provider, catalogue, request, state, task_bytes=task_bytes)
    if request.format is not Format.ICEBERG:  # Their tables name their files themselves.
        topics = {item.queue.split("/")[1] for task in plan.tasks for item in task}
        request.partition_by.require_names(topics, request.target)
    return plan


def _require_alive(
    run: JobRun, location: TierLocation, plan: Plan, error: Corrupt | Expired
) -> None:
    """Raise Expired if planned messages have expired, because the plan is then useless."""
    known: list[list[PlannedRange]] = []
    if KNOWN_STEP in run.journal:
        known = run.journal.outcome(KNOWN_STEP, list[list[PlannedRange]])
    firsts = _first_of_each(chain.from_iterable((*known, *plan.tasks)))
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
                raise Expired(
                    f"{path}: messages expired while they were exported: planned from queue offset "
                    f"{item.from_offset}, the queue now {begins}. Nothing was committed, run again",
                    path=path,
                    offset=item.from_offset,
                ) from error
    finally:
        provider.close()


def _group_small_files(
    files: Iterable[DataFile], target_bytes: int
) -> tuple[list[DataFile], list[tuple[DataFile, ...]]]:
    kept: list[DataFile] = []
    groups: list[tuple[DataFile, ...]] = []
    partitions: defaultdict[Partition, list[DataFile]] = defaultdict(list)
    for file in files:
        partitions[file.partition].append(file)
    for of_partition in partitions.values():
        small = [file for file in of_partition if file.size_bytes * _SMALL < target_bytes]
        kept += [file for file in of_partition if file.size_bytes * _SMALL >= target_bytes]
        for group in gather_groups(
            small, lambda file: file.size_bytes, target_bytes, len(small) or 1
        ):
            if len(group) > 1:
                groups.append(group)
            else:
                kept.extend(group)
    return kept, groups


def find_lost(journal: Journal, plan: Plan, target: Target) -> str | None:
    """Describe what the target has lost since an interrupted export, for example because it was
    replaced by an older copy. Return None if the export can continue, or was committed, or if
    another export has committed. A Delta log would accept the names of missing files. Raises
    Unavailable."""
    state = target.load()
    if state.export == plan.export or state.sequence > plan.base:
        return None
    if state.sequence < plan.base:
        return (
            f"the interrupted run followed commit {plan.base} of the target, whose last one is now "
            f"{state.sequence}"
        )
    if "commit" in journal:
        return f"commit {plan.base + 1} of the target, which the interrupted run made, is gone"
    names = sorted(set(_staged_names(journal)))
    if not names:
        return None
    with (
        closing(target.folder(plan.base, plan.export).connect()) as files,
        ThreadPoolExecutor(_THREADS) as pool,
    ):
        missing = list(compress(names, (not found for found in pool.map(files.exists, names))))
    if not missing:
        return None
    return f"{len(missing)} of {len(names)} files of the interrupted run are gone ({missing[0]})"


def _staged_names(journal: Journal) -> Iterator[str]:
    for step in journal:
        match step.partition(":")[0]:
            case "write":
                written: WriteOutcome = journal.outcome(step, WriteOutcome)
                yield from (file.name for file in written.files)
            case "merge":
                yield journal.outcome(step, DataFile).name
            case "keys" | "known-keys":
                name = journal.outcome(step, KeysOutcome).name
                if name:
                    yield name
            case "duplicates":
                sections: list[DropSection] = journal.outcome(step, list[DropSection])
                yield from (section.name for section in sections)
