"""`tieredstore compact index`: the index files of a state directory and small ones of a tier."""

from __future__ import annotations

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
)
from tieredstore.cli.output.rows import Output, OutputFormat
from tieredstore.cli.verbs.rebuild_index import LISTS


@click.command("index")
@tier_options
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
    staging: str | None,
    take_over: bool,
    output: str,
    **job: Any,
) -> int:
    """Upload the index files of a state directory, and merge small index files of its tier.

    Needs --state. Keys are found as before. The broker must be stopped. Exit code 1 when items
    named no message; they are left out.
    """
    from tieredstore.cli.composition import tier_identity, tier_source
    from tieredstore.cli.options.job import job_run, require_staging, write_report
    from tieredstore.jobs.index.compact import CompactOptions, compact_index
    from tieredstore.tier_url import shown_url

    source = tier_source(TierOptions(tier, state, config, cluster, broker))
    arguments: dict[str, object] = {
        **tier_identity(source),
        "staging": None if staging is None else shown_url(staging),
    }
    job_settings = JobOptions(**job)
    require_staging(job_settings, staging)
    with job_run("compact-index", job_settings, arguments) as run:
        report = compact_index(run, source, CompactOptions(take_over, staging))
        write_report(job_settings, report)
    Output(OutputFormat(output)).record(report, LISTS)
    return int(ExitCode.DAMAGE if report["left_out"] else ExitCode.OK)
