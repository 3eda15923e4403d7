"""`tieredstore health`: how a tier is, with an exit code for probes."""

from __future__ import annotations

import click

from tieredstore.cli.exits import ExitCode
from tieredstore.cli.options.output import output_option
from tieredstore.cli.options.tier import TierOptions, tier_options
from tieredstore.cli.output.rows import Output
from tieredstore.cli.output.tables import USAGE_TABLE


@click.command("health")
@tier_options(
    state="The state directory of the tier's writer, or a broker's storePathRootDir.",
    needs_state=True,
    has_defaults=True,
)
@click.option(
    "--max-age", metavar="TIME", help="The newest message is younger than this: 30s, 10m, 2h, 1d."
)
@click.option("--needs-writer", is_flag=True, help="A process of this machine writes to the tier.")
@click.option("--list", "lists", is_flag=True, help="Compare the metadata with what the tier has.")
@output_option
def command(
    tier: TierOptions, max_age: str | None, needs_writer: bool, lists: bool, out: Output
) -> int:
    """Say how a tier is, as a probe wants to know it: the exit code tells it.

    Reads the state directory, and asks the tier for as little as shows that it answers. Writes
    nothing. A broker says how it is itself under /health.
    """
    from tieredstore.cli.composition import locate_tier
    from tieredstore.jobs.operating import Health, check_health

    report = check_health(
        locate_tier(tier),
        max_age_ms=None if max_age is None else _parse_age(max_age),
        needs_writer=needs_writer,
        lists=lists,
    )
    out.record(report, USAGE_TABLE)
    codes = {
        Health.UP: ExitCode.OK,
        Health.DEGRADED: ExitCode.DEGRADED,
        Health.DAMAGED: ExitCode.DAMAGE,
    }
    return int(codes[Health(str(report["status"]))])


def _parse_age(text: str) -> int:
    """Milliseconds of `30s`, `10m`, `2h`, `1d`."""
    from tieredstore.errors import Invalid
    from tieredstore.scan.times import parse_time

    try:
        return -parse_time(f"-{text.strip()}", 0)
    except Invalid:
        raise click.UsageError(
            f"--max-age {text!r}: expected a time such as 30s, 10m, 2h or 1d"
        ) from None
