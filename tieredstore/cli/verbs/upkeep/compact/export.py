"""`tieredstore compact export`: small files of a plain Parquet target."""

from __future__ import annotations

from typing import Any

import click

from tieredstore.cli.options.job import JobOptions, job_options, task_keywords
from tieredstore.cli.options.messages import split_pair
from tieredstore.cli.options.output import output_option
from tieredstore.cli.output.rows import Output
from tieredstore.cli.output.tables import STAGES_TABLE


@click.command("export")
@click.argument("to", metavar="TARGET")
@click.option(
    "--target-file-bytes",
    metavar="N",
    type=int,
    default=128 << 20,
    show_default=True,
    help="Files below it are merged, up to about as much.",
)
@click.option(
    "--min-files",
    metavar="N",
    type=int,
    default=2,
    show_default=True,
    help="Leave fewer that follow each other alone.",
)
@click.option("--zstd-level", metavar="N", type=int, default=3, show_default=True,
              help="Compression of the merged files.")  # fmt: skip
@click.option(
    "--target-option",
    "target_options",
    metavar="KEY=VALUE",
    multiple=True,
    help="For the target's file system; repeatable.",
)
@job_options
@output_option
def command(
    to: str, target_options: tuple[str, ...], job: JobOptions, out: Output, **request: Any
) -> None:
    """Merge small files of TARGET, a folder of plain Parquet that `export` wrote.

    Rows stay, and stay in order. Exports into TARGET may run meanwhile. A run that was killed is
    run again. Delta and Iceberg tables have their own means.
    """
    from tieredstore import jobs

    with task_keywords("compact-export", job) as how:
        report = jobs.compact_export(
            to,
            target_options=dict(split_pair("--target-option", text) for text in target_options),
            **request,
            **how,
        )
    job.write_report(report)
    out.record(report, STAGES_TABLE)
