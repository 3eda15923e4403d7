"""`tieredstore tier delete`."""

from __future__ import annotations

import click

from tieredstore.cli.options.operating import operating_options, show
from tieredstore.cli.options.tier import TierOptions
from tieredstore.cli.output.rows import Output


@click.command("delete")
@click.argument("topic")
@operating_options
def command(
    topic: str,
    tier: TierOptions,
    yes: bool,
    take_over: bool,
    out: Output,
) -> int:
    """Delete TOPIC from the tier, also what of it cannot be opened.

    For a topic that nobody uploads any more; one that the local store still has is refused.
    `topic delete` deletes a topic in a running broker and in its tier; `tier reset` empties queues.
    """
    from tieredstore.cli.composition import locate_tier
    from tieredstore.jobs.operating import delete_topic

    report = delete_topic(locate_tier(tier), topic, yes=yes, take_over=take_over)
    return show(report, out)
