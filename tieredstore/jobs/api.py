"""Each job as one call that gives its JSON report (`docs/jobs.md`): what the command line calls.

The tier comes first: its URL, or what `tieredstore.open` gave, whose methods these calls are too.
Of every call:

workers: processes of this machine that work. With 1 the work is done in this process; more need a
script to have `if __name__ == "__main__":`. runner: where the tasks run instead, such as a
`tieredstore.spark.runner.SparkRunner`. progress: called with a `JobProgress`, which
says how far the job is. work: a folder for the
journal, by which a job that was killed goes on when it is called again with the same arguments; the
user's state directory by default. stop: set from another thread or a signal handler, it ends the
run after the tasks in hand: the call raises `tieredstore.jobs.stopping.Stopped`, and the next one
goes on. Raises Invalid, Busy (the same job runs), Unavailable, and what
the call itself names.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from tieredstore.clock import SYSTEM_CLOCK
from tieredstore.errors import Invalid, make_missing_error
from tieredstore.jobs.run import FailureCallback, ProgressCallback
from tieredstore.jobs.runner import Runner
from tieredstore.jobs.start import Tier, find_location, identify_tier, start_run
from tieredstore.jobs.stopping import StopSignal
from tieredstore.scan.times import Time, epoch_ms
from tieredstore.tier_url import show_url

if TYPE_CHECKING:
    from tieredstore.jobs.offloading.watch import OffloadWatch
    from tieredstore.scan.findings import OnFinding

JobReport = dict[str, Any]
_Choice = TypeVar("_Choice", bound=StrEnum)


def export(
    tier: Tier,
    to: str | Path | None = None,
    *,
    format: str = "parquet",
    catalog: str | None = None,
    table: str | None = None,
    topics: str | Sequence[str] = (),
    queues: Sequence[int] = (),
    from_offset: int | None = None,
    until_offset: int | None = None,
    since: Time | None = None,
    until: Time | None = None,
    columns: Sequence[str] | None = None,
    properties: bool = False,
    target_file_bytes: int = 128 << 20,
    zstd_level: int = 3,
    on_corrupt: str = "fail",
    accept: Iterable[str] = (),
    partition_by: str | Sequence[str] = ("topic", "day"),
    body_schema: str | Path | None = None,
    body_prefix: str = "",
    on_unfit: str = "null",
    dedup: bool = False,
    dedup_window: str | timedelta | None = None,
    target_options: Mapping[str, str] | None = None,
    follow: bool = False,
    every: str | timedelta | None = None,
    stop: StopSignal | None = None,
    workers: int = 1,
    runner: Runner | None = None,
    progress: ProgressCallback | None = None,
    work: str | Path | None = None,
) -> JobReport:
    """Write what the target does not have yet, each message exactly once.

    format: parquet (a folder `to`), delta (a table in `to`) or iceberg (`table` of a pyiceberg
    `catalog`); with `{topic}` in `to` or `table`, each topic has a target of its own. topics:
    names, or shell patterns such as `order_*`; empty for all.
    partition_by: of topic, day, hour, bucket(N), bucket(N, column); `none` for no partitions.
    body_schema: what members of JSON bodies become columns, as `id BIGINT, at TIMESTAMP, …`, or a
    file (a Path) that says so; each column is named `body_prefix` and the member. on_unfit: whether
    a body that does not fit gives nulls (`null`) or ends the job (`fail`). dedup: of messages of a
    topic with one UNIQ_KEY only the first, where the others were stored at most `dedup_window`
    later (`10m` unless it is given). follow: go on until
    `stop` is set, also from a signal handler, with an export `every` so often (`30s`, `10m`, `2h`;
    a minute by default; `every` alone follows too). The rest is as in
    `tieredstore.jobs.exporting.request.ExportRequest`. Raises Corrupt, Fenced (another export
    committed meanwhile).
    """
    with _require_arrow("export"):
        from tieredstore.jobs import exporting
        from tieredstore.jobs.exporting import Accept, ExportRequest, Format, OnCorrupt, OnUnfit
        from tieredstore.jobs.exporting.bodies.schema import read_body_schema
        from tieredstore.jobs.exporting.partition import parse_partition_by
        from tieredstore.jobs.exporting.request import select_queues

    if dedup_window is not None and not dedup:
        raise Invalid("dedup_window: is for an export with dedup")
    now_ms = SYSTEM_CLOCK.now_ms()
    request = ExportRequest(
        _value("format", Format, format),
        to=None if to is None else str(to),
        catalog=catalog,
        table=table,
        selection=select_queues(
            _list_names(topics),
            queues,
            from_offset,
            until_offset,
            epoch_ms(since, now_ms),
            epoch_ms(until, now_ms),
        ),
        topics=tuple(_list_names(topics)),
        columns=None if columns is None else tuple(columns),
        properties=properties,
        target_file_bytes=target_file_bytes,
        zstd_level=zstd_level,
        on_corrupt=_value("on_corrupt", OnCorrupt, on_corrupt),
        accept=frozenset(_value("accept", Accept, name) for name in accept),
        partition_by=parse_partition_by(partition_by),
        body_schema=None if body_schema is None else read_body_schema(body_schema, body_prefix),
        on_unfit=_value("on_unfit", OnUnfit, on_unfit),
        dedup_window_ms=exporting.parse_interval(
            dedup_window or exporting.DEFAULT_DEDUP_WINDOW, "dedup_window"
        )
        if dedup
        else None,
        target_options=dict(target_options or {}),
    )
    location = find_location(tier)
    is_followed = follow or every is not None
    stop = stop or StopSignal()

    def export_one(request: ExportRequest, progress: ProgressCallback | None) -> JobReport:
        identity = (
            identify_tier(location) | request.identity() | _format_times(since=since, until=until)
        )
        for name in ("state", "since_ms", "until_ms"):
            del identity[name]
        with start_run(
            "export",
            identity,
            workers=workers,
            runner=runner,
            progress=progress,
            work=work,
            stop=stop,
        ) as run:
            return exporting.run_export(run, location, request)

    def export_once(progress: ProgressCallback | None) -> JobReport:
        return exporting.export_topics(
            location, request, lambda one: export_one(one, progress), keeps_part=is_followed
        )

    if not is_followed:
        return export_once(progress)
    if until is not None or until_offset is not None:
        raise Invalid("follow: an export that goes on has no until and no until_offset")
    return exporting.follow_exports(
        export_once,
        lambda: exporting.measure_left(location, request, SYSTEM_CLOCK),
        exporting.parse_interval(every or exporting.DEFAULT_INTERVAL),
        stop=stop,
        clock=SYSTEM_CLOCK,
        progress=progress,
    )


def compact_export(
    to: str | Path,
    *,
    target_file_bytes: int = 128 << 20,
    min_files: int = 2,
    zstd_level: int = 3,
    target_options: Mapping[str, str] | None = None,
    workers: int = 1,
    runner: Runner | None = None,
    progress: ProgressCallback | None = None,
    work: str | Path | None = None,
    stop: StopSignal | None = None,
) -> JobReport:
    """Merge small files of a plain Parquet target, the folder `to` of `export`.

    Files below `target_file_bytes` that follow each other in a partition become one, up to about as
    much, where there are `min_files` of them; rows stay in order. Exports into the target may run
    meanwhile. The rest is as in `export`. Raises Corrupt, Fenced (another compaction committed
    meanwhile).
    """
    with _require_arrow("compact export"):
        from tieredstore.jobs.exporting import CompactionRequest, run_compact_export

    request = CompactionRequest(
        str(to), target_file_bytes, min_files, zstd_level, dict(target_options or {})
    )
    with start_run(
        "compact-export",
        request.identity(),
        workers=workers,
        runner=runner,
        progress=progress,
        work=work,
        stop=stop,
    ) as run:
        return run_compact_export(run, request)


def verify(
    tier: Tier,
    *,
    topic: str | None = None,
    queue: int | None = None,
    index: bool = True,
    seal: bool = False,
    on_finding: OnFinding | None = None,
    workers: int = 1,
    runner: Runner | None = None,
    progress: ProgressCallback | None = None,
    work: str | Path | None = None,
    stop: StopSignal | None = None,
) -> JobReport:
    """Check every byte of a tier, or of one topic or queue of it (then without the index).

    seal: give checksums of blocks to what has none and is not damaged; needs the right to write.

    Goes on after damage: the report has the first 10,000 findings, `on_finding` gets all. No
    journal is kept without `work`, for the tier may be another one at the next call.
    """
    from tieredstore.jobs.verifying import run_verify

    location = find_location(tier)
    identity = identify_tier(location) | {"topic": topic, "queue": queue, "index": index}
    with start_run(
        "verify",
        identity,
        workers=workers,
        runner=runner,
        progress=progress,
        work=work,
        stop=stop,
        has_journal=False,
    ) as run:
        return run_verify(
            run,
            location,
            topic=topic,
            queue_id=queue,
            with_index=index,
            seal=seal,
            on_finding=on_finding,
        )


def report(
    tier: Tier,
    to: str | Path,
    *,
    keys_percent: int = 100,
    prices: Mapping[str, float] | None = None,
    as_of: Time | None = None,
    workers: int = 1,
    runner: Runner | None = None,
    progress: ProgressCallback | None = None,
    work: str | Path | None = None,
    stop: StopSignal | None = None,
) -> JobReport:
    """Say what a tier holds and costs: `report.html` and Parquet tables in the folder `to`.

    keys_percent: of how many of a hundred blocks of messages the keys are read. prices: USD, as in
    `tieredstore.jobs.reporting.job.ReportOptions`. as_of: the time up to which ages count, in place
    of now.
    """
    with _require_arrow("report"):
        from tieredstore.jobs.reporting.job import ReportOptions, run_report

    now_ms = epoch_ms(as_of, SYSTEM_CLOCK.now_ms())
    options = ReportOptions(keys_percent, dict(prices or {}), now_ms)
    location, to = find_location(tier), Path(to)
    identity = identify_tier(location) | {
        "to": str(to.absolute()),
        "keys_percent": keys_percent,
        "prices": dict(options.prices),
        **_format_times(as_of=as_of),
    }
    with start_run(
        "report",
        identity,
        workers=workers,
        runner=runner,
        progress=progress,
        work=work,
        stop=stop,
    ) as run:
        return run_report(run, location, to, options)


def rebuild_metadata(
    tier: Tier,
    state: str | Path,
    *,
    exact_times: bool = False,
    force: bool = False,
    take_over: bool = False,
    dry_run: bool = False,
    workers: int = 1,
    runner: Runner | None = None,
    progress: ProgressCallback | None = None,
    work: str | Path | None = None,
    stop: StopSignal | None = None,
) -> JobReport:
    """Make the metadata of a tier anew in the directory `state`, from the tier alone.

    The options are those of `RebuildOptions`. Raises Fenced (a writer lives).
    """
    from tieredstore.jobs.metadata.job import RebuildOptions, run_rebuild_metadata

    location, state = find_location(tier), Path(state)
    identity = identify_tier(location) | {
        "state": str(state.absolute()),
        "exact_times": exact_times,
        "dry_run": dry_run,
        "force": force,
    }
    options = RebuildOptions(exact_times, force, take_over, dry_run)
    with start_run(
        "rebuild-metadata",
        identity,
        workers=workers,
        runner=runner,
        progress=progress,
        work=work,
        stop=stop,
    ) as run:
        return run_rebuild_metadata(run, location, state, options)


def restore(
    tier: Tier,
    store: str | Path,
    *,
    config: str | Path | None = None,
    take_over: bool = False,
    progress: ProgressCallback | None = None,
    stop: StopSignal | None = None,
) -> JobReport:
    """Make a broker's store directory from its tier alone, when its disk was lost.

    store: a directory that is empty, or is not there. config: the broker's broker.conf; without it
    the store gets the shape that the backup says. Raises Corrupt (no backup is whole), Fenced.
    """
    from tieredstore.jobs.restoring import run_restore

    location, store = find_location(tier), Path(store)
    identity = identify_tier(location) | {"store": str(store.absolute())}
    with start_run("restore", identity, has_journal=False, progress=progress, stop=stop) as run:
        return run_restore(
            run, location, store, config=Path(config) if config else None, take_over=take_over
        )


def rebuild_index(
    tier: Tier,
    *,
    since: Time | None = None,
    until: Time | None = None,
    force: bool = False,
    take_over: bool = False,
    staging: str | None = None,
    workers: int = 1,
    runner: Runner | None = None,
    progress: ProgressCallback | None = None,
    work: str | Path | None = None,
    stop: StopSignal | None = None,
) -> JobReport:
    """Make the index files of a broker's part of a tier from its messages.

    since, until: only of messages stored then, beside the files that there are. force: in place of
    those. staging: a URL that all workers reach; a folder beside the journal by default. Raises
    Fenced (a broker runs), Corrupt.
    """
    from tieredstore.jobs.index.rebuild import RebuildOptions, run_rebuild_index

    location, now_ms = find_location(tier), SYSTEM_CLOCK.now_ms()
    options = RebuildOptions(
        epoch_ms(since, now_ms), epoch_ms(until, now_ms), force, take_over, staging
    )
    identity = identify_tier(location) | {
        **_format_times(since=since, until=until),
        "force": force,
        "staging": None if staging is None else show_url(staging),
    }
    with start_run(
        "rebuild-index",
        identity,
        workers=workers,
        runner=runner,
        progress=progress,
        work=work,
        stop=stop,
    ) as run:
        return run_rebuild_index(run, location, options)


def compact_index(
    tier: Tier,
    *,
    take_over: bool = False,
    staging: str | None = None,
    workers: int = 1,
    runner: Runner | None = None,
    progress: ProgressCallback | None = None,
    work: str | Path | None = None,
    stop: StopSignal | None = None,
) -> JobReport:
    """Put the index files of a state directory into the tier, and merge small index files.

    The tier is one that was opened with its `state`. staging: as in `rebuild_index`. Raises Fenced
    (a broker runs), Corrupt (a damaged index file).
    """
    from tieredstore.jobs.index.compact import CompactOptions, run_compact_index

    location = find_location(tier)
    identity = identify_tier(location) | {"staging": None if staging is None else show_url(staging)}
    with start_run(
        "compact-index",
        identity,
        workers=workers,
        runner=runner,
        progress=progress,
        work=work,
        stop=stop,
    ) as run:
        return run_compact_index(run, location, CompactOptions(take_over, staging))


def backfill(
    tier: str,
    table: str | Path,
    *,
    state: str | Path,
    cluster: str | None = None,
    broker: str | None = None,
    config: str | Path | None = None,
    properties: Mapping[str, str] | None = None,
    topic: str | None = None,
    queues: int = 4,
    segment_bytes: int | None = None,
    take_over: bool = False,
    workers: int = 1,
    runner: Runner | None = None,
    progress: ProgressCallback | None = None,
    work: str | Path | None = None,
    stop: StopSignal | None = None,
) -> JobReport:
    """Write the messages of a Parquet table (a file or a folder) into a tier, which need not be
    there yet, behind what its queues have.

    state: the state directory of whoever writes the tier, or a new one. cluster, broker: names in
    the tier, unless `config` (a broker.conf) or `properties` (its settings) give them. The rest is
    as in `tieredstore.jobs.backfilling.job.BackfillOptions`. Raises Fenced (a broker runs),
    Corrupt.
    """
    with _require_arrow("backfill"):
        from tieredstore.jobs.backfilling import BackfillOptions, backfill_target, run_backfill
        from tieredstore.jobs.backfilling.job import SEGMENT_BYTES
        from tieredstore.jobs.backfilling.table_files import fingerprint, list_table

    target = backfill_target(
        tier,
        Path(state),
        cluster=cluster,
        broker=broker,
        config=None if config is None else Path(config),
        properties=properties,
    )
    options = BackfillOptions(topic, queues, segment_bytes or SEGMENT_BYTES, take_over)
    identity: dict[str, object] = {
        "table": show_url(str(table)),
        "files": fingerprint(list_table(str(table))),  # a table that was mended is another job
        "tier": show_url(target.url),
        "state": str(Path(state).resolve()),
        "cluster": target.config.broker_cluster_name,
        "broker": target.config.broker_name,
        "topic": topic,
        "queues": queues,
        "segment_bytes": options.segment_bytes,
    }
    with start_run(
        "backfill",
        identity,
        workers=workers,
        runner=runner,
        progress=progress,
        work=work,
        stop=stop,
    ) as run:
        return run_backfill(run, target, str(table), options)


def offload(
    tier: str,
    store: str | Path,
    *,
    state: str | Path,
    cluster: str | None = None,
    broker: str | None = None,
    config: str | Path | None = None,
    properties: Mapping[str, str] | None = None,
    topics: str | Sequence[str] = (),
    follow: bool = False,
    recovered: bool = False,
    standby: bool = False,
    dry_run: bool = False,
    take_over: bool = False,
    stop: StopSignal | None = None,
    on_failure: FailureCallback | None = None,
    watch: OffloadWatch | None = None,
    workers: int | None = None,
    progress: ProgressCallback | None = None,
) -> JobReport:
    """Copy what a broker's `store` (its storePathRootDir) has and a tier lacks.

    Needs no journal: the tier says where to go on. What failed for one queue is in the report, and
    `on_failure` gets the error. stop: ends the run in good order, also from a signal handler.
    watch: is told how a run with `follow` is. workers: threads that upload. The rest is as in
    `tieredstore.jobs.offloading.options.OffloadOptions`. Raises Fenced (another writer), Corrupt.
    """
    from tieredstore.jobs.offloading.job import run_offload
    from tieredstore.jobs.offloading.options import OffloadOptions

    options = OffloadOptions(
        Path(store),
        tier,
        Path(state),
        None if config is None else Path(config),
        broker,
        cluster,
        _list_names(topics),
        workers,
        take_over,
        dry_run,
        follow,
        recovered,
        properties or {},
        standby,
    )
    with start_run("offload", {}, progress=progress, has_journal=False) as run:
        return run_offload(run, options, stop=stop, on_failure=on_failure, watch=watch)


def copy(
    tier: Tier,
    to: str,
    *,
    to_state: str | Path,
    to_config: str | Path | None = None,
    topics: str | Sequence[str] = (),
    replace: bool = False,
    dry_run: bool = False,
    take_over: bool = False,
    stop: StopSignal | None = None,
    on_failure: FailureCallback | None = None,
    workers: int = 4,
    progress: ProgressCallback | None = None,
) -> JobReport:
    """Copy a broker's part of a tier to the URL `to`: segments, metadata, index.

    Needs no journal: the target says where to go on. stop, on_failure: as in `offload`. workers:
    queues copied at a time, by threads. The rest is as in
    `tieredstore.jobs.copying.ends.CopyRequest`. Raises Fenced (another writer), Corrupt.
    """
    from tieredstore.jobs.copying.ends import CopyRequest, run_copy

    request = CopyRequest(
        to,
        Path(to_state),
        None if to_config is None else Path(to_config),
        _list_names(topics),
        workers,
        replace,
        take_over,
        dry_run,
    )
    with start_run("copy", {}, progress=progress, has_journal=False) as run:
        return run_copy(run, find_location(tier), request, stop=stop, on_failure=on_failure)


def _value(name: str, kind: type[_Choice], given: str) -> _Choice:
    try:
        return kind(given)
    except ValueError:
        known = ", ".join(kind)
        raise Invalid(f"{name}: expected one of {known}, found {given!r}") from None


def _list_names(given: str | Sequence[str]) -> Sequence[str]:
    """One name is no row of letters."""
    return (given,) if isinstance(given, str) else given


def _format_times(**times: Time | None) -> dict[str, object]:
    """Times as they were given: a relative one is another one in the next run."""
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
