"""`tieredstore rebuild metadata`: a state directory from the tier alone."""

from __future__ import annotations

from dataclasses import replace

import click

from tieredstore.cli.exits import ExitCode
from tieredstore.cli.options.job import JobOptions, job_options, task_keywords
from tieredstore.cli.options.output import output_option
from tieredstore.cli.options.tier import TierOptions, take_over_option, tier_options
from tieredstore.cli.output.rows import Output
from tieredstore.cli.output.tables import STAGES_TABLE

TABLES = {
    **STAGES_TABLE,
    "found_topics": ("topic", "topic_id", "id_from"),
    "findings": ("severity", "kind", "segment", "message", "found"),
}


@click.command("metadata")
@tier_options(
    state="Gets config/tieredStoreMetadata.json: a state directory, or a broker's "
    "storePathRootDir.",
    needs_state=True,
    broker="Broker name (brokerName): a state is one's.",
)
@click.option("--dry-run", is_flag=True, help="Only say what would be written.")
@click.option(
    "--force", is_flag=True, help="Replace metadata that is there; it is kept beside the new one."
)
@click.option(
    "--exact-times",
    is_flag=True,
    help="Read every message for the times of segments, not the first and the last of each.",
)
@take_over_option
@job_options
@output_option
def command(
    tier: TierOptions,
    dry_run: bool,
    force: bool,
    exact_times: bool,
    take_over: bool,
    job: JobOptions,
    out: Output,
) -> int:
    """Make the metadata of a tier anew, from its listing, the ends of its segments and its index.

    Nobody may write to the tier meanwhile. Interrupted anywhere, it can be run again.
    """
    from tieredstore import jobs
    from tieredstore.cli.composition import locate_tier

    location = locate_tier(replace(tier, state=None))  # the state is what is to be made
    with task_keywords("rebuild-metadata", job) as how:
        report = jobs.rebuild_metadata(
            location,
            tier.required_state,
            exact_times=exact_times,
            force=force,
            take_over=take_over,
            dry_run=dry_run,
            **how,
        )
    job.write_report(report)
    out.record(report, TABLES)
    return int(ExitCode.DAMAGE if report["damage"] else ExitCode.OK)
