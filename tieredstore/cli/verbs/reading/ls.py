"""`tieredstore ls`: the queues of a tier."""

from __future__ import annotations

import click

from tieredstore.cli.options.messages import topic_option
from tieredstore.cli.options.output import output_option
from tieredstore.cli.options.tier import TierOptions, tier_options
from tieredstore.cli.output.rows import Output


@click.command("ls")
@tier_options(has_defaults=True)
@topic_option(help="Only this topic.")
@output_option
def command(
    tier: TierOptions,
    topic: str | None,
    out: Output,
) -> None:
    """List the queues of a tier: offsets, messages, bytes, store times."""
    from tieredstore.cli.composition import open_tier
    from tieredstore.cli.output.queues import QUEUE_COLUMNS, queue_rows

    with open_tier(tier) as opened:
        queues = opened.catalogue().select(topic, broker=opened.broker)
        out.rows(QUEUE_COLUMNS, queue_rows(opened.provider, queues), total=len(queues))
