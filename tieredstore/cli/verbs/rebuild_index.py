"""`tieredstore rebuild index`: index files, made from the messages of a tier."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import click

from tieredstore.cli.exits import ExitCode
from tieredstore.cli.options.job import JobOptions, job_options
from tieredstore.cli.options.tier import (
    TierOptions,
    output_option,
    staging_option,
    take_over_option,
    tier_options,
    time_options,
)
from tieredstore.cli.output.rows import Output, OutputFormat

LISTS = {
    "stages": ("stage", "tasks", "resumed", "seconds"),
    "files": ("base_offset", "size_bytes", "items", "begin_timestamp", "end_timestamp"),
}


@click.command("index")
@tier_options
@time_options
@click.option("--force", is_flag=True, help="Replace the index files that there are.")
@staging_option
@take_over_option
@output_option
@job_options
def command(
    tier: str,
    state: Path | None,
    config: Path | None,
    cluster: str | None,
    broker: str | None,
    since: str | None,
    until: str | None,
    force: bool,
    staging: str | None,
    take_over: bool,
    output: str,
    **job: Any,
) -> int:
    """Make the index files of a broker's part of a tier from its messages.

    For a tier that lost them or was made without. With --since or --until, files for the messages
    stored then are added to those that there are. The broker must be stopped. Exit code 1 when
    messages could not be read; their keys are left out.
    """
    from tieredstore.cli.composition import tier_identity, tier_source
    from tieredstore.cli.options.job import job_run, require_staging, write_report
    from tieredstore.jobs.index.rebuild import RebuildOptions, rebuild_index
    from tieredstore.scan.times import parse_time
    from tieredstore.tier_url import shown_url

    source = tier_source(TierOptions(tier, state, config, cluster, broker))
    now_ms = int(time.time() * 1000)
    options = RebuildOptions(
        None if since is None else parse_time(since, now_ms),
        None if until is None else parse_time(until, now_ms),
        replace=force,
        take_over=take_over,
        staging=staging,
    )
    arguments: dict[str, object] = {
        **tier_identity(source),
        # A time such as -2h is another one when the job goes on.
        "since": since,
        "until": until,
        "force": force,
        "staging": None if staging is None else shown_url(staging),
    }
    job_settings = JobOptions(**job)
    require_staging(job_settings, staging)
    with job_run("rebuild-index", job_settings, arguments) as run:
        report = rebuild_index(run, source, options)
        write_report(job_settings, report)
    Output(OutputFormat(output)).record(report, LISTS)
    return int(ExitCode.DAMAGE if report["left_out"] else ExitCode.OK)
