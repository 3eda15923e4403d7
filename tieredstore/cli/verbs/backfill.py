"""`tieredstore backfill`: a Parquet table becomes messages of a tier."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from tieredstore.cli.exits import ExitCode
from tieredstore.cli.options.job import JobOptions, job_options
from tieredstore.cli.options.tier import output_option, take_over_option
from tieredstore.cli.output.rows import Output, OutputFormat
from tieredstore.errors import Invalid

LISTS = {
    "queues": ("topic", "queue_id", "from_offset", "until_offset", "message_bytes", "segments"),
    "stages": ("stage", "tasks", "resumed", "size_bytes", "seconds"),
}


@click.command("backfill")
@click.option(
    "--from",
    "table",
    required=True,
    metavar="TABLE",
    help="A Parquet file or a folder of them: a path, file:///dir or s3://bucket/prefix.",
)
@click.option(
    "--tier",
    required=True,
    metavar="URL",
    help="Where the tier is, or shall be: file:///dir or s3://bucket/prefix.",
)
@click.option(
    "--state",
    required=True,
    metavar="DIR",
    type=click.Path(path_type=Path),
    help="Keeps what the tier holds: the directory of whoever wrote it, or a new one.",
)
@click.option(
    "--config",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="The broker's broker.conf; the command line beats it.",
)
@click.option("--cluster", metavar="NAME", help="Cluster name (brokerClusterName).")
@click.option("--broker", metavar="NAME", help="Broker name (brokerName).")
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
    tier: str,
    state: Path,
    config: Path | None,
    cluster: str | None,
    broker: str | None,
    topic: str | None,
    queues: int,
    segment_bytes: int | None,
    take_over: bool,
    output: str,
    **job: Any,
) -> int:
    """Write the messages of a Parquet TABLE into a tier, behind what its queues have.

    Nothing that is there is changed. The broker of the tier must be stopped. Interrupted anywhere,
    it goes on when it is run again; a table that was backfilled before is left alone.
    """
    from tieredstore.cli.composition import log_to_stderr
    from tieredstore.cli.options.job import job_run, write_report
    from tieredstore.scan.source import refuse_memory

    try:
        from tieredstore.jobs.backfilling import BackfillOptions, backfill, backfill_target
        from tieredstore.jobs.backfilling.job import SEGMENT_BYTES
        from tieredstore.jobs.backfilling.source import fingerprint, list_table
    except ModuleNotFoundError as error:
        hint = "pip install 'tieredstore[jobs]'"
        raise Invalid(f"backfill needs {error.name}, which is not installed: {hint}") from error
    from tieredstore.tier_url import shown_url

    log_to_stderr()
    refuse_memory(tier)
    target = backfill_target(tier, state, cluster=cluster, broker=broker, config=config)
    options = BackfillOptions(topic, queues, segment_bytes or SEGMENT_BYTES, take_over)
    arguments: dict[str, object] = {
        "table": shown_url(table),
        "files": fingerprint(list_table(table)),  # a table that was mended is another job
        "tier": shown_url(tier),
        "state": str(state.resolve()),
        "cluster": target.config.broker_cluster_name,
        "broker": target.config.broker_name,
        "topic": topic,
        "queues": queues,
        "segment_bytes": options.segment_bytes,
    }
    job_settings = JobOptions(**job)
    with job_run("backfill", job_settings, arguments) as run:
        report = backfill(run, table, target, options)
        write_report(job_settings, report)
    Output(OutputFormat(output)).record(report, LISTS)
    return int(ExitCode.OK)
