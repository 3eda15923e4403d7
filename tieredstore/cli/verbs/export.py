"""`tieredstore export`: messages of a tier as Parquet, Iceberg or Delta."""

from __future__ import annotations

import fnmatch
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tieredstore.cli.options.job import JobOptions, job_options, job_run, write_report
from tieredstore.cli.options.tier import (
    TierOptions,
    output_option,
    tier_options,
    time_options,
    topics_option,
)
from tieredstore.cli.output.rows import Output, OutputFormat
from tieredstore.clock import SYSTEM_CLOCK
from tieredstore.errors import Invalid
from tieredstore.scan.times import parse_time

if TYPE_CHECKING:
    from tieredstore.scan.tasks import Selection

_TABLES = {
    "stages": ("stage", "tasks", "resumed", "size_bytes", "seconds"),
    "queues": ("queue", "from_offset", "until_offset", "rows"),
    "gaps": ("queue", "from_offset", "until_offset"),
}


@click.command("export")
@tier_options
@topics_option
@click.option(
    "--format",
    "form",
    type=click.Choice(["parquet", "iceberg", "delta"]),
    required=True,
    help="What the target is.",
)
@click.option("--to", metavar="URL", help="Folder of the target: a path, file:///dir, s3://….")
@click.option("--catalog", metavar="NAME", help="Iceberg: a catalog as pyiceberg configures it.")
@click.option("--table", metavar="NS.NAME", help="Iceberg: the table; made where it is missing.")
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
@job_options
@output_option
def command(
    tier: str,
    state: Path | None,
    config: Path | None,
    cluster: str | None,
    broker: str | None,
    topics: list[str],
    form: str,
    to: str | None,
    catalog: str | None,
    table: str | None,
    target_options: tuple[str, ...],
    columns: str | None,
    properties: bool,
    queues: tuple[int, ...],
    from_offset: int | None,
    until_offset: int | None,
    since: str | None,
    until: str | None,
    target_file_bytes: int,
    zstd_level: int,
    corrupt_records: str,
    accept: tuple[str, ...],
    output: str,
    **job: Any,
) -> None:
    """Write what the target does not have yet, each message exactly once.

    A first run writes all messages that are chosen, a later one those that came since: the target
    keeps up to where each queue was exported. A run that was killed is run again.
    """
    _require_arrow()
    from tieredstore.cli.composition import tier_source
    from tieredstore.jobs.exporting import Accept, ExportRequest, Format, OnCorrupt, export
    from tieredstore.tier_url import shown_url

    now = SYSTEM_CLOCK.now_ms()
    request = ExportRequest(
        Format(form),
        to=to,
        catalog=catalog,
        table=table,
        selection=_selection(
            topics,
            queues,
            from_offset,
            until_offset,
            None if since is None else parse_time(since, now),
            None if until is None else parse_time(until, now),
        ),
        columns=None if columns is None else tuple(filter(None, columns.split(","))),
        properties=properties,
        target_file_bytes=target_file_bytes,
        zstd_level=zstd_level,
        on_corrupt=OnCorrupt(corrupt_records),
        accept=frozenset(map(Accept, accept)),
        target_options=dict(map(_pair, target_options)),
    )
    source = tier_source(TierOptions(tier, state, config, cluster, broker))
    arguments = {
        "tier": shown_url(tier),
        "cluster": source.config.broker_cluster_name,
        "broker": source.broker,
        **request.identity(),
        # as they were given: a relative time is another one in the next run
        "since": since,
        "until": until,
    }
    del arguments["since_ms"], arguments["until_ms"]
    options = JobOptions(**job)
    with job_run("export", options, arguments) as run:
        found = export(run, source, request)
    write_report(options, found)
    Output(OutputFormat(output)).record(found, _TABLES)


def _selection(
    topics: list[str],
    queues: tuple[int, ...],
    from_offset: int | None,
    until_offset: int | None,
    since_ms: int | None,
    until_ms: int | None,
) -> Selection:
    """Names of topics have to be there, shell patterns may match none."""
    from tieredstore.scan.tasks import Selection

    names: tuple[str, ...] | None = tuple(topics) or None
    pattern: str | None = None
    if any(re.search(r"[*?\[]", topic) for topic in topics):
        names, pattern = None, "|".join(fnmatch.translate(topic) for topic in topics)
    return Selection(
        topics=names,
        topic_pattern=pattern,
        queue_ids=queues or None,
        from_offset=from_offset,
        until_offset=until_offset,
        since_ms=since_ms,
        until_ms=until_ms,
    )


def _pair(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise Invalid(f"--target-option {key!r}: expected KEY=VALUE")
    return key, value


def _require_arrow() -> None:
    try:
        import pyarrow.parquet  # noqa: F401
    except ImportError as error:
        raise Invalid(f"export needs pyarrow ({error}): pip install 'tieredstore[jobs]'") from None
