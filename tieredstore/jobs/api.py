"""One call per job. Each returns the job's JSON report (`docs/jobs.md`), as the command line prints
it. The first argument is the tier: its URL, or the result of `tieredstore.open`. That result also
has the calls as methods. The other arguments are the fields of a dataclass of
`tieredstore.jobs.options`. Each call raises Invalid, Busy (the same job is running), Unavailable,
Stopped, and the errors named in its docstring."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from functools import wraps
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar, overload

from tieredstore.clock import SYSTEM_CLOCK
from tieredstore.errors import Invalid, make_missing_error
from tieredstore.jobs.options import (
    DEFAULT_INTERVAL,
    BackfillTierOptions,
    CompactExportOptions,
    CompactIndexOptions,
    CopyTierOptions,
    ExportOptions,
    OffloadOptions,
    RebuildIndexOptions,
    RebuildMetadataOptions,
    ReportOptions,
    RestoreOptions,
    RunOptions,
    VerifyOptions,
)
from tieredstore.jobs.run import JobReport, ProgressCallback
from tieredstore.jobs.start import Tier, find_location, identify_tier, start_run
from tieredstore.jobs.stopping import StopSignal
from tieredstore.scan.times import Time
from tieredstore.tier_url import show_url

_P = ParamSpec("_P")
_Options = TypeVar("_Options")
_Options_co = TypeVar("_Options_co", covariant=True)
_First = TypeVar("_First")
_Second = TypeVar("_Second")


class _Decorator(Protocol[_P, _Options_co]):
    @overload
    def __call__(self, job: Callable[[_Options_co], JobReport], /) -> Callable[_P, JobReport]: ...
    @overload
    def __call__(
        self, job: Callable[[_First, _Options_co], JobReport], /
    ) -> Callable[Concatenate[_First, _P], JobReport]: ...
    @overload
    def __call__(
        self, job: Callable[[_First, _Second, _Options_co], JobReport], /
    ) -> Callable[Concatenate[_First, _Second, _P], JobReport]: ...


def _with_arguments_of(kind: Callable[_P, _Options]) -> _Decorator[_P, _Options]:
    """Return a decorator that replaces the last parameter of a function, the dataclass `kind`, by
    the fields of the dataclass."""

    def decorate(job: Callable[..., JobReport]) -> Any:
        own = list(inspect.signature(job).parameters.values())[:-1]
        fields = inspect.signature(kind).parameters.values()
        signature = inspect.Signature([*own, *fields], return_annotation="JobReport")

        @wraps(job)
        def call(*given: object, **more: object) -> JobReport:
            arguments = signature.bind(*given, **more).arguments
            first = [arguments.pop(one.name) for one in own]
            options: Callable[..., _Options] = kind
            return job(*first, options(**arguments))

        del vars(call)["__wrapped__"]
        vars(call)["__signature__"] = signature
        call.__doc__ = f"{inspect.getdoc(job)}\n\n{inspect.getdoc(kind)}"
        return call

    return decorate


@_with_arguments_of(ExportOptions)
def export(tier: Tier, options: ExportOptions) -> JobReport:
    """Export the messages that the target lacks, each exactly once. Raises Corrupt, Fenced (another
    export has committed)."""
    with _require_arrow("export"):
        from tieredstore.jobs.exporting.following import follow_exports, parse_interval
        from tieredstore.jobs.exporting.job import export_topics, measure_left, run_export
        from tieredstore.jobs.exporting.request import ExportRequest, make_request

    request = make_request(options, SYSTEM_CLOCK.now_ms())
    location = find_location(tier)
    is_followed = options.follow or options.every is not None
    stop = options.stop or StopSignal()
    times = _format_times(since=options.since, until=options.until)

    def export_one(request: ExportRequest, progress: ProgressCallback | None) -> JobReport:
        identity = identify_tier(location) | request.identity() | times
        for name in ("state", "since_ms", "until_ms"):
            del identity[name]
        with start_run("export", identity, replace(options, progress=progress, stop=stop)) as run:
            return run_export(run, location, request)

    def export_once(progress: ProgressCallback | None) -> JobReport:
        return export_topics(
            location, request, lambda one: export_one(one, progress), keeps_part=is_followed
        )

    if not is_followed:
        return export_once(options.progress)
    if options.until is not None or options.until_offset is not None:
        raise Invalid("follow: a following export takes no until and no until_offset")
    return follow_exports(
        export_once,
        lambda: measure_left(location, request, SYSTEM_CLOCK),
        parse_interval(options.every or DEFAULT_INTERVAL),
        stop=stop,
        clock=SYSTEM_CLOCK,
        progress=options.progress,
    )


@_with_arguments_of(CompactExportOptions)
def compact_export(options: CompactExportOptions) -> JobReport:
    """Merge small files of a plain Parquet target, the folder `to` of `export`. Runs of at least
    `min_files` consecutive files below `target_file_bytes` are merged within their partition, up to
    about that size. Rows stay in order. Exports into the target may run at the same time. Raises
    Corrupt, Fenced (another compaction has committed)."""
    with _require_arrow("compact export"):
        from tieredstore.jobs.exporting.compaction import run_compact_export

    identity: dict[str, object] = {
        "target": options.target,
        "target_file_bytes": options.target_file_bytes,
        "min_files": options.min_files,
        "zstd_level": options.zstd_level,
    }
    with start_run("compact-export", identity, options) as run:
        return run_compact_export(run, options)


@_with_arguments_of(VerifyOptions)
def verify(tier: Tier, options: VerifyOptions) -> JobReport:
    """Check every byte of a tier. With a topic or queue, check only its messages, without the
    index. The check continues after damage. The report has the first 10,000 findings, and
    `on_finding` receives all. `seal` needs the writer epoch. Without `work`, there is no journal,
    because the tier may change before the next call."""
    from tieredstore.jobs.verifying import run_verify

    location = find_location(tier)
    of_queue = {"topic": options.topic, "queue": options.queue, "index": options.index}
    identity = identify_tier(location) | of_queue
    with start_run("verify", identity, options, has_journal=False) as run:
        return run_verify(run, location, options)


@_with_arguments_of(ReportOptions)
def report(tier: Tier, to: str | Path, options: ReportOptions) -> JobReport:
    """Report content and cost of a tier: `report.html` and Parquet tables in the folder `to`."""
    with _require_arrow("report"):
        from tieredstore.jobs.reporting.job import run_report

    location, to = find_location(tier), Path(to)
    identity = identify_tier(location) | {
        "to": str(to.absolute()),
        "keys_percent": options.keys_percent,
        "prices": dict(options.prices or {}),
        **_format_times(as_of=options.as_of),
    }
    with start_run("report", identity, options) as run:
        return run_report(run, location, to, options)


@_with_arguments_of(RebuildMetadataOptions)
def rebuild_metadata(tier: Tier, state: str | Path, options: RebuildMetadataOptions) -> JobReport:
    """Rebuild the metadata of a tier in the directory `state`, from the tier alone. The newest
    metadata backup in the tier supplies the ends of queues without messages. Raises Fenced (a
    writer is active)."""
    from tieredstore.jobs.metadata.job import run_rebuild_metadata
    from tieredstore.jobs.restoring.backups import read_former_metadata_of

    location, state = find_location(tier), Path(state)
    identity = identify_tier(location) | {
        "state": str(state.absolute()),
        "exact_times": options.exact_times,
        "dry_run": options.dry_run,
        "force": options.force,
    }
    with start_run("rebuild-metadata", identity, options) as run:
        former = read_former_metadata_of(location)
        return run_rebuild_metadata(run, location, state, options, former=former)


@_with_arguments_of(RestoreOptions)
def restore(tier: Tier, store: str | Path, options: RestoreOptions) -> JobReport:
    """Restore a lost store directory of a broker from its tier alone.

    `store`: a directory that is empty or missing. Raises Corrupt (no backup is intact), Fenced.
    """
    from tieredstore.jobs.restoring.job import run_restore

    location, store = find_location(tier), Path(store)
    identity = identify_tier(location) | {"store": str(store.absolute())}
    how = RunOptions(progress=options.progress, stop=options.stop)
    with start_run("restore", identity, how, has_journal=False) as run:
        return run_restore(run, location, store, options)


@_with_arguments_of(RebuildIndexOptions)
def rebuild_index(tier: Tier, options: RebuildIndexOptions) -> JobReport:
    """Rebuild the index files of a broker's part of a tier from its messages. Raises Fenced (a
    broker runs), Corrupt."""
    from tieredstore.jobs.index.rebuild import run_rebuild_index

    location = find_location(tier)
    identity = identify_tier(location) | {
        **_format_times(since=options.since, until=options.until),
        "force": options.force,
        "staging": None if options.staging is None else show_url(options.staging),
    }
    with start_run("rebuild-index", identity, options) as run:
        return run_rebuild_index(run, location, options)


@_with_arguments_of(CompactIndexOptions)
def compact_index(tier: Tier, options: CompactIndexOptions) -> JobReport:
    """Upload the index files of a state directory to the tier, and merge small index files. The
    tier must be opened with its `state`. Raises Fenced (a broker runs), Corrupt (a damaged index
    file)."""
    from tieredstore.jobs.index.compact import run_compact_index

    location, staging = find_location(tier), options.staging
    identity = identify_tier(location) | {"staging": None if staging is None else show_url(staging)}
    with start_run("compact-index", identity, options) as run:
        return run_compact_index(run, location, options)


@_with_arguments_of(BackfillTierOptions)
def backfill(tier: str, table: str | Path, options: BackfillTierOptions) -> JobReport:
    """Append the messages of a Parquet table (a file or a folder) to the queues of a tier. The tier
    is created if missing. Raises Fenced (a broker runs), Corrupt."""
    with _require_arrow("backfill"):
        from tieredstore.jobs.backfilling.job import find_segment_bytes, run_backfill
        from tieredstore.jobs.backfilling.table_files import fingerprint, list_table
        from tieredstore.jobs.target import refuse_slave, resolve_named_target

    named = resolve_named_target(tier, options)
    refuse_slave(named.config)
    target = named.location
    identity: dict[str, object] = {
        "table": show_url(str(table)),
        "files": fingerprint(list_table(str(table))),  # A corrected table is another job.
        "tier": show_url(target.url),
        "state": str(options.state_path.resolve()),
        "cluster": target.config.broker_cluster_name,
        "broker": target.config.broker_name,
        "topic": options.topic,
        "queues": options.queues,
        "segment_bytes": find_segment_bytes(options),
    }
    with start_run("backfill", identity, options) as run:
        return run_backfill(run, target, str(table), options)


@_with_arguments_of(OffloadOptions)
def offload(options: OffloadOptions) -> JobReport:
    """Copy messages from a broker's `store` (its storePathRootDir) that are missing in a tier.
    There is no journal, because the tier shows where to continue. The report names queues that
    failed. Raises Fenced (another writer), Corrupt."""
    from tieredstore.jobs.offloading.job import run_offload

    how = RunOptions(progress=options.progress)
    with start_run("offload", {}, how, has_journal=False) as run:
        return run_offload(run, options)


@_with_arguments_of(CopyTierOptions)
def copy(tier: Tier, options: CopyTierOptions) -> JobReport:
    """Copy a broker's part of a tier to the URL `to`: segments, metadata, index. There is no
    journal, because the target shows where to continue. Raises Fenced (another writer), Corrupt."""
    from tieredstore.jobs.copying.ends import run_copy

    how = RunOptions(progress=options.progress)
    with start_run("copy", {}, how, has_journal=False) as run:
        return run_copy(run, find_location(tier), options)


def _format_times(**times: Time | None) -> dict[str, object]:
    """Return the time arguments for the report as the caller gave them. A relative time is not
    resolved, so that the next run has the same arguments."""
    return {
        name: time.isoformat() if isinstance(time, datetime) else time
        for name, time in times.items()
    }


@contextmanager
def _require_arrow(job: str) -> Iterator[None]:
    try:
        yield
    except ModuleNotFoundError as error:
        raise make_missing_error(job, error, "jobs") from error
