"""The job `compact export`: merges small files of a plain Parquet target."""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from tieredstore.errors import Corrupt, Fenced, Invalid, Unavailable
from tieredstore.jobs.exporting.files import FileForm
from tieredstore.jobs.exporting.partition import Partition
from tieredstore.jobs.exporting.state import COMPACTED_VERSION, DataFile
from tieredstore.jobs.exporting.targets.parquet_log import (
    STAGING,
    Commit,
    CommitLog,
    Publication,
    compact_staging,
    number_text,
)
from tieredstore.jobs.exporting.work import MergeTask, merge
from tieredstore.jobs.options import CompactExportOptions
from tieredstore.jobs.run import JobRun, gather_groups

_DATA_FILE = re.compile(r"(\d{8,}-\d{5,})(?:_c\d+)?\.parquet", re.ASCII)
"""Pattern of the names that exports and compactions give to data files. Other files are never
merged."""


@dataclass(frozen=True, slots=True)
class CompactionPlan:
    """Plan of a compaction, which stays the same when the job is continued. `compacted`: commit
    number of the previous compaction. `groups`: for each merged file, its source files by name and
    size (bytes), in order. `kept_files`: number of unchanged files."""

    staging: str
    compacted: int
    groups: list[list[tuple[str, int]]] = field(default_factory=list)
    kept_files: int = 0


def run_compact_export(run: JobRun, request: CompactExportOptions) -> dict[str, object]:
    """Merge small files of a plain Parquet target, and return the report (`docs/jobs.md`). Exports
    into the target may run at the same time. Raises Invalid (no such target), Fenced (another
    compaction has committed), Corrupt (an unreadable file), Unavailable."""
    log = CommitLog(str(request.to), request.target_options or {}, request.target)
    _require_parquet(log, request.target)
    log.clear()
    plan = run.do_once("pin", lambda: _make_plan(log, request), CompactionPlan)
    form = FileForm((), "", ".part", request.target_file_bytes, request.zstd_level)
    tasks = [
        MergeTask(
            number,
            log.folder(),
            tuple(DataFile(name, Partition(), 0, size) for name, size in group),
            replace(form, prefix=f"{STAGING}/{plan.staging}/{number:05d}"),
        )
        for number, group in enumerate(plan.groups)
    ]
    try:
        merged: list[DataFile] = run.map("merge", merge, tasks, DataFile)
    except (Unavailable, Corrupt):
        _require_sources(run, log, plan, request)
        raise
    commit: str | None = None
    if plan.groups:
        commit = run.do_once("commit", lambda: _commit_once(run, log, plan, request, merged), str)
    log.clear()
    return run.report(
        {
            "target": request.target,
            "commit": commit,
            "rows": sum(file.rows for file in merged),
            "merged_files": sum(map(len, plan.groups)),
            "merged_bytes": sum(task.size_bytes for task in tasks),
            "files": len(merged),
            "file_bytes": sum(file.size_bytes for file in merged),
            "kept_files": plan.kept_files,
        }
    )


def _require_parquet(log: CommitLog, target: str) -> None:
    found = None
    if "_delta_log" in log.files.names():
        found = (
            "a Delta table: OPTIMIZE, or deltalake's `table.optimize.compact()`, merges its small "
            "files"
        )
    elif any(name.endswith(".metadata.json") for name in log.files.names("metadata")):
        found = "an Iceberg table: the procedure rewrite_data_files merges its small files"
    elif log.is_new:
        found = "expected a plain Parquet target of an export"
    if found is not None:
        raise Invalid(f"{target}: {found}", path=target)


def _make_plan(log: CommitLog, request: CompactExportOptions) -> CompactionPlan:
    compacted, listed = _list_files(log)
    sizes = {
        name: size for name, size in listed.items() if _DATA_FILE.fullmatch(name.rpartition("/")[2])
    }
    groups = list(group_small_files(sizes, request))
    kept = len(sizes) - sum(map(len, groups))
    return CompactionPlan(compact_staging(compacted, uuid.uuid4().hex), compacted, groups, kept)


def _list_files(log: CommitLog) -> tuple[int, dict[str, int]]:
    """Return the commit number of the last compaction, and the sizes in bytes of the data files."""
    last = log.publish_last()
    while True:
        assert last is not None
        sizes = log.files.sizes()
        now = log.publish_last()
        if now == last:
            return last.commit.compacted, sizes
        last = now  # The listing may contain a part of a newer publication.


def group_small_files(
    sizes: Mapping[str, int], request: CompactExportOptions
) -> Iterator[list[tuple[str, int]]]:
    """Yield groups of consecutive small files to merge, by name and size (bytes)."""
    runs: list[list[tuple[str, int]]] = [[]]
    folder = ""
    for name, size in sorted(sizes.items(), key=lambda item: item[0].rpartition("/")):
        found = name.rpartition("/")[0]
        is_small = size < request.target_file_bytes
        if found != folder or not is_small:
            runs.append([])
        folder = found
        if is_small:
            runs[-1].append((name, size))
    for small in runs:
        for group in gather_groups(
            small, lambda file: file[1], request.target_file_bytes, len(small) or 1
        ):
            if len(group) >= request.min_files:
                yield list(group)


def _commit_once(
    run: JobRun,
    log: CommitLog,
    plan: CompactionPlan,
    request: CompactExportOptions,
    merged: list[DataFile],
) -> str:
    while True:
        last = log.publish_last()
        if last is None or last.commit.compacted != plan.compacted:
            return number_text(_require_ours(run, log, plan, request))
        number = last.number + 1
        commit = Commit(
            replace(last.commit.state, version=COMPACTED_VERSION),
            plan.staging,
            [
                Publication(file.name.rpartition("/")[2], _merged_name(group[-1][0], number))
                for file, group in zip(merged, plan.groups, strict=True)
            ],
            [name for group in plan.groups for name, _ in group],
            number,
            last.exported,
        )
        if log.add(number, commit):
            log.publish_last()
            return number_text(number)
        # An export, which this commit may follow, or another compaction.


def _merged_name(last: str, number: int) -> str:
    """Return a name for a merged file that sorts after its source files and before the next file.
    Rows then stay in order, and a listing in pages that has passed the deleted sources still finds
    the merged file."""
    folder, slash, name = last.rpartition("/")
    found = _DATA_FILE.fullmatch(name)
    assert found is not None
    return f"{folder}{slash}{found[1]}_c{number:08d}.parquet"


def _require_ours(
    run: JobRun, log: CommitLog, plan: CompactionPlan, request: CompactExportOptions
) -> int:
    last = log.find_last()
    number = 0 if last is None else last.commit.compacted
    if number and log.read(number).staging == plan.staging:
        return number
    run.journal.finish()
    log.clear()
    raise Fenced(
        f"{request.target}: another compaction was committed: expected commit "
        f"{plan.compacted} to be the last one, found {number}. Run again to compact the rest",
        path=request.target,
    )


def _require_sources(
    run: JobRun, log: CommitLog, plan: CompactionPlan, request: CompactExportOptions
) -> None:
    """Check that the source files of the plan still exist. Otherwise discard the plan, and raise
    Unavailable, or Fenced after another compaction."""
    last = log.find_last()
    if last is None or last.commit.compacted != plan.compacted:
        _require_ours(run, log, plan, request)
        return
    sizes = log.files.sizes()
    for name in (name for group in plan.groups for name, _ in group):
        if name not in sizes:
            run.journal.finish()
            raise Unavailable(
                f"{request.target}: {name} was removed. Nothing was committed, run again",
                path=name,
            )
