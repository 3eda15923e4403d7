"""`tieredstore compact index`: the index files of a state directory and small ones of a tier."""

from __future__ import annotations

import click

from tieredstore.cli.exits import ExitCode
from tieredstore.cli.options.job import JobOptions, job_options, staging_option, task_keywords
from tieredstore.cli.options.output import output_option
from tieredstore.cli.options.tier import TierOptions, take_over_option, tier_options
from tieredstore.cli.output.rows import Output
from tieredstore.cli.verbs.upkeep.rebuild.index import TABLES


@click.command("index")
@tier_options()
@staging_option
@take_over_option
@output_option
@job_options
def command(
    tier: TierOptions, staging: str | None, take_over: bool, out: Output, job: JobOptions
) -> int:
    """Upload the index files of a state directory, and merge small index files of its tier.

    Needs --state. Keys are found as before. The broker must be stopped. Exit code 1 when items
    named no message; they are left out.
    """
    from tieredstore import jobs
    from tieredstore.cli.composition import locate_tier

    location = locate_tier(tier)
    job.require_staging(staging)
    with task_keywords("compact-index", job) as how:
        report = jobs.compact_index(location, take_over=take_over, staging=staging, **how)
    job.write_report(report)
    out.record(report, TABLES)
    return int(ExitCode.DAMAGE if report["left_out"] else ExitCode.OK)
