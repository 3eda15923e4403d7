"""`tieredstore rebuild metadata`: a state directory from the tier alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from tieredstore.cli.exits import ExitCode
from tieredstore.cli.options.job import JobOptions, job_options, job_run, write_report
from tieredstore.cli.options.tier import output_option, take_over_option
from tieredstore.cli.output.rows import Output, OutputFormat

TABLES = {
    "stages": ("stage", "tasks", "resumed", "size_bytes", "seconds"),
    "found_topics": ("topic", "topic_id", "id_from"),
    "findings": ("severity", "kind", "segment", "message", "found"),
}
_PATH = click.Path(path_type=Path)


@click.command("metadata")
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
    type=_PATH,
    help="Gets config/tieredStoreMetadata.json: a state directory, or a broker's storePathRootDir.",
)
@click.option(
    "--config", metavar="FILE", type=_PATH, help="A broker.conf; the command line beats it."
)
@click.option("--cluster", metavar="NAME", help="Cluster name (brokerClusterName).")
@click.option("--broker", metavar="NAME", help="Broker name (brokerName): a state is one's.")
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
    tier: str,
    state: Path,
    config: Path | None,
    cluster: str | None,
    broker: str | None,
    dry_run: bool,
    force: bool,
    exact_times: bool,
    take_over: bool,
    output: str,
    **job: Any,
) -> int:
    """Make the metadata of a tier anew, from its listing, the ends of its segments and its index.

    Nobody may write to the tier meanwhile. Interrupted anywhere, it can be run again.
    """
    from tieredstore.cli.composition import log_to_stderr
    from tieredstore.jobs.metadata.job import RebuildOptions, rebuild_metadata
    from tieredstore.scan.source import locate
    from tieredstore.tier_url import shown_url

    log_to_stderr()
    source = locate(tier, cluster=cluster, broker=broker, config=config)
    options = JobOptions(**job)
    arguments: dict[str, object] = {
        "tier": shown_url(tier),
        "cluster": source.config.broker_cluster_name,
        "broker": source.broker,
        "state": str(state.absolute()),
        "exact_times": exact_times,
        "dry_run": dry_run,
        "force": force,
    }
    with job_run("rebuild-metadata", options, arguments) as run:
        record = rebuild_metadata(
            run, source, state, RebuildOptions(exact_times, force, take_over, dry_run)
        )
    write_report(options, record)
    Output(OutputFormat(output)).record(record, TABLES)
    return int(ExitCode.DAMAGE if record["damage"] else ExitCode.OK)
