"""`tieredstore report`: what a tier holds and costs, as a page and as Parquet tables."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import click

from tieredstore.cli.options.job import JobOptions, job_options
from tieredstore.cli.options.tier import TierOptions, output_option, tier_options
from tieredstore.cli.output.rows import Output, OutputFormat

_PRICES = ("write", "list", "read", "delete", "transfer", "storage")


@click.command("report")
@tier_options
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
@click.option(
    "--price",
    "prices",
    metavar="NAME=USD",
    multiple=True,
    help=f"US dollars a million requests ({', '.join(_PRICES[:4])}), a GiB read (transfer), a "
    "GiB-month (storage); repeatable.",
)
@click.option("--as-of", metavar="TIME", help="Tell ages from then instead of from now.")
@output_option
@job_options
def command(
    tier: str,
    state: Path | None,
    config: Path | None,
    cluster: str | None,
    broker: str | None,
    to: Path,
    sample: int,
    no_keys: bool,
    prices: tuple[str, ...],
    as_of: str | None,
    output: str,
    **job: Any,
) -> None:
    """Sizes, ages, key skew, fragmentation and cost of a tier by topic and queue.

    Writes a page with plots and Parquet tables; prints the totals.
    """
    from tieredstore.cli.composition import tier_identity, tier_source
    from tieredstore.cli.options.job import job_run, write_report
    from tieredstore.jobs.reporting.job import ReportOptions, report
    from tieredstore.scan.times import parse_time

    source = tier_source(TierOptions(tier, state, config, cluster, broker))
    options = ReportOptions(
        keys_percent=0 if no_keys else sample,
        prices=dict(map(_price, prices)),
        now_ms=None if as_of is None else parse_time(as_of, int(time.time() * 1000)),
    )
    arguments: dict[str, object] = {
        **tier_identity(source),
        "to": str(to.absolute()),
        "keys_percent": options.keys_percent,
        "prices": dict(options.prices),
        # A time such as -2h is another one when the job goes on.
        "as_of": as_of,
    }
    job_settings = JobOptions(**job)
    with job_run("report", job_settings, arguments) as run:
        found = run.report(report(run, source, to, options))
        write_report(job_settings, found)
    Output(OutputFormat(output)).record(found, {"stages": ("stage", "tasks", "resumed", "seconds")})


def _price(given: str) -> tuple[str, float]:
    name, equals, value = given.partition("=")
    try:
        price = float(value)
    except ValueError:
        price = -1.0
    if name not in _PRICES or not equals or not 0 <= price < float("inf"):
        raise click.UsageError(
            f"--price {given!r}: expected NAME=USD with a number of at least 0; names: "
            + ", ".join(_PRICES)
        )
    return name, price
