"""Last stages of both index jobs: turn staged rows into index files in the tier."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import closing
from dataclasses import astuple, dataclass

from tieredstore.jobs.index.build import BuildTask, BuiltIndex, Capacity, begin_times, build, shares
from tieredstore.jobs.index.collect import MOST_FINDINGS, Collected
from tieredstore.jobs.index.rows import StagedRows
from tieredstore.jobs.index.staging import StagedFile, Staging
from tieredstore.jobs.index.tier import IndexSummary, IndexTier, OldIndex
from tieredstore.jobs.run import JobRun

_COLUMNS = ("base_offset", "size_bytes", "items", "begin_timestamp", "end_timestamp")


@dataclass(frozen=True, slots=True)
class AddedFile:
    """Index file that a job has added to the tier. Times in epoch ms."""

    base_offset: int
    size_bytes: int
    items: int
    begin_ms: int
    end_ms: int


@dataclass(frozen=True, slots=True)
class Committed:
    """Result of a commit. `removed`: deleted index files of the tier."""

    files: tuple[AddedFile, ...]
    removed: int


def build_files(
    run: JobRun,
    staging: Staging,
    capacity: Capacity,
    groups: Sequence[Sequence[StagedRows]],
    taken: Collection[int],
) -> list[list[BuiltIndex]]:
    """Build the index files of each group of rows, by time. `taken`: names in use."""
    dealt = [list(shares(group, capacity)) for group in groups]
    flat = [share for group in dealt for share in group]
    begins = begin_times([share.first_ms for share in flat], taken)
    tasks = [
        BuildTask(share, begin_ms, capacity.slots, staging)
        for share, begin_ms in zip(flat, begins, strict=True)
    ]
    built = iter(run.map("build", build, tasks, BuiltIndex))
    return [[next(built) for _ in group] for group in dealt]


def keep_file(tier: IndexTier, file: IndexSummary) -> BuiltIndex:
    """Return an existing index file like a newly built one. `commit` can then append it after new
    files, which keeps all files in time order."""
    where = StagedFile(tier.segments.path, file.base_offset, file.size_bytes)
    return BuiltIndex(where, file.items, file.begin_ms, file.end_ms)


def commit(
    run: JobRun,
    tier: IndexTier,
    staging: Staging,
    files: Sequence[BuiltIndex],
    old: Sequence[OldIndex],
    *,
    remove_old: bool,
) -> Committed:
    """Append the files in order after all existing files, then remove the old files. All keys can
    be found at any moment. A repeated call continues after a kill. Raises Fenced, Unavailable,
    Corrupt."""

    def work() -> Committed:
        with closing(staging.location.connect()) as staged:
            tier.adopt(old if remove_old else ())
            own = tier.segments.path
            readable = [(f, tier.provider if f.file.path == own else staged) for f in files]
            bases = tier.add(readable, max((index.end_offset for index in old), default=0))
        gone = [index for index in old if index.base_offset not in bases] if remove_old else []
        tier.remove(index.base_offset for index in gone)
        added = tuple(
            AddedFile(base, file.file.size_bytes, file.items, file.begin_ms, file.end_ms)
            for base, file in zip(bases, files, strict=True)
        )
        return Committed(added, sum(index.is_there for index in gone))

    return run.do_once("commit", work, Committed)


def summary(collected: Sequence[Collected], committed: Committed) -> dict[str, object]:
    """Return the report fields of both jobs."""
    findings = [text for outcome in collected for text in outcome.findings]
    return {
        "items": sum(file.items for file in committed.files),
        "left_out": sum(outcome.left_out for outcome in collected),
        "findings": findings[:MOST_FINDINGS],
        "files": [dict(zip(_COLUMNS, astuple(file), strict=True)) for file in committed.files],
        "removed_files": committed.removed,
    }
