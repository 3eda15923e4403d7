"""`tieredstore tier adopt`."""

from __future__ import annotations

from pathlib import Path

import click

from tieredstore.cli.options.operating import show
from tieredstore.cli.options.output import output_option
from tieredstore.cli.options.tier import PLACE
from tieredstore.cli.output.rows import Output

TABLES = {"queues": ("topic", "queue_id", "end_offset"), "problems": ("path", "problem")}
_PATH = click.Path(path_type=Path)


@click.command("adopt")
@click.option("--tier", required=True, metavar="URL", help=f"Where the tier is: {PLACE}.")
@click.option(
    "--state",
    required=True,
    metavar="DIR",
    type=_PATH,
    help="The broker's storePathRootDir, new but for the tier's metadata.",
)
@click.option(
    "--config", required=True, metavar="FILE", type=_PATH, help="The broker's broker.conf."
)
@click.option("--cluster", metavar="NAME", help="Cluster name (brokerClusterName).")
@click.option("--broker", metavar="NAME", help="Broker name (brokerName).")
@click.option("--yes", is_flag=True, help="Do it; without this it is only said.")
@output_option
def command(
    tier: str,
    state: Path,
    config: Path,
    cluster: str | None,
    broker: str | None,
    yes: bool,
    out: Output,
) -> int:
    """Let a broker whose disk was lost go on at the tier's offsets.

    Writes the first file of its commit log, behind all that this broker ever wrote. It is what a
    start with tieredStoreAdopt=true does.
    """
    from tieredstore.cli.composition import check_target
    from tieredstore.cli.options.tier import TierOptions
    from tieredstore.jobs.operating import adopt_tier

    check_target(TierOptions(tier))
    report = adopt_tier(tier, state, config, cluster=cluster, broker=broker, yes=yes)
    return show(report, out, TABLES)
