"""`tieredstore tier reset`."""

from __future__ import annotations

import click

from tieredstore.cli.options.operating import operating_options, queue_option, show
from tieredstore.cli.options.tier import TierOptions
from tieredstore.cli.output.rows import Output


@click.command("reset")
@click.argument("topic")
@queue_option
@click.option(
    "--to",
    "to_offset",
    metavar="N",
    type=click.IntRange(0),
    help="Queue offset where it goes on; where it ended by default. Needs --queue.",
)
@operating_options
def command(
    topic: str,
    queue_id: int | None,
    to_offset: int | None,
    tier: TierOptions,
    yes: bool,
    take_over: bool,
    out: Output,
) -> int:
    """Empty the queues of TOPIC in the tier, or one of them, whether they can be opened or not.

    They go on where they ended. With --to a queue goes on there: what the local store has from that
    offset on is uploaded again.
    """
    from tieredstore.cli.composition import locate_tier
    from tieredstore.jobs.operating import reset_queues

    report = reset_queues(
        locate_tier(tier),
        topic,
        queue_id=queue_id,
        to_offset=to_offset,
        yes=yes,
        take_over=take_over,
    )
    return show(report, out)
