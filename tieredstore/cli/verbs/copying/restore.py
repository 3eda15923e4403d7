"""`tieredstore restore`."""

from __future__ import annotations

from pathlib import Path

import click

from tieredstore.cli.exits import ExitCode
from tieredstore.cli.options.output import output_option
from tieredstore.cli.options.tier import TierOptions, take_over_option, tier_options
from tieredstore.cli.output.rows import Output
from tieredstore.cli.output.tables import STAGES_TABLE

TABLES = {
    **STAGES_TABLE,
    "queue_ends": ("topic", "queue_id", "end_offset"),
    "offsets_lowered": ("group", "topic", "queue_id", "offset", "to_offset"),
    "findings": ("severity", "kind", "segment", "message", "found"),
    "problems": ("path", "problem"),
}


@click.command("restore")
@tier_options(
    state=None,
    config="The broker's broker.conf; without it the store gets the shape that it had.",
    broker="Broker name (brokerName), where the tier has several.",
)
@click.option(
    "--store",
    required=True,
    metavar="DIR",
    type=click.Path(path_type=Path),
    help="The store to make (storePathRootDir): an empty directory, or none yet.",
)
@take_over_option
@output_option
def command(tier: TierOptions, store: Path, take_over: bool, out: Output) -> int:
    """Make a broker's store directory from its tier, when its disk was lost.

    Topics, groups and consumer offsets are those of the last backup in the tier; messages stay in
    the tier, and queues go on where they end there. Interrupted anywhere, it can be run again.
    """
    from tieredstore import jobs
    from tieredstore.cli.composition import locate_tier

    report = jobs.restore(locate_tier(tier), store, config=tier.config, take_over=take_over)
    out.record(report, TABLES)
    bad = report["damage"] or report["problems"] or report["damaged_backups"]
    return int(ExitCode.DAMAGE if bad else ExitCode.OK)
