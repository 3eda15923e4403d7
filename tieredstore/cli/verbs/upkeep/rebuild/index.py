"""`tieredstore rebuild index`: index files, made from the messages of a tier."""

from __future__ import annotations

import click

from tieredstore.cli.exits import ExitCode
from tieredstore.cli.options.job import JobOptions, job_options, staging_option, task_keywords
from tieredstore.cli.options.messages import time_options
from tieredstore.cli.options.output import output_option
from tieredstore.cli.options.tier import TierOptions, take_over_option, tier_options
from tieredstore.cli.output.rows import Output
from tieredstore.cli.output.tables import STAGES_TABLE

TABLES = {
    **STAGES_TABLE,
    "files": ("base_offset", "size_bytes", "items", "begin_timestamp", "end_timestamp"),
}


@click.command("index")
@tier_options()
@time_options
@click.option("--force", is_flag=True, help="Replace the index files that there are.")
@staging_option
@take_over_option
@output_option
@job_options
def command(
    tier: TierOptions,
    since: str | None,
    until: str | None,
    force: bool,
    staging: str | None,
    take_over: bool,
    out: Output,
    job: JobOptions,
) -> int:
    """Make the index files of a broker's part of a tier from its messages.

    For a tier that lost them or was made without. With --since or --until, files for the messages
    stored then are added to those that there are. The broker must be stopped. Exit code 1 when
    messages could not be read; their keys are left out.
    """
    from tieredstore import jobs
    from tieredstore.cli.composition import locate_tier

    location = locate_tier(tier)
    job.require_staging(staging)
    with task_keywords("rebuild-index", job) as how:
        report = jobs.rebuild_index(
            location,
            since=since,
            until=until,
            force=force,
            take_over=take_over,
            staging=staging,
            **how,
        )
    job.write_report(report)
    out.record(report, TABLES)
    return int(ExitCode.DAMAGE if report["left_out"] else ExitCode.OK)
