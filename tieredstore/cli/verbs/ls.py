"""`tieredstore ls`: the queues of a tier."""

from __future__ import annotations

from pathlib import Path

import click

from tieredstore.cli.options.tier import TierOptions, output_option, tier_options
from tieredstore.cli.output.rows import Output, OutputFormat


@click.command("ls")
@tier_options
@click.option("--topic", metavar="T", help="Only this topic.")
@output_option
def command(
    tier: str,
    state: Path | None,
    config: Path | None,
    cluster: str | None,
    broker: str | None,
    topic: str | None,
    output: str,
) -> None:
    """List the queues of a tier: offsets, messages, bytes, store times."""
    from tieredstore.cli.composition import open_tier
    from tieredstore.cli.output.queues import QUEUE_COLUMNS, queue_rows

    with open_tier(TierOptions(tier, state, config, cluster, broker)) as opened:
        queues = opened.catalogue().select(topic, broker=opened.broker)
        Output(OutputFormat(output)).rows(QUEUE_COLUMNS, queue_rows(opened.provider, queues))
