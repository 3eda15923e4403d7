"""`tieredstore report`: what a tier holds and costs, as a page and as Parquet tables."""

from __future__ import annotations

from pathlib import Path

import click

from tieredstore.cli.options.job import JobOptions, job_options, task_keywords
from tieredstore.cli.options.output import output_option
from tieredstore.cli.options.prices import TIER_PRICES, price_option
from tieredstore.cli.options.tier import TierOptions, tier_options
from tieredstore.cli.output.rows import Output
from tieredstore.cli.output.tables import STAGES_TABLE


@click.command("report")
@tier_options(has_defaults=True)
@click.option(
    "--to",
    metavar="DIR",
    required=True,
    type=click.Path(path_type=Path),
    help="Folder for report.html and the tables; an earlier report is replaced.",
)
@click.option(
    "--sample",
    metavar="PERCENT",
    type=click.IntRange(1, 100),
    default=100,
    show_default=True,
    help="Read the records of so many of a hundred blocks of messages, for keys and tags.",
)
@click.option(
    "--no-keys", is_flag=True, help="Read no records: sizes, ages and costs without keys and tags."
)
@price_option(TIER_PRICES)
@click.option("--as-of", metavar="TIME", help="Tell ages from then instead of from now.")
@output_option
@job_options
def command(
    tier: TierOptions,
    to: Path,
    sample: int,
    no_keys: bool,
    prices: dict[str, float],
    as_of: str | None,
    out: Output,
    job: JobOptions,
) -> None:
    """Sizes, ages, key skew, fragmentation and cost of a tier by topic and queue.

    Writes a page with plots and Parquet tables; prints the totals.
    """
    from tieredstore import jobs
    from tieredstore.cli.composition import locate_tier

    location = locate_tier(tier)
    with task_keywords("report", job) as how:
        report = jobs.report(
            location, to, keys_percent=0 if no_keys else sample, prices=prices, as_of=as_of, **how
        )
    job.write_report(report)
    out.record(report, STAGES_TABLE)
