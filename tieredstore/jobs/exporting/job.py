"""`export`: plans on the driver, writes files in tasks, commits once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
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
from tieredstore.jobs.exporting.left_out import MOST_FINDINGS
from tieredstore.jobs.exporting.partition import Partition
from tieredstore.jobs.exporting.per_topic import split_by_topic
from tieredstore.jobs.exporting.plan import Plan, PlannedRange, make_plan, scan_ranges
from tieredstore.jobs.exporting.request import ExportRequest, Format, OnCorrupt, OnUnfit
from tieredstore.jobs.exporting.state import (
    DataFile,
    Position,
    Target,
    TargetState,
    identity_of,
    require_same,
    version_of,
)
from tieredstore.jobs.exporting.work import (
    LastRow,
    MergeTask,
    WriteOutcome,
    WriteTask,
    columns_of,
    merge,
    write,
)
from tieredstore.jobs.run import TASK_BYTES, JobRun, gather_groups
from tieredstore.scan.catalogue import TierCatalogue, load_catalogue
from tieredstore.scan.extents import QueueReader
from tieredstore.scan.location import TierLocation
from tieredstore.scan.plan import store_time

_SMALL = 4
"""Files below this part of the wanted size are merged."""


def run_export(
    run: JobRun, location: TierLocation, request: ExportRequest, *, task_bytes: int = TASK_BYTES
) -> dict[str, object]:
    """Export what the target does not have yet, and return the report (`docs/jobs.md`).

    A run that was killed goes on with its journal; without it, what it wrote is left over and a new
    run begins where the target ends. Raises Invalid (a target of something else, a gap, a topic
    that was made again), Corrupt (names segment and byte), Fenced (another export committed
    meanwhile), Unavailable.
    """
    target = target_of(request)
    target.prepare()
    listed: list[TierCatalogue] = []

    def catalogue() -> TierCatalogue:
        if not listed:
            listed.append(_catalogue(location))
        return listed[0]

    plan = run.do_once(
        "pin", lambda: _pin_plan(location, catalogue(), request, target, task_bytes), Plan
    )
    _require_turn(run, target, plan, request)
    folder = target.folder(plan.base, plan.export)
    form = FileForm(
        target.file_columns,
        plan.export,
        ".part" if request.format is Format.PARQUET else ".parquet",
        request.target_file_bytes,
        request.zstd_level,
        in_folders=request.format is Format.DELTA,
        partition_by=request.partition_by,
    )
    ranges = list(scan_ranges(catalogue(), plan.tasks)) if plan.tasks else []
    try:
        drops = Drops()
        if request.dedup_window_ms is not None and ranges:
            drops = DropFinder(
                run,
                location,
                catalogue(),
                plan,
                folder,
                columns_of(form, request.body_schema),
                request.on_corrupt is OnCorrupt.SKIP,
                request.dedup_window_ms,
                task_bytes,
            ).find(ranges)
        tasks = [
            WriteTask(
                number,
                location,
                items,
                folder,
                replace(form, prefix=f"{plan.export[:8]}-{number:05d}"),
                request.on_corrupt is OnCorrupt.SKIP,
                request.body_schema,
                request.on_unfit is OnUnfit.FAIL,
                first,
                drops.sections.get(number, ()),
            )
            for number, (items, first) in enumerate(zip(ranges, first_ranges(ranges), strict=True))
        ]
        written: list[WriteOutcome] = run.map("write", write, tasks, WriteOutcome)
        if drops.ranges:
            found = ([row.rows + row.duplicates for row in outcome.ranges] for outcome in written)
            drops.require_same_rows(run, list(found))
        staged = [file for outcome in written for file in outcome.files]
        kept, groups = _group_small_files(staged, request.target_file_bytes)
        merges = [
            MergeTask(
                number, folder, group, replace(form, prefix=f"{plan.export[:8]}-m{number:05d}")
            )
            for number, group in enumerate(groups)
        ]
        files: list[DataFile] = [*kept, *run.map("merge", merge, merges, DataFile)]
    except Corrupt as error:
        _require_alive(run, location, plan, error)
        raise
    except Unavailable:
        # An export that committed meanwhile removes what others have staged. Where the target
        # cannot be asked either, the first error says why.
        with suppress(Unavailable):
            _require_turn(run, target, plan, request)
        raise
    names = sorted({*(file.name for file in (*staged, *files)), *drops.names})
    if plan.positions or not plan.base:
        commit: str | None = run.do_once(
            "commit",
            lambda: _commit_once(
                run, target, plan, request, location, written, drops, files, names
            ),
            str,
        )
        used = {file.name for file in files}
        target.discard(folder, [name for name in names if name not in used])
    else:
        commit = None
    return run.report(_result(request, plan, written, drops, files, commit))


def split_topics(location: TierLocation, request: ExportRequest) -> dict[str, ExportRequest]:
    """Return the export of each topic of a tier that is chosen, by topic. Raises as
    `per_topic.split_by_topic`, and Unavailable."""
    return split_by_topic(request, _catalogue(location))


def measure_left(location: TierLocation, request: ExportRequest, clock: Clock) -> Behind:
    """Compare a tier and a target. Raises as `run_export`; writes nothing."""
    catalogue = _catalogue(location)
    plan = _pin_plan(location, catalogue, request, target_of(request), TASK_BYTES)
    firsts: dict[str, PlannedRange] = {}
    for item in chain.from_iterable(plan.tasks):
        firsts.setdefault(item.queue, item)
    queues = {queue.path: queue for queue in catalogue.queues}
    times: list[int] = []
    provider = location.connect()
    try:
        for path, item in firsts.items():
            with QueueReader(provider, queues[path]) as reader:
                times.append(store_time(reader, item.from_offset))
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
        return load_catalogue(provider, metadata, broker=location.broker)
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


def _require_turn(run: JobRun, target: Target, plan: Plan, request: ExportRequest) -> TargetState:
    """The target's state, if this export can be committed or is. A journal of one that cannot is
    of no more use."""
    state = target.load()
    if state.sequence != plan.base and state.export != plan.export:
        run.journal.finish()
        raise Fenced(
            f"{request.target}: another export was committed meanwhile: expected commit "
            f"{plan.base} to be the last, found {state.sequence}; run again to export what it "
            "left",
            path=request.target,
        )
    return state


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
    try:
        for path, item in firsts.items():
            queue = queues.get(path)
            alive = None
            if queue is not None and queue.has_units:
                with QueueReader(provider, queue) as reader:
                    alive = reader.min_offset()
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


def _commit_once(
    run: JobRun,
    target: Target,
    plan: Plan,
    request: ExportRequest,
    location: TierLocation,
    written: Sequence[WriteOutcome],
    drops: Drops,
    files: Sequence[DataFile],
    names: Sequence[str],
) -> str:
    """The name of the commit, made if no run of this export has made it."""
    try:
        state = _require_turn(run, target, plan, request)
        if state.export == plan.export:
            return target.find_commit(state)
        identity = identity_of(location, request)
        following = TargetState(
            plan.base + 1,
            plan.export,
            identity,
            {**state.queues, **_positions(plan, request, written)},
            version_of(identity),
            UNSET
            if request.dedup_window_ms is None
            else {**(state.taken_from or {}), **taken_from(plan, drops.ranges)},
        )
        commit = target.commit(following, files)
        if commit is None:
            state = _require_turn(run, target, plan, request)
            commit = target.find_commit(state)
        return commit
    except Fenced:
        target.discard(target.folder(plan.base, plan.export), names)
        raise


def _positions(
    plan: Plan, request: ExportRequest, written: Sequence[WriteOutcome]
) -> dict[str, Position]:
    """Where each queue goes on, with the last message of it that was exported. The ranges of a
    queue stand in the order of their offsets."""
    last: dict[str, LastRow] = {}
    begins: dict[str, int] = {}
    for ranges, outcome in zip(plan.tasks, written, strict=True):
        for item, row in zip(ranges, outcome.ranges, strict=True):
            begins.setdefault(item.queue, item.from_offset)
            if row.queue_offset is not None:
                last[item.queue] = row
    found = {}
    for queue, position in plan.positions.items():
        if queue in last:
            row = last[queue]
            mark = row.physical_offset, row.store_timestamp_ms, row.queue_offset
            found[queue] = Position(position.next_offset, *mark)
        elif position.physical_offset is not None or queue not in begins:
            found[queue] = position
        elif request.selection.begins_late:
            # Nothing of it could ever be read, so nothing would tell another queue of that name:
            # it is tried again.
            found[queue] = Position(begins[queue])
    return found


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


def _result(
    request: ExportRequest,
    plan: Plan,
    written: Sequence[WriteOutcome],
    drops: Drops,
    files: Sequence[DataFile],
    commit: str | None,
) -> dict[str, object]:
    queues: dict[str, dict[str, object]] = {}
    rows = 0
    left_out = 0
    unfit = 0
    duplicates = 0
    oldest_ms: list[int] = []
    for ranges, outcome in zip(plan.tasks, written, strict=True):
        for item, row in zip(ranges, outcome.ranges, strict=True):
            entry = queues.setdefault(
                item.queue, {"queue": item.queue, "from_offset": item.from_offset, "rows": 0}
            )
            entry["until_offset"] = item.until_offset
            entry["rows"] = _number(entry["rows"]) + row.rows
            rows += row.rows
            unfit += row.unfit
            duplicates += row.duplicates
            if row.oldest_ms is not None:
                oldest_ms.append(row.oldest_ms)
            taken = row.rows + row.early + row.duplicates
            left_out += item.until_offset - item.from_offset - taken
    found = [text for outcome in written for text in outcome.findings]
    return {
        "format": request.format.value,
        "target": request.target,
        "export": plan.export,
        "sequence": plan.base + (commit is not None),
        "commit": commit,
        "rows": rows,
        "files": len(files),
        "file_bytes": sum(file.size_bytes for file in files),
        "oldest_store_timestamp": min(oldest_ms, default=None),
        "queues": list(queues.values()),
        "gaps": [
            {"queue": gap.queue, "from_offset": gap.from_offset, "until_offset": gap.until_offset}
            for gap in plan.gaps
        ],
        "duplicates": duplicates,
        "corrupt_messages": left_out,
        "unfit_bodies": unfit,
        "unfit": [text for outcome in written for text in outcome.unfit][:MOST_FINDINGS],
        "damage": drops.damage + sum(outcome.damage for outcome in written),
        "findings": [*drops.findings, *found][:MOST_FINDINGS],
    }


def _number(value: object) -> int:
    assert isinstance(value, int)
    return value
