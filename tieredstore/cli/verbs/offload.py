"""`tieredstore offload`: copy a broker's store into a tier."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tieredstore.cli.exits import ExitCode, line_of
from tieredstore.cli.options.tier import (
    dry_run_option,
    output_option,
    quiet_option,
    take_over_option,
    topics_option,
)
from tieredstore.cli.output.rows import Output, OutputFormat
from tieredstore.cli.output.usage import USAGE_TABLE, usage_fields

if TYPE_CHECKING:
    from tieredstore.jobs.offloading.plan import DryRun
    from tieredstore.jobs.offloading.report import OffloadProgress, OffloadReport

PLAN_COLUMNS = ("topic", "queue_id", "from_offset", "until_offset", "message_bytes", "segments")


@click.command("offload")
@click.argument("store", metavar="STORE", type=click.Path(path_type=Path))
@click.option(
    "--tier",
    required=True,
    metavar="URL",
    help="Where the tier is: file:///dir or s3://bucket/prefix.",
)
@click.option(
    "--state",
    required=True,
    metavar="DIR",
    type=click.Path(path_type=Path),
    help="Keeps what the tier holds (metadata, index files); never the store itself.",
)
@click.option(
    "--config",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="The broker's broker.conf; the command line beats it.",
)
@click.option("--cluster", metavar="NAME", help="Cluster name (brokerClusterName).")
@click.option("--broker", metavar="NAME", help="Broker name (brokerName).")
@topics_option
@click.option(
    "--workers", metavar="N", type=click.IntRange(1, 256), help="Threads that upload.", default=None
)
@click.option("--follow", is_flag=True, help="Go on as the store grows, until SIGINT or SIGTERM.")
@dry_run_option
@take_over_option
@quiet_option
@output_option
def command(
    store: Path,
    tier: str,
    state: Path,
    config: Path | None,
    cluster: str | None,
    broker: str | None,
    topics: list[str],
    workers: int | None,
    follow: bool,
    dry_run: bool,
    take_over: bool,
    quiet: bool,
    output: str,
) -> int:
    """Copy what STORE (a broker's storePathRootDir) has and the tier lacks.

    Never writes in STORE; a broker may be running on it. Deletes nothing. Interrupted anywhere, it
    can be run again.
    """
    if follow and dry_run:
        raise click.UsageError("--follow and --dry-run exclude each other")
    from tieredstore.cli.composition import log_to_stderr
    from tieredstore.cli.output.progress import Display, rate_text
    from tieredstore.cli.stopping import stop_on_signals
    from tieredstore.jobs.offloading.job import (
        OffloadOptions,
        StopSignal,
        follow_offload,
        plan_offload,
        run_offload,
    )

    log_to_stderr()
    options = OffloadOptions(
        store, tier, state, config, broker, cluster, topics, workers, take_over
    )
    out = Output(OutputFormat(output))
    if dry_run:
        out.record(_plan_record(plan_offload(options)), {"plan": PLAN_COLUMNS})
        return int(ExitCode.OK)
    stop = StopSignal()
    with stop_on_signals(stop), Display("offload", sys.stderr, quiet=quiet) as display:

        def on_progress(progress: OffloadProgress) -> None:
            display.show(
                progress.messages,
                progress.messages_total,
                f"{progress.messages:,} of {progress.messages_total:,} messages in "
                f"{progress.queues_total:,} queues, {progress.message_bytes / 1e6:,.1f} MB, "
                f"{rate_text(progress.message_bytes, progress.seconds)}",
            )

        def on_round(report: OffloadReport) -> None:
            display.line(
                f"{report.messages:,} messages, {report.message_bytes / 1e6:,.1f} MB copied so far"
            )

        if follow:
            report = follow_offload(options, on_round, stop=stop)
        else:
            report = run_offload(options, on_progress, stop=stop)
    out.record(report_record(report), USAGE_TABLE)
    if report.stopped and not follow:
        click.echo("tieredstore: stopped; run it again to go on", err=True)
        return int(ExitCode.INTERRUPTED)
    for _, error in report.failed[1:]:
        click.echo(line_of(error), err=True)
    if report.failed:
        raise report.failed[0][1]
    return int(ExitCode.OK)


def report_record(report: OffloadReport) -> dict[str, object]:
    """A report as JSON fields (`docs/cli.md`)."""
    rate = report.messages / report.seconds if report.seconds > 0 else 0.0
    return {
        "queues": report.queues,
        "messages": report.messages,
        "message_bytes": report.message_bytes,
        "segments": report.segments,
        "seconds": round(report.seconds, 3),
        "messages_per_second": round(rate),
        "holes": [
            {"topic": key.topic, "queue_id": key.queue_id, "from_offset": low, "until_offset": high}
            for key, low, high in report.holes
        ],
        "failed": [
            {"topic": key.topic, "queue_id": key.queue_id, "error": str(error)}
            for key, error in report.failed
        ],
        "skipped_topics": report.skipped,
        "stopped": report.stopped,
        **usage_fields(report.usage),
    }


def _plan_record(plan: DryRun) -> dict[str, object]:
    return {
        "queues": len(plan.queues),
        "messages": plan.messages,
        "message_bytes": plan.message_bytes,
        "segments": plan.segments,
        "estimated_seconds": round(plan.seconds, 3),
        "plan": [
            {
                "topic": queue.key.topic,
                "queue_id": queue.key.queue_id,
                "from_offset": queue.from_offset,
                "until_offset": queue.until_offset,
                "message_bytes": queue.message_bytes,
                "segments": queue.segments,
            }
            for queue in plan.queues
        ],
    }
