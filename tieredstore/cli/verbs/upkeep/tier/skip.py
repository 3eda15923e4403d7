"""`tieredstore tier skip`."""

from __future__ import annotations

import click

from tieredstore.cli.options.operating import operating_options, show
from tieredstore.cli.options.tier import TierOptions
from tieredstore.cli.output.rows import Output


@click.command("skip")
@click.argument("topic")
@click.option("--queue", "queue_id", metavar="Q", type=click.IntRange(0), required=True)
@click.option(
    "--to",
    "to_offset",
    metavar="N",
    type=click.IntRange(0),
    required=True,
    help="Queue offset of the first message that is uploaded again.",
)
@operating_options
def command(
    topic: str,
    queue_id: int,
    to_offset: int,
    tier: TierOptions,
    yes: bool,
    take_over: bool,
    out: Output,
) -> int:
    """Let a queue of TOPIC go on at a later offset.

    What is between its end and that is never uploaded: readers pass it as a hole. For messages that
    cannot be read in the local store, or that shall not be kept. Not behind the local store's end:
    the upload of that queue would wait until it is there.
    """
    from tieredstore.cli.composition import locate_tier
    from tieredstore.jobs.operating import skip_messages

    report = skip_messages(
        locate_tier(tier), topic, queue_id, to_offset, yes=yes, take_over=take_over
    )
    return show(report, out)
