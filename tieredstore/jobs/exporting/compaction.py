"""`compact export`: small files of a plain Parquet target become larger ones."""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from tieredstore.errors import Corrupt, Fenced, Invalid, Unavailable
from tieredstore.jobs.exporting.files import FileForm
from tieredstore.jobs.exporting.partition import Partition
from tieredstore.jobs.exporting.request import (
    DEFAULT_FILE_BYTES,
    DEFAULT_ZSTD_LEVEL,
    LEAST_FILE_BYTES,
    MOST_FILE_BYTES,
)
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
from tieredstore.jobs.run import JobRun, gather_groups
from tieredstore.tier_url import show_url

LEAST_FILES = 2
_DATA_FILE = re.compile(r"(\d{8,}-\d{5,})(?:_c\d+)?\.parquet", re.ASCII)
"""What an export or a compaction writes: all else is left alone."""


@dataclass(frozen=True, slots=True)
class CompactionRequest:
    """to: folder of the target. target_file_bytes: files below it are merged, up to about as much.
    min_files: fewer that follow each other are left alone. Raises Invalid."""

    to: str = field(repr=False)
    target_file_bytes: int = DEFAULT_FILE_BYTES
    min_files: int = LEAST_FILES
    zstd_level: int = DEFAULT_ZSTD_LEVEL
    target_options: Mapping[str, str] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        if not LEAST_FILE_BYTES <= self.target_file_bytes <= MOST_FILE_BYTES:
            raise Invalid(
                f"target_file_bytes: expected {LEAST_FILE_BYTES} to {MOST_FILE_BYTES}, found "
                f"{self.target_file_bytes}"
            )
        if not 1 <= self.zstd_level <= 22:
            raise Invalid(f"zstd_level: expected 1 to 22, found {self.zstd_level}")
        if self.min_files < LEAST_FILES:
            raise Invalid(f"min_files: expected at least {LEAST_FILES}, found {self.min_files}")

    @property
    def target(self) -> str:
        """The target in messages and reports."""
        return show_url(self.to)

    def identity(self) -> dict[str, object]:
        """Return all that tells this compaction from another one, for a journal; no secrets."""
        return {
            "target": self.target,
            "target_file_bytes": self.target_file_bytes,
            "min_files": self.min_files,
            "zstd_level": self.zstd_level,
        }


@dataclass(frozen=True, slots=True)
class CompactionPlan:
    """Pinned once. compacted: number of the compaction that it follows. groups: names and bytes of
    files that become one, in their order. kept_files: how many stay as they are."""

    staging: str
    compacted: int
    groups: list[list[tuple[str, int]]] = field(default_factory=list)
    kept_files: int = 0


def run_compact_export(run: JobRun, request: CompactionRequest) -> dict[str, object]:
    """Merge small files of a plain Parquet target, and return the report (`docs/jobs.md`).

    Exports into it may run meanwhile. Raises Invalid (no such target), Fenced (another compaction
    committed meanwhile), Corrupt (a file that cannot be read), Unavailable.
    """
    log = CommitLog(request.to, request.target_options, request.target)
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
    names = log.files.names()
    if "_delta_log" in names:
        raise Invalid(
            f"{target}: a Delta table: OPTIMIZE, or deltalake's `table.optimize.compact()`, merges "
            "its small files",
            path=target,
        )
    if any(name.endswith(".metadata.json") for name in log.files.names("metadata")):
        raise Invalid(
            f"{target}: an Iceberg table: the procedure rewrite_data_files merges its small files",
            path=target,
        )
    if log.is_new:
        raise Invalid(f"{target}: expected a plain Parquet target of an export", path=target)


def _make_plan(log: CommitLog, request: CompactionRequest) -> CompactionPlan:
    compacted, listed = _list_files(log)
    sizes = {
        name: size for name, size in listed.items() if _DATA_FILE.fullmatch(name.rpartition("/")[2])
    }
    groups = list(group_small_files(sizes, request))
    kept = len(sizes) - sum(map(len, groups))
    return CompactionPlan(compact_staging(compacted, uuid.uuid4().hex), compacted, groups, kept)


def _list_files(log: CommitLog) -> tuple[int, dict[str, int]]:
    """The number of the last compaction, and the files of the last commit with their bytes."""
    last = log.publish_last()
    while True:
        assert last is not None
        sizes = log.files.sizes()
        now = log.publish_last()
        if now == last:
            return last.commit.compacted, sizes
        last = now  # the listing may have a part of what was published meanwhile


def group_small_files(
    sizes: Mapping[str, int], request: CompactionRequest
) -> Iterator[list[tuple[str, int]]]:
    """Yield files to become one, by names and bytes: neighbours in a folder, for rows stay in order
    of names."""
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
    request: CompactionRequest,
    merged: list[DataFile],
) -> str:
    """The number of the commit, made if no run of this compaction has made it."""
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
    """Behind all that it is made from: who lists the folder page by page while these are deleted
    finds it. In front of what follows them: rows stay in order."""
    folder, slash, name = last.rpartition("/")
    found = _DATA_FILE.fullmatch(name)
    assert found is not None
    return f"{folder}{slash}{found[1]}_c{number:08d}.parquet"


def _require_ours(
    run: JobRun, log: CommitLog, plan: CompactionPlan, request: CompactionRequest
) -> int:
    """The number of the last compaction, if it is this one."""
    last = log.find_last()
    number = 0 if last is None else last.commit.compacted
    if number and log.read(number).staging == plan.staging:
        return number
    run.journal.finish()
    log.clear()
    raise Fenced(
        f"{request.target}: another compaction was committed meanwhile: expected commit "
        f"{plan.compacted} to be the last one, found {number}; run again to compact what it left",
        path=request.target,
    )


def _require_sources(
    run: JobRun, log: CommitLog, plan: CompactionPlan, request: CompactionRequest
) -> None:
    """Raise what tells why files are gone, where they are: the plan is of no more use then."""
    last = log.find_last()
    if last is None or last.commit.compacted != plan.compacted:
        _require_ours(run, log, plan, request)
        return
    sizes = log.files.sizes()
    for name in (name for group in plan.groups for name, _ in group):
        if name not in sizes:
            run.journal.finish()
            raise Unavailable(
                f"{request.target}: {name} was removed meanwhile; nothing was committed, run again",
                path=name,
            )
