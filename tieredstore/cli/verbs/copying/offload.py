"""`tieredstore offload`: copy a broker's store into a tier."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tieredstore.cli.exits import ExitCode, end_of_run
from tieredstore.cli.options.job import JobOptions, thread_keywords, thread_options
from tieredstore.cli.options.messages import topics_option
from tieredstore.cli.options.output import dry_run_option, output_option
from tieredstore.cli.options.tier import TierOptions, take_over_option, tier_options
from tieredstore.cli.output.rows import Output
from tieredstore.cli.output.tables import STAGES_TABLE, USAGE_TABLE, Tables

if TYPE_CHECKING:
    from tieredstore.errors import TieredStoreError

PLAN: Tables = {
    "plan": ("topic", "queue_id", "from_offset", "until_offset", "message_bytes", "segments")
}


@click.command("offload")
@click.argument("store", metavar="STORE", type=click.Path(path_type=Path))
@tier_options(
    has_defaults=True,
    state="Keeps what the tier holds (metadata, index files); never the store itself.",
    needs_state=True,
    config="The broker's broker.conf; the command line beats it.",
)
@topics_option
@thread_options(type=click.IntRange(1, 256), help="Threads that upload.")
@click.option("--follow", is_flag=True, help="Go on as the store grows, until SIGINT or SIGTERM.")
@click.option(
    "--metrics-port",
    type=click.IntRange(0, 65535),
    metavar="PORT",
    help="With --follow: serve /metrics and /health there (0: a free port, which is logged).",
)
@click.option(
    "--metrics-host",
    default="127.0.0.1",
    show_default=True,
    metavar="HOST",
    help="Address on which --metrics-port listens.",
)
@click.option(
    "--health-file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="With --follow: keep what /health answers in this file.",
)
@click.option(
    "--recovered",
    is_flag=True,
    help="Of a store that was killed: copy what a recovery would keep.",
)
@click.option(
    "--standby",
    is_flag=True,
    help="With --follow, beside a replica: take over when the state directory says so.",
)
@dry_run_option
@take_over_option
@output_option
def command(
    store: Path,
    tier: TierOptions,
    topics: list[str],
    job: JobOptions,
    follow: bool,
    metrics_port: int | None,
    metrics_host: str,
    health_file: Path | None,
    recovered: bool,
    standby: bool,
    dry_run: bool,
    take_over: bool,
    out: Output,
) -> int:
    """Copy what STORE (a broker's storePathRootDir) has and the tier lacks.

    Never writes in STORE; a broker may be running on it. Deletes nothing. Interrupted anywhere, it
    can be run again.
    """
    if follow and dry_run:
        raise click.UsageError("--follow and --dry-run exclude each other")
    if follow and recovered:
        raise click.UsageError("--follow and --recovered exclude each other")
    if standby and (not follow or take_over):
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
            topics=topics,
            follow=follow,
            recovered=recovered,
            standby=standby,
            dry_run=dry_run,
            take_over=take_over,
            on_failure=failures.append,
            **how,
        )
    job.write_report(report)
    out.record(report, STAGES_TABLE | (PLAN if dry_run else USAGE_TABLE))
    if dry_run:
        return int(ExitCode.OK)
    return int(
        end_of_run(
            stopped=report["stopped"] and not follow, received=job.received, failures=failures
        )
    )
