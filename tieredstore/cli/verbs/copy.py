"""`tieredstore copy`: move a tier from one provider to another."""

from __future__ import annotations

import sys
import threading
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

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tieredstore.contracts.usage import Usage
    from tieredstore.jobs.copying.report import CopyProgress, CopyReport, PathSummary

PLAN_COLUMNS = ("path", "copy_bytes", "there_bytes", "segments", "deletes_bytes", "conflict")
_PATH = click.Path(path_type=Path)


@click.command("copy")
@click.option("--from", "from_url", required=True, metavar="URL", help="The tier to copy.")
@click.option("--to", "to_url", required=True, metavar="URL", help="Where to: another tier.")
@click.option(
    "--from-state",
    metavar="DIR",
    type=_PATH,
    help="The source's state directory; without it, the tier alone is listed.",
)
@click.option(
    "--to-state",
    required=True,
    metavar="DIR",
    type=_PATH,
    help="Keeps what the target holds: its state directory, or a broker's storePathRootDir.",
)
@click.option("--from-config", metavar="FILE", type=_PATH, help="A broker.conf for the source.")
@click.option("--to-config", metavar="FILE", type=_PATH, help="A broker.conf for the target.")
@click.option("--cluster", metavar="NAME", help="Cluster name; the same in both.")
@click.option("--broker", metavar="NAME", help="Broker name; the same in both.")
@topics_option
@click.option(
    "--workers",
    metavar="N",
    type=click.IntRange(1, 64),
    default=4,
    show_default=True,
    help="Queues copied at a time.",
)
@dry_run_option
@click.option(
    "--force",
    is_flag=True,
    help="Replace what the target holds and the source does not; a dry run without --yes.",
)
@click.option("--yes", is_flag=True, help="Let --force delete.")
@take_over_option
@quiet_option
@output_option
def command(
    from_url: str,
    to_url: str,
    from_state: Path | None,
    to_state: Path,
    from_config: Path | None,
    to_config: Path | None,
    cluster: str | None,
    broker: str | None,
    topics: list[str],
    workers: int,
    dry_run: bool,
    force: bool,
    yes: bool,
    take_over: bool,
    quiet: bool,
    output: str,
) -> int:
    """Copy a broker's part of a tier to another place: segments, metadata, index.

    Never writes in the source; a broker may be writing there. Copies only what the target lacks,
    and reads back what it wrote. Interrupted anywhere, it can be run again.
    """
    from tieredstore.cli.output.progress import Display, rate_text
    from tieredstore.cli.stopping import stop_on_signals
    from tieredstore.jobs.copying.ends import CopyRequest, plan_run, run_copy

    request = CopyRequest(
        from_url,
        to_url,
        to_state,
        from_state,
        from_config,
        to_config,
        cluster,
        broker,
        topics,
        workers,
        force,
        take_over,
    )
    out = Output(OutputFormat(output))
    if dry_run or (force and not yes):
        out.record(plan_record(plan_run(request)), {"plan": PLAN_COLUMNS})
        if not dry_run:
            click.echo("tieredstore: nothing was changed; add --yes to do this", err=True)
        return int(ExitCode.OK)
    stop = threading.Event()
    with stop_on_signals(stop), Display("copy", sys.stderr, quiet=quiet) as display:

        def on_progress(progress: CopyProgress) -> None:
            display.show(
                progress.segments,
                progress.segments_total,
                f"{progress.segments:,} of {progress.segments_total:,} segments, "
                f"{progress.done_bytes / 1e6:,.1f} of {progress.total_bytes / 1e6:,.1f} MB, "
                f"{rate_text(progress.done_bytes, progress.seconds)}",
            )

        report = run_copy(request, on_progress, stop=stop)
    for line in (*report.damage, *report.notes):
        click.echo(f"tieredstore: warning: {line}", err=True)
    out.record(report_record(report))
    if report.stopped:
        click.echo("tieredstore: stopped; run it again to go on", err=True)
        return int(ExitCode.INTERRUPTED)
    for _, error in report.failed[1:]:
        click.echo(line_of(error), err=True)
    if report.failed:
        raise report.failed[0][1]
    return int(ExitCode.DAMAGE if report.damage else ExitCode.OK)


def report_record(report: CopyReport) -> dict[str, object]:
    """A report as JSON fields (`docs/cli.md`)."""
    rate = report.copied_bytes / report.seconds if report.seconds > 0 else 0.0
    return {
        "queues": report.queues,
        "segments": report.segments,
        "index_segments": report.index_segments,
        "copied_bytes": report.copied_bytes,
        "there_bytes": report.there_bytes,
        "seconds": round(report.seconds, 3),
        "bytes_per_second": round(rate),
        "replaced": report.replaced,
        "vanished": report.vanished,
        "failed": [{"path": path, "error": str(error)} for path, error in report.failed],
        "index_left_out": report.index_left_out,
        "damage": report.damage,
        "notes": report.notes,
        "stopped": report.stopped,
        "source_requests": _requests(report.source_usage),
        "target_requests": _requests(report.target_usage),
        "cost_usd": _cost(report.source_usage, report.target_usage),
    }


def _requests(usage: Usage | None) -> dict[str, int] | None:
    return None if usage is None else usage.requests_by_operation


def _cost(*usages: Usage | None) -> float | None:
    counted = [usage.cost_usd for usage in usages if usage is not None]
    return round(sum(counted), 6) if counted else None


def plan_record(plan: Sequence[PathSummary]) -> dict[str, object]:
    """A plan as JSON fields (`docs/cli.md`)."""
    return {
        "paths": len(plan),
        "segments": sum(path.segments for path in plan),
        "copy_bytes": sum(path.copy_bytes for path in plan),
        "deletes_bytes": sum(path.deletes_bytes for path in plan),
        "conflicts": sum(path.conflict is not None for path in plan),
        "plan": [
            {
                "path": path.path,
                "copy_bytes": path.copy_bytes,
                "there_bytes": path.there_bytes,
                "segments": path.segments,
                "deletes_bytes": path.deletes_bytes,
                "conflict": path.conflict,
            }
            for path in plan
        ],
    }
