"""`tieredstore backfill`: a Parquet table becomes messages of a tier."""

from __future__ import annotations

import click

from tieredstore.cli.options.job import JobOptions, job_options, task_keywords
from tieredstore.cli.options.output import output_option
from tieredstore.cli.options.tier import PLACE, TierOptions, take_over_option, tier_options
from tieredstore.cli.output.rows import Output
from tieredstore.cli.output.tables import STAGES_TABLE

TABLES = {
    "queues": ("topic", "queue_id", "from_offset", "until_offset", "message_bytes", "segments"),
    **STAGES_TABLE,
}


@click.command("backfill")
@click.option(
    "--from",
    "table",
    required=True,
    metavar="TABLE",
    help=f"A Parquet file or a folder of them: a path, {PLACE}.",
)
@tier_options(
    tier=f"Where the tier is, or shall be: {PLACE}.",
    state="Keeps what the tier holds: the directory of whoever wrote it, or a new one.",
    needs_state=True,
    config="The broker's broker.conf; the command line beats it.",
)
@click.option("--topic", metavar="NAME", help="Topic of a table without a column `topic`.")
@click.option(
    "--queues",
    metavar="N",
    type=click.IntRange(1),
    default=4,
    show_default=True,
    help="Over how many queues the messages of a table without `queue_id` are spread.",
)
@click.option(
    "--segment-bytes",
    metavar="N",
    type=click.IntRange(1),
    help="Of a commit log segment, at most; 256 MiB by default.",
)
@take_over_option
@output_option
@job_options
def command(
    table: str,
    tier: TierOptions,
    topic: str | None,
    queues: int,
    segment_bytes: int | None,
    take_over: bool,
    out: Output,
    job: JobOptions,
) -> None:
    """Write the messages of a Parquet TABLE into a tier, behind what its queues have.

    Nothing that is there is changed. The broker of the tier must be stopped. Interrupted anywhere,
    it goes on when it is run again; a table that was backfilled before is left alone.
    """
    from tieredstore import jobs
    from tieredstore.cli.composition import check_target

    check_target(tier)
    with task_keywords("backfill", job) as how:
        report = jobs.backfill(
            tier.tier,
            table,
            state=tier.required_state,
            cluster=tier.cluster,
            broker=tier.broker,
            config=tier.config,
            topic=topic,
            queues=queues,
            segment_bytes=segment_bytes,
            take_over=take_over,
            **how,
        )
    job.write_report(report)
    out.record(report, TABLES)
