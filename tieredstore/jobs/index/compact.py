"""The job `compact index`: upload the index files that a broker left behind, and merge small
files."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tieredstore.clock import SYSTEM_CLOCK
from tieredstore.errors import Invalid
from tieredstore.jobs.index.build import BuiltIndex, Capacity
from tieredstore.jobs.index.collect import Collected
from tieredstore.jobs.index.files import Committed, build_files, commit, keep_file, summary
from tieredstore.jobs.index.merge import MergeTask, merge
from tieredstore.jobs.index.staging import Staging, staging_of
from tieredstore.jobs.index.tier import IndexSummary, IndexTier, OldIndex, open_index_tier
from tieredstore.jobs.options import CompactIndexOptions
from tieredstore.jobs.run import TASK_BYTES, JobRun, gather_groups
from tieredstore.scan.location import TierLocation
from tieredstore.tier.index.service import IndexStoreService

_BYTES_PER_ITEM = 512
"""Approximate number of commit log bytes that are read to find the store time of one index item.
The messages of a small index file are close together, so one read finds the times of several
items."""


@dataclass(frozen=True, slots=True)
class _Uploaded:
    """Local files that were uploaded, and problems of the others."""

    files: int
    problems: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Run:
    """Consecutive index files, to be merged or kept."""

    files: tuple[IndexSummary, ...]
    is_merged: bool


@dataclass(frozen=True, slots=True)
class _Pinned:
    """Input of a job, which stays the same when the job is continued. `old`: all index files before
    the job. `runs`: consecutive index files to merge or keep."""

    topic_ids: dict[str, int]
    old: tuple[OldIndex, ...]
    runs: tuple[_Run, ...]

    @property
    def merged(self) -> list[tuple[IndexSummary, ...]]:
        return [run.files for run in self.runs if run.is_merged]

    @property
    def is_by_time(self) -> bool:
        """Return whether the files are in the order of their begin times."""
        bases = [file.base_offset for run in self.runs for file in run.files]
        return bases == sorted(bases)

    @property
    def kept(self) -> list[IndexSummary]:
        return [file for run in self.runs if not run.is_merged for file in run.files]


def run_compact_index(
    run: JobRun, location: TierLocation, options: CompactIndexOptions | None = None
) -> dict[str, object]:
    """Upload the index files of the state directory. Then merge runs of files that are at most half
    full, if this reduces their number. All keys can be found before and after the job. Returns the
    JSON report. Raises Invalid without a state directory, Fenced (a broker runs), Corrupt if an
    index file is damaged, Unavailable."""
    options = options or CompactIndexOptions()
    if location.state is None:
        raise Invalid("compact index needs the state directory: it names topics and index files")
    with open_index_tier(location, take_over=options.take_over) as tier:
        capacity = Capacity.of(tier.config)
        uploaded = run.do_once("upload", lambda: _upload(tier, location), _Uploaded)
        pinned = run.do_once("pin", lambda: _pin(tier, capacity), _Pinned)
        collected: list[Collected] = []
        committed = Committed((), 0)
        if pinned.merged or not pinned.is_by_time:
            with staging_of(run, location, options.staging) as staging:
                collected, committed = _merge(run, location, tier, capacity, pinned, staging)
        return run.report(
            {
                "tier": tier.provider.url,
                "broker": tier.broker,
                "uploaded_files": uploaded.files,
                "problems": list(uploaded.problems),
                "merged_files": sum(map(len, pinned.merged)),
                "kept_files": len(pinned.kept),
                "dangling": sum(outcome.dangling for outcome in collected),
                **summary(collected, committed),
            }
        )


def _upload(tier: IndexTier, location: TierLocation) -> _Uploaded:
    if location.state is None or not tier.local_begins():
        return _Uploaded(0, ())
    service = IndexStoreService(
        tier.config,
        tier.provider,
        tier.metadata,
        Path(location.state),
        SYSTEM_CLOCK,
        check_writer=tier.check_writer,
        confirm_writer=tier.confirm_writer,
    )
    service.recover()
    try:
        return _Uploaded(service.seal_and_upload(force=True), tuple(service.problems))
    finally:
        service.stop(force=False)


def _pin(tier: IndexTier, capacity: Capacity) -> _Pinned:
    old = tuple(tier.old_index())
    files = tier.files(old)
    if all(file.slots != capacity.slots for file in files):
        tier.check_slots(files)
    files.sort(key=lambda file: (file.begin_ms, file.base_offset))
    return _Pinned(dict(tier.topic_ids()), old, tuple(_runs(files, capacity)))


def _runs(files: Sequence[IndexSummary], capacity: Capacity) -> Iterator[_Run]:
    """Divide the files into runs of consecutive files. Files that are at most half full are merged
    if this reduces their number. A file with another number of hash slots than configured is always
    rewritten, because brokers find no keys in it."""
    small: list[IndexSummary] = []

    def close() -> Iterator[_Run]:
        needed = -(-sum(file.items for file in small) // capacity.items)
        is_merged = needed < len(small) or any(f.slots != capacity.slots for f in small)
        if small:
            yield _Run(tuple(small), is_merged)
        small.clear()

    for file in files:
        if 2 * file.items <= capacity.items or file.slots != capacity.slots:
            small.append(file)
        else:
            yield from close()
            yield _Run((file,), is_merged=False)
    yield from close()


def _merge(
    run: JobRun,
    location: TierLocation,
    tier: IndexTier,
    capacity: Capacity,
    pinned: _Pinned,
    staging: Staging,
) -> tuple[list[Collected], Committed]:
    topics = {number: name for name, number in pinned.topic_ids.items()}
    tasks: list[MergeTask] = []
    groups: list[int] = []
    for number, files in enumerate(pinned.merged):
        for some in gather_groups(files, lambda file: file.items * _BYTES_PER_ITEM, TASK_BYTES):
            names = ",".join(str(file.base_offset) for file in some)
            tasks.append(
                MergeTask(
                    hashlib.sha256(names.encode()).hexdigest()[:16],
                    sum(file.items for file in some) * _BYTES_PER_ITEM,
                    location,
                    tier.broker,
                    some,
                    topics,
                    staging,
                    capacity.block_rows,
                )
            )
            groups.append(number)
    collected = run.map("merge", merge, tasks, Collected)
    rows = [
        [
            outcome.staged
            for outcome, group in zip(collected, groups, strict=True)
            if group == number and outcome.staged is not None
        ]
        for number in range(len(pinned.merged))
    ]
    built = iter(build_files(run, staging, capacity, rows, {old.begin_ms for old in pinned.old}))
    wanted: list[BuiltIndex] = []
    for part in pinned.runs:
        wanted += next(built) if part.is_merged else [keep_file(tier, file) for file in part.files]
    return collected, commit(run, tier, staging, wanted, pinned.old, remove_old=True)
