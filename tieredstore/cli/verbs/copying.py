"""Verbs that copy messages into a tier, to another tier, or back to a broker."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tieredstore.cli.exits import ExitCode, end_of_run, note_store
from tieredstore.cli.logs.choice import say
from tieredstore.cli.options.collecting import number, path, switch, value
from tieredstore.cli.options.job import (
    JobOptions,
    job_options,
    run_task,
    thread_keywords,
    thread_options,
)
from tieredstore.cli.options.messages import topics_option
from tieredstore.cli.options.output import dry_run_option, output_option
from tieredstore.cli.options.tier import PLACE, TierOptions, take_over_option, tier_options
from tieredstore.cli.output.rows import STAGES_TABLE, USAGE_TABLE, Output, Tables

if TYPE_CHECKING:
    from tieredstore.errors import TieredStoreError


BACKFILL_TABLES = {
    "queues": ("topic", "queue_id", "from_offset", "until_offset", "message_bytes", "segments"),
    **STAGES_TABLE,
}


@click.command("backfill")
@value(
    "--from",
    "TABLE",
    f"A Parquet file or a folder of them: a path, {PLACE}.",
    name="table",
    required=True,
)
@tier_options(
    tier=f"Where the tier is, or shall be: {PLACE}.",
    state="State directory of the tier's writer, or a new one.",
    needs_state=True,
    config="The broker's broker.conf. The command line overrides it.",
)
@value("--topic", "NAME", "Topic of a table without a column `topic`.")
@number(
    "--queues",
    1,
    None,
    "Over how many queues the messages of a table without `queue_id` are spread.",
    default=4,
)
@number("--segment-bytes", 1, None, "Limit of a commit log segment. Default: 256 MiB.")
@take_over_option
@output_option
@job_options
def backfill(
    table: str, tier: TierOptions, out: Output, job: JobOptions, **options: object
) -> None:
    """Append the messages of a Parquet TABLE to the queues of a tier.

    Existing messages do not change. The broker of the tier must be stopped. An interrupted run
    continues when it is repeated. A table that was backfilled before is skipped.
    """
    from tieredstore import jobs
    from tieredstore.cli.composition import check_target

    check_target(tier)
    options |= {"state": tier.required_state, "config": tier.config}
    options |= {"cluster": tier.cluster, "broker": tier.broker}
    run_task("backfill", job, out, BACKFILL_TABLES, jobs.backfill, tier.tier, table, **options)


COPY_PLAN: Tables = {
    "plan": ("path", "copy_bytes", "there_bytes", "segments", "deletes_bytes", "conflict")
}


@click.command("copy")
@tier_options(
    "origin",
    flag="from",
    tier="The tier to copy.",
    state="The origin's state directory. Without it, the tier alone is listed.",
    config="A broker.conf for the origin.",
    cluster="Cluster name, the same in both.",
    broker="Broker name, the same in both.",
)
@tier_options(
    "target",
    flag="to",
    tier="Where to: another tier.",
    state="Keeps what the target holds: its state directory, or a broker's storePathRootDir.",
    needs_state=True,
    config="A broker.conf for the target.",
    cluster=None,
    broker=None,
)
@topics_option
@thread_options(
    type=click.IntRange(1, 64), default=4, show_default=True, help="Queues copied at a time."
)
@dry_run_option
@switch("--force", "Delete data that only the target has. A dry run without --yes.")
@switch("--yes", "Let --force delete.")
@take_over_option
@output_option
def copy(
    origin: TierOptions,
    target: TierOptions,
    job: JobOptions,
    dry_run: bool,
    force: bool,
    yes: bool,
    out: Output,
    **options: Any,
) -> int:
    """Copy a broker's part of a tier to another location: segments, metadata, index.

    Never writes to the source, whose broker may be running. Copies only data that the target lacks,
    and verifies it by reading. An interrupted run can be repeated.
    """
    from tieredstore import jobs
    from tieredstore.cli.composition import locate_tier

    failures: list[TieredStoreError] = []
    only_plan = dry_run or (force and not yes)
    found = locate_tier(origin)
    with thread_keywords("copy", job, only_plan=only_plan) as how:
        report = jobs.copy(
            found,
            target.tier,
            to_state=target.required_state,
            to_config=target.config,
            replace=force,
            dry_run=only_plan,
            on_failure=failures.append,
            **options,
            **how,
        )
    job.write_report(report)
    if only_plan:
        out.record(report, STAGES_TABLE | COPY_PLAN)
        if not dry_run:
            say("nothing was changed, add --yes to do this")
        return int(ExitCode.OK)
    for line in (*report["damage"], *report["notes"]):
        say(line, "warning")
    out.record(report, STAGES_TABLE)
    code = end_of_run(stopped=report["stopped"], received=job.received, failures=failures)
    return int(ExitCode.DAMAGE if report["damage"] and code is ExitCode.OK else code)


OFFLOAD_PLAN: Tables = {
    "plan": ("topic", "queue_id", "from_offset", "until_offset", "message_bytes", "segments")
}


@click.command("offload")
@click.argument("store", metavar="STORE", type=click.Path(path_type=Path))
@tier_options(
    has_defaults=True,
    state="Directory for metadata and index files of the tier. Never the store itself.",
    needs_state=True,
    config="The broker's broker.conf. The command line overrides it.",
)
@topics_option
@thread_options(type=click.IntRange(1, 256), help="Threads that upload.")
@switch("--follow", "Copy new messages as they arrive, until SIGINT or SIGTERM.")
@number(
    "--metrics-port",
    0,
    65535,
    "With --follow: serve /metrics and /health there (0: a free port, which is logged).",
    metavar="PORT",
)
@value("--metrics-host", "HOST", "Address on which --metrics-port listens.", default="127.0.0.1")
@path("--health-file", "FILE", "With --follow: keep what /health answers in this file.")
@switch("--recovered", "Of a store that was killed: copy what a recovery would keep.")
@switch(
    "--standby", "With --follow, beside a replica: take over when the state directory is told to."
)
@switch("--upload-index", "Upload the keys of an index file that is not full, too.")
@dry_run_option
@take_over_option
@output_option
def offload(
    store: Path,
    tier: TierOptions,
    job: JobOptions,
    metrics_port: int | None,
    metrics_host: str,
    health_file: Path | None,
    out: Output,
    **options: Any,
) -> int:
    """Copy messages of STORE (a broker's storePathRootDir) that the tier lacks.

    Never writes to STORE, whose broker may be running. Deletes nothing. An interrupted run can be
    repeated.
    """
    follow, dry_run = options["follow"], options["dry_run"]
    if follow and dry_run:
        raise click.UsageError("--follow and --dry-run exclude each other")
    if follow and options["recovered"]:
        raise click.UsageError("--follow and --recovered exclude each other")
    if options["standby"] and (not follow or options["take_over"]):
        raise click.UsageError("--standby needs --follow, and takes over when it is told to")
    for option, given in (("--metrics-port", metrics_port), ("--health-file", health_file)):
        if given is not None and not follow:
            raise click.UsageError(f"{option} needs --follow")
    import logging

    from tieredstore import jobs
    from tieredstore.cli.composition import check_target
    from tieredstore.cli.watching import serve_watch, write_health
    from tieredstore.jobs.offloading.watch import OffloadWatch

    check_target(tier)
    note_store(store)
    failures: list[TieredStoreError] = []
    with ExitStack() as stack:
        how = stack.enter_context(thread_keywords("offload", job, only_plan=dry_run))
        if health_file is not None or metrics_port is not None:
            watch = how["watch"] = OffloadWatch()
        if health_file is not None:
            stack.enter_context(write_health(health_file, watch))
        if metrics_port is not None:
            port = stack.enter_context(serve_watch(metrics_host, metrics_port, watch))
            log = logging.getLogger(__name__)
            log.info("/metrics and /health at http://%s:%d", metrics_host, port)
        report = jobs.offload(
            tier.tier,
            store,
            state=tier.required_state,
            cluster=tier.cluster,
            broker=tier.broker,
            config=tier.config,
            properties=tier.properties,
            on_failure=failures.append,
            **options,
            **how,
        )
    job.write_report(report)
    out.record(report, STAGES_TABLE | (OFFLOAD_PLAN if dry_run else USAGE_TABLE))
    if dry_run:
        return int(ExitCode.OK)
    stopped = report["stopped"] and not follow
    return int(end_of_run(stopped=stopped, received=job.received, failures=failures))


RESTORE_TABLES = {
    **STAGES_TABLE,
    "queue_ends": ("topic", "queue_id", "end_offset"),
    "offsets_lowered": ("group", "topic", "queue_id", "offset", "to_offset"),
    "findings": ("severity", "kind", "segment", "message", "found"),
    "problems": ("path", "problem"),
}


@click.command("restore")
@tier_options(
    state=None,
    config="The broker's broker.conf. Without it, the store gets its former layout.",
    broker="Broker name (brokerName), where the tier has several.",
)
@path(
    "--store",
    "DIR",
    "The store to make (storePathRootDir): an empty directory, or none yet.",
    required=True,
)
@take_over_option
@output_option
def restore(tier: TierOptions, store: Path, take_over: bool, out: Output) -> int:
    """Create a broker's store directory from its tier, after its disk was lost.

    Topics, groups and consumer offsets come from the last backup in the tier. Messages stay in the
    tier, and queues continue at their ends there. An interrupted run can be repeated.
    """
    from tieredstore import jobs
    from tieredstore.cli.composition import locate_tier

    report = jobs.restore(locate_tier(tier), store, config=tier.config, take_over=take_over)
    out.record(report, RESTORE_TABLES)
    bad = report["damage"] or report["problems"] or report["damaged_backups"]
    return int(ExitCode.DAMAGE if bad else ExitCode.OK)
