"""`tieredstore export`: messages of a tier as Parquet, Iceberg or Delta."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from tieredstore.cli.options.job import JobOptions, job_options, task_keywords
from tieredstore.cli.options.messages import split_pair, time_options, topics_option
from tieredstore.cli.options.output import output_option
from tieredstore.cli.options.tier import TierOptions, tier_options
from tieredstore.cli.output.rows import Output
from tieredstore.cli.output.tables import STAGES_TABLE, Tables

_TABLES: Tables = {
    **STAGES_TABLE,
    "queues": ("queue", "from_offset", "until_offset", "rows"),
    "gaps": ("queue", "from_offset", "until_offset"),
}
_TOPICS_TABLE: Tables = {"tables": ("topic", "target", "sequence", "rows", "files")}


@click.command("export")
@tier_options(has_defaults=True)
@topics_option
@click.option(
    "--format",
    type=click.Choice(["parquet", "iceberg", "delta"]),
    required=True,
    help="What the target is.",
)
@click.option(
    "--to",
    metavar="URL",
    help="Folder of the target: a path, file:///dir, s3://…; with {topic}, one a topic.",
)
@click.option("--catalog", metavar="NAME", help="Iceberg: a catalog as pyiceberg configures it.")
@click.option(
    "--table",
    metavar="NS.NAME",
    help="Iceberg: the table, or with {topic} one a topic; made where it is missing.",
)
@click.option(
    "--target-option",
    "target_options",
    metavar="KEY=VALUE",
    multiple=True,
    help="For the target's file system or catalog; repeatable.",
)
@click.option("--columns", metavar="C,…", help="Only these columns.")
@click.option("--properties", is_flag=True, help="The properties as well, as a map.")
@click.option("--queue", "queues", metavar="Q", type=click.IntRange(min=0), multiple=True,
              help="Only this queue; repeatable.")  # fmt: skip
@click.option("--from-offset", metavar="N", type=click.IntRange(min=0),
              help="First queue offset of a queue that the target does not have.")  # fmt: skip
@click.option(
    "--until-offset", metavar="N", type=click.IntRange(min=0), help="Queue offset behind the last."
)
@time_options
@click.option(
    "--target-file-bytes",
    metavar="N",
    type=int,
    default=128 << 20,
    show_default=True,
    help="Size of a data file, about.",
)
@click.option("--zstd-level", metavar="N", type=int, default=3, show_default=True,
              help="Compression of the data files.")  # fmt: skip
@click.option(
    "--corrupt-records",
    "on_corrupt",
    type=click.Choice(["fail", "skip"]),
    default="fail",
    show_default=True,
    help="What a damaged message does.",
)
@click.option(
    "--accept",
    type=click.Choice(["gap", "remade", "moved", "topics"]),
    multiple=True,
    help="Go on past this; repeatable (docs/jobs.md).",
)
@click.option(
    "--partition-by",
    metavar="P,…",
    default="topic,day",
    show_default=True,
    help="Of topic, day, hour, bucket(N), bucket(N, column); or none.",
)
@click.option(
    "--body-schema",
    metavar="DDL|@FILE",
    help="Members of JSON bodies that become columns: 'id BIGINT, at TIMESTAMP, …'.",
)
@click.option("--body-prefix", metavar="TEXT", default="", help="In front of their names.")
@click.option(
    "--unfit-bodies",
    "on_unfit",
    type=click.Choice(["null", "fail"]),
    default="null",
    show_default=True,
    help="What a body does that does not fit the schema.",
)
@click.option("--dedup", is_flag=True, help="Of messages with one UNIQ_KEY only the first.")
@click.option(
    "--dedup-window",
    metavar="TIME",
    help="With --dedup: how much later a duplicate is stored at most: 30s, 2h, 1d. [default: 10m]",
)
@click.option("--follow", is_flag=True, help="Go on as the tier grows, until SIGINT or SIGTERM.")
@click.option(
    "--every",
    metavar="TIME",
    help="Follow with an export this often: 30s, 10m, 2h, 1d. [default: 60s]",
)
@job_options
@output_option
def command(
    tier: TierOptions,
    columns: str | None,
    target_options: tuple[str, ...],
    body_schema: str | None,
    follow: bool,
    every: str | None,
    job: JobOptions,
    out: Output,
    **request: Any,
) -> None:
    """Write what the target does not have yet, each message exactly once.

    A first run writes all messages that are chosen, a later one those that came since: the target
    keeps up to where each queue was exported. A run that was killed is run again.
    """
    from tieredstore import jobs
    from tieredstore.cli.composition import locate_tier

    location = locate_tier(tier)
    with task_keywords("export", job) as how:
        report = jobs.export(
            location,
            body_schema=_schema_of(body_schema),
            follow=follow,
            every=every,
            columns=None if columns is None else tuple(filter(None, columns.split(","))),
            target_options=dict(split_pair("--target-option", text) for text in target_options),
            **request,
            **how,
        )
    job.write_report(report)
    out.record(report, _TABLES | (_TOPICS_TABLE if "tables" in report else {}))


def _schema_of(given: str | None) -> str | Path | None:
    """A text, or the file of `@FILE`."""
    return Path(given[1:]) if given is not None and given.startswith("@") else given
